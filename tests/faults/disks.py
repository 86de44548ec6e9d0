"""File systems that can lose power: images on loop devices, and copies of them.

A copy of an image that is mounted holds what has reached the device and nothing of what the
kernel still has in memory: the disk as a power cut would leave it. The process has been
killed or stopped before, and the copy is compared with the image, so that it is of one moment.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZES = {"ext4": 32, "xfs": 300, "btrfs": 110}
"""The smallest images, in MiB, that each kind is content with. They are sparse."""
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Disk:
    """One image and the folder that it is mounted on."""

    kind: str
    image: Path
    folder: Path

    @classmethod
    def make(cls, kind: str, where: Path) -> Disk:
        """A new, empty file system. Its folder is made, and nothing is mounted."""
        disk = cls(kind, where / f"{kind}.image", where / "disk")
        disk.folder.mkdir(exist_ok=True)
        with disk.image.open("wb") as file:
            file.truncate(SIZES[kind] << 20)
        _do(f"mkfs.{kind}", "-q", str(disk.image))
        # xfs writes a long log of zeros.
        _do("fallocate", "--dig-holes", str(disk.image))
        return disk

    def copy(self, name: str) -> Disk:
        """The same, as it is on the device now, whether it is mounted or not."""
        target = self.image.with_name(f"{name}.image")
        for _ in range(_ATTEMPTS):
            target.unlink(missing_ok=True)
            _do("cp", "--sparse=auto", str(self.image), str(target))
            # The kernel writes back by itself: a copy that it wrote into is of no one moment.
            if _is_equal(self.image, target):
                return Disk(self.kind, target, self.folder)
        raise AssertionError(f"{self.image} does not come to rest")

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount it; it is unmounted at the end, whatever happened."""
        # A copy has the identity of its original, which xfs refuses while that one lets go.
        options = "loop,nouuid" if self.kind == "xfs" else "loop"
        _do("mount", "-t", self.kind, "-o", options, str(self.image), str(self.folder))
        try:
            yield self.folder / "root"
        finally:
            unmount(self.folder)


@contextlib.contextmanager
def small(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory with limits, such as `size=64k` or `nr_inodes=30`."""
    folder.mkdir(exist_ok=True)
    _do("mount", "-t", "tmpfs", "-o", options, "none", str(folder))
    try:
        yield folder
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount; a process that has just been killed may still be letting go."""
    # An error that was caught may hold on to folders that this process had open.
    gc.collect()
    for _ in range(100):
        done = subprocess.run(["umount", str(folder)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.05)
    _do("umount", "--lazy", str(folder))
    raise AssertionError(f"{folder} was busy: {done.stderr.decode()}")


def remount(folder: Path, options: str) -> None:
    """Change the options of a mount."""
    gc.collect()
    _do("mount", "-o", f"remount,{options}", str(folder))


def copy_tree(origin: Path, target: Path) -> None:
    """A copy of a folder that keeps hard links."""
    shutil.rmtree(target, ignore_errors=True)
    _do("cp", "-a", str(origin), str(target))


def _is_equal(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        for start, length in {*_extents(first.fileno()), *_extents(second.fileno())}:
            if os.pread(first.fileno(), length, start) != os.pread(second.fileno(), length, start):
                return False
    return True


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """Start and length of what is no hole."""
    end = 0
    with contextlib.suppress(OSError):  # ENXIO: nothing but a hole is left
        while True:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, end - start


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.decode(errors='replace')}")
