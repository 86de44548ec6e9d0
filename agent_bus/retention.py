"""Prune: old messages go, their ids stay.

What is about to be removed is first written down and flushed (`archive/<month>/pruned`):
a copy that is put back later is `replayed`, and a later send under its key is a duplicate or
a conflict, never a second message. Only archived and, if asked, read messages are removed;
unread ones and undecided requests never are, nor anything that does not verify.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from agent_bus import records
from agent_bus.approvals import Approvals
from agent_bus.clock import Clock, id_time
from agent_bus.delivery import APPROVAL_REQUEST
from agent_bus.errors import AgentBusError, StorageError
from agent_bus.files import Folder
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.payload import Message, parse_message
from agent_bus.reading import STATE_FOLDERS, Place, State, Stored, reason, state_folder
from agent_bus.store import Store, open_or_make


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a prune did."""

    removed: int
    kept_undecided: int
    kept_bad: int
    swept: int
    """Leftovers of crashed sends that were removed."""


def prune(
    store: Store,
    approvals: Approvals,
    clock: Clock,
    *,
    archived: int | None,
    read: int | None,
    progress: Callable[[int], None],
) -> Pruning:
    """Remove messages older than these ages (seconds; None: none). Raises StorageError.

    Age is counted from the time in the id. `progress` is called with how many files were
    looked at since its last call.
    """
    ages: dict[State, int | None] = {"archived": archived, "read": read}
    job = _Pruner(store, approvals, progress)
    now = clock.now()
    swept = 0
    for box in store.boxes():
        for state, age in ages.items():
            if age is not None:
                places = store.places(box, (state,))
                job.prune(box, state, [p for p in places if id_time(p.id) < now - age * 1000])
        swept += store.sweep(box)
    return Pruning(job.removed, job.undecided, job.bad, swept)


class _Pruner:
    def __init__(self, store: Store, approvals: Approvals, progress: Callable[[int], None]) -> None:
        self._store = store
        self._approvals = approvals
        self._progress = progress
        self._sent: dict[AgentName, dict[int, str]] = {}
        self.removed = self.undecided = self.bad = 0

    def prune(self, box: AgentName, state: State, places: list[Place]) -> None:
        """Remove these messages of one box, a month at a time."""
        months: dict[str, list[tuple[Place, Message]]] = defaultdict(list)
        for stored in self._store.load_all(places):
            self._progress(1)
            if stored.place.state != state:
                continue  # a move that was cut short: it stands further on as well
            message = stored.judged.message or _unfinished(stored)
            if message is None:
                self.bad += 1
            elif message.kind == APPROVAL_REQUEST and self._is_undecided(message.id):
                self.undecided += 1
            else:
                months[month_of(message.id)].append((stored.place, message))
        for month, gone in months.items():
            try:
                self._remove(box, month, gone)
            except OSError as error:
                raise StorageError(f"pruning {box} stopped: {reason(error)}") from error

    def _remove(self, box: AgentName, month: str, gone: list[tuple[Place, Message]]) -> None:
        with self._store.box(box) as folder, open_or_make(folder, "archive") as archive:
            with open_or_make(archive, month) as kept:
                names = {
                    place.id: self._sent_name(folder, place, message) for place, message in gone
                }
                records.remember_pruned(
                    kept,
                    (
                        records.Pruned(
                            place.id,
                            f"{message.sender}/{name}" if (name := names[place.id]) else None,
                            message.content_hash(),
                        )
                        for place, message in gone
                    ),
                )
            for place, message in gone:
                self._unlink(folder, place, message, names[place.id])
                self.removed += 1
            for place in {place.state: place for place, _ in gone}.values():
                # Else a power cut brings them back, as replays.
                with state_folder(folder, place.id, place.state) as home:
                    home.sync()

    def _unlink(
        self, folder: Folder, place: Place, message: Message, sent_name: str | None
    ) -> None:
        name = message_file(place.id)
        if sent_name is not None:
            with self._store.open("sent", message.sender) as sent:
                _remove_name(sent, sent_name)
        if message.kind == APPROVAL_REQUEST:
            with self._store.open("approvals") as approvals:
                _remove_name(approvals, f"{place.id}.decision")
                _remove_name(approvals, f"{place.id}.request")
        with state_folder(folder, place.id, place.state) as home:
            for part in (*STATE_FOLDERS.values(), f"archive/{month_of(place.id)}"):
                with contextlib.suppress(FileNotFoundError), folder.descend(*part.split("/")) as at:
                    # Another file under this id stays: it is not what was pruned.
                    if at.has_same(name, home):
                        _remove_name(at, name)

    def _sent_name(self, folder: Folder, place: Place, message: Message) -> str | None:
        """The other name of the file in the sender's folder, found by its inode."""
        part = STATE_FOLDERS.get(place.state)
        where = (part,) if part else ("archive", month_of(place.id))
        with folder.descend(*where) as at:
            status = at.status(message_file(place.id))
        return self._sent_of(message.sender).get(status.st_ino) if status else None

    def _sent_of(self, sender: AgentName) -> dict[int, str]:
        if sender not in self._sent:
            self._sent[sender] = {}
            with contextlib.suppress(FileNotFoundError), self._store.open("sent", sender) as sent:
                self._sent[sender] = sent.inodes()
        return self._sent[sender]

    def _is_undecided(self, ident: MessageId) -> bool:
        try:
            request = self._approvals.request(ident)
        except AgentBusError:
            return False
        return self._approvals.decision(request) is None


def _unfinished(stored: Stored) -> Message | None:
    """What an earlier prune wrote down, and did not come to remove before it was cut short."""
    if stored.judged.outcome != "replayed":
        return None
    return parse_message(stored.judged.raw.partition(b"\n")[2])


def _remove_name(folder: Folder, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.unlink(name)
