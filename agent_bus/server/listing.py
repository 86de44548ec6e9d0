"""How messages are shown to a model: in lists without their body, and never too many bytes.

What a stored file says is data. In a structured result it is the value of a field; where it
appears as plain text (a file that does not verify) every control character is escaped, and
it stands in a fence that it cannot imitate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

from agent_bus import doubts
from agent_bus.errors import AgentBusError
from agent_bus.names import RESERVED
from agent_bus.reading import Stored, reason
from agent_bus.server.models import Listed, Result
from agent_bus.visible import cut, visible
from agent_bus.visible import fenced as in_fence

LIMIT = 40
"""The most messages in one answer."""
LIST_BYTES = 18_500
"""What a list may have on the wire, both copies together: with all around it, 20 KB."""

_SUBJECTS = (120, 80, 40, 20, 10)
_FENCED_BYTES = 8_000
_SHORT_WARNING = f"not by {RESERVED}"

Fitting = TypeVar("Fitting", bound=Result)


def listed(stored: Stored) -> Listed:
    """One message for a list."""
    place, message = stored.place, stored.judged.message
    if message is None:
        return Listed(id=place.id, to=place.box, state=place.state, outcome=stored.judged.outcome)
    return Listed(
        id=place.id,
        sender=message.sender,
        to=message.to,
        kind=message.kind,
        subject=message.subject,
        sent_at=message.sent_at,
        state=place.state,
        outcome=stored.judged.outcome,
        priority=message.priority,
        thread=message.thread,
        reply_to=message.reply_to,
        warning=doubts.of_wake(message),
    )


def fitting(found: Sequence[Stored]) -> list[Listed]:
    """Messages for a list. Where they would be too many bytes, subjects and warnings are cut."""
    messages = [listed(stored) for stored in found]
    for length in _SUBJECTS:
        if sum(size(message) for message in messages) <= LIST_BYTES:
            break
        for message in messages:
            message.subject = message.subject and cut(message.subject, length)
            message.warning = message.warning and _SHORT_WARNING
    return messages


def taken(results: Iterable[Fitting], room: int) -> tuple[list[Fitting], int]:
    """As many of the first as there is room for, and the room that is left then."""
    found = []
    for result in results:
        if size(result) > room:
            break
        found.append(result)
        room -= size(result)
    return found, room


def size(result: Result) -> int:
    """Bytes on the wire: an answer holds it as structure, and as JSON in a text block."""
    text = compact(result.wire())
    return len(text.encode()) + len(compact(text).encode())


def fault(error: AgentBusError | OSError) -> str:
    """An error as one line, its code first."""
    if isinstance(error, OSError):
        return f"storage: {one_line(reason(error))}"
    return f"{error.code}: {one_line(str(error))}"


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def one_line(text: str, limit: int = 1000) -> str:
    """Text as a line that shows every control character."""
    return cut(visible(" ".join(text.split())), limit)


def fenced(data: bytes) -> str:
    """Stored bytes as text that says what it is, in a fence that it cannot close."""
    text = visible(data[:_FENCED_BYTES].decode("utf-8", "backslashreplace"))
    rest = len(data) - _FENCED_BYTES
    more = f"\n(cut: {rest} bytes more)" if rest > 0 else ""
    return in_fence(text, "unverified", more)
