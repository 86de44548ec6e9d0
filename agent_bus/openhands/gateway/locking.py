"""The lock of a child, a worktree or a mirror: `locks.locked`, in words that name no path.

Whoever hears that it could not be had may be a child.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent_bus.errors import AgentBusError, Busy
from agent_bus.locks import locked


@contextmanager
def held(
    path: Path, seconds: float, what: str, *, busy: str, failed: type[AgentBusError]
) -> Iterator[None]:
    """Hold a lock on `what`, waiting for it for so long.

    Raises Busy ("<what> is <busy> by another process"), and `failed` for what the system
    refuses; an error of the body stays as it is.
    """
    lock = ExitStack()
    try:
        lock.enter_context(locked(path, seconds))
    except Busy:
        raise Busy(f"{what} is {busy} by another process: try again") from None
    except OSError as error:
        raise failed(f"{what} cannot be locked ({error.strerror})") from None
    try:
        yield
    finally:
        try:
            lock.close()
        except OSError as error:
            raise failed(f"{what} stays locked ({error.strerror})") from None
