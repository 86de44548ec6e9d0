"""What `files` does with an open descriptor: list, write, flush, and name what failed."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Naming:
    """Puts the full path into an OSError that passes. A class: it stands in every step."""

    __slots__ = ("_folder", "_name")

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            # Without a name, and thus without a slash at its end: the folder itself.
            error.filename = os.path.join(self._folder, self._name) if self._name else self._folder
            error.filename2 = None


def list_names(folder: int) -> list[str]:
    """All names in an open folder, also while other threads list it. Raises OSError.

    A descriptor has one place in a listing, and each who reads on moves it for all: so it is
    opened anew.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it; a short write goes on. Raises OSError."""
    written = 0
    while written < len(data):  # a short write is legal, on a nearly full disk it is usual
        written += os.write(fd, memoryview(data)[written:])


def dress(name: str | Path, folder: int | None, mode: int, modified: int) -> None:
    """Give a new file its mode, and its time of change (nanoseconds; 0 leaves it).

    Where the system cannot set a mode without following links, the file stays as it was made:
    its owner's alone.
    """
    if mode != 0o600:
        with contextlib.suppress(OSError, NotImplementedError, ValueError):
            os.chmod(name, mode, dir_fd=folder, follow_symlinks=False)
    if modified and folder is None:
        os.utime(name, ns=(modified, modified))
    elif modified:
        os.utime(name, ns=(modified, modified), dir_fd=folder, follow_symlinks=False)


def is_torn(fd: int) -> bool:
    """Whether a file of lines ends within one, as a crash or a full disk leaves it."""
    size = os.lseek(fd, 0, os.SEEK_END)
    if size == 0:
        return False
    os.lseek(fd, -1, os.SEEK_END)
    return os.read(fd, 1) != b"\n"


def flush(fd: int) -> None:
    """Bring a file or folder to disk. Raises OSError; never call it again on it then."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if sys.platform == "darwin" and full is not None:
        # fsync on macOS stops at the drive's cache. Some file systems refuse the stronger form.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)
