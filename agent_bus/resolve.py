"""Which bus. One rule, asked once per process; everything else gets the path.

1. AGENT_MSG_BUS names the bus folder outright. It is taken as named: git is not asked and
   no project is compared, so that it also works where git is missing or refuses.
2. Otherwise the start is AGENT_BUS_PROJECT_DIR or the working directory, and git says which
   *common* directory it belongs to. Git is asked without any inherited GIT_* variable and
   with a time limit; links in its answer are resolved. All worktrees of a repository have
   one common directory, hence one bus. A submodule has its own (`.git/modules/NAME` of the
   repository above it), hence its own bus.
3. The project is the folder that holds a common directory called `.git`, and a common
   directory of any other name (`repo.git`, `.bare`, `.git/modules/lib`) itself. Without a
   repository it is the start. Its path, with all links resolved, is what is hashed:
   <data>/buses/<readable name>-<12 hex of SHA-256(path)>.
4. Nothing is guessed. Not in a repository is an answer. No git although a repository is
   there, git refusing, and a pointer to a repository that is gone are three different
   errors, and so is a start that does not exist.

A bus is opened, never made, and it must be the project's own: bus.json records the project,
and the file `agent-bus` in the common directory holds the id of the repository's bus. If
they disagree, the repository was moved or copied, or another one took its place; that is
refused. A repository without that file is refused as well, since a new clone at an old path
must not inherit old mail. One case is let through: where this process may not write into
the common directory, `create` could not have left the file there.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_bus.clock import from_text
from agent_bus.errors import AgentBusError, ConfigurationError, NoBus
from agent_bus.files import Folder, UnfitFile
from agent_bus.git import Repository, quoted, recorded, repository, shown
from agent_bus.names import (
    AgentName,
    MessageId,
    agent_name,
    bus_folder,
    message_id,
)
from agent_bus.settings import Settings

FORMAT = 1
BUS_FILE = "bus.json"
MESSAGES = "messages"
MARK = "agent-bus"

_FILE_LIMIT = 64 << 10
_MARK_LIMIT = 64
_NAME_IT = "or name the bus with AGENT_MSG_BUS"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bus of a project is, whether or not one stands there."""

    path: Path
    how: str
    """How the path came about, in a phrase."""
    project: Path
    """What is hashed and recorded. For a bus named outright the start, for information."""
    common: Path | None
    """Git's common directory; None without a repository and for a bus named outright."""


@dataclass(frozen=True, slots=True)
class BusFile:
    """The content of bus.json, format 1."""

    format: int
    bus: MessageId
    project: str
    """The project's path as `recorded` writes it."""
    admins: tuple[AgentName, ...]
    created_at: str


def address(settings: Settings) -> Address:
    """The address of the bus. Touches no file of it.

    Raises NoBus where the start does not exist or git gives no usable answer, and
    ConfigurationError if the data folder is a relative path.
    """
    if settings.bus is not None:
        return Address(settings.bus, settings.bus_variable, _named_project(settings), None)
    if not settings.data.is_absolute():
        raise ConfigurationError(
            f"the data folder {shown(settings.data)} is no absolute path: "
            "set XDG_DATA_HOME or HOME to one"
        )
    start = _start(settings)
    found = repository(start)
    if found is None:
        path = settings.data / "buses" / bus_folder(start.name, str(start))
        return Address(path, f"directory {shown(start)} (no repository)", start, None)
    path = settings.data / "buses" / bus_folder(_readable(found), str(found.project))
    how = f"git common directory of {shown(found.project)}"
    return Address(path, how, found.project, found.common)


def open_bus(settings: Settings) -> tuple[Folder, BusFile, Address]:
    """Open the bus; the caller closes the folder.

    Raises NoBus if none stands at the address or if it is not the project's own,
    ConfigurationError for an unusable bus.json, UnsafePermissions for an unsafe folder.
    """
    where = address(settings)
    root = open_root(where)
    if root is None:
        raise none_here(where, named_by(where))
    try:
        return root, _judged(root, where, named=settings.bus is not None), where
    except BaseException:
        root.close()
        raise


def open_root(where: Address) -> Folder | None:
    """The folder at the address, or None. Raises NoBus if it cannot be opened."""
    try:
        return Folder.open(where.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoBus(
            f"the bus {shown(where.path)} ({where.how}) cannot be opened: {error.strerror}"
        ) from None


def is_complete(root: Folder) -> bool:
    """Whether a bus stands in this folder: `messages` is made last."""
    status = root.status(MESSAGES)
    return status is not None and stat.S_ISDIR(status.st_mode)


def named_by(where: Address) -> MessageId | None:
    """The id of the bus that the repository names, if there is a repository and it does."""
    return None if where.common is None else mark(where.common)


def mark(common: Path) -> MessageId | None:
    """The bus id in a common directory, or None if it has none.

    Raises ConfigurationError if the file is there and holds no id that can be read.
    """
    try:
        with Folder.open(common, shared=True) as folder:
            return message_id(folder.read(MARK, _MARK_LIMIT).decode().removesuffix("\n"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnfitFile, ValueError, AgentBusError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).partition(";")[0]
        raise ConfigurationError(
            f"{shown(common / MARK)} should hold the id of the repository's bus, but: {reason}; "
            f"mend or remove it and run agent-bus init --adopt BUS, {_NAME_IT}"
        ) from None


def is_writable(common: Path) -> bool:
    """Whether this process may put files into the common directory."""
    return os.access(common, os.W_OK | os.X_OK)


def read_bus_file(root: Folder) -> BusFile:
    """Read bus.json. Raises ConfigurationError: another format, or not exactly this one."""
    path = shown(root.path / BUS_FILE)
    try:
        value = _object(root.read(BUS_FILE, _FILE_LIMIT))
    except (OSError, UnfitFile, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{path} cannot be used ({reason}): restore it from a backup"
        ) from None
    if type(value.get("format")) is not int or value["format"] != FORMAT:
        raise ConfigurationError(
            f"{path} has format {str(value.get('format'))[:20]!a}, this program knows {FORMAT}: "
            "use the version of agent-bus that made it"
        )
    try:
        return _bus_file(value)
    except (ValueError, AgentBusError) as error:
        raise ConfigurationError(f"{path} is not as it was written ({error})") from None


def check(where: Address, names: MessageId | None, file: BusFile) -> None:
    """Refuse a bus that is not this project's own. Raises NoBus with the way out."""
    bus, project = shown(where.path), shown(where.project)
    take, leave = f"agent-bus init --adopt {quoted(where.path)}", f"mv {quoted(where.path)} away"
    if names is not None and names != file.bus:
        raise NoBus(
            f"{project} names bus {names}, but {bus} is bus {file.bus}: another repository "
            f"had this place; {leave}, then {_way_out(where, names)}"
        )
    if names is None and where.common is not None and is_writable(where.common):
        raise NoBus(
            f"the repository {project} does not name bus {file.bus} at {bus}, so it may be "
            f"another one's: {take} takes it over with all its messages; for a new bus, "
            f"{leave} and run agent-bus init"
        )
    if file.project != recorded(where.project):
        raise NoBus(
            f"{bus} records the project {file.project!a}, not {project}: {take} takes it over"
        )


def none_here(where: Address, names: MessageId | None) -> NoBus:
    """The error that no bus stands at the address."""
    if names is None:
        return NoBus(
            f"no bus at {shown(where.path)} ({where.how}): go to the project's folder, "
            "or run agent-bus init to make one here"
        )
    return NoBus(
        f"no bus at {shown(where.path)} ({where.how}), but the repository names bus {names}, "
        f"so it was moved or copied: {_way_out(where, names)}"
    )


def _judged(root: Folder, where: Address, *, named: bool) -> BusFile:
    if not is_complete(root):
        raise none_here(where, named_by(where))
    names = named_by(where)
    file = read_bus_file(root)
    if not named:
        check(where, names, file)
    return file


def _start(settings: Settings) -> Path:
    try:
        start = Path(os.path.realpath(settings.project or os.getcwd(), strict=True))
        os.stat(start / ".")
    except OSError as error:
        what = "working directory"
        if settings.project is not None:
            what = f"project directory {shown(settings.project)}"
        raise NoBus(
            f"the {what} cannot be used ({error.strerror}): go to one that exists, {_NAME_IT}"
        ) from None
    return start


def _named_project(settings: Settings) -> Path:
    # A bus named outright works from anywhere, also from a folder that is gone.
    with contextlib.suppress(NoBus):
        return _start(settings)
    assert settings.bus is not None
    return Path(os.path.realpath(settings.bus))


def _readable(found: Repository) -> str:
    hidden = found.project == found.common and found.common.name.startswith(".")
    return (found.project.parent if hidden else found.project).name.removesuffix(".git")


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data.decode(), object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a field stands in it twice")
    return dict(pairs)


def _bus_file(value: dict[str, Any]) -> BusFile:
    fields = {"format", "bus", "project", "admins", "created_at"}
    if value.keys() != fields:
        odd = ", ".join(sorted(value.keys() ^ fields))
        raise ValueError(f"unknown or missing: {odd[:80]!a}")
    admins, project, created = value["admins"], value["project"], value["created_at"]
    if not isinstance(admins, list) or not isinstance(project, str) or not isinstance(created, str):
        raise ValueError("a field is of the wrong kind")
    project.encode()  # a lone surrogate is no text
    from_text(created)
    names = tuple(agent_name(name) for name in admins)
    return BusFile(FORMAT, message_id(value["bus"]), project, names, created)


def _way_out(where: Address, names: MessageId) -> str:
    old = _find(where.path.parent, names)
    found = quoted(old) if old is not None and old != where.path else "OLD"
    return (
        f"agent-bus init --adopt {found} moves that bus here with all its messages, "
        "agent-bus init --new makes an empty one"
    )


def _find(buses: Path, ident: MessageId) -> Path | None:
    """The folder among the buses that holds this id. For an error's text only."""
    with contextlib.suppress(OSError):
        for path in sorted(buses.iterdir()):
            with contextlib.suppress(OSError, AgentBusError), Folder.open(path) as root:
                if read_bus_file(root).bus == ident:
                    return path
    return None
