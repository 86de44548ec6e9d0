"""What the file system below a bus can hold of the promise.

Most of it is tried rather than known by name (`probe`). What cannot be tried, whether a
flush reaches a disk and whether other machines write there too, goes by the type.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_bus.errors import AgentBusError, CannotCreate
from agent_bus.files import Folder, UnfitFile

Durability = Literal["disk", "process"]

# File systems whose files another machine may write, and those whose fsync reaches no disk here.
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph")
_VOLATILE = ("tmpfs", "ramfs", *_SHARED)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_EVENT_SECONDS = 5.0
_LOCK_SECONDS = 30.0
_MAKERS = 8
_HELD, _FREE = 3, 4
_TRY_LOCK = f"""
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit({_HELD})
sys.exit({_FREE})
"""


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that a bus needs of a file system, and whether it is there."""

    name: str
    ok: bool
    detail: str
    """In words: what was tried, or what is missing and what follows from that."""


class _Lacking(Exception):
    """A file system does not do what a bus needs."""


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


def kind(path: Path) -> str:
    """The type of the file system, as the system calls it; empty where unknown."""
    return _mounted(path)[0]


def probe(directory: Path) -> list[Capability]:
    """Try out on a mount which parts of the promise it can hold.

    Works in a private temporary folder below the directory, which is gone afterwards.
    Raises CannotCreate if none can be made there.
    """
    name = f".agent-bus-probe.{secrets.token_hex(8)}"
    try:
        with Folder.open(directory, shared=True) as parent:
            try:
                _make_probe(parent, name)
                with parent.child(name, shared=True) as folder:
                    return [_capability(folder, *check) for check in _CHECKS.items()]
            finally:
                _remove(parent, name)
    except OSError as error:
        raise CannotCreate(
            f"nothing can be tried in {str(directory)!a} ({error.strerror}): "
            "name a folder that this process may write"
        ) from error


def _make_probe(parent: Folder, name: str) -> None:
    try:
        parent.make(name).close()
    except (OSError, AgentBusError):
        # Flushes or modes may be missing here; that is for the checks to say.
        if parent.status(name) is None:
            raise


def _remove(folder: Folder, name: str) -> None:
    """Remove what a probe has made, as far as it can be removed."""
    with contextlib.suppress(OSError):
        with folder.child(name, shared=True) as inner:
            for entry in inner.names():
                status = inner.status(entry)
                if status and stat.S_ISDIR(status.st_mode):
                    _remove(inner, entry)
                else:
                    inner.unlink(entry)
        folder.remove_folder(name)


def _capability(folder: Folder, name: str, check: Callable[[Folder], str]) -> Capability:
    try:
        return Capability(name, ok=True, detail=check(folder))
    except _Lacking as lacking:
        return Capability(name, ok=False, detail=str(lacking))
    except (OSError, AgentBusError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Capability(name, ok=False, detail=f"{_WITHOUT[name]} ({why})")


def _hard_links(folder: Folder) -> str:
    folder.create("file", b"")
    folder.link("file", folder, "second")
    first, second = folder.status("file"), folder.status("second")
    if first is None or second is None or first.st_ino != second.st_ino or first.st_nlink < 2:
        raise _Lacking(f"{_WITHOUT['hard-links']}: a link became a file of its own")
    with contextlib.suppress(FileExistsError):
        folder.link("file", folder, "second")
        raise _Lacking("a link replaces a file of its name: a message could replace another")
    return "a file can have a second name, and a name that is taken is never replaced"


def _exclusive_create(folder: Folder) -> str:
    from concurrent.futures import ThreadPoolExecutor

    def make(_: int) -> bool:
        try:
            folder.create("exclusive", b"")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(_MAKERS) as threads:
        made = sum(threads.map(make, range(_MAKERS)))
    if made != 1:
        raise _Lacking(f"{made} of {_MAKERS} made a file of one name: {_WITHOUT['exclusive']}")
    return f"of {_MAKERS} that made a file of one name at once, one succeeded"


def _modes(folder: Folder) -> str:
    folder.create("private", b"")
    status = folder.status("private")
    mode = stat.S_IMODE(status.st_mode) if status else 0
    if mode != 0o600:
        raise _Lacking(f"a file made with mode 0600 has {mode:04o}: {_WITHOUT['modes']}")
    return "files are closed to other users"


def _folder_flush(folder: Folder) -> str:
    if folder.fd is None:
        raise _Lacking(_WITHOUT["folder-flush"])
    folder.sync()
    return "the names in a folder can be flushed"


def _no_follow(folder: Folder) -> str:
    folder.create("target", b"")
    try:
        folder.make_link("link", "target")
        folder.make_link("dot", ".")
    except OSError:
        return "no symbolic links can be made here, so that none can be followed"
    with contextlib.suppress(UnfitFile):
        folder.read("link", 0)
        raise _Lacking(_WITHOUT["no-follow"])
    with contextlib.suppress(OSError):
        folder.child("dot", shared=True).close()
        raise _Lacking(_WITHOUT["no-follow"])
    return "symbolic links are not followed, neither to files nor to folders"


def _events(folder: Folder) -> str:
    from watchdog.events import FileCreatedEvent, FileSystemEvent, FileSystemEventHandler
    from watchdog.observers import Observer

    arrived = threading.Event()

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002
            arrived.set()

    _make_probe(folder, "box")
    folder.create("arrival", b"")
    observer = Observer()
    observer.schedule(Handler(), str(folder.path / "box"), event_filter=[FileCreatedEvent])
    observer.start()
    try:
        with folder.child("box", shared=True) as box:
            folder.link("arrival", box, "arrival")
            if not arrived.wait(_EVENT_SECONDS):
                raise _Lacking(f"no event within {_EVENT_SECONDS:g} s: {_WITHOUT['events']}")
    finally:
        observer.stop()
        observer.join()
    if shared := eventless(folder.path):
        raise _Lacking(f"{shared} tells nothing of other machines: {_WITHOUT['events']}")
    return "a message that arrives is announced at once"


def _locks(folder: Folder) -> str:
    fd = folder.hold("lock", b"")
    try:
        held = _lock_seen_by_another(folder.path / "lock")
    finally:
        os.close(fd)
    if held != _HELD or _lock_seen_by_another(folder.path / "lock") != _FREE:
        raise _Lacking(_WITHOUT["locks"])
    return "another process sees a lock, and sees it go with its holder"


def _lock_seen_by_another(path: Path) -> int:
    command = [sys.executable, "-I", "-S", "-c", _TRY_LOCK, str(path)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_LOCK_SECONDS)
    return done.returncode


def _case(folder: Folder) -> str:
    folder.create("case", b"")
    if folder.status("CASE") is None:
        return "names in upper and lower case differ"
    return "upper and lower case are one name; this does no harm, since all names are lower case"


def _flush_reaches_disk(folder: Folder) -> str:
    if durability(folder.path) != "disk":
        raise _Lacking(f"{kind(folder.path) or 'this system'}: {_WITHOUT['durability']}")
    return f"{kind(folder.path) or 'the file system'} writes to a disk of this machine"


_CHECKS: dict[str, Callable[[Folder], str]] = {
    "hard-links": _hard_links,
    "exclusive": _exclusive_create,
    "modes": _modes,
    "folder-flush": _folder_flush,
    "no-follow": _no_follow,
    "events": _events,
    "locks": _locks,
    "case": _case,
    "durability": _flush_reaches_disk,
}
_WITHOUT = {
    "hard-links": "no hard links: there can be no bus here",
    "exclusive": "one message could replace another",
    "modes": "other users may read keys and messages",
    "folder-flush": "names cannot be flushed: a power cut may lose a message that was sent",
    "no-follow": "links are followed: something outside the bus could be read or written",
    "events": "waits look once a second instead",
    "locks": "locks do not reach other processes: nobody is seen as attached",
    "case": "names cannot be told apart",
    "durability": "messages survive the death of a process, but no power cut",
}


def _mounted(path: Path) -> tuple[str, list[str]]:
    """The type and options of the file system that a path lies on; empty where unknown.

    Linux names them in /proc/self/mountinfo; the longest mount point above the path counts,
    since btrfs gives a subvolume a device number of its own.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return "", []
    real, best = os.fsencode(os.path.realpath(path)) + b"/", -1
    found: tuple[str, list[str]] = ("", [])
    for line in mounts.strip().split(b"\n"):
        head, _, tail = line.partition(b" - ")
        point = _OCTAL.sub(lambda octal: bytes([int(octal[1], 8) & 0xFF]), head.split(b" ")[4])
        if len(point) >= best and real.startswith(point.rstrip(b"/") + b"/"):
            words = tail.decode("utf-8", "replace").split(" ")
            best, found = len(point), (words[0], words[-1].split(","))
    return found
