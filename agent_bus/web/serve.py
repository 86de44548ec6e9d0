"""The server: sockets on loopback, the life of the process, quiet ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable

from agent_bus.bus import Bus
from agent_bus.errors import AgentBusError, UsageError
from agent_bus.httpd import Server, bind
from agent_bus.web.app import make_app
from agent_bus.web.door import Door
from agent_bus.web.live import Live

_TRIES = 20
_CONNECTIONS = 64

Ready = Callable[[Door], contextlib.AbstractContextManager[None]]


def serve(bus: Bus, port: int, *, ready: Ready, warn: Callable[[str], None]) -> None:
    """Serve the pages until SIGINT, SIGTERM or SIGHUP. Port 0 takes a free one.

    `ready` is entered when a browser can come, and left at the end. Raises UsageError for a
    port that cannot be used, and AgentBusError.
    """
    sockets = listen(port)
    try:
        _attend(bus, warn)
        door = Door(sockets[0].getsockname()[1])
        with Live(bus, warn=warn) as live:
            app = make_app(bus, door, live, warn=warn)
            # The open streams would last for ever.
            server = Server(app, connections=_CONNECTIONS, ending=live.end)
            with server.ended_by_signals(), ready(door):
                asyncio.run(server.serve(sockets))
    finally:
        for each in sockets:
            each.close()


def _attend(bus: Bus, warn: Callable[[str], None]) -> None:
    try:
        bus.attend()
    except AgentBusError as error:
        warn(f"not all was done that is done at a start: {error}")


def listen(port: int) -> list[socket.socket]:
    """Sockets on both loopback addresses, under one number. Raises UsageError.

    A browser may try ::1 first, and whoever listened there would be given the token.
    """
    for _ in range(_TRIES if port == 0 else 1):
        try:
            first = bind(socket.AF_INET, "127.0.0.1", port)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise UsageError(f"port {port} cannot be used ({why}): give another --port") from None
        try:
            return [first, bind(socket.AF_INET6, "::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                return [first]  # a machine without IPv6
            first.close()
    raise UsageError(f"port {port or 'after port'} is taken on ::1: give another --port")
