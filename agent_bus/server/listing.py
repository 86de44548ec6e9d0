"""How messages are shown to a model: in lists without their body, and never too many bytes.

What a stored file says is data. In a structured result it is the value of a field; where it
appears as plain text (a file that does not verify) every control character is escaped, and
it stands in a fence that it cannot imitate.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence

from agent_bus.reading import Stored
from agent_bus.server.models import Listed, Result
from agent_bus.visible import fenced as in_fence

LIMIT = 40
"""The most messages in one answer."""
LIST_BYTES = 9_500
"""JSON that a list may have. An answer holds it twice, as structure and as text: 20 KB."""

_SUBJECTS = (120, 80, 40)
_FENCED_BYTES = 8_000


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
    )


def fitting(found: Sequence[Stored]) -> list[Listed]:
    """Messages for a list. Where they would be too many bytes, long subjects are cut."""
    messages = [listed(stored) for stored in found]
    for length in _SUBJECTS:
        if sum(size(message) for message in messages) <= LIST_BYTES:
            break
        for message in messages:
            message.subject = shortened(message.subject, length)
    return messages


def shortened(text: str | None, length: int) -> str | None:
    """The text, cut to so many characters with a mark."""
    return text if text is None or len(text) <= length else text[: length - 1] + "…"


def size(result: Result) -> int:
    """Bytes of JSON."""
    return len(compact(result.wire()).encode())


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def one_line(text: str, limit: int = 1000) -> str:
    """Text as a line that shows every control character."""
    shown = escaped(" ".join(text.split()))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def escaped(text: str) -> str:
    """Text with every control, format and line-separator character made visible."""
    return "".join(_visible(character) for character in text)


def fenced(data: bytes) -> str:
    """Stored bytes as text that says what it is, in a fence that it cannot close."""
    text = escaped(data[:_FENCED_BYTES].decode("utf-8", "backslashreplace"))
    rest = len(data) - _FENCED_BYTES
    cut = f"\n(cut: {rest} bytes more)" if rest > 0 else ""
    return in_fence(text, "unverified", cut)


def _visible(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else f"\\x{ord(character):02x}"
    if unicodedata.category(character)[0] not in "CZ" or character == "\u3000":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
