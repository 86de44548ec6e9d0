"""A stored message as one line: columns for people, fields for programs.

What does not verify has an outcome and a place, and nothing else: its fields are not its
sender's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_bus import doubts
from agent_bus.cli import render
from agent_bus.payload import Message
from agent_bus.reading import Stored
from agent_bus.sending import Receipt, Refusal

HEAD = ("id", "sent at", "from", "to", "kind", "state", "subject")
SPARE = ("state", "kind", "to")
"""What a narrow terminal leaves out of a log, the first one first."""
SPARE_IN_BOX = ("to", "kind", "state")
"""The same in one's own box."""
LINE_LIMIT = 400
"""Characters of a line of `watch`: a monitor cuts longer ones."""


DOUBTED = "[doubted] "
"""Before the subject of a message that is not to be believed. A column may be left out."""
_WARNED = 5


def record(stored: Stored) -> dict[str, object]:
    """The fields of a message that a list has."""
    place, judged = stored.place, stored.judged
    message = judged.message
    fields: dict[str, object] = {
        "id": place.id,
        "from": message.sender if message else None,
        "to": place.box,
        "kind": message.kind if message else None,
        "subject": message.subject if message else None,
        "sent_at": message.sent_at if message else None,
        "state": place.state,
        "outcome": judged.outcome,
    }
    if message is None:
        return fields | {"detail": judged.detail}
    optional = {
        "thread": message.thread,
        "reply_to": message.reply_to,
        "priority": message.priority,
        "expires_at": message.expires_at,
        "warning": doubts.of_wake(message),
    }
    return fields | {name: value for name, value in optional.items() if value is not None}


def columns(stored: Stored) -> tuple[str, ...]:
    """The same for people."""
    place, judged = stored.place, stored.judged
    message = judged.message
    state = place.state if judged.ok else f"{place.state}, {judged.outcome}"
    if message is None:
        return (place.id, "-", "-", place.box, "-", state, f"({judged.detail})")
    subject = message.subject or _first_line(message.body)
    return (
        place.id,
        message.sent_at,
        message.sender,
        message.to,
        message.kind,
        state,
        _marks(message) + subject,
    )


def show(messages: Iterable[Stored], *, json: bool, spare: Sequence[str] = SPARE) -> None:
    """Messages, one a line."""
    if json:
        for stored in messages:
            render.put_json(record(stored))
        return
    found = list(messages)
    warn(found)
    render.table(HEAD, map(columns, found), spare=spare)


def warn(messages: Iterable[Stored]) -> int:
    """Say which of them are not to be believed. Returns how many."""
    doubted = [stored for stored in messages if doubts.of_wake(stored.judged.message)]
    for stored in doubted[:_WARNED]:
        render.say(f"warning: {stored.place.id}: {doubts.of_wake(stored.judged.message)}")
    if len(doubted) > _WARNED:
        render.say(
            f"warning: so are {len(doubted) - _WARNED} more that are marked {DOUBTED.strip()}"
        )
    return len(doubted)


def announcement(stored: Stored) -> str:
    """One line for a monitor: never the body, and what matters most stands first."""
    message = stored.judged.message
    if message is None:
        return f"{stored.place.id}  {stored.judged.outcome}"
    subject = _marks(message) + message.subject
    line = f"{message.id}  {message.sender}  {message.kind}  {subject}"
    return render.cut(render.visible(line).rstrip(), LINE_LIMIT)


def receipt(outcome: Receipt | Refusal) -> dict[str, object]:
    """What became of one send."""
    if isinstance(outcome, Refusal):
        return {"to": outcome.to, "code": outcome.error.code, "error": str(outcome.error)}
    return {
        "id": outcome.id,
        "to": outcome.to,
        "durability": outcome.durability,
        "duplicate": outcome.duplicate,
        "attached": outcome.attached,
    }


def told(outcome: Receipt) -> str:
    """The same in words."""
    stored = f"stored for {outcome.to}, who is " + (
        "attached" if outcome.attached else "not attached"
    )
    if outcome.duplicate:
        stored += " (a repeat of an earlier send, no second message)"
    if outcome.durability == "process":
        stored += "; this file system may lose it in a power cut"
    return stored


def _marks(message: Message) -> str:
    doubted = DOUBTED if doubts.of_wake(message) else ""
    urgent = f"[{message.priority}] " if message.priority in ("high", "urgent") else ""
    return doubted + urgent


def _first_line(body: str) -> str:
    return "(" + render.cut(body.strip().split("\n", 1)[0], 80) + ")" if body.strip() else ""
