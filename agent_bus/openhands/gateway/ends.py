"""The end of a run, and the wake that tells the owner: one each, however many signs come.

The hook, the webhooks and reconciliation all come here, and here only the agent server is
believed. A run is named by the user message that began it. The wake's key is made of the
child, the run, and how often that run had ended before; so whatever is repeated ends with the
one message in the owner's box (P4 of the promise).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_bus.clock import from_text, to_text
from agent_bus.errors import Conflict, Unavailable
from agent_bus.names import RESERVED, sent_file
from agent_bus.openhands.gateway.answers import keep
from agent_bus.openhands.gateway.journal import LIVING, End, EndStatus, Letter, Record, State
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import ENDED, Conversation, RunEnd
from agent_bus.openhands.gateway.wire import compact
from agent_bus.reading import storage_errors
from agent_bus.sending import Draft

_ERROR_LIMIT = 1000
_CODE_LIMIT = 200
_IDLE_LIMIT = 60
"""Seconds for which a run may be idle before it counts as paused: nobody goes on with it."""
_ANSWER_LIMIT = 600
"""Seconds for which an end is not told because the server does not hand out its answer."""
_STATES: dict[EndStatus, State] = {"cancelled": "cancelled"}


_UNSAID: Mapping[EndStatus, str] = {
    "finished": "It has given no answer.",
    "error": "The agent server does not say why.",
    "stuck": "It went round in circles, and the agent server has stopped it.",
    "paused": "Its run was paused, or nobody goes on with it.",
    "lost": "Its conversation was deleted, or this is another agent server.",
    "overdue": "It is looked after on: if it ends, that is told as well.",
    "cancelled": "What it has done stays in its worktree.",
}
"""What the body of a wake says where the run has left no answer."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What an owner is told of an end. `id` is that of the wake; "" before it is sent."""

    status: EndStatus
    data: Mapping[str, Any]
    body: str
    answer: str
    id: str = ""

    def key(self, record: Record) -> str:
        """The idempotency key of its wake: one per child, run and number of the end."""
        number = self.data.get("again", 0)
        parts = [record.message_key, self.data["run"], *([str(number)] if number else [])]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def settled(parts: Parts, record: Record) -> Conversation | None:
    """The child's conversation, looked at twice where it seems to have ended.

    None: the server does not know it. Of two looks that differ, the second is returned as
    running: come again. An end that was told needs no second look. Raises Unavailable.
    """
    first = parts.provider.conversation(record.child)
    if first is None or first.status not in (*ENDED, "paused"):
        return first
    if _is_told(record, _run_of(record, first), first.status):
        return first
    parts.pauses.sleep(parts.pauses.before_believing(first.status))
    second = parts.provider.conversation(record.child)
    if second is None or _look(second) == _look(first):
        return second
    return replace(second, status="running")


def _look(conversation: Conversation) -> tuple[str, str | None]:
    return conversation.status, conversation.last_user_message


def conclude(parts: Parts, record: Record) -> Record:
    """Look at a child whose mission was delivered, and wake its owner if a run has ended.

    Hold the child's lock. Raises Unavailable, and what `Bus.wake` raises.
    """
    found = settled(parts, record)
    if found is None:
        return _missing(parts, record)
    seen = _seen(parts, record, found)
    status, run = _end_of(parts, seen, found), _run_of(seen, found)
    if seen is not record and (status is None or _is_told(seen, run, status)):
        # What is new of an end is saved with it: a look after a crash finds it again.
        seen = parts.journal.save(seen)
    if status is None:
        return seen
    asked = partial(_run_end, parts, seen, run, is_new=seen is not record)
    return _end(parts, seen, run, status, asked)


def _end_of(parts: Parts, record: Record, found: Conversation) -> EndStatus | None:
    """What a run has come to, or None while it goes on."""
    # Before an owed run the state is still that of the run before.
    if not record.run_owed:
        if found.status in ("finished", "error", "stuck", "paused"):
            return found.status
        if found.status == "idle" and _for_seconds(parts, record) > _IDLE_LIMIT:
            return "paused"
    return "overdue" if _for_seconds(parts, record) > parts.settings.run_limit else None


def _run_end(parts: Parts, record: Record, run: str, *, is_new: bool) -> RunEnd:
    try:
        return parts.provider.run_end(record.child, run)
    except Unavailable as error:
        # The answer is waited for, but not for ever: the end itself is known.
        if _for_seconds(parts, record) < _ANSWER_LIMIT:
            if is_new:
                parts.journal.save(record)  # since when it is waited for
            raise
        return RunEnd(error_code="AnswerUnavailable", error_text=str(error))


def _missing(parts: Parts, record: Record) -> Record:
    """A server that is starting does not know it either: wait a while."""
    if record.state != "delivered":
        return record  # its end was told, and somebody has tidied up since
    if record.seen != "missing":
        changes = {"seen": "missing", "seen_since": to_text(parts.clock.now())}
        return parts.journal.save(record.model_copy(update=changes))
    if _for_seconds(parts, record) < parts.pauses.lost:
        return record
    return _end(parts, record, _last_run(record), "lost")


def refused(parts: Parts, record: Record) -> Record:
    """Tell the owner that a child has not begun. Hold the child's lock."""
    run = record.admission_run or f"admission-{record.attempt}"
    end = RunEnd(error_code="AdmissionFailed", error_text=record.problem)
    # One save for both: a refusal that the owner has not heard of is none yet.
    return _end(parts, record, run, "error", lambda: end, state="refused")


def cancelled(parts: Parts, record: Record, found: Conversation | None) -> Record:
    """Tell the owner that a child was cancelled, as it was found then. Hold the child's lock."""
    if found is not None and found.status != record.seen:
        changes = {"seen": found.status, "seen_since": to_text(parts.clock.now())}
        record = record.model_copy(update=changes)
    return _end(parts, record, _last_run(record), "cancelled", state="cancelled")


def _run_of(record: Record, found: Conversation) -> str:
    return found.last_user_message or _last_run(record)


def _last_run(record: Record) -> str:
    last = record.last_end
    return (
        record.mission_run
        or (last.run if last else None)
        or record.admission_run
        or f"admission-{record.attempt}"
    )


def _seen(parts: Parts, record: Record, found: Conversation) -> Record:
    """With a status that is another than at the last look, or another run; not saved yet."""
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
    return record.model_copy(update=changes) if changes else record


def _for_seconds(parts: Parts, record: Record) -> float:
    """How long it has been so. A clock that was set back must not make it for ever."""
    since = record.seen_since or record.updated_at
    return abs(parts.clock.now() - from_text(since)) / 1000


def _is_told(record: Record, run: str, status: str) -> bool:
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
    end: Callable[[], RunEnd] = RunEnd,
    *,
    state: State = "ended",
) -> Record:
    """Tell an end, unless that was done; `end` is asked only if it was not."""
    if _is_told(record, run, status):
        if record.state not in LIVING and state != "cancelled":
            return record
        # It was set to work and did not begin, or a crash came before this was noted.
        changes: dict[str, Any] = {"state": state, "run_owed": False}
        return parts.journal.save(record.model_copy(update=changes))
    told = _wake(parts, record, _told(parts, record, run, status, end()))
    number = int(told.data.get("again", 0))
    at = to_text(parts.clock.now())
    ident = End(run=run, number=number, status=told.status, wake=told.id, at=at)
    changes = {
        "state": state if told.status == status else _STATES.get(told.status, "ended"),
        "ends": (*record.ends, ident),
        "reopened": False,
        # An overdue one may be waiting for its run.
        "run_owed": record.run_owed and told.status == "overdue",
    }
    ended = record.model_copy(update=changes)
    if parts.owner_conversation_of(record):
        ended = ended.with_letter(_recovery(record, told))
    ended = parts.journal.save(ended)
    # Where a crash had come between a wake and its note, the run may have ended anew since.
    return ended if told.status == status else _end(parts, ended, run, status, end, state=state)


def _told(parts: Parts, record: Record, run: str, status: EndStatus, end: RunEnd) -> _Told:
    """What the owner is to be told of an end."""
    answer = keep(parts.folder, parts.redaction(end.answer))
    number = sum(earlier.run == run for earlier in record.ends)
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
    body = answer.text
    if end.error_code or end.error_text:
        code = parts.redaction(end.error_code or "")[:_CODE_LIMIT]
        text = parts.redaction(end.error_text or "")[:_ERROR_LIMIT]
        data["error"] = {"code": code, "text": text}
        body = "\n\n".join(filter(None, (f"{code}: {text}", body)))
    return _Told(status, data, body or _UNSAID[status], answer.text)


def _reported(record: Record) -> bool:
    """Whether the child has reported a result in this run by itself."""
    return any(
        note.id is not None and note.ends == len(record.ends) and key.startswith("RESULT ")
        for key, note in record.notes.items()
    )


def _wake(parts: Parts, record: Record, told: _Told) -> _Told:
    """Tell it; what was told, where an earlier try with this key has told something else."""
    said = {"lost": "is not known to the agent server any more", "overdue": "has not ended yet"}
    draft = Draft(
        kind="wake",
        subject=f"{record.task_key} ({record.role}) {said.get(told.status, told.status)}"[:200],
        body=told.body,
        data=told.data,
    )
    key = told.key(record)
    try:
        return replace(told, id=parts.bus.wake(record.owner_box, draft, key=key).id)
    except Conflict:
        # It was sent before a crash, with what the server said then: that one stands.
        return _first(parts, record, key) or replace(told, id=key)


@storage_errors()
def _first(parts: Parts, record: Record, key: str) -> _Told | None:
    """The wake that was sent under a key, as long as the bus has it."""
    name, store = sent_file(record.owner_box, key), parts.bus.store
    try:
        with store.open("sent", RESERVED) as sent:
            first = store.judge().file(sent, name, record.owner_box, None).message
    except FileNotFoundError:
        return None
    if first is None or first.data is None:
        return None
    return _Told(first.data["status"], first.data, first.body, first.body, first.id)


def _recovery(record: Record, told: _Told) -> Letter:
    """The copy for an owner that is a conversation itself."""
    key = told.key(record)
    envelope = {
        "kind": "RECOVERY_WAKE",
        "messageKey": record.message_key,
        "dedupeKey": key,
        "childId": str(record.child),
        "owningMainId": str(record.owner),
        "taskKey": record.task_key,
        "runId": told.data["run"],
        "status": told.status,
        "terminalResponse": told.answer,
        "explicitResultSeen": told.data["reported"],
        "message": told.id,
    }
    if "error" in told.data:
        envelope["terminalError"] = told.data["error"]
    text = "RECOVERY_WAKE\n" + compact(envelope)
    return Letter(to=record.owner, marker=f'"dedupeKey":"{key}"', text=text)
