"""How an agent stands, and what became of a message: for people and for senders.

Nothing is delivered, withheld or decided because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_bus.clock import id_time, to_text
from agent_bus.envelope import Outcome
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

    @property
    def bad_is_all(self) -> bool:
        """Whether all unread files were judged."""
        return self.unread <= _JUDGED


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """What became of a message. Times are RFC 3339 text."""

    id: MessageId
    to: AgentName
    outcome: Outcome | Literal["pruned"]
    """What it is judged to be now; `pruned`: it was removed, and its id kept."""
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


def message_status(store: Store, presence: Presence, ident: MessageId) -> list[MessageStatus]:
    """What became of a message, in each box that has or had it. Raises OSError."""
    found = []
    for box in store.boxes():
        stored = next(store.load_all([Place(box, ident, "new")]), None)
        if stored is not None or store.was_pruned(box, ident):
            found.append(_message_status(store, presence, box, ident, stored))
    return found


def _message_status(
    store: Store,
    presence: Presence,
    box: AgentName,
    ident: MessageId,
    stored: Stored | None,
) -> MessageStatus:
    read_at = archived_at = None
    for event in store.journal(box, ident):
        if event.event == "read":
            read_at = read_at or event.at
        else:
            archived_at = event.at
    message = None if stored is None else stored.judged.message
    return MessageStatus(
        id=ident,
        to=box,
        outcome="pruned" if stored is None else stored.judged.outcome,
        delivered_at=message.sent_at if message else to_text(id_time(ident)),
        read_at=read_at,
        archived_at=None if stored and stored.place.state != "archived" else archived_at,
        attached=presence.attached(box),
    )
