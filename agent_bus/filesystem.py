"""What the file system below a bus can hold of the promise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Durability = Literal["disk", "process"]

# File systems whose files another machine may write, and those whose fsync reaches no disk here.
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph")
_VOLATILE = ("tmpfs", "ramfs", *_SHARED)


def durability(path: Path) -> Durability:
    """Whether a flush on this path reaches a disk, as far as the system says so.

    An overlay that ignores flushes says `volatile`.
    """
    if os.open not in os.supports_dir_fd:  # Windows
        return "process"
    kind, options = _mounted(path)
    lost = kind in _VOLATILE or kind.startswith("fuse") or "volatile" in options
    return "process" if lost else "disk"


def eventless(path: Path) -> str | None:
    """The type of the file system, if it tells nobody of files that another machine makes."""
    kind, _ = _mounted(path)
    return kind if kind in _SHARED or kind.startswith("fuse") else None


def _mounted(path: Path) -> tuple[str, list[str]]:
    """The type and options of the file system that a path lies on; empty where unknown.

    Linux names them in /proc/self/mountinfo; the longest mount point above the path counts,
    since btrfs gives a subvolume a device number of its own.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", []
    real, best = os.path.realpath(path), -1
    found: tuple[str, list[str]] = ("", [])
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        point = head.split(" ")[4].encode().decode("unicode_escape", "replace")
        if len(point) >= best and (real + "/").startswith(point.rstrip("/") + "/"):
            best, found = len(point), (tail.split(" ")[0], tail.split(" ")[-1].split(","))
    return found
