"""A new bus: made, taken over from an old place, or begun anew.

The steps of making one, in this order, each durable before the next: the folder; bus.json,
by a hard link, so that of many makers at once one decides the id; the mark in git's common
directory; the folders, and `messages` last. A bus without `messages` does not count as one,
so a crash between two steps leaves something that the next `create` completes, and whoever
finds `messages` may rely on all the rest. What exists is never written over.

Taking over (`adopt`) goes in this order: the mark, the project in bus.json, the folder's
name. The bus keeps its id, its messages stay valid, and after a crash the same command
completes it. Agents that use the bus at its old place must have ended before.

Works correctly only where hard links work; that is tried before anything is made.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent_bus.clock import Clock, to_text
from agent_bus.errors import AgentBusError, CannotCreate, ConfigurationError, NoBus, UsageError
from agent_bus.files import Folder, make_folders
from agent_bus.git import quoted, recorded, shown
from agent_bus.names import AgentName, MessageId, bus_folder, message_id
from agent_bus.resolve import (
    BUS_FILE,
    FORMAT,
    MARK,
    MESSAGES,
    Address,
    BusFile,
    address,
    check,
    is_writable,
    mark,
    named_by,
    none_here,
    open_root,
    read_bus_file,
)
from agent_bus.settings import DEFAULT_ADMINS, Settings

FOLDERS = ("approvals", "sent", "agents", MESSAGES)
"""Made in this order: `messages` says that the rest is there."""

_OWN_NAME = re.compile(r"\.?bus\.json(\.\w+)?|\.agent-bus-probe\..*|approvals|sent|agents")


@dataclass(frozen=True, slots=True)
class Created:
    """What `create` found or made."""

    address: Address
    file: BusFile
    created: bool
    """Whether this call gave the bus its id."""
    warnings: tuple[str, ...]
    """Lines for a person: what could not be done, though the bus can be used."""


@dataclass(frozen=True, slots=True)
class _Seen:
    complete: bool
    names: MessageId | None
    file: BusFile | None


def create(
    settings: Settings, clock: Clock, *, adopt: Path | None = None, new: bool = False
) -> Created:
    """Make the bus of the project, or find it made; a second call changes nothing.

    `adopt` is the folder of an old bus, or the path of the project that it belonged to:
    that bus becomes this project's. `new` makes an empty bus for a repository that names
    one which does not stand here.

    Raises UsageError for `adopt` or `new` with the other, or with a bus named outright;
    NoBus where the bus here is not the project's own, where the repository names one that
    is not here, and for an OLD that may not be taken over; CannotCreate where the file
    system refuses; and what `address` and `read_bus_file` raise.
    """
    if adopt is not None and new:
        raise UsageError("--adopt OLD and --new contradict each other: give one of them")
    if settings.bus is not None and (adopt is not None or new):
        raise UsageError(
            f"{settings.bus_variable} names the bus outright, so there is nothing to adopt or "
            f"renew: unset {settings.bus_variable}, or run agent-bus init alone"
        )
    where = address(settings)
    with _telling(where):
        if adopt is not None:
            return _adopt(where, adopt, clock)
        return _create(settings, clock, where, new=new)


def _create(settings: Settings, clock: Clock, where: Address, *, new: bool) -> Created:
    seen = _look(where)
    outright = settings.bus is not None
    if seen.complete and seen.file is not None:
        if not outright:
            check(where, seen.names, seen.file)
    elif seen.names is not None and (seen.file is None or seen.file.bus != seen.names):
        _may_renew(where, seen.names, new=new)
    if seen.file is None:
        _require_admins(settings)
        _try_hard_links(where, clock, outright=outright)
    with _root(where, outright=outright) as root:
        file, created = _decide(root, where, settings.admins or DEFAULT_ADMINS, clock)
        warnings = _name_bus(where, file.bus, clock, renew=new)
        for name in FOLDERS:
            root.make(name).close()
    return Created(where, file, created, warnings)


def _require_admins(settings: Settings) -> None:
    if settings.admins == ():
        raise ConfigurationError(
            "AGENT_BUS_ADMIN_NAMES names nobody, and a bus without admins could decide nothing: "
            "name one, or unset it"
        )


def _look(where: Address) -> _Seen:
    # Against the order of making: what a later step left proves the earlier ones, also
    # while another process is at work.
    complete = os.path.isdir(where.path / MESSAGES)
    names = named_by(where)
    root = open_root(where)
    if root is None:
        return _Seen(complete=False, names=names, file=None)
    with root:
        there = complete or root.status(BUS_FILE) is not None
        return _Seen(complete, names, read_bus_file(root) if there else None)


def _may_renew(where: Address, names: MessageId, *, new: bool) -> None:
    if not new:
        raise none_here(where, names)
    assert where.common is not None
    if not is_writable(where.common):
        raise CannotCreate(
            f"{shown(where.common / MARK)} names bus {names} and cannot be replaced: "
            "allow writing there and run agent-bus init --new again"
        )


def _decide(
    root: Folder, where: Address, admins: tuple[AgentName, ...], clock: Clock
) -> tuple[BusFile, bool]:
    """Give the bus its id, unless it has one. Durable on return."""
    created = False
    if root.status(BUS_FILE) is None:
        _refuse_foreign(root)
        ident = message_id(clock.new_id())
        project, made = recorded(where.project), to_text(clock.now())
        file = BusFile(FORMAT, ident, project, admins, made)
        created = _put(root, BUS_FILE, _encode(file), clock)
    root.sync()
    return read_bus_file(root), created


def _refuse_foreign(root: Folder) -> None:
    foreign = sorted(name for name in root.names() if not _OWN_NAME.fullmatch(name))
    if foreign and root.status(BUS_FILE) is None:
        raise CannotCreate(
            f"{shown(root.path)} is no bus and not empty (it holds {foreign[0][:80]!a}): "
            "name a folder that is empty or does not exist"
        )


def _put(folder: Folder, name: str, data: bytes, clock: Clock) -> bool:
    """Write a file whole under a free name. False if the name is taken."""
    temporary = f".{name}.{clock.new_id()}"
    folder.create(temporary, data)
    try:
        folder.link(temporary, folder, name)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            folder.unlink(temporary)
    return True


def _name_bus(
    where: Address, ident: MessageId, clock: Clock, *, renew: bool = False
) -> tuple[str, ...]:
    """Write the bus id into the common directory. A warning if that is not possible."""
    if where.common is None or (names := mark(where.common)) == ident:
        return ()
    if names is not None and not renew:
        raise none_here(where, names)
    try:
        with Folder.open(where.common, shared=True) as folder:
            _write_mark(folder, ident, clock, replace=names is not None)
    except OSError as error:
        if is_writable(where.common):
            raise
        warning = (
            f"{shown(where.common / MARK)} cannot be written ({error.strerror}): the repository "
            "does not name its bus, so a move or a copy of it will not be noticed; where it can "
            f"be written, run agent-bus init --adopt {quoted(where.path)}"
        )
        return (warning,)
    return ()


def _write_mark(folder: Folder, ident: MessageId, clock: Clock, *, replace: bool) -> None:
    data = f"{ident}\n".encode()
    if not replace:
        try:
            if not _put(folder, MARK, data, clock) and mark(folder.path) != ident:
                raise NoBus(f"{shown(folder.path / MARK)} was written meanwhile: run it again")
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # The repository may lie on a file system without hard links.
            replace = True
        else:
            folder.sync()
    if replace:
        folder.replace(MARK, data)


def _adopt(where: Address, old: Path, clock: Clock) -> Created:
    here = _old_folder(where, old)
    stays = os.path.realpath(here) == os.path.realpath(where.path)
    if not stays:
        _may_move(here, where.path)
    with Folder.open(here) as root:
        file = read_bus_file(root)
        _may_adopt(where, here, file)
        warnings = _name_bus(where, file.bus, clock)
        adopted = replace(file, project=recorded(where.project))
        if adopted != file:
            root.replace(BUS_FILE, _encode(adopted))
    if not stays:
        with (
            make_folders(where.path.parent) as buses,
            Folder.open(here.parent, shared=True) as parent,
        ):
            parent.move_folder(here.name, buses, where.path.name)
    return Created(where, adopted, created=False, warnings=warnings)


def _old_folder(where: Address, old: Path) -> Path:
    """The bus folder that OLD means. The project's folder may be gone, so git is not asked."""
    absolute = Path(os.path.abspath(old))
    if _is_bus(absolute):
        return absolute
    # The last component may by now be a link to the new place.
    parent = Path(os.path.realpath(absolute.parent))
    for project in (parent / absolute.name, Path(os.path.realpath(absolute))):
        canonical = project.parent if project.name == ".git" else project
        digest = bus_folder("", str(canonical))[-13:]
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(where.path.parent.iterdir()):
                if path.name.endswith(digest) and _is_bus(path):
                    return path
    raise NoBus(
        f"{shown(absolute)} is no bus, and none of {shown(where.path.parent)} belongs to it: "
        "give the folder of the bus, or the path that the project had"
    )


def _is_bus(path: Path) -> bool:
    return os.path.isfile(path / BUS_FILE) and os.path.isdir(path / MESSAGES)


def _may_adopt(where: Address, here: Path, file: BusFile) -> None:
    names = named_by(where)
    if names is not None and names != file.bus:
        raise NoBus(
            f"{shown(here)} is bus {file.bus}, but the repository names bus {names}: adopt that "
            "one, or run agent-bus init --new for an empty bus"
        )
    user = _other_user(where, file)
    if user is not None:
        raise NoBus(
            f"{shown(here)} is still the bus of the repository {shown(user)}, of which this is "
            "a copy: run agent-bus init --new for a bus of its own, or set AGENT_MSG_BUS to share"
        )


def _other_user(where: Address, file: BusFile) -> Path | None:
    """The common directory of another repository that names this bus, at its old place."""
    for common in (Path(file.project) / ".git", Path(file.project)):
        real = Path(os.path.realpath(common))
        with contextlib.suppress(AgentBusError):
            if real != where.common and mark(real) == file.bus:
                return real
    return None


def _may_move(here: Path, there: Path) -> None:
    if os.path.lexists(there):
        raise NoBus(
            f"something stands at {shown(there)} already, so the bus {shown(here)} cannot move "
            f"there: mv {quoted(there)} away, then run it again"
        )
    if here.stat().st_dev != _nearest(there).stat().st_dev:
        raise CannotCreate(
            f"{shown(here)} is on another file system than {shown(there)}: run cp -a "
            f"{quoted(here)} {quoted(there)}, then agent-bus init --adopt {quoted(there)}"
        )


def _nearest(path: Path) -> Path:
    while not path.is_dir():
        path = path.parent
    return path


def _root(where: Address, *, outright: bool) -> Folder:
    root = open_root(where)
    if root is not None:
        return root
    if not outright:
        return make_folders(where.path)
    with Folder.open(where.path.parent, shared=True) as parent:
        return parent.make(where.path.name)


def _try_hard_links(where: Address, clock: Clock, *, outright: bool) -> None:
    """Raise CannotCreate where they do not work; tried in the nearest folder that exists."""
    nearest = _nearest(where.path)
    if outright and nearest not in (where.path, where.path.parent):
        raise CannotCreate(
            f"{shown(where.path.parent)} does not exist ({where.how} is {shown(where.path)}): "
            "make it, or correct the path"
        )
    probe = f".agent-bus-probe.{clock.new_id()}"
    with Folder.open(nearest, shared=True) as folder:
        folder.create(probe, b"")
        try:
            folder.link(probe, folder, probe + ".link")
            folder.unlink(probe + ".link")
        except OSError as error:
            raise CannotCreate(
                f"no hard links in {shown(nearest)} ({error.strerror}), and a bus needs them: "
                "name a folder of another file system with AGENT_MSG_BUS"
            ) from None
        finally:
            folder.unlink(probe)


def _encode(file: BusFile) -> bytes:
    value = {
        "format": file.format,
        "bus": file.bus,
        "project": file.project,
        "admins": list(file.admins),
        "created_at": file.created_at,
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


@contextlib.contextmanager
def _telling(where: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = shown(Path(error.filename)) if error.filename else shown(where.path)
        raise CannotCreate(
            f"{path} cannot be written ({error.strerror}): allow writing there, or name "
            "another place with AGENT_MSG_BUS"
        ) from error
