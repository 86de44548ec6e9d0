"""Nobody is left unread: which of an agent's messages lie unread with others, and since when.

A message that waits in a folder is no message. The one who can do something about it is its
sender, so the sender is told. Cost is bounded: of each box the newest hundred that are old
enough are looked at, and in all a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent_bus.clock import id_time
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Message
from agent_bus.presence import Presence
from agent_bus.reading import Place
from agent_bus.store import Store

_OF_A_BOX = 100
_IN_ALL = 1000


@dataclass(frozen=True, slots=True)
class Unread:
    """A message of one's own that its recipient has not read."""

    message: Message
    attached: bool
    """Whether a living process serves the recipient."""
    last_seen: int | None
    """When one was last busy, in milliseconds since 1970; None for never."""

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return self.message.id

    @property
    def to(self) -> AgentName:
        """Whose box it lies in."""
        return self.message.to


@dataclass(frozen=True, slots=True)
class Neglect:
    """What was found. It never says "all are read" where not all was looked at."""

    messages: tuple[Unread, ...]
    """Oldest first."""
    complete: bool
    """Whether every message that is old enough was looked at."""


def unread_by_others(
    store: Store, presence: Presence, me: AgentName, *, now: int, after: int
) -> Neglect:
    """The messages of `me` that have been unread for `after` seconds. Raises OSError.

    `now` is in milliseconds since 1970. Expired ones are left out: nobody waits for them any more.
    """
    places: list[Place] = []
    complete = True
    for box in store.boxes():
        if box == me:
            continue
        old = [ident for ident in store.unread(box) if id_time(ident) <= now - after * 1000]
        left_out = max(len(old) - min(_OF_A_BOX, _IN_ALL - len(places)), 0)
        complete = complete and not left_out
        places += [Place(box, ident, "new") for ident in old[left_out:]]
    found = sorted(_mine(store, presence, me, places), key=lambda one: one.id)
    return Neglect(tuple(found), complete)


def _mine(store: Store, presence: Presence, me: AgentName, places: list[Place]) -> Iterator[Unread]:
    seen: dict[AgentName, tuple[bool, int | None]] = {}
    for stored in store.load_all(places):
        message = stored.judged.message
        if message is None or message.sender != me or not stored.judged.ok:
            continue
        if stored.place.state != "new":
            continue
        box = stored.place.box
        if box not in seen:
            seen[box] = presence.attached(box), presence.last_seen(box)
        yield Unread(message, *seen[box])
