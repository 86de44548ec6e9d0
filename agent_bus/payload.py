"""What is signed: messages and decisions as values, and their strict parsing.

The parser is stricter than JSON: one line end, UTF-8 without a byte order mark, no field
twice, no unknown field, null only inside `data`, no number that a double cannot hold, no
lone surrogate, bounded nesting. Neither json.loads nor pydantic refuses all of these.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from agent_bus.clock import from_text
from agent_bus.names import (
    AgentName,
    MessageId,
    is_agent_name,
    is_kind,
    is_message_id,
)

BODY_LIMIT = 64 * 1024
DATA_LIMIT = 16 * 1024
SUBJECT_LIMIT = 200
RECIPIENTS_LIMIT = 64
NESTING_LIMIT = 32

Priority = Literal["low", "normal", "high", "urgent"]
PRIORITIES: tuple[str, ...] = get_args(Priority)

# C0, DEL, C1, and the two line separators of Unicode: a subject is one line everywhere.
_UNFIT_IN_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as its sender signed it. Times are RFC 3339 text in UTC."""

    id: MessageId
    bus: MessageId
    sender: AgentName
    to: AgentName
    sent_at: str
    kind: str = "note"
    subject: str = ""
    body: str = ""
    recipients: tuple[AgentName, ...] = ()
    thread: MessageId | None = None
    reply_to: MessageId | None = None
    priority: Priority | None = None
    expires_at: str | None = None
    data: Mapping[str, Any] | None = None

    def payload(self) -> dict[str, Any]:
        """The JSON object that is signed, its fields in the order of the format."""
        always = {
            "id": self.id,
            "bus": self.bus,
            "from": self.sender,
            "to": self.to,
            "sent_at": self.sent_at,
            "kind": self.kind,
            "subject": self.subject,
            "body": self.body,
        }
        optional = {
            "recipients": list(self.recipients) or None,
            "thread": self.thread,
            "reply_to": self.reply_to,
            "priority": self.priority,
            "expires_at": self.expires_at,
            "data": None if self.data is None else dict(self.data),
        }
        return always | {name: value for name, value in optional.items() if value is not None}

    def content_hash(self) -> str:
        """A hash of what two sends under one key must share: all but id, times, recipients.

        Who else was written to is left out, so that the one delivery of several that failed
        can be tried again alone.
        """
        same = self.payload()
        for name in ("id", "sent_at", "expires_at", "recipients"):
            same.pop(name, None)
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision on an approval request, bound to the hash of the request's payload."""

    request: MessageId
    request_sha256: str
    bus: MessageId
    decision: str
    by: AgentName
    decided_at: str
    reason: str | None = None

    def payload(self) -> dict[str, str]:
        """The JSON object that is signed."""
        return {
            "request": self.request,
            "request_sha256": self.request_sha256,
            "bus": self.bus,
            "decision": self.decision,
            **({"reason": self.reason} if self.reason is not None else {}),
            "by": self.by,
            "decided_at": self.decided_at,
        }


def parse_message(payload: bytes) -> Message:
    """Parse the payload of a message strictly. Raises ValueError saying what is wrong."""
    value = _strict_object(payload)
    for name in _REQUIRED:
        if name not in value:
            raise ValueError(f"{name} is missing")
    for name, entry in value.items():
        if name not in _RULES:
            raise ValueError(f"unknown field {name[:40]!a}")
        check, expected = _RULES[name]
        if not check(entry):
            raise ValueError(f"{name} is not {expected}")
    recipients = tuple(AgentName(name) for name in value.get("recipients", ()))
    _require(not recipients or value["to"] in recipients, "to is not among the recipients")
    return Message(
        id=value["id"],
        bus=value["bus"],
        sender=value["from"],
        to=value["to"],
        sent_at=value["sent_at"],
        kind=value["kind"],
        subject=value["subject"],
        body=value["body"],
        recipients=recipients,
        thread=value.get("thread"),
        reply_to=value.get("reply_to"),
        priority=value.get("priority"),
        expires_at=value.get("expires_at"),
        data=value.get("data"),
    )


def parse_decision(payload: bytes) -> Decision:
    """Parse the payload of a decision strictly. Raises ValueError."""
    value = _strict_object(payload)
    needed = {"request", "request_sha256", "bus", "decision", "by", "decided_at"}
    _require(set(value) - {"reason"} == needed, "a decision has other fields than it may have")
    _require(all(isinstance(entry, str) for entry in value.values()), "every field is text")
    fields = cast("dict[str, str]", value)
    _require(is_message_id(fields["request"]) and is_message_id(fields["bus"]), "no id")
    _require(is_agent_name(fields["by"]), "by is no agent name")
    from_text(fields["decided_at"])
    return Decision(
        request=MessageId(fields["request"]),
        request_sha256=fields["request_sha256"],
        bus=MessageId(fields["bus"]),
        decision=fields["decision"],
        by=AgentName(fields["by"]),
        decided_at=fields["decided_at"],
        reason=fields.get("reason"),
    )


def is_one_line(text: object, limit: int = SUBJECT_LIMIT) -> bool:
    """Whether text is one line of at most `limit` characters, without control characters."""
    return isinstance(text, str) and len(text) <= limit and not _UNFIT_IN_LINE.search(text)


def _strict_object(payload: bytes) -> dict[str, Any]:
    _require(payload.endswith(b"\n") and not payload.endswith(b"\n\n"), "no single line end")
    try:
        value = _DECODER.decode(payload.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("the payload is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the payload is no JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError(f"nested more than {NESTING_LIMIT} deep") from None
    if not isinstance(value, dict):
        raise ValueError("the payload is no JSON object")
    # Most messages are one flat object without escapes; only these can hold anything deeper.
    if b"\\u" in payload or b"[" in payload or payload.count(b"{") > 1:
        _check_depth(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    _require(len(value) == len(pairs), "a field stands twice")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    _require(math.isfinite(number), "a number that no double holds")
    return number


def _bounded(text: str) -> int:
    # Longer integers are no doubles; Python alone would hold them.
    _require(len(text) < 309, "a number that no double holds")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_bounded,
)


def _check_depth(value: object) -> None:
    """Refuse nesting over the limit, and lone surrogates in any text."""
    level: list[object] = [value]
    for _ in range(NESTING_LIMIT):
        inner: list[object] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += entry.keys()
                inner += entry.values()
            elif isinstance(entry, list):
                inner += entry
            elif isinstance(entry, str):
                _require(entry.isascii() or _is_utf8(entry), "half a character (lone surrogate)")
        if not inner:
            return
        level = inner
    _require(
        not any(isinstance(entry, dict | list) for entry in level),
        f"nested more than {NESTING_LIMIT} deep",
    )
    _require(all(_is_utf8(entry) for entry in level if isinstance(entry, str)), "lone surrogate")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and from_text(value) is not None
    except ValueError:
        return False


def _is_body(value: object) -> bool:
    return isinstance(value, str) and len(value.encode()) <= BODY_LIMIT


def _is_data(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode()) <= DATA_LIMIT


def _are_recipients(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= RECIPIENTS_LIMIT
        and all(is_agent_name(name) for name in value)
        and len(set(value)) == len(value)
    )


_REQUIRED = ("id", "bus", "from", "to", "sent_at", "kind", "subject", "body")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (is_message_id, "an id"),
    "bus": (is_message_id, "an id"),
    "from": (is_agent_name, "an agent name"),
    "to": (is_agent_name, "an agent name"),
    "sent_at": (_is_time, "a time in UTC with milliseconds"),
    "kind": (is_kind, "a kind"),
    "subject": (is_one_line, f"one line of at most {SUBJECT_LIMIT} characters"),
    "body": (_is_body, f"text of at most {BODY_LIMIT} bytes"),
    "recipients": (_are_recipients, f"a list of 1 to {RECIPIENTS_LIMIT} names"),
    "thread": (is_message_id, "an id"),
    "reply_to": (is_message_id, "an id"),
    "priority": (lambda value: value in PRIORITIES, "low, normal, high or urgent"),
    "expires_at": (_is_time, "a time in UTC with milliseconds"),
    "data": (_is_data, f"an object of at most {DATA_LIMIT} bytes"),
}
