"""How an agent stands, and what became of a message: for people and for senders.

Nothing is delivered, withheld or decided because of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_bus.clock import id_time, to_text
from agent_bus.names import AgentName, MessageId
from agent_bus.presence import Presence, Process
from agent_bus.reading import Place, Stored
from agent_bus.store import Store

_JUDGED = 100


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """How one agent stands. Times are milliseconds since 1970."""

    agent: AgentName
    unread: int
    oldest_unread: int | None
    attached: tuple[Process, ...]
    """Its living processes."""
    last_seen: int | None
    bad: tuple[Stored, ...]
    """Unread files that do not verify, among the oldest hundred."""


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """What became of a message. Times are RFC 3339 text."""

    id: MessageId
    to: AgentName
    delivered_at: str
    read_at: str | None
    archived_at: str | None
    attached: bool


def agent_status(store: Store, presence: Presence, name: AgentName) -> AgentStatus:
    """How one agent stands. Raises OSError."""
    unread = store.unread(name)
    first = (Place(name, ident, "new") for ident in unread[:_JUDGED])
    bad = tuple(
        stored for stored in store.load_all(first) if stored.judged.outcome not in ("ok", "expired")
    )
    processes = presence.processes(name)
    return AgentStatus(
        agent=name,
        unread=len(unread),
        oldest_unread=id_time(unread[0]) if unread else None,
        attached=tuple(process for process in processes if process.alive),
        last_seen=max((process.seen_at for process in processes), default=None),
        bad=bad,
    )


def message_status(store: Store, presence: Presence, stored: Stored) -> MessageStatus:
    """What became of a message in one box. Raises OSError."""
    place, message = stored.place, stored.judged.message
    read_at = archived_at = None
    for event in store.journal(place.box, place.id):
        if event.event == "read":
            read_at = read_at or event.at
        else:
            archived_at = event.at
    return MessageStatus(
        id=place.id,
        to=place.box,
        delivered_at=message.sent_at if message else to_text(id_time(place.id)),
        read_at=read_at,
        archived_at=archived_at if place.state == "archived" else None,
        attached=presence.attached(place.box),
    )
