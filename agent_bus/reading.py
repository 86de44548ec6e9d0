"""Reading the files of one box, its folders held open for as long as a listing lasts."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

from agent_bus import records
from agent_bus.envelope import FILE_LIMIT, Judged, has_expired, judge
from agent_bus.errors import StorageError
from agent_bus.files import Folder, UnfitFile
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId, message_file, month_of
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
        self._pruned: dict[str, frozenset[MessageId]] = {}

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
                judged = self._judge.file(
                    folder, message_file(ident), self._name, ident, self._was_pruned
                )
                return Stored(Place(self._name, ident, state), judged)
        return None

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


def state_folder(box: Folder, ident: MessageId, state: State) -> Folder:
    """Open the folder of a state. Raises OSError."""
    if state == "archived":
        return box.descend("archive", month_of(ident))
    return box.child(STATE_FOLDERS[state])


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """What the system refuses becomes a StorageError; a decorator as well."""
    try:
        yield
    except OSError as error:
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
