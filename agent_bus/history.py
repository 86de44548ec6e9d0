"""Looking things up: the inbox, the log, a thread, one message by part of its id.

Nothing here moves a message. What does not verify is listed with its outcome and without
its content. Lists come in pages, and cost follows what is shown, not what was kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from agent_bus.clock import id_time
from agent_bus.errors import NoSuchMessage, UsageError
from agent_bus.names import AgentName, MessageId, is_message_id
from agent_bus.reading import Place, State, Stored
from agent_bus.store import Store

SHORTEST_PART = 4
"""Characters that part of an id must have at least."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a list. `total` counts all of it (None where that would cost too much)."""

    messages: tuple[Stored, ...]
    total: int | None
    next: int | None
    """The number of the next page, if there is one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a listing is to show; None means anything.

    Only messages that verify (or have expired) can match a filter that asks for content.
    """

    sender: str | None = None
    kind: str | None = None
    thread: str | None = None
    agent: str | None = None
    """Sender or recipient."""
    since: int | None = None
    """Milliseconds since 1970."""

    def needs_content(self) -> bool:
        """Whether a message must be read to know if it matches."""
        return any((self.sender, self.kind, self.thread, self.agent))

    def matches(self, stored: Stored) -> bool:
        """Whether a loaded message is wanted."""
        message = stored.judged.message
        if message is None:
            return not self.needs_content() or self.agent == stored.place.box
        return (
            self.sender in (None, message.sender)
            and self.kind in (None, message.kind)
            and self.thread in (None, message.thread, message.id)
            and self.agent in (None, message.sender, message.to)
        )


def inbox(
    store: Store, box: AgentName, wanted: Filter, *, unread: bool, limit: int, page: int
) -> Page:
    """A box without its archive, oldest first."""
    _check_page(limit, page)
    skip = (page - 1) * limit
    try:
        with store.reader(box) as reader:
            states = reader.states(["new"] if unread else ["new", "read"])
            ids = sorted(states)
            total = len(ids)
            if wanted.needs_content():
                loaded = reader.load_all(_places(box, states, ids))
                matching = [stored for stored in loaded if wanted.matches(stored)]
                total = len(matching)
                shown = matching[skip : skip + limit]
            else:
                shown = list(reader.load_all(_places(box, states, ids[skip : skip + limit])))
    except FileNotFoundError:
        return Page((), 0, None)
    # An archiving that a crash cut short has left a copy here; it counts as archived.
    kept = tuple(stored for stored in shown if stored.place.state != "archived")
    return Page(kept, total, page + 1 if skip + limit < total else None)


def log(store: Store, wanted: Filter, *, limit: int, page: int) -> Page:
    """All boxes with their archives, newest first."""
    _check_page(limit, page)
    recent = _since(_all_newest_first(store), wanted.since)
    matching = (stored for stored in store.load_all(recent) if wanted.matches(stored))
    skip = (page - 1) * limit
    found = list(islice(matching, skip, skip + limit + 1))
    return Page(tuple(found[:limit]), None, page + 1 if len(found) > limit else None)


def thread(store: Store, ident: MessageId) -> list[Stored]:
    """The conversation that a message belongs to, oldest first. Raises NoSuchMessage."""
    root = ident
    for place in store.find_all(ident):
        message = store.load(place.box, ident).judged.message
        if message and message.thread:
            root = message.thread
    wanted = Filter(thread=root)
    earliest = id_time(root)
    # Nothing is older than the first message of a conversation, but for clocks that differ.
    recent = _since(_all_newest_first(store), earliest - _CLOCKS_DIFFER)
    found = [stored for stored in store.load_all(recent) if wanted.matches(stored)]
    if not found:
        raise NoSuchMessage(f"no message {ident} and no thread of that id")
    return found[::-1]


def everything(
    store: Store, boxes: Sequence[AgentName], after: Place | None = None
) -> Iterator[Stored]:
    """Every message file of these boxes, judged; a box at a time, in the order of ids.

    `after` leaves out what comes before it in this order, and itself.
    """
    for box in boxes:
        states = store.states(box, ("new", "read", "archived"))
        ids = sorted(states)
        if after is not None:
            ids = [ident for ident in ids if (box, ident) > (after.box, after.id)]
        yield from store.load_all(_places(box, states, ids))


def copies(store: Store, ident: MessageId) -> Iterator[Stored]:
    """One message, judged in each box that has it. Raises NoSuchMessage at once if none has."""
    places = store.find_all(ident)
    if not places:
        raise NoSuchMessage(f"no message {ident} on this bus")
    return store.load_all(places)


def ids(store: Store, boxes: Iterable[AgentName]) -> list[MessageId]:
    """Every id in these boxes."""
    every: tuple[State, ...] = ("new", "read", "archived")
    return [ident for box in boxes for ident in store.states(box, every)]


def resolve(text: str, candidates: Callable[[], Iterable[MessageId]]) -> MessageId:
    """The one id that text is, begins or ends. Raises NoSuchMessage and UsageError.

    A whole id wins without a look at the others.
    """
    if is_message_id(text):
        return MessageId(text)
    part = text.lower()
    if len(part) < SHORTEST_PART:
        raise UsageError(f"{text[:80]!a} is too short: give at least {SHORTEST_PART} characters")
    found = sorted({i for i in candidates() if i.startswith(part) or i.endswith(part)})
    if not found:
        raise NoSuchMessage(f"no message whose id begins or ends with {text[:80]!a}")
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
        raise UsageError(f"{text[:80]!a} fits {len(found)} messages: {shown}")
    return found[0]


_CLOCKS_DIFFER = 24 * 3600 * 1000


def _check_page(limit: int, page: int) -> None:
    if limit < 1 or page < 1:
        raise UsageError("limit and page begin at 1")


def _all_newest_first(store: Store) -> Iterator[Place]:
    streams = [_newest_first(store, box) for box in store.boxes()]
    return heapq.merge(*streams, key=lambda place: place.id, reverse=True)


def _newest_first(store: Store, box: AgentName) -> Iterator[Place]:
    """One box, newest first; an archive folder is listed only when its month is reached."""
    waiting = store.states(box, ("new", "read"))
    for month in reversed(store.months(box)):
        archived = store.archived_in(box, month)
        if not archived:
            continue
        first = archived[0]
        merged = {ident: state for ident, state in waiting.items() if ident >= first}
        waiting = {ident: state for ident, state in waiting.items() if ident < first}
        # An id that stands in both is archived.
        merged |= dict.fromkeys(archived, "archived")
        yield from _places(box, merged, sorted(merged, reverse=True))
    yield from _places(box, waiting, sorted(waiting, reverse=True))


def _places(
    box: AgentName, states: Mapping[MessageId, State], ids: Iterable[MessageId]
) -> Iterator[Place]:
    """Made one at a time, since most listings are left after a page."""
    return (Place(box, ident, states[ident]) for ident in ids)


def _since(places: Iterable[Place], since: int | None) -> Iterator[Place]:
    for place in places:
        if since is not None and id_time(place.id) < since:
            return
        yield place
