"""What a box remembers beside its messages: its journal, and the ids of pruned messages.

Both are files of lines that only grow. A line is one O_APPEND write; a torn tail and a
foreign line are passed over.

    journal                      <time> read|archived <id>
    archive/<YYYY-MM>/pruned     <id> <sender>/<name in sent/ of the sender>, or - <content hash>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

from agent_bus.clock import from_text
from agent_bus.files import Folder, UnfitFile
from agent_bus.names import MessageId, is_message_id, is_month, month_of

JournalEvent = Literal["read", "archived"]

JOURNAL = "journal"
PRUNED = "pruned"
_LIMIT = 256 << 20
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journal; `at` is RFC 3339 text."""

    at: str
    event: JournalEvent
    id: MessageId


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is kept of a message that was removed."""

    id: MessageId
    sent: str | None
    """Its name below `sent`, `<sender>/<hash>`, if it was a keyed send."""
    content: str
    """Its content hash (`Message.content_hash`)."""


def note(box: Folder, at: str, event: JournalEvent, ident: MessageId) -> None:
    """Add a line to the journal. Not durable: a crash may forget it, as it may the move."""
    box.append(JOURNAL, f"{at} {event} {ident}\n".encode())


def events(box: Folder, ident: MessageId | None = None) -> Iterator[Event]:
    """The journal, oldest first; with `ident` what became of that message."""
    for line in _lines(box, JOURNAL):
        if ident is not None and not line.endswith(ident):
            continue
        at, _, rest = line.partition(" ")
        event, _, found = rest.partition(" ")
        if event in ("read", "archived") and is_message_id(found) and _is_time(at):
            yield Event(at, cast("JournalEvent", event), MessageId(found))


def remember_pruned(month: Folder, gone: Iterable[Pruned]) -> None:
    """Write down what is about to be removed. Durable on return."""
    lines = "".join(f"{entry.id} {entry.sent or '-'} {entry.content}\n" for entry in gone)
    month.append(PRUNED, lines.encode(), durable=True)
    month.sync()


def pruned_in(month: Folder) -> Iterator[Pruned]:
    """The messages that were removed from one archive folder."""
    for line in _lines(month, PRUNED):
        entry = _parse_pruned(line)
        if entry:
            yield entry


def was_pruned(box: Folder, ident: MessageId) -> Pruned | None:
    """What is kept of a message, if it was removed from this box."""
    try:
        with box.descend("archive", month_of(ident)) as month:
            return next((entry for entry in pruned_in(month) if entry.id == ident), None)
    except FileNotFoundError:
        return None


def pruned_under(box: Folder, sent: str) -> Pruned | None:
    """What is kept of the keyed send with that name below `sent`, if it was removed here."""
    try:
        with box.child("archive") as archive:
            for name in filter(is_month, archive.names()):
                with archive.child(name) as month:
                    for entry in pruned_in(month):
                        if entry.sent == sent:
                            return entry
    except FileNotFoundError:
        pass
    return None


def _parse_pruned(line: str) -> Pruned | None:
    words = line.split(" ")
    if len(words) != 3 or not is_message_id(words[0]) or not _HASH.fullmatch(words[2]):
        return None
    return Pruned(MessageId(words[0]), None if words[1] == "-" else words[1], words[2])


def _lines(folder: Folder, name: str) -> list[str]:
    try:
        data = folder.read(name, _LIMIT)
    except (FileNotFoundError, UnfitFile):
        return []
    # What follows the last line end is the torn tail of a crash.
    return data.decode("utf-8", "replace").split("\n")[:-1]


def _is_time(text: str) -> bool:
    try:
        from_text(text)
    except ValueError:
        return False
    return True
