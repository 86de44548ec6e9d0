"""The bus folder itself: what must be there, what may be, and what it lies on."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable

from agent_bus import resolve
from agent_bus.arrivals import Arrivals
from agent_bus.doctor.examination import LEFTOVER_AGE, ROOT_BAD, Examination
from agent_bus.files import Folder
from agent_bus.filesystem import durability, eventless, kind
from agent_bus.pins import PINS

FOLDERS = ("messages", "sent", "approvals", "agents")
_ADAPTERS = ("openhands", "coordination", "terminal", "cache")
_DEPTH = 32
_BUS_FILE_LIMIT = 64 << 10


def examine(ex: Examination) -> None:
    """Look at the bus folder, but not into its own four folders."""
    root = ex.root
    ex.tighten(root, ".", root.own_status())
    for name, status in ex.entries(root):
        with ex.guard(root.path / name):
            if name == ROOT_BAD[0]:
                _bad(ex)
            elif name == resolve.BUS_FILE:
                if ex.is_plain(root, name, status, ROOT_BAD, _BUS_FILE_LIMIT):
                    ex.mode(root, name)
                    _bus_file(ex)
            elif name in _ADAPTERS:
                if (folder := ex.folder(root, name, ROOT_BAD)) is not None:
                    with folder:
                        _state(ex, folder, _DEPTH)
            elif name not in (*FOLDERS, PINS):
                _unknown(ex, name, status.st_mtime)
    with ex.guard(root.path):
        _mark(ex)
    with ex.guard(root.path):
        _file_system(ex)


def within(ex: Examination, name: str, look: Callable[[Examination, Folder], None]) -> None:
    """Look into one of the bus's own folders."""
    with ex.guard(ex.root.path / name):
        if (folder := ex.folder(ex.root, name, ROOT_BAD)) is not None:
            with folder:
                look(ex, folder)
        elif ex.root.status(name) is None:
            ex.missing(name)


def _bad(ex: Examination) -> None:
    folder = ex.folder(ex.root, ROOT_BAD[0], ROOT_BAD)
    if folder is not None:
        with folder:
            if count := len(folder.names()):
                text = f"things set aside here: {count}; look at them, then remove them"
                ex.note("set-aside", "note", folder.path, text)


def _unknown(ex: Examination, name: str, changed: float) -> None:
    status = ex.root.status(name)
    if status is None:
        return
    if name.startswith("."):
        if ex.now / 1000 - changed > LEFTOVER_AGE:
            ex.aside("leftover", "warning", ex.root, name, "was left by a crash", ROOT_BAD)
        return
    text = "is no part of a bus: move it somewhere else"
    ex.note("unknown-entry", "warning", ex.root.path / name, text)


def _bus_file(ex: Examination) -> None:
    if resolve.read_bus_file(ex.root) != ex.bus.file:
        text = "was changed while this was running: run doctor again"
        ex.note("bus-file", "warning", ex.root.path / resolve.BUS_FILE, text)


def _mark(ex: Examination) -> None:
    where = ex.bus.address
    if where.common is None:
        return
    named = resolve.mark(where.common)
    if named is None:
        text = "the repository does not name its bus: agent-bus init, where it can be written"
        ex.note("no-mark", "warning", where.common / resolve.MARK, text)
    elif named != ex.bus.file.bus:
        text = f"the repository names bus {named}, this is bus {ex.bus.file.bus}: agent-bus init"
        ex.note("wrong-mark", "error", where.common / resolve.MARK, text)


def _state(ex: Examination, folder: Folder, depth: int) -> None:
    """An adapter's own files: what they hold is its business, links and owners are not."""
    for name, status in ex.entries(folder):
        with ex.guard(folder.path / name):
            if stat.S_ISSOCK(status.st_mode):
                continue
            if not stat.S_ISDIR(status.st_mode):
                if ex.is_plain(folder, name, status, ROOT_BAD, status.st_size):
                    ex.mode(folder, name)
            elif depth == 0:
                text = "is a folder nested too deep to look into"
                ex.aside("too-deep", "error", folder, name, text, ROOT_BAD)
            elif (inner := ex.folder(folder, name, ROOT_BAD)) is not None:
                with inner:
                    _state(ex, inner, depth - 1)


def _file_system(ex: Examination) -> None:
    path = ex.root.path
    if eventless(path):
        text = (
            f"lies on {kind(path)}, which other machines may write and whose flushes and events "
            "are not to be relied on: move the bus to a disk of this machine"
        )
        ex.note("network-file-system", "warning", path, text)
    elif durability(path) != "disk":
        text = (
            f"lies on {kind(path) or 'a file system'} that no flush makes durable: messages "
            "survive the death of a process, but no restart of the machine"
        )
        ex.note("not-durable", "warning", path, text)
    poll = ex.bus.settings.poll
    with contextlib.closing(Arrivals(path, poll=poll, warn=lambda _: None)) as arrivals:
        if arrivals.mode == "polling":
            text = f"waits look once a second instead of using file events: {arrivals.why}"
            ex.note("polling", "note", path, text)
