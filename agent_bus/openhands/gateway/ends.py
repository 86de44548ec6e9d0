"""The end of a run, and the wake that tells the owner: one each, however many signs come.

The hook, the webhooks and reconciliation all come here, and here only the agent server is
believed. A run is named by the user message that began it. The wake's key is made of the
child, the run, and how often that run had ended before; so whatever is repeated ends with the
one message in the owner's box (P4 of the promise).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from agent_bus.clock import from_text, to_text
from agent_bus.errors import Conflict
from agent_bus.openhands.gateway.answers import Answer, keep
from agent_bus.openhands.gateway.journal import End, EndStatus, Letter, Record, State
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import ENDED, Conversation, RunEnd
from agent_bus.openhands.gateway.wire import compact
from agent_bus.sending import Draft

_ERROR_LIMIT = 1000
_CODE_LIMIT = 200
_IDLE_LIMIT = 60
"""Seconds for which a run may be idle before it counts as paused: nobody goes on with it."""


def settled(parts: Parts, record: Record) -> Conversation | None:
    """The child's conversation, looked at twice where it seems to have ended.

    None: the server does not know it. Of two looks that differ, the second is returned as
    running: come again. Raises Unavailable.
    """
    first = parts.provider.conversation(record.child)
    if first is None or first.status not in (*ENDED, "paused"):
        return first
    parts.pauses.sleep(parts.pauses.before_believing(first.status))
    second = parts.provider.conversation(record.child)
    if second is None or _look(second) == _look(first):
        return second
    return Conversation(
        second.id,
        "running",
        second.folder,
        second.tags,
        second.last_user_message,
        second.is_acp,
    )


def _look(conversation: Conversation) -> tuple[str, str | None]:
    return conversation.status, conversation.last_user_message


def conclude(parts: Parts, record: Record) -> Record:
    """Look at a child whose mission was delivered, and wake its owner if a run has ended.

    Hold the child's lock. Raises Unavailable, and what `Bus.wake` raises.
    """
    found = settled(parts, record)
    if found is None:
        return _missing(parts, record)
    record = _seen(parts, record, found)
    run = found.last_user_message or _last_run(record)
    if found.status in ("finished", "error", "stuck", "paused"):
        return _end(parts, record, run, found.status, parts.provider.run_end(record.child, run))
    if found.status == "idle" and not record.run_owed and _for_seconds(parts, record) > _IDLE_LIMIT:
        return _end(parts, record, run, "paused", parts.provider.run_end(record.child, run))
    if found.status == "running" and _for_seconds(parts, record) > parts.settings.run_limit:
        return _end(parts, record, run, "overdue", RunEnd())
    return record


def _missing(parts: Parts, record: Record) -> Record:
    """A server that is starting, or is another one, does not know it either: wait a while."""
    if record.seen != "missing":
        changes = {"seen": "missing", "seen_since": to_text(parts.clock.now())}
        return parts.journal.save(record.model_copy(update=changes))
    if _for_seconds(parts, record) < parts.pauses.lost:
        return record
    return _end(parts, record, _last_run(record), "lost", RunEnd())


def refused(parts: Parts, record: Record) -> Record:
    """Tell the owner that a child has not begun. Hold the child's lock."""
    run = record.admission_run or f"admission-{record.attempt}"
    end = RunEnd(error_code="AdmissionFailed", error_text=record.problem)
    # One save for both: a refusal that the owner has not heard of is none yet.
    ended = _end(parts, record, run, "error", end, state="refused")
    if ended is record:
        return parts.journal.save(record.model_copy(update={"state": "refused"}))
    return ended


def cancelled(parts: Parts, record: Record) -> Record:
    """Tell the owner that a child was cancelled. Hold the child's lock."""
    return _end(parts, record, _last_run(record), "cancelled", RunEnd(), state="cancelled")


def _last_run(record: Record) -> str:
    last = record.last_end
    return (
        record.mission_run
        or (last.run if last else None)
        or record.admission_run
        or f"admission-{record.attempt}"
    )


def _seen(parts: Parts, record: Record, found: Conversation) -> Record:
    """Note a status that is another than at the last look, or another run."""
    run = found.last_user_message or record.mission_run
    changes: dict[str, Any] = {}
    if (record.seen, record.mission_run) != (found.status, run):
        now = to_text(parts.clock.now())
        changes = {"seen": found.status, "seen_since": now, "mission_run": run}
    last = record.last_end
    known = last is not None and (last.run, last.status) == (run, "overdue")
    at_work = found.status in ("running", "waiting_for_confirmation")
    if at_work and record.state == "ended" and not known:
        # Somebody has taken it up again, by a message or without one.
        changes |= {"state": "delivered", "reopened": True}
    return parts.journal.save(record.model_copy(update=changes)) if changes else record


def _for_seconds(parts: Parts, record: Record) -> float:
    since = record.seen_since or record.updated_at
    return (parts.clock.now() - from_text(since)) / 1000


def _is_told(record: Record, run: str, status: EndStatus) -> bool:
    """Whether the owner was woken for this end already."""
    last = next((end for end in reversed(record.ends) if end.run == run), None)
    if last is None:
        return False
    # What was paused, stuck or failed can be taken up again, and end once more.
    return last.status == "finished" or (
        not record.reopened and last.status in (status, "cancelled")
    )


def _end(
    parts: Parts,
    record: Record,
    run: str,
    status: EndStatus,
    end: RunEnd,
    *,
    state: State = "ended",
) -> Record:
    if _is_told(record, run, status):
        return record
    number = sum(earlier.run == run for earlier in record.ends)
    answer = keep(parts.folder, parts.redaction(end.answer))
    data = _data(parts, record, run, number, status, end, answer)
    wake = _wake(parts, record, data, answer)
    at = to_text(parts.clock.now())
    changes: dict[str, Any] = {
        "state": state,
        "ends": (*record.ends, End(run=run, number=number, status=status, wake=wake, at=at)),
        "reopened": False,
    }
    ended = record.model_copy(update=changes)
    if parts.owner_conversation_of(record):
        ended = ended.with_letter(_recovery(record, data, answer, wake))
    return parts.journal.save(ended)


def _data(
    parts: Parts,
    record: Record,
    run: str,
    number: int,
    status: EndStatus,
    end: RunEnd,
    answer: Answer,
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "child": str(record.child),
        "owner": str(record.owner),
        "task_key": record.task_key,
        "role": record.role,
        "run": run,
        "status": status,
        "message_key": record.message_key,
        "conversation_url": parts.provider.url(record.child),
        "answer": answer.data(),
        "reported": _reported(record),
    }
    if number:
        data["again"] = number
    if end.error_code or end.error_text:
        data["error"] = {
            "code": (end.error_code or "")[:_CODE_LIMIT],
            "text": parts.redaction(end.error_text or "")[:_ERROR_LIMIT],
        }
    return data


def _reported(record: Record) -> bool:
    """Whether the child has reported a result in this run by itself."""
    return any(
        note.id is not None and note.ends == len(record.ends) and key.startswith("RESULT ")
        for key, note in record.notes.items()
    )


def _wake(parts: Parts, record: Record, data: Mapping[str, Any], answer: Answer) -> str:
    what = {"lost": "is not known to the agent server any more", "overdue": "still runs"}
    said = what.get(data["status"], data["status"])
    error = data.get("error")
    body = "\n\n".join(
        part
        for part in (
            f"{error['code']}: {error['text']}" if error else "",
            answer.text,
        )
        if part
    )
    draft = Draft(
        kind="wake",
        subject=f"{record.task_key} ({record.role}) {said}"[:200],
        body=body,
        data=dict(data),
    )
    key = wake_key(record, data["run"], int(data.get("again", 0)))
    try:
        return parts.bus.wake(record.owner_box, draft, key=key).id
    except Conflict:
        # It was sent before a crash, with what the server said then: that one stands.
        return key


def wake_key(record: Record, run: str, number: int) -> str:
    """The idempotency key of a wake: one per child, run and number of the end."""
    parts = [record.message_key, run, *([str(number)] if number else [])]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _recovery(record: Record, data: Mapping[str, Any], answer: Answer, wake: str) -> Letter:
    """The copy for an owner that is a conversation itself."""
    key = wake_key(record, data["run"], int(data.get("again", 0)))
    envelope = {
        "kind": "RECOVERY_WAKE",
        "messageKey": record.message_key,
        "dedupeKey": key,
        "childId": str(record.child),
        "owningMainId": str(record.owner),
        "taskKey": record.task_key,
        "runId": data["run"],
        "status": data["status"],
        "terminalResponse": answer.text,
        "explicitResultSeen": data["reported"],
        "message": wake,
    }
    if "error" in data:
        envelope["terminalError"] = data["error"]
    text = "RECOVERY_WAKE\n" + compact(envelope)
    return Letter(to=record.owner, marker=f'"dedupeKey":"{key}"', text=text)
