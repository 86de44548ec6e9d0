"""The wire: the host's two pipes, and writing to one of them without ever waiting.

stdout carries the protocol alone. `take_over` moves the wire to private, close-on-exec
descriptors; descriptor 0 becomes the null device and 1 becomes stderr, so that a `print`,
or a child's output, lands in the host's log and never between two messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable

from agent_bus.errors import ConfigurationError

# Bytes that a client may leave unread before it counts as gone.
_UNREAD_LIMIT = 64 * 1024 * 1024


def take_over() -> tuple[int, int] | None:
    """Move the wire away from 0 and 1: private descriptors for reading and for writing.

    None where stdin cannot be watched; nothing is changed then. Raises ConfigurationError.
    """
    # None: closed at the start. By now, something else may have got the number.
    if sys.stdin is None or sys.stdout is None:
        raise ConfigurationError(
            "stdin or stdout is closed: let an MCP host start this (see agent-bus connect)"
        )
    if sys.platform == "win32" or not _is_watchable(0):
        return None
    import fcntl

    source, sink = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null if sys.stderr is None else 2, 1)
    os.close(null)
    os.set_blocking(source, False)
    # A terminal is shared with the shell, which does not expect this of it.
    os.set_blocking(sink, not _is_watchable(sink))
    return source, sink


def _is_watchable(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def has_hung_up(fd: int) -> bool:
    """Whether the other end of a pipe or socket is gone, without reading or writing."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(state & (select.POLLHUP | select.POLLERR) for _, state in poll.poll(0))


class Writer:
    """Writes without ever waiting; what the client does not take yet is kept."""

    def __init__(self, fd: int, lost: Callable[[], None]) -> None:
        self._fd = fd
        self._lost = lost
        self._rest = bytearray()
        self._empty = asyncio.Event()
        self._empty.set()

    def write(self, data: bytes) -> None:
        """Append to the output. Calls `lost` once the client cannot or does not read."""
        self._rest += data
        if self._empty.is_set():
            self._empty.clear()
            self._flush()
        if len(self._rest) > _UNREAD_LIMIT:
            self._lost()

    async def drain(self, seconds: float) -> None:
        """Wait until all is written, for at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), seconds)

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._rest:
                del self._rest[: os.write(self._fd, self._rest)]
        except BlockingIOError:
            loop.add_writer(self._fd, self._flush)
            return
        except OSError:  # EPIPE: nobody will ever read this
            self._rest.clear()
            self._lost()
        loop.remove_writer(self._fd)
        self._empty.set()
