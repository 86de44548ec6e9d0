"""Kernel locks, for the few files that are read, changed and replaced: keyrings and the like.

Sending and reading need no lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent_bus.errors import Busy


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
