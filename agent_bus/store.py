"""Boxes: find, read, archive.

    messages/<agent>/tmp      being written; nobody reads it
                    /new      delivered, not read
                    /cur      read
                    /archive/<YYYY-MM>   done
                    /bad      set aside by `doctor --repair` alone

A move is link, flush, unlink. An id that stands in two folders (a crash between the steps,
or a move seen half-way) counts as in the later one: new < cur < archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from agent_bus import records
from agent_bus.clock import Clock, to_text
from agent_bus.errors import NoBus, NoSuchMessage, StorageError
from agent_bus.files import Folder
from agent_bus.keys import KeyIndex, Keys
from agent_bus.names import (
    AgentName,
    MessageId,
    is_agent_name,
    is_month,
    message_file,
    month_of,
)
from agent_bus.pins import Pins
from agent_bus.reading import (
    STATE_FOLDERS,
    Judge,
    Place,
    Reader,
    State,
    Stored,
    ids_in,
    listed,
    reason,
    storage_errors,
)

_TEMPORARY_AGE = 36 * 3600
"""Seconds after which a file in tmp is nobody's any more (the rule of Maildir)."""


class Store:
    """The boxes of one bus. It holds no state that another process could make stale."""

    def __init__(self, root: Path, bus: MessageId, keys: Keys, clock: Clock) -> None:
        self.root = root
        self.bus = bus
        self.keys = keys
        self.pins = Pins(root, bus, clock)
        self._clock = clock

    def judge(self, keys: KeyIndex | None = None) -> Judge:
        """What a file is judged by now: keys, unless the caller has just looked, and time."""
        narrowed = self.pins.narrow(keys or self.keys.index())
        return Judge(narrowed, self.bus, self._clock.now())

    # -- listing

    def boxes(self) -> list[AgentName]:
        """The names that have a box, sorted. What else lies there is no box."""
        with self.open("messages") as messages:
            names = (AgentName(name) for name in messages.names() if is_agent_name(name))
            return sorted(name for name in names if messages.has_folder(name))

    def unread(self, box: AgentName) -> list[MessageId]:
        """The ids in new, oldest first, without those that stand in cur as well.

        The archive is not looked at, since that would cost history: a message whose
        archiving was cut short by a crash is counted here until somebody loads it.
        """
        return sorted(self.states(box, ["new"]))

    def places(self, box: AgentName, states: Iterable[State]) -> list[Place]:
        """Where the messages of a box stand, in these states, oldest first."""
        found = self.states(box, states)
        return [Place(box, ident, found[ident]) for ident in sorted(found)]

    def states(self, box: AgentName, states: Iterable[State]) -> dict[MessageId, State]:
        """The messages of a box that are in one of these states, in no order."""
        try:
            with self.box(box) as folder:
                return listed(folder, states)
        except FileNotFoundError:
            return {}

    def months(self, box: AgentName) -> list[str]:
        """The archive folders of a box, oldest first."""
        try:
            with self.open("messages", box, "archive") as archive:
                return sorted(filter(is_month, archive.names()))
        except FileNotFoundError:
            return []

    def archived_in(self, box: AgentName, month: str) -> list[MessageId]:
        """The ids in one archive folder, oldest first."""
        try:
            with self.box(box) as folder:
                return sorted(ids_in(folder, "archive", month))
        except FileNotFoundError:
            return []

    def journal(self, box: AgentName, ident: MessageId | None = None) -> Iterator[records.Event]:
        """What happened to the messages of a box, or to one of them, oldest first."""
        try:
            with self.box(box) as folder:
                yield from records.events(folder, ident)
        except FileNotFoundError:
            return

    def was_pruned(self, box: AgentName, ident: MessageId) -> bool:
        """Whether a message was removed from a box, its id kept."""
        try:
            with self.box(box) as folder:
                return records.was_pruned(folder, ident) is not None
        except FileNotFoundError:
            return False

    # -- reading

    def reader(self, box: AgentName) -> Reader:
        """Open a box for reading many messages. Raises FileNotFoundError."""
        return Reader(self.box(box), self.judge())

    def find(self, box: AgentName, ident: MessageId) -> Place | None:
        """Where a message stands now."""
        try:
            with self.reader(box) as reader:
                state = reader.find(ident)
        except FileNotFoundError:
            return None
        return None if state is None else Place(box, ident, state)

    def find_all(self, ident: MessageId) -> list[Place]:
        """Where an id stands, in all boxes."""
        found = (self.find(box, ident) for box in self.boxes())
        return [place for place in found if place is not None]

    def load(self, box: AgentName, ident: MessageId) -> Stored:
        """Read and judge a message. Raises NoSuchMessage if it is not there.

        Whatever else is wrong with it is the outcome.
        """
        with contextlib.suppress(FileNotFoundError), self.reader(box) as reader:
            stored = reader.load(ident)
            if stored is not None:
                return stored
        raise NoSuchMessage(f"no message {ident} in the box of {box}")

    def load_all(self, places: Iterable[Place]) -> Iterator[Stored]:
        """Read and judge many messages in the given order; those that are gone are left out.

        The places come from a listing that was made just now.
        """
        with storage_errors(), contextlib.ExitStack() as stack:
            judge = self.judge()
            readers: dict[AgentName, Reader | None] = {}
            for place in places:
                if place.box not in readers:
                    readers[place.box] = None
                    with contextlib.suppress(FileNotFoundError):
                        reader = Reader(self.box(place.box), judge)
                        readers[place.box] = stack.enter_context(reader)
                opened = readers[place.box]
                stored = opened.load_listed(place) if opened else None
                if stored is not None:
                    yield stored

    # -- moving

    def mark_read(self, place: Place) -> Place:
        """Move a message from new to cur. What is not new any more stays where it is."""
        return self._move(place, "read") if place.state == "new" else place

    def archive(self, place: Place) -> Place:
        """Move a message into the archive: the acknowledgement."""
        return self._move(place, "archived") if place.state != "archived" else place

    def _move(self, place: Place, state: Literal["read", "archived"]) -> Place:
        name = message_file(place.id)
        try:
            with self.box(place.box) as box, _make_state(box, place.id, state) as target:
                # What counts goes first: if another file stands elsewhere, it is in its own way.
                for origin in ("cur", "new") if state == "archived" else ("new",):
                    # Gone meanwhile: another process of this identity moved it.
                    with contextlib.suppress(FileNotFoundError), box.child(origin) as source:
                        if source.status(name) is not None:
                            source.move(name, target)
                # The folders are the truth; a full disk must not keep anybody from reading.
                with contextlib.suppress(OSError):
                    records.note(box, to_text(self._clock.now()), state, place.id)
        except OSError as error:
            raise StorageError(f"{place.id} could not be moved: {reason(error)}") from error
        return Place(place.box, place.id, state)

    # -- folders

    def box(self, box: AgentName) -> Folder:
        """Open a box. Raises OSError, and NoBus if the bus itself is gone."""
        return self.open("messages", box)

    def make_box(self, box: AgentName) -> Folder:
        """Open a box, made where it or a part of it is missing. Raises OSError."""
        with self.open("messages") as messages:
            folder = open_or_make(messages, box)
            for part in ("tmp", "new", "cur"):
                if not folder.has_folder(part):
                    open_or_make(folder, part).close()
            return folder

    def open(self, *parts: str) -> Folder:
        """Open a folder below the root. Raises OSError, and NoBus if the bus itself is gone."""
        try:
            with Folder.open(self.root) as root:
                here = root.child(parts[0])
        except FileNotFoundError:
            if parts[0] == "messages" or not self.root.is_dir():
                raise NoBus(f"the bus at {self.root} is gone: agent-bus init") from None
            raise
        for part in parts[1:]:
            with here:
                here = here.child(part)
        return here

    def make(self, *parts: str) -> Folder:
        """Open a folder below the root, made where it is missing. Raises OSError."""
        here = Folder.open(self.root)
        for part in parts:
            with here:
                here = open_or_make(here, part)
        return here

    def sweep(self, box: AgentName) -> int:
        """Remove what crashes left in tmp, once it is older than 36 hours. Returns how many."""
        swept = 0
        with contextlib.suppress(FileNotFoundError), self.open("messages", box, "tmp") as tmp:
            for name in tmp.names():
                status = tmp.status(name)
                if status and self._clock.now() / 1000 - status.st_mtime > _TEMPORARY_AGE:
                    with contextlib.suppress(OSError):
                        tmp.unlink(name)
                        swept += 1
        return swept


def open_or_make(parent: Folder, name: str) -> Folder:
    """Open a folder, made (0700, durable) where it is missing. Raises OSError."""
    try:
        return parent.child(name)
    except FileNotFoundError:
        return parent.make(name)


def _make_state(box: Folder, ident: MessageId, state: State) -> Folder:
    if state != "archived":
        return open_or_make(box, STATE_FOLDERS[state])
    with open_or_make(box, "archive") as archive:
        return open_or_make(archive, month_of(ident))
