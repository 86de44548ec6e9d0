"""An HTTP server on sockets of one's own, for the front ends: quiet in its talk and at its end.

It writes nothing at all, no request and no error, since either may hold what nobody else is
to see. A signal ends it as if it had been asked to. A connection on which no whole request
head arrives in time is closed: otherwise a few of them would keep everybody else out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long a client may take for the head of a request."""

_GRACE = 3
_HEAD_LIMIT = 16 * 1024
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError."""
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


class Server(uvicorn.Server):
    """Serves an application. `ending` is called before it waits for open requests to end."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        connections: int,
        ending: Callable[[], None] = lambda: None,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_protocol(head_seconds),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                # Its errors come with tracebacks, which hold what was worked on.
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=connections,
                h11_max_incomplete_event_size=_HEAD_LIMIT,
                timeout_graceful_shutdown=_GRACE,
            )
        )
        self._ending = ending

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

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002
        """What a signal does: no more than this, since it may come at any instruction."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of what would last for ever, and then of the rest."""
        self._ending()
        await super().shutdown(sockets)


def _protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, with a limit on how long a head may take."""

    class Protocol(_TimedProtocol):
        limit = head_seconds

    return Protocol


class _TimedProtocol(H11Protocol):
    """uvicorn has no time limit before the first request, nor for what follows a half one."""

    limit: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop()
        # It may find the next request already.
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(self.limit, self._expired)

    def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expired(self) -> None:
        answering: Any = self.cycle
        if answering is not None and not answering.response_complete:
            return  # a new time begins with the end of the answer
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
        self.transport.close()
