"""The server: sockets on loopback, the life of the process, quiet ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from agent_bus.bus import Bus
from agent_bus.errors import AgentBusError, UsageError
from agent_bus.web.app import make_app
from agent_bus.web.door import Door
from agent_bus.web.live import Live

_TRIES = 20
_CONNECTIONS = 64
_GRACE = 3
_HEAD_LIMIT = 16 * 1024
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

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
            server = _Server(make_app(bus, door, live, warn=warn), live)
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
            first = _bind(socket.AF_INET, "127.0.0.1", port)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise UsageError(f"port {port} cannot be used ({why}): give another --port") from None
        try:
            return [first, _bind(socket.AF_INET6, "::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                return [first]  # a machine without IPv6
            first.close()
    raise UsageError(f"port {port or 'after port'} is taken on ::1: give another --port")


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # A server that has just ended must not keep its port busy.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        made.listen()
    except BaseException:
        made.close()
        raise
    return made


class _Server(uvicorn.Server):
    """Says nothing, and lets go of open streams when it is to end."""

    def __init__(self, app: ASGIApp, live: Live) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                # Its errors come with tracebacks, which hold what was worked on.
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                h11_max_incomplete_event_size=_HEAD_LIMIT,
                timeout_graceful_shutdown=_GRACE,
            )
        )
        self._live = live

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """End at the first signal, at once at the second, and never as if killed by it."""
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Instead of uvicorn's own, which raises the signal again at the end."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """What a signal does: no more than this, since it may come at any instruction."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of the open streams, which would last for ever, and then of the rest."""
        self._live.end()
        await super().shutdown(sockets)
