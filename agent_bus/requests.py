"""Requests for an approval, as values: what is asked, what may be answered, and by whom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_bus.envelope import Judged
from agent_bus.errors import InvalidDecision, InvalidMessage, NotPermitted
from agent_bus.keys import KeyIndex
from agent_bus.names import RESERVED, AgentName, MessageId
from agent_bus.payload import SUBJECT_LIMIT, Decision, Message, is_one_line
from agent_bus.pins import chain

DEFAULT_OPTIONS = ("approve", "deny")
WITHDRAW = "withdraw"
"""The one decision that a requester may make on its own request."""

_OPTION_LIMIT = 64
_OPTIONS_LIMIT = 16
_REASON_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class Request:
    """A request that stands in the queue."""

    message: Message
    sha256: str
    """The hash of the signed payload, which a decision binds."""
    options: tuple[str, ...]
    details: Any = None
    needs: str | None = None
    """Who alone may decide it, with a sealed key; None: any admin."""
    needs_key: str | None = None
    """The fingerprint of that key, or of one before it."""

    def is_key_needed(self, owner: AgentName, kid: str | None, keys: KeyIndex) -> bool:
        """Whether a decision that this key of its owner signs fulfils what is demanded."""
        if self.needs is None:
            return True
        ring = keys.rings.get(owner)
        if owner != self.needs or ring is None:
            return False
        return kid in chain(ring, [self.needs_key or ""])


def earlier(
    request: Request, decided: Iterable[tuple[Request, Decision]]
) -> list[tuple[Request, Decision]]:
    """What became of the same question of the same agent: who was refused may ask again.

    The gateway asks for many children; each of them is an agent of its own.
    """
    asked = request.message
    words = asked.body.casefold().split()
    return [
        (other, decision)
        for other, decision in decided
        if other.message.id != asked.id
        and other.message.sender == asked.sender
        and other.message.body.casefold().split() == words
        and _child(other) == _child(request)
    ]


def _child(request: Request) -> Any:
    """For whom the gateway asks; None where somebody asks for itself."""
    from_gateway = request.message.sender == RESERVED and isinstance(request.details, dict)
    return request.details.get("child") if from_gateway else None


def request_content(
    question: str, options: Sequence[str], details: Any, about: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Subject and data of a request. Raises InvalidMessage."""
    chosen = list(options)
    if not 0 < len(chosen) <= _OPTIONS_LIMIT or len(set(chosen)) != len(chosen):
        raise InvalidMessage(f"an approval offers 1 to {_OPTIONS_LIMIT} different options")
    for option in chosen:
        if not option.strip() or option == WITHDRAW or not is_one_line(option, _OPTION_LIMIT):
            raise InvalidMessage(
                f"no option: {option[:80]!a}; an option is one line of 1 to {_OPTION_LIMIT} "
                f"characters, and {WITHDRAW!r} is the requester's own"
            )
    if not question.strip():
        raise InvalidMessage("an approval needs a question")
    first = question.strip().splitlines()[0]
    if about is not None:
        first = f"{about}: {first}"
    subject = "".join(" " if not is_one_line(char) else char for char in first)[:SUBJECT_LIMIT]
    return subject, {"options": chosen} | ({} if details is None else {"details": details})


def request_of(message: Message, judged: Judged) -> Request:
    """A request from its message."""
    data = message.data or {}
    options = data.get("options")
    offered = options if isinstance(options, list) else []
    return Request(
        message=message,
        sha256=judged.sha256,
        options=tuple(option for option in offered if isinstance(option, str)),
        details=data.get("details"),
        # Whatever stands there is a demand, also one that nobody can meet.
        needs=str(data["needs"]) if "needs" in data else None,
        needs_key=str(data.get("needs_key")),
    )


def check_right(request: Request, decision: str, by: AgentName, may_decide: bool) -> None:
    """Whether somebody may decide a request so. Raises NotPermitted and InvalidDecision."""
    ident, asker = request.message.id, request.message.sender
    if by == asker:
        if decision != WITHDRAW:
            raise NotPermitted(f"{by} asked for {ident} itself, and may only {WITHDRAW} it")
    elif not may_decide:
        raise NotPermitted(f"{by} is no admin of this bus and cannot decide {ident}")
    elif request.needs is not None and request.needs != by:
        raise NotPermitted(f"{ident} needs a decision of {request.needs[:64]!a}, not of {by}")
    elif decision not in request.options:
        offered = ", ".join(json.dumps(option) for option in request.options)
        raise InvalidDecision(f"{decision[:80]!a} is no option of {ident}: choose {offered}")


def check_reason(reason: str | None) -> None:
    """Whether the reason of a decision is short enough. Raises InvalidDecision."""
    # As JSON, where a control character takes six bytes: the notice carries it as data.
    text = json.dumps(reason, ensure_ascii=False)
    if len(text.encode("utf-8", "surrogatepass")) > _REASON_LIMIT:
        raise InvalidDecision(f"a reason has at most {_REASON_LIMIT} bytes as JSON")


def notice_of(asked: Message, decision: Decision, ident: MessageId, sent_at: str) -> Message:
    """The message that tells the requester; of a withdrawal, the one who was asked."""
    return Message(
        id=ident,
        bus=asked.bus,
        sender=decision.by,
        to=asked.to if decision.by == asked.sender else asked.sender,
        sent_at=sent_at,
        kind="approval_decision",
        subject=f"{decision.decision}: {asked.subject}"[:SUBJECT_LIMIT],
        body=decision.reason or "",
        thread=asked.thread or asked.id,
        reply_to=asked.id,
        data=decision.payload(),
    )
