"""What is let in from disk: whose a file or folder may be, who else may touch it, how large."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent_bus.errors import UnsafePermissions

# Windows has no owners of this kind.
_geteuid = getattr(os, "geteuid", None)
_CHUNK = 64 * 1024
"""Bytes of one read: room for the whole limit would cost more than a small file."""


class UnfitFile(Exception):
    """A file is not one of ours: no regular file, a link, foreign, or too large."""


def check_access(status: os.stat_result, path: str | Path, forbidden: int) -> None:
    """Refuse what belongs to another user or has one of the forbidden mode bits.

    Raises UnsafePermissions with the command that mends it.
    """
    if _geteuid is None:
        return
    if status.st_uid != _geteuid():
        raise UnsafePermissions(
            f"{path} belongs to user {status.st_uid}, this process is user {_geteuid()}: "
            "a bus and its keys serve one Unix user"
        )
    if status.st_mode & forbidden:
        wanted = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise UnsafePermissions(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"chmod {wanted} {path}"
        )


def check_regular(status: os.stat_result, limit: int) -> None:
    """Refuse what is no regular file of this user, or too large. Raises UnfitFile."""
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFile("is no regular file")
    if _geteuid is not None and status.st_uid != _geteuid():
        raise UnfitFile(f"belongs to user {status.st_uid}")
    if status.st_size > limit:
        raise UnfitFile(f"has {status.st_size} bytes, more than {limit}")


def read_all(fd: int, limit: int) -> bytes:
    """All bytes of an open file. Raises UnfitFile if there are more than `limit`."""
    # One byte more than allowed: the file may have grown since it was measured.
    left, chunks = limit + 1, []
    while left and (chunk := os.read(fd, min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise UnfitFile(f"has more than {limit} bytes")
    return b"".join(chunks)
