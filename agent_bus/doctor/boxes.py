"""The boxes: every file in them is judged, wherever it stands and whatever it is."""

from __future__ import annotations

from collections.abc import Iterator

from agent_bus import doubts, records
from agent_bus.delivery import APPROVAL_REQUEST, UNREAD_LIMIT
from agent_bus.doctor.examination import LEFTOVER_AGE, ROOT_BAD, Examination
from agent_bus.files import Folder
from agent_bus.names import (
    AgentName,
    MessageId,
    id_of_file,
    is_agent_name,
    is_conversation,
    is_month,
    message_file,
    month_of,
)

_PARTS = ("new", "cur", "tmp")
_RECORDS_LIMIT = 256 << 20


def examine(ex: Examination, messages: Folder) -> None:
    """Look at every box."""
    for name, _ in ex.entries(messages):
        with ex.guard(messages.path / name):
            if not is_agent_name(name):
                text = "is no box: no agent can have this name"
                ex.aside("unknown-entry", "error", messages, name, text, ROOT_BAD)
            elif (folder := ex.folder(messages, name, ROOT_BAD)) is not None:
                with folder:
                    _Box(ex, folder, AgentName(name)).examine()
    _compare(ex, messages)


def _compare(ex: Examination, messages: Folder) -> None:
    first: dict[MessageId, AgentName] = {}
    for box, ids in ex.seen.standing.items():
        for ident in sorted(ids):
            other = first.setdefault(ident, box)
            if other != box:
                path = messages.path / box
                text = f"{ident} is also a message of {other}: its sender uses an id twice"
                ex.note("id-in-two-boxes", "warning", path, text)


class _Box:
    def __init__(self, ex: Examination, folder: Folder, name: AgentName) -> None:
        self._ex = ex
        self._folder = folder
        self._name = name
        self._into = ("messages", name, "bad")
        self._standing: dict[MessageId, list[tuple[str, ...]]] = {}
        self._pruned: set[MessageId] = set()

    def examine(self) -> None:
        ex = self._ex
        self._entries()
        self._records(self._folder, records.JOURNAL)
        for _, folder in self._months():
            self._records(folder, records.PRUNED)
            with ex.guard(folder.path):
                self._pruned |= {gone.id for gone in records.pruned_in(folder)}
        for part in _PARTS:
            self._part(part)
        for month, folder in self._months():
            with ex.guard(folder.path):
                self._messages(folder, ("archive", month))
        ex.seen.standing[self._name] = set(self._standing)
        ex.seen.pruned[self._name] = self._pruned
        for ident, states in self._standing.items():
            if len(states) > 1:
                with ex.guard(self._folder.path):
                    self._two_states(ident, states)
        self._owner()

    def _entries(self) -> None:
        ex, folder = self._ex, self._folder
        for name, _ in ex.entries(folder):
            with ex.guard(folder.path / name):
                if name == "bad":
                    self._bad()
                elif name == "archive":
                    self._archive()
                elif name not in (*_PARTS, records.JOURNAL):
                    text = "is no part of a box"
                    ex.aside("unknown-entry", "error", folder, name, text, self._into)

    def _bad(self) -> None:
        opened = self._ex.folder(self._folder, "bad", ROOT_BAD)
        if opened is not None:
            with opened:
                if count := len(opened.names()):
                    text = f"things set aside here: {count}; look at them, then remove them"
                    self._ex.note("set-aside", "note", opened.path, text)

    def _archive(self) -> None:
        archive = self._ex.folder(self._folder, "archive", self._into)
        if archive is None:
            return
        with archive:
            for name, _ in self._ex.entries(archive):
                if not is_month(name):
                    text = "is no month of an archive"
                    self._ex.aside("unknown-entry", "error", archive, name, text, self._into)
                elif opened := self._ex.folder(archive, name, self._into):
                    opened.close()

    def _months(self) -> Iterator[tuple[str, Folder]]:
        """The archive's folders that can be used; what is wrong with others was reported."""
        try:
            archive = self._folder.child("archive", shared=True)
        except OSError:
            return
        with archive:
            for name in sorted(filter(is_month, archive.names())):
                try:
                    month = archive.child(name, shared=True)
                except OSError:
                    continue
                with month:
                    yield name, month

    def _part(self, part: str) -> None:
        ex = self._ex
        with ex.guard(self._folder.path / part):
            if self._folder.status(part) is None:
                text = f"has no {part}: the next send or server start makes it"
                ex.note("missing-part", "note", self._folder.path, text)
            elif (opened := ex.folder(self._folder, part, self._into)) is not None:
                with opened:
                    if part == "tmp":
                        self._temporary(opened)
                    else:
                        self._messages(opened, (part,))

    def _temporary(self, tmp: Folder) -> None:
        ex = self._ex
        for name, status in ex.entries(tmp):
            with ex.guard(tmp.path / name):
                if not ex.is_plain(tmp, name, status, self._into):
                    continue
                ex.mode(tmp, name)
                if ex.now / 1000 - status.st_mtime > LEFTOVER_AGE:
                    text = "was left by a crash: agent-bus prune, or the next server, removes it"
                    ex.note("leftover", "warning", tmp.path / name, text)

    def _messages(self, folder: Folder, where: tuple[str, ...]) -> None:
        ex, count = self._ex, 0
        for name, status in ex.entries(folder):
            with ex.guard(folder.path / name):
                if where[0] == "archive" and name == records.PRUNED:
                    continue
                count += 1
                if ex.is_plain(folder, name, status, self._into):
                    self._file(folder, name, where)
        if where == ("new",) and count > UNREAD_LIMIT:
            text = f"holds {count} unread messages, over {UNREAD_LIMIT} nobody can send: read some"
            ex.note("box-full", "warning", folder.path, text)

    def _file(self, folder: Folder, name: str, where: tuple[str, ...]) -> None:
        ex, ident = self._ex, id_of_file(name)
        if ident is None:
            ex.aside("no-message", "error", folder, name, "is no message's name", self._into)
            return
        if where[0] == "archive" and where[1] != month_of(ident):
            text = f"is of {month_of(ident)} by its id, and nobody looks for it here"
            ex.aside("misfiled", "error", folder, name, text, self._into)
            return
        data = ex.content(folder, name)
        if data is None:
            return
        if ex.judge is not None:
            judged = ex.judge.data(data, self._name, ident, self._pruned.__contains__)
            message = ex.outcome(folder, name, judged, self._into)
            if message is None:
                return
            if doubt := doubts.of_wake(message):
                text = f"was signed by {message.sender}: {doubt}"
                ex.note("doubted-wake", "warning", folder.path / name, text)
            if message.kind == APPROVAL_REQUEST:
                ex.seen.requests.append(message)
        else:
            ex.mode(folder, name)
        self._standing.setdefault(ident, []).append(where)

    def _two_states(self, ident: MessageId, states: list[tuple[str, ...]]) -> None:
        """An interrupted move: the message counts as in the later place, so the earlier goes."""
        *earlier, last = states
        name = message_file(ident)
        for where in earlier:
            with self._folder.descend(*where) as first, self._folder.descend(*last) as then:
                # Read again, since it may just be moving.
                if first.status(name) is None or then.status(name) is None:
                    continue
                text = f"stands also in {'/'.join(last)}, where it counts"
                if self._ex.content(first, name) == self._ex.content(then, name):
                    text += " (a move was cut short)"
                    self._ex.aside("two-states", "note", first, name, text, self._into)
                else:
                    text += " and differs: compare the two"
                    self._ex.note("id-twice", "warning", first.path / name, text)

    def _records(self, folder: Folder, name: str) -> None:
        """The journal, or what is kept of pruned messages: files of lines that only grow."""
        ex, path = self._ex, folder.path / name
        with ex.guard(path):
            status = folder.status(name)
            if status is None or not ex.is_plain(folder, name, status, self._into, _RECORDS_LIMIT):
                return
            ex.mode(folder, name)
            data = ex.content(folder, name, _RECORDS_LIMIT) or b""
            *whole, tail = data.split(b"\n")
            if tail:
                text = "ends in half a line, as a crash leaves it: it is passed over"
                ex.note("torn-line", "note", path, text)
            read = records.events if name == records.JOURNAL else records.pruned_in
            foreign = len(whole) - sum(1 for _ in read(folder))
            if foreign > 0:
                text = f"{foreign} lines of it cannot be read and are passed over"
                ex.note("foreign-lines", "warning", path, text)

    def _owner(self) -> None:
        known = self._ex.known
        # A conversation has no key: the gateway writes to it, and nobody reads as it.
        if known is not None and self._name not in known and not is_conversation(self._name):
            text = (
                f"{self._name} has no key, so nobody reads this box: agent-bus keygen {self._name}"
            )
            self._ex.note("box-without-key", "note", self._folder.path, text)
