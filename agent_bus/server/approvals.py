"""The tools for approvals: asking, the queue, deciding. Like `verbs`, these block."""

from __future__ import annotations

from collections.abc import Sequence

from agent_bus.approvals import WITHDRAW
from agent_bus.approvals import Request as Asked
from agent_bus.bus import Bus
from agent_bus.errors import NotPermitted
from agent_bus.names import MessageId
from agent_bus.server import arguments as given
from agent_bus.server import models
from agent_bus.server.listing import LIST_BYTES, size, taken
from agent_bus.server.verbs import Service, expiry
from agent_bus.visible import cut

_QUESTION = 1_500
_NAMED = 5


def request_approval(service: Service, asked: given.RequestArguments) -> models.RequestResult:
    """bus_request_approval."""
    receipt = service.bus.request_approval(
        asked.question,
        options=asked.options,
        to=asked.to,
        details=asked.details,
        expires_in=expiry(asked.expires_in),
        key=asked.idempotency_key,
        needs=asked.needs,
    )
    return models.RequestResult(
        id=receipt.id, to=receipt.to, duplicate=receipt.duplicate, attached=receipt.attached
    )


def pending_approval(service: Service, _: given.NoArguments) -> models.PendingResult:
    """bus_pending_approval. Every request has its line; who fits is shown whole."""
    _check_narrowed(service.bus)
    waiting = service.bus.pending()
    shown, room = taken((_request(request, whole=False) for request in waiting), LIST_BYTES)
    for number, request in enumerate(waiting[: len(shown)]):
        whole = _request(request, whole=True)
        more = size(whole) - size(shown[number])
        if more <= room:
            room -= more
            shown[number] = whole
    is_cut = any(request.cut for request in shown)
    left = len(waiting) - len(shown)
    hints = {
        "where cut is true, bus_read ID has all of it": is_cut,
        "bus_log with kind approval_request pages through the rest": left > 0,
    }
    return models.PendingResult(
        pending=shown,
        remaining=left or None,
        warning=_unusable(service.bus.approvals.unusable()),
        hint=_joined(hints),
    )


def decide(service: Service, asked: given.DecideArguments) -> models.DecideResult:
    """bus_decide."""
    if asked.decision != WITHDRAW:
        _check_narrowed(service.bus)
    decided = service.bus.decide(asked.id, asked.decision, reason=asked.reason, sha256=asked.sha256)
    return models.DecideResult(
        id=decided.decision.request,
        decision=decided.decision.decision,
        by=decided.decision.by,
        decided_at=decided.decision.decided_at,
        hint="it had been decided so before; that stands" if decided.repeated else None,
    )


def _check_narrowed(bus: Bus) -> None:
    """Tell an admin of the bus why it is none here. Raises NotPermitted."""
    if bus.identity in bus.file.admins and not bus.is_admin:
        raise NotPermitted(
            f"{bus.identity} is an admin of this bus, but none in this process: "
            "AGENT_BUS_ADMIN_NAMES leaves the name out"
        )


def _unusable(found: Sequence[tuple[MessageId, str]]) -> str | None:
    if not found:
        return None
    named = ", ".join(f"{ident} ({outcome})" for ident, outcome in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"not shown, they do not verify: {named}{more}; agent-bus doctor has the reasons"


def _request(request: Asked, *, whole: bool) -> models.Request:
    message = request.message
    long = len(message.body) > _QUESTION
    left_out = request.details is not None or message.body.strip() != message.subject
    return models.Request(
        id=message.id,
        sender=message.sender,
        to=message.to,
        subject=message.subject if whole else cut(message.subject, 80),
        question=cut(message.body, _QUESTION) if whole else None,
        options=list(request.options),
        details=request.details if whole else None,
        asked_at=message.sent_at,
        expires_at=message.expires_at,
        needs=request.needs and cut(request.needs, 64),
        sha256=request.sha256,
        cut=(long if whole else left_out) or None,
    )


def _joined(hints: dict[str, bool]) -> str | None:
    return "; ".join(hint for hint, holds in hints.items() if holds) or None
