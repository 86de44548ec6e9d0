"""The floor of a wake-up: inotify by hand. Prints a line for each batch of arrivals."""

from __future__ import annotations

import ctypes
import os
import sys

_ARRIVALS = 0x100 | 0x80
"""IN_CREATE and IN_MOVED_TO, from <sys/inotify.h>."""


def main(folder: str) -> None:
    """Watch a folder for ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(folder), _ARRIVALS) < 0:
        raise OSError(ctypes.get_errno(), "no inotify")
    os.write(1, b"ready\n")
    while os.read(fd, 65536):
        os.write(1, b"woken\n")


if __name__ == "__main__":
    main(sys.argv[1])
