"""Everything that a bus holds, in one archive: for a backup, or to look at elsewhere.

    agent-bus-<bus id>/bus.json
                      /messages/<agent>/{new,cur}/…, archive/<month>/…, journal   as they are
                      /approvals/…, sent/…              a second name is a hard link here too
                      /pins/…                           which key a sealed name has here
                      /rotations.jsonl, keyrings.jsonl  which keys there are; no secret
                      /MANIFEST                         for `sha256sum -c`, written last

Message files go in with their exact bytes, whether they verify or not. What is no file of
this bus (a link, a device, another user's file, something too large or strangely named) stays
out and is named. A bus may be in use meanwhile: every message that stood in a box when the
export began is in the archive, wherever it was moved to.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from agent_bus.bus import Bus
from agent_bus.create import FOLDERS
from agent_bus.envelope import FILE_LIMIT
from agent_bus.errors import AgentBusError, CannotCreate, UsageError
from agent_bus.files import Folder, UnfitFile
from agent_bus.git import shown
from agent_bus.keyring import Key, encode_secret
from agent_bus.keys import ROTATIONS
from agent_bus.names import (
    AgentName,
    id_of_file,
    is_agent_name,
    is_message_id,
    is_month,
    month_of,
)
from agent_bus.pins import KEPT, PIN, PINS
from agent_bus.reading import reason
from agent_bus.records import JOURNAL, PRUNED
from agent_bus.resolve import BUS_FILE

_RECORDS_LIMIT = 256 << 20
_FINGERPRINT = b"agent-bus/1 key fingerprint\0"
_SENT = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written."""

    messages: int
    bytes: int
    """The size of the archive."""
    path: str
    skipped: tuple[str, ...]
    """A line for each thing that was left out, and why."""


def export(bus: Bus, target: Path, *, progress: Callable[[int], None] = lambda _: None) -> Exported:
    """Write the archive: a new file (0600, gzip), complete or not there at all.

    `progress` is called with how many messages were written since its last call. Raises
    UsageError for a target inside the bus, and CannotCreate if it exists or cannot be
    written.
    """
    path = target.absolute()
    if path.resolve().is_relative_to(bus.address.path.resolve()):
        raise UsageError(f"{shown(path)} is inside the bus: name a file somewhere else")
    taken = CannotCreate(f"{shown(path)} exists and is not replaced: name a new file")
    try:
        with Folder.open(path.parent, shared=True) as folder:
            if folder.status(path.name) is not None:
                raise taken
            with folder.stream(path.name) as stream:
                writer = _Writer(bus, stream, progress)
                writer.write()
            status = folder.status(path.name)
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise CannotCreate(f"nothing was exported: {reason(error)}") from error
    size = status.st_size if status else 0
    return Exported(writer.messages, size, str(path), tuple(writer.skipped))


def fingerprint(key: Key) -> str:
    """What tells two keys apart and gives neither away: a hash of the secret, in hex.

    Of a sealed key it is that of the public half, as it is pinned.
    """
    if key.is_sealed:
        return key.fingerprint
    return hashlib.sha256(_FINGERPRINT + key.secret).hexdigest()


class _Writer:
    def __init__(self, bus: Bus, stream: IO[bytes], progress: Callable[[int], None]) -> None:
        self._bus = bus
        self._stream = stream
        self._progress = progress
        self._top = f"agent-bus-{bus.file.bus}"
        self._now = bus.clock.now() / 1000
        self._folders: set[str] = set()
        self._hashes: dict[str, str] = {}
        self._inodes: dict[int, str] = {}
        self.messages = 0
        self.skipped: list[str] = []

    def write(self) -> None:
        with (
            tarfile.open(fileobj=self._stream, mode="w:gz", format=tarfile.PAX_FORMAT) as self._tar,
            Folder.open(self._bus.address.path) as root,
        ):
            for name in FOLDERS:
                self._make_folder(f"{name}/")
            self._file(root, BUS_FILE, BUS_FILE)
            for agent, box in self._agents(root, "messages"):
                self._box(box, f"messages/{agent}")
            for sender, sent in self._agents(root, "sent"):
                self._flat(sent, f"sent/{sender}", _is_sent_file)
            with self._opened(root, "approvals") as approvals:
                if approvals is not None:
                    self._flat(approvals, "approvals", _is_queue_file)
            with self._opened(root, PINS) as pins:
                if pins is not None:
                    self._flat(pins, PINS, _is_pin)
            self._add(ROTATIONS, self._rotations())
            self._add("keyrings.jsonl", self._keyrings())
            self._add("MANIFEST", self._manifest())

    # -- what a bus consists of

    def _agents(self, root: Folder, name: str) -> Iterator[tuple[str, Folder]]:
        """The folders of agents in one of the bus's folders, each open for its turn."""
        with self._opened(root, name) as parent:
            for agent in self._names(parent):
                if parent is None or not is_agent_name(agent):
                    self._skip(root.path / name / agent, "no agent can have this name")
                    continue
                with self._opened(parent, agent) as folder:
                    if folder is not None:
                        yield agent, folder

    def _box(self, box: Folder, inside: str) -> None:
        for part in ("new", "cur", "tmp"):
            self._make_folder(f"{inside}/{part}/")
        # Listed in the order in which messages move, so that none is missed on its way.
        listed = [(part, self._listed(box, part)) for part in ("new", "cur")]
        with self._opened(box, "archive") as archive:
            months = [f"archive/{name}" for name in self._names(archive) if is_month(name)]
        listed += [(month, self._listed(box, month)) for month in months]
        for part, names in listed:
            for name in names:
                if part not in ("new", "cur") and name == PRUNED:
                    self._optional(box, part, name, inside)
                else:
                    self._message(box, part, name, inside)
        if box.status(JOURNAL) is not None:
            self._file(box, JOURNAL, f"{inside}/{JOURNAL}", _RECORDS_LIMIT)

    def _listed(self, box: Folder, part: str) -> list[str]:
        with self._opened(box, *part.split("/")) as folder:
            return self._names(folder)

    def _optional(self, box: Folder, part: str, name: str, inside: str) -> None:
        with self._opened(box, *part.split("/")) as folder:
            if folder is not None:
                self._file(folder, name, f"{inside}/{part}/{name}", _RECORDS_LIMIT)

    def _message(self, box: Folder, part: str, name: str, inside: str) -> None:
        ident = id_of_file(name)
        if ident is None:
            self._skip(box.path / part / name, "no message has this name")
            return
        for place in dict.fromkeys((part, "cur", f"archive/{month_of(ident)}")):
            with self._opened(box, *place.split("/")) as folder:
                path = f"{inside}/{place}/{name}"
                if path in self._hashes:
                    return  # It moved here, and was written already.
                if folder is not None and self._file(folder, name, path):
                    self.messages += 1
                    self._progress(1)
                    return

    def _flat(self, folder: Folder, inside: str, wanted: Callable[[str], bool]) -> None:
        self._make_folder(f"{inside}/")
        for name in self._names(folder):
            if wanted(name):
                self._file(folder, name, f"{inside}/{name}")
            elif name != "bad" and not name.startswith("."):
                self._skip(folder.path / name, "nothing of a bus has this name")

    def _rotations(self) -> bytes:
        """Written anew from what was understood, so that nothing else can slip in."""
        try:
            lines = [asdict(line) for line in self._bus.keys.rotations()]
        except (OSError, AgentBusError) as error:
            self._skip(self._bus.keys.folder / ROTATIONS, str(error))
            return b""
        return _json_lines({k: v for k, v in line.items() if v is not None} for line in lines)

    def _keyrings(self) -> bytes:
        lines: list[dict[str, str]] = []
        for agent in self._bus.keys.agents():
            try:
                ring = self._bus.keys.load(agent)
            except (OSError, AgentBusError) as error:
                self._skip(self._bus.keys.folder / f"{agent}.json", str(error))
                continue
            lines += [_described(agent, key) for key in ring.keys]
        return _json_lines(lines)

    def _manifest(self) -> bytes:
        return "".join(f"{digest}  {path}\n" for path, digest in self._hashes.items()).encode()

    # -- reading

    @contextlib.contextmanager
    def _opened(self, parent: Folder, *names: str) -> Iterator[Folder | None]:
        """A folder, or None if there is none; one that is not ours is named."""
        folder = None
        try:
            folder = parent.descend(*names)
        except FileNotFoundError:
            pass
        except (OSError, AgentBusError) as error:
            self._skip(parent.path.joinpath(*names), _why(error))
        try:
            yield folder
        finally:
            if folder is not None:
                folder.close()

    def _names(self, folder: Folder | None) -> list[str]:
        if folder is None:
            return []
        try:
            return sorted(folder.names())
        except OSError as error:
            self._skip(folder.path, _why(error))
            return []

    def _file(self, folder: Folder, name: str, inside: str, limit: int = FILE_LIMIT) -> bool:
        """Add a file. False if it is not here any more, or not one of ours."""
        try:
            status = folder.status(name)
            data = folder.read(name, limit)
        except FileNotFoundError:
            return False
        except (OSError, UnfitFile) as error:
            self._skip(folder.path / name, _why(error))
            return False
        if status is None:
            return False
        self._add(inside, data, status)
        return True

    def _skip(self, path: Path, why: str) -> None:
        line = f"{shown(path)}: {why}"
        if line not in self.skipped:
            self.skipped.append(line)

    # -- writing

    def _add(self, inside: str, data: bytes, status: os.stat_result | None = None) -> None:
        self._make_folder(inside)
        entry = self._entry(inside, status.st_mtime if status else self._now, 0o600)
        digest = hashlib.sha256(data).hexdigest()
        first = self._inodes.get(status.st_ino) if status and status.st_nlink > 1 else None
        if first is not None and self._hashes[first] == digest:
            entry.type, entry.linkname = tarfile.LNKTYPE, f"{self._top}/{first}"
            self._tar.addfile(entry)
        else:
            entry.size = len(data)
            self._tar.addfile(entry, io.BytesIO(data))
        self._hashes[inside] = digest
        if status and first is None:
            self._inodes[status.st_ino] = inside

    def _make_folder(self, inside: str) -> None:
        """Enter the folders of a path, so that unpacking makes them as private as they are."""
        above = inside.split("/")[:-1]
        for depth in range(len(above) + 1):
            folder = "/".join(above[:depth])
            if folder not in self._folders:
                self._folders.add(folder)
                entry = self._entry(folder, self._now, 0o700)
                entry.type = tarfile.DIRTYPE
                self._tar.addfile(entry)

    def _entry(self, inside: str, changed: float, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(f"{self._top}/{inside}".rstrip("/"))
        entry.mtime, entry.mode = int(changed), mode
        return entry


def _described(agent: AgentName, key: Key) -> dict[str, str]:
    retired = {"retired_at": key.retired_at} if key.retired_at else {}
    return {
        "agent": agent,
        "kid": key.kid,
        "alg": key.alg,
        "state": key.state,
        "created_at": key.created_at,
        **retired,
        "fingerprint": fingerprint(key),
        **({"public": encode_secret(key.public)} if key.is_sealed else {}),
    }


def _json_lines(values: Iterable[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _is_sent_file(name: str) -> bool:
    return _SENT.fullmatch(name) is not None


def _is_queue_file(name: str) -> bool:
    return is_message_id(name[:26]) and name[26:] in (".request", ".decision")


def _is_pin(name: str) -> bool:
    stem, dot, kind = name.rpartition(".")
    return is_agent_name(stem) and dot + kind in (PIN, KEPT)


def _why(error: Exception) -> str:
    return (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)
