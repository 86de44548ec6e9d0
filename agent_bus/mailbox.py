"""One's own box: reading and acknowledging. What does not verify is never moved."""

from __future__ import annotations

from agent_bus import history
from agent_bus.errors import NoSuchMessage, StorageError, VerificationError
from agent_bus.names import AgentName, MessageId
from agent_bus.reading import Place, Stored
from agent_bus.store import Store


def read(store: Store, me: AgentName, ident: str, *, archive: bool) -> Stored | None:
    """A message of this box by part of its id, which counts as read from now on.

    None if it is not here. What does not verify comes back with its outcome and is not
    moved. Raises UsageError, and StorageError if it was to be archived and cannot be.
    """
    try:
        stored = store.load(me, history.resolve(ident, lambda: history.ids(store, [me])))
    except NoSuchMessage:
        return None
    if stored.judged.message is None:
        return stored
    place = _mark_read(store, stored.place)
    return Stored(store.archive(place) if archive else place, stored.judged)


def archive(store: Store, me: AgentName, ident: MessageId) -> Place:
    """Acknowledge a message. Raises NoSuchMessage, VerificationError and StorageError."""
    stored = store.load(me, ident)
    if stored.judged.message is None:
        outcome = stored.judged.outcome
        raise VerificationError(
            f"{ident} does not verify ({outcome}: {stored.judged.detail}), so it stays "
            "where it is: agent-bus doctor",
            outcome=outcome,
        )
    return store.archive(stored.place)


def _mark_read(store: Store, place: Place) -> Place:
    # A full disk and a read-only one do not keep anybody from reading: it stays unread.
    try:
        return store.mark_read(place)
    except StorageError:
        return place
