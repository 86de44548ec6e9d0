"""The HTTP side of a gateway in this process: it takes signals, and nothing acts on them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from desk import GUARD, Desk, until

from agent_bus.httpd import Server
from agent_bus.server.http.app import Door
from agent_bus.server.http.serve import listen


@contextlib.contextmanager
def open_door(desk: Desk, port: int) -> Iterator[list[str]]:
    """Listen on a port of loopback; gives what it warns of."""
    sockets = listen("127.0.0.1", port)
    gateway = desk.gateway()
    warnings: list[str] = []
    running: list[Server] = []

    async def serve() -> None:
        door = Door(
            gateway,
            hosts=["127.0.0.1"],
            session_key=desk.settings.api_key,
            warn=warnings.append,
        )
        server = Server(door.app, connections=64)
        async with door.running():
            running.append(server)
            await server.serve(sockets)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        until("it listens", lambda: running and running[0].started)
        yield warnings
    finally:
        for server in running:
            server.should_exit = True
        thread.join(GUARD)
        for each in sockets:
            each.close()
