"""Reading the files of one box, its folders held open for as long as a listing lasts."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

from agent_bus import records
from agent_bus.envelope import FILE_LIMIT, Judged, has_expired, judge
from agent_bus.errors import StorageError
from agent_bus.files import Folder, UnfitFile
from agent_bus.keys import KeyIndex
from agent_bus.names import (
    AgentName,
    MessageId,
    ids_of_files,
    is_month,
    message_file,
    month_of,
)
from agent_bus.payload import Message

State = Literal["new", "read", "archived"]

_NOT_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
STATE_FOLDERS: dict[State, str] = {"new": "new", "read": "cur"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message file stands."""

    box: AgentName
    id: MessageId
    state: State


@dataclass(frozen=True, slots=True)
class Stored:
    """A message file and what it turned out to be."""

    place: Place
    judged: Judged


@dataclass(frozen=True, slots=True)
class Judge:
    """What is needed to judge a file, taken once for many of them.

    `now` is in milliseconds since 1970.
    """

    keys: KeyIndex
    bus: MessageId
    now: int

    def file(
        self,
        folder: Folder,
        name: str,
        box: AgentName | None,
        ident: MessageId | None,
        pruned: Callable[[MessageId], bool] = lambda _: False,
    ) -> Judged:
        """Judge a file. Whatever is wrong with it is the outcome.

        Raises FileNotFoundError, and OSError where this process lacks the means to read.
        """
        try:
            data = folder.read(name, FILE_LIMIT)
        except UnfitFile as error:
            return Judged("malformed", f"the file {error}")
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _NOT_THE_FILE:
                raise
            return Judged("malformed", f"the file cannot be read: {reason(error)}")
        return self.data(data, box, ident, pruned)

    def data(
        self,
        data: bytes,
        box: AgentName | None,
        ident: MessageId | None,
        pruned: Callable[[MessageId], bool] = lambda _: False,
    ) -> Judged:
        """Judge bytes."""
        return judge(
            data,
            keys=self.keys,
            bus=self.bus,
            box=box,
            ident=ident,
            now=self.now,
            pruned=pruned,
        )

    def is_over(self, message: Message) -> bool:
        """Whether a message has expired."""
        return has_expired(message, self.now)


class Reader:
    """One box, open for reading. Use it with `with`, and not for long."""

    def __init__(self, box: Folder, judge_: Judge) -> None:
        self._box = box
        self._name = AgentName(box.path.name)
        self._judge = judge_
        self._folders: dict[str, Folder | None] = {}
        self._archives: dict[str, Folder | None] = {}
        self._pruned: dict[str, frozenset[MessageId]] = {}

    def states(self, states: Iterable[State]) -> dict[MessageId, State]:
        """The messages that are in one of these states, in no order."""
        return listed(self._box, states)

    def find(self, ident: MessageId) -> State | None:
        """In which folder a message stands now: the latest of those that have it.

        new, cur and archive are looked at in this order, so that a message that is being
        moved is not missed.
        """
        found: State | None = None
        states: tuple[State, ...] = ("new", "read", "archived")
        for state in states:
            folder = self._folder(ident, state)
            if folder is not None and folder.status(message_file(ident)) is not None:
                found = state
        return found

    def load(self, ident: MessageId) -> Stored | None:
        """Read and judge a message where it stands now; None if it is gone."""
        for _ in range(4):  # it may move between the look and the read
            state = self.find(ident)
            folder = None if state is None else self._folder(ident, state)
            if state is None or folder is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                return Stored(Place(self._name, ident, state), self._judged(ident, folder))
        return None

    def load_listed(self, place: Place) -> Stored | None:
        """Read and judge a message where a listing has just shown it; None if it is gone.

        new and cur were listed one after the other; only the archive may have it as well.
        """
        ident, state = place.id, place.state
        if state != "archived" and self._is_archived(ident):
            place = Place(self._name, ident, "archived")
        folder = self._folder(ident, place.state)
        try:
            judged = self._judged(ident, folder) if folder else None
        except FileNotFoundError:
            judged = None
        # It has moved since, or is gone.
        return self.load(ident) if judged is None else Stored(place, judged)

    def load_all(self, places: Iterable[Place]) -> Iterator[Stored]:
        """Read and judge messages in the given order; those that are gone are left out."""
        for place in places:
            stored = self.load_listed(place)
            if stored is not None:
                yield stored

    def _judged(self, ident: MessageId, folder: Folder) -> Judged:
        return self._judge.file(folder, message_file(ident), self._name, ident, self._was_pruned)

    def _is_archived(self, ident: MessageId) -> bool:
        """Whether the archive has it, as far as its folder was there at the first look."""
        month = month_of(ident)
        if month not in self._archives:
            self._archives[month] = self._folder(ident, "archived")
        archive = self._archives[month]
        return archive is not None and archive.status(message_file(ident)) is not None

    def close(self) -> None:
        """Close the folders."""
        for folder in (*self._folders.values(), self._box):
            if folder is not None:
                folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folder(self, ident: MessageId, state: State) -> Folder | None:
        name = STATE_FOLDERS.get(state) or month_of(ident)
        if name not in self._folders:
            try:
                folder = state_folder(self._box, ident, state)
            except FileNotFoundError:
                return None
            self._folders[name] = folder
        return self._folders[name]

    def _was_pruned(self, ident: MessageId) -> bool:
        month = month_of(ident)
        if month not in self._pruned:
            folder = self._folder(ident, "archived")
            gone = records.pruned_in(folder) if folder else ()
            self._pruned[month] = frozenset(entry.id for entry in gone)
        return ident in self._pruned[month]


def listed(box: Folder, states: Iterable[State]) -> dict[MessageId, State]:
    """The messages of a box that are in one of these states, in no order. Raises OSError."""
    wanted = set(states)
    found: dict[MessageId, State] = {}
    new = ids_in(box, "new") if "new" in wanted else set()
    # cur is listed second: what moves in between stands in both, and counts as read.
    cur = ids_in(box, "cur") if new or "read" in wanted else set()
    if "new" in wanted:
        found |= dict.fromkeys(new - cur, "new")
    if "read" in wanted:
        found |= dict.fromkeys(cur, "read")
    if "archived" in wanted:
        with contextlib.suppress(FileNotFoundError), box.child("archive") as archive:
            for month in filter(is_month, archive.names()):
                found |= dict.fromkeys(ids_in(archive, month), "archived")
    return found


def ids_in(box: Folder, *parts: str) -> set[MessageId]:
    """The ids of the messages in a folder of a box; none if there is no such folder."""
    try:
        with box.descend(*parts) as folder:
            return set(ids_of_files(folder.names()))
    except FileNotFoundError:
        return set()


def state_folder(box: Folder, ident: MessageId, state: State) -> Folder:
    """Open the folder of a state. Raises OSError."""
    if state == "archived":
        return box.descend("archive", month_of(ident))
    return box.child(STATE_FOLDERS[state])


class storage_errors(contextlib.ContextDecorator):  # noqa: N801 - reads like a function
    """What the system refuses becomes a StorageError; a decorator as well."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(reason(error)) from error


def reason(error: OSError) -> str:
    """What went wrong and where, with what to do about the usual causes."""
    advice = {
        errno.ENOSPC: ": free some space",
        errno.EDQUOT: ": free some space",
        errno.EROFS: ": allow this process to write there",
        errno.EACCES: ": allow this process to write there",
        errno.EPERM: ": allow this process to write there",
        errno.EMFILE: ": too many files are open in this process",
    }.get(error.errno or 0, "")
    return f"{os.strerror(error.errno or 0)} at {error.filename}{advice}"
