"""One round through a bus: what it has found, and the only ways in which it may repair.

Everything else in this package looks and reports; what changes anything is here: `aside`
moves, a mode is tightened, a missing folder is made. Folders are opened without judging them
first, since what the rest of the program refuses is what is looked for here; a link is
followed nowhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_bus.bus import Bus
from agent_bus.doctor.finding import Finding, Severity
from agent_bus.doctor.trust import Trust
from agent_bus.envelope import FILE_LIMIT, Judged
from agent_bus.errors import AgentBusError
from agent_bus.files import Folder, UnfitFile
from agent_bus.git import quoted, shown
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Message
from agent_bus.reading import Judge, reason

Aside = tuple[str, ...]
"""The folder below the bus that takes what is moved aside, as path components."""

ROOT_BAD: Aside = ("bad",)
REPAIR = "agent-bus doctor --repair moves it aside"
LEFTOVER_AGE = 36 * 3600
"""Seconds after which what a crash has left is nobody's any more."""
_NAME_LIMIT = 255


@dataclass(frozen=True, slots=True)
class Seen:
    """What the boxes hold, for the checks that compare them with something else."""

    standing: dict[AgentName, set[MessageId]] = field(default_factory=dict)
    pruned: dict[AgentName, set[MessageId]] = field(default_factory=dict)
    requests: list[Message] = field(default_factory=list)


class Examination:
    """The state of one round. `root` is the bus folder, open."""

    def __init__(
        self, bus: Bus, root: Folder, *, repair: bool, progress: Callable[[int], None]
    ) -> None:
        self.bus = bus
        self.root = root
        self.progress = progress
        self.findings: list[Finding] = []
        self.seen = Seen()
        self.now = bus.clock.now()
        self.repair = repair
        self._trust: Trust | None = None

    # -- reporting

    def note(self, code: str, severity: Severity, path: Path, message: str) -> None:
        """Report something that no repair mends."""
        self._add(Finding(code, severity, shown(path), message))

    @contextlib.contextmanager
    def guard(self, path: Path) -> Iterator[None]:
        """Report whatever goes wrong inside, and go on behind it."""
        try:
            yield
        except FileNotFoundError:
            pass  # It moved on: the bus is in use.
        except (OSError, AgentBusError, UnfitFile, ValueError, RecursionError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            self.note("cannot-check", "error", path, f"cannot be examined: {why}")

    def _add(self, finding: Finding) -> None:
        self.findings.append(replace(finding, message=_one_line(finding.message)))

    # -- looking

    def entries(self, folder: Folder) -> Iterator[tuple[str, os.stat_result]]:
        """What stands in a folder, with its status; each is examined under a guard."""
        for name in sorted(folder.names()):
            status = None
            with self.guard(folder.path / name):
                status = folder.status(name)
            if status is not None:
                self.progress(1)
                yield name, status

    def folder(self, parent: Folder, name: str, into: Aside) -> Folder | None:
        """Open a folder that belongs to a bus; None if there is none that can be used."""
        status = parent.status(name)
        if status is None:
            return None
        path = parent.path / name
        if not stat.S_ISDIR(status.st_mode):
            what = _kind(status)
            code = "link" if stat.S_ISLNK(status.st_mode) else "no-folder"
            self.aside(code, "error", parent, name, f"is {what} where a folder belongs", into)
        elif _is_foreign(status):
            self._foreign(parent, name, status, into)
        elif self.tighten(parent, name, status):
            with self.guard(path):
                return parent.child(name, shared=True)
        return None

    def is_plain(
        self,
        folder: Folder,
        name: str,
        status: os.stat_result,
        into: Aside,
        limit: int = FILE_LIMIT,
    ) -> bool:
        """Whether this is a file of ours that can be read; its mode is not looked at."""
        what: tuple[str, str] | None = None
        if stat.S_ISLNK(status.st_mode):
            what = "link", "is a link, and no link is followed in a bus"
        elif not stat.S_ISREG(status.st_mode):
            what = "no-file", f"is {_kind(status)} where a file belongs"
        elif _is_foreign(status):
            self._foreign(folder, name, status, into)
            return False
        elif status.st_size > limit:
            what = "too-large", f"has {status.st_size} bytes, more than {limit}"
        if what is not None:
            self.aside(what[0], "error", folder, name, what[1], into)
            return False
        return status.st_mode & 0o400 != 0 or self.tighten(folder, name, status)

    def content(self, folder: Folder, name: str, limit: int = FILE_LIMIT) -> bytes | None:
        """The bytes of a plain file; None if it has moved on or cannot be read."""
        try:
            return folder.read(name, limit)
        except FileNotFoundError:
            return None
        except (OSError, UnfitFile) as error:
            # Perhaps the disk, perhaps a limit of this process: no reason to move it.
            why = reason(error) if isinstance(error, OSError) else f"it {error}"
            self.note("unreadable", "error", folder.path / name, f"cannot be read: {why}")
            return None

    # -- judging

    def trust(self, trust: Trust) -> None:
        """Say by which keys messages are judged. Without any, signatures are not looked at."""
        self._trust = trust

    @property
    def known(self) -> frozenset[AgentName] | None:
        """The agents that have a key, or had one; None if the keys cannot be used."""
        return self._trust.known if self._trust else None

    @property
    def judge(self) -> Judge | None:
        """What messages are judged by; None if the keys cannot be used."""
        return Judge(self._trust.index, self.bus.file.bus, self.now) if self._trust else None

    def outcome(self, folder: Folder, name: str, judged: Judged, into: Aside) -> Message | None:
        """The message, if the file is one (an expired one too); else it is reported."""
        if judged.message is not None:
            self.mode(folder, name, verified=True)
            return judged.message
        text = f"is no valid message: {judged.outcome}, {judged.detail}"
        self.refuse(judged.outcome, folder, name, text, judged.raw, into)
        return None

    def refuse(
        self, code: str, folder: Folder, name: str, text: str, raw: bytes, into: Aside
    ) -> None:
        """Report signed bytes that do not count; they stay if only their key may be lost."""
        lost = self._trust.lost_key(raw) if self._trust and code == "unknown-key" else None
        if lost is None:
            self.aside(code, "error", folder, name, text, into)
        else:
            self.note(code, "error", folder.path / name, f"{text}: {lost}")

    # -- repairing

    def aside(
        self,
        code: str,
        severity: Severity,
        folder: Folder,
        name: str,
        message: str,
        into: Aside,
    ) -> None:
        """Report something, and move it aside if this is a repair."""
        path = folder.path / name
        if not self.repair:
            self._add(Finding(code, severity, shown(path), f"{message}: {REPAIR}", repairable=True))
            return
        try:
            moved = self._move(folder, name, into)
        except FileNotFoundError:
            return  # Another process was quicker.
        except (OSError, AgentBusError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            self.note(code, severity, path, f"{message}, and cannot be moved aside: {why}")
            return
        self._add(
            Finding(
                code,
                severity,
                shown(path),
                f"{message}: moved aside",
                repairable=True,
                repaired=shown(moved),
            )
        )

    def missing(self, name: str) -> None:
        """Report that one of the bus's own folders is not there; a repair makes it."""
        path = self.root.path / name
        text = "is missing"
        if self.repair:
            self.bus.store.make(name).close()
            text += ": made, and empty"
        else:
            text += ": agent-bus init, or agent-bus doctor --repair, makes it"
        made = shown(path) if self.repair else None
        self._add(Finding("missing-part", "error", shown(path), text, True, made))

    def tighten(
        self, folder: Folder, name: str, status: os.stat_result, *, verified: bool = False
    ) -> bool:
        """Report a mode that is open to others, or closed to its owner; mend it in a repair.

        What was not `verified` and has other names may be a file from outside the bus, whose
        mode is not ours to change. Returns whether the owner can use it now.
        """
        is_folder = stat.S_ISDIR(status.st_mode)
        wanted, needed = (0o700, 0o700) if is_folder else (0o600, 0o400)
        mode = stat.S_IMODE(status.st_mode)
        usable = mode & needed == needed
        if not hasattr(os, "geteuid") or (usable and not mode & 0o077):
            return True
        path = folder.path / name if name != "." else folder.path
        code = "loose-mode" if usable else "unreadable"
        severity: Severity = "warning" if usable and not mode & 0o022 else "error"
        text = f"{'is open to other users' if usable else 'is closed to its owner'} ({mode:04o})"
        advice = f"chmod {wanted:o} {quoted(path)}"
        if usable and not (is_folder or verified or status.st_nlink == 1):
            self.note(code, severity, path, f"{text} and has a name elsewhere: {advice}")
        elif not self.repair:
            text = f"{text}: {advice}, or agent-bus doctor --repair"
            self._add(Finding(code, severity, shown(path), text, repairable=True))
        else:
            return self._set_mode(Finding(code, severity, shown(path), text), folder, name, wanted)
        return usable

    def mode(self, folder: Folder, name: str, *, verified: bool = False) -> None:
        """Look at the mode of a file whose content is as it should be."""
        status = folder.status(name)
        if status is not None:
            self.tighten(folder, name, status, verified=verified)

    def _set_mode(self, finding: Finding, folder: Folder, name: str, mode: int) -> bool:
        try:
            folder.set_mode(name, mode)
        except OSError as error:
            text = f"{finding.message}, and cannot be changed: {reason(error)}"
            self._add(replace(finding, message=text))
            return finding.code == "loose-mode"
        text = f"{finding.message}: the mode is {mode:04o} now"
        self._add(replace(finding, message=text, repairable=True, repaired=f"{mode:04o}"))
        return True

    def _move(self, folder: Folder, name: str, into: Aside) -> Path:
        """Move something into a `bad` folder under a name of its own. Returns its new path."""
        moved = _new_name(name)
        if folder is self.root and name == ROOT_BAD[0]:
            # It stands where it has to go.
            folder.move_folder(name, folder, moved)
            name = moved
        try:
            return self._move_into(folder, name, into, moved)
        except FileNotFoundError:
            raise
        except (OSError, AgentBusError):
            if into == ROOT_BAD:
                raise
            return self._move_into(folder, name, ROOT_BAD, moved)

    def _move_into(self, folder: Folder, name: str, into: Aside, moved: str) -> Path:
        with self.bus.store.make(*into) as target:
            status = folder.status(name)
            if status and stat.S_ISDIR(status.st_mode) and not _is_foreign(status):
                # To move a folder is to write into it.
                folder.set_mode(name, 0o700)
            folder.move_folder(name, target, moved)
            return target.path / moved

    def _foreign(self, folder: Folder, name: str, status: os.stat_result, into: Aside) -> None:
        text = f"belongs to user {status.st_uid}"
        if stat.S_ISDIR(status.st_mode) and os.geteuid() != 0:
            # Moving a folder changes the folder itself, which is for its owner to do.
            text += ": move it out of the bus as that user, or as root"
            self.note("foreign-owner", "error", folder.path / name, text)
        else:
            self.aside("foreign-owner", "error", folder, name, text, into)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _is_foreign(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and status.st_uid != os.geteuid()


def _kind(status: os.stat_result) -> str:
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


def _new_name(name: str) -> str:
    """The name with a suffix of its own, cut where a file system would refuse it."""
    suffix = f".{secrets.token_hex(4)}"
    kept = os.fsencode(name)[: _NAME_LIMIT - len(suffix)]
    return os.fsdecode(kept) + suffix
