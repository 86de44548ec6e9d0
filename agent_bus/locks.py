"""Kernel locks: on files that are changed and replaced (keyrings), and as a sign of life.

Sending and reading need no lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent_bus.errors import Busy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: Path, timeout: float = 10.0) -> Iterator[None]:
    """Hold a kernel lock on a permanent file, for files that are read, changed and replaced.

    Raises Busy, naming the lock file if it cannot be had in `timeout` seconds.
    """
    # Light verbs never come here, so they do not pay for the import.
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=timeout, mode=0o600):
            yield
    except Timeout:
        raise Busy(f"{path} is locked by another process: try again") from None


def hold(fd: int) -> None:
    """Lock an open file until its descriptor is closed, however the process ends."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(fd: int) -> bool:
    """Whether another descriptor of this file is held."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
