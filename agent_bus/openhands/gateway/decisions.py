"""What became of the questions of a child: told to the child, and to its owner.

The decision files of the bus are the truth. A decision goes into the child's conversation as a
letter, once, and to the owner as a message, unless the owner has made it.
"""

from __future__ import annotations

import contextlib

from agent_bus.clock import from_text
from agent_bus.errors import AgentBusError, Conflict, NoSuchMessage, VerificationError
from agent_bus.history import Filter
from agent_bus.names import message_id
from agent_bus.openhands.gateway.journal import Letter, Question, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.wire import compact
from agent_bus.payload import Decision
from agent_bus.reading import storage_errors
from agent_bus.requests import WITHDRAW, Request
from agent_bus.sending import Draft

_EXPIRED = "expired"
_GONE = "gone"


@storage_errors()
def carry(parts: Parts, record: Record) -> Record:
    """Take the decisions that were made into the journal. Hold the child's lock.

    Raises what a send raises.
    """
    for number, question in enumerate(record.questions):
        if question.decision is None:
            record = _carry_one(parts, record, number, question)
    return record


def withdraw(parts: Parts, record: Record) -> Record:
    """Take back what waits for a decision: its child was cancelled. Hold the child's lock."""
    questions = []
    for question in record.questions:
        if question.decision is None:
            # One that somebody has just decided is carried by the next round.
            with contextlib.suppress(AgentBusError):
                parts.bus.decide(question.request, WITHDRAW, reason="its mission was cancelled")
                question = question.model_copy(update={"decision": WITHDRAW})
        questions.append(question)
    changed = record.model_copy(update={"questions": tuple(questions)})
    return record if changed == record else parts.journal.save(changed)


def tidy(parts: Parts) -> None:
    """Archive the notices of decisions in our own box: the decision files say it all."""
    page = parts.bus.inbox(Filter(kind="approval_decision"), limit=200)
    for stored in page.messages:
        # What does not verify stays where it is; doctor names it.
        with contextlib.suppress(AgentBusError):
            parts.bus.archive(stored.place.id)


def _carry_one(parts: Parts, record: Record, number: int, question: Question) -> Record:
    try:
        request = parts.bus.approvals.request(message_id(question.request))
    except (NoSuchMessage, VerificationError):
        return _told(parts, record, number, _GONE, None, None)
    decision = parts.bus.approvals.decision(request)
    if decision is not None:
        return _told(parts, record, number, decision.decision, request, decision)
    expires = request.message.expires_at
    if expires is not None and parts.clock.now() > from_text(expires):
        return _told(parts, record, number, _EXPIRED, request, None)
    return record


def _told(
    parts: Parts,
    record: Record,
    number: int,
    outcome: str,
    request: Request | None,
    decision: Decision | None,
) -> Record:
    question = record.questions[number]
    by = decision.by if decision else None
    content = {
        "requestId": question.request,
        "messageKey": question.key,
        "taskKey": record.task_key,
        "question": request.message.body if request else None,
        "decision": decision.decision if decision else None,
        "reason": decision.reason if decision else None,
        "by": by,
        "outcome": "decided" if decision else outcome,
    }
    if by != record.owner_box:
        draft = Draft(
            kind="answer",
            subject=f"{record.task_key} ({record.role}): {outcome}"[:200],
            body=compact(content),
            data={"child": str(record.child), "approval": question.request},
        )
        key = f"{record.child}:decided:{question.request}"
        # Told before a crash, in whatever words: that stands.
        with contextlib.suppress(Conflict):
            parts.bus.send_one(record.owner_box, draft, key=key, force=True)
    letter = Letter(
        to=record.child,
        marker=f'"requestId":"{question.request}"',
        text="USER_DECISION\n" + compact(content),
    )
    answered = question.model_copy(update={"decision": outcome})
    questions = (*record.questions[:number], answered, *record.questions[number + 1 :])
    return parts.journal.save(
        record.model_copy(update={"questions": questions}).with_letter(letter)
    )
