"""cancel_mission and resume_mission: only of one's own child, named twice.

The target must be the child that the caller's task key leads to; anything else is refused
before the agent server is asked. Cancelling does not ask the model: it shuts the gate, stops
the run, and leaves a message that starts none.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from agent_bus.clock import to_text
from agent_bus.errors import (
    Busy,
    Conflict,
    NoSuchChild,
    NotPermitted,
    ServerRefused,
    Unavailable,
)
from agent_bus.openhands.gateway import belonging, decisions, ends, letters, terms
from agent_bus.openhands.gateway.caller import Action, Caller
from agent_bus.openhands.gateway.identifiers import child_id, task_key, uuid_of
from agent_bus.openhands.gateway.journal import RESUME, UNSTARTED, Note, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import ENDED, Conversation
from agent_bus.openhands.gateway.wire import compact, digest

Outcome = Literal["cancelled", "finished", "error", "stuck", "lost", "resumed", "replayed"]


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of it. `replayed`: the same was asked for before."""

    message_key: str
    task_key: str
    child: UUID
    outcome: Outcome


class Steering:
    """Stops children, and sets them to work again."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def cancel(self, caller: Caller, *, target: object, task: object, key: object) -> Steered:
        """Stop a child for good, as far as its owner does not resume it.

        Raises NotPermitted, InvalidMission, NoSuchChild, Busy, Unavailable, ConfigurationError
        for a child of another gateway, and what `Bus.wake` raises.
        """
        child, named = _own(caller, "cancel_mission", target, task)
        chosen = f"cancel:{child}" if key is None else terms.message_key(key)
        with self._parts.journal.changing(child):
            record = self._parts.journal.load(child)
            outcome = self._cancel(record, chosen)
        return Steered(chosen, named, child, outcome)

    def _cancel(self, record: Record, key: str) -> Outcome:
        if record.state == "cancelled":
            return "replayed"
        belonging.require(self._parts, record)
        self._parts.gates.shut(record.child)
        began = record.state not in (*UNSTARTED, "refused")
        found = self._stopped(record, self._parts.provider.conversation(record.child))
        if found is None and began:
            ends.conclude(self._parts, record)
            return "lost"
        if found is not None and began and found.status in ENDED and not record.run_owed:
            # It was quicker: what it ended as is its end.
            ends.conclude(self._parts, record)
            return _as_ended(found)
        decisions.withdraw(self._parts, ends.cancelled(self._parts, record, found))
        if found is not None:
            # Afterwards: as the newest message it would name a run of its own.
            self._leave_word(record, key, found)
        return "cancelled"

    def _stopped(self, record: Record, found: Conversation | None) -> Conversation | None:
        """Interrupt a run, and wait for a while until it has stopped. Raises Unavailable."""
        parts = self._parts
        if found is not None and found.status == "waiting_for_confirmation":
            # The gate is asked before a person is, so that it would be too late for it.
            parts.provider.reject(record.child, "The mission was cancelled.")
            return parts.provider.conversation(record.child)
        if found is None or found.status != "running":
            return found
        parts.provider.interrupt(record.child)
        slept = 0.0
        while True:
            found = parts.provider.conversation(record.child)
            if found is None or found.status != "running":
                return found
            if slept >= parts.pauses.stop:
                raise Unavailable(
                    f"child {record.child} was interrupted and still runs; its tools are shut: "
                    "cancel it again"
                )
            parts.pauses.sleep(parts.pauses.poll)
            slept += parts.pauses.poll

    def _leave_word(self, record: Record, key: str, found: Conversation) -> None:
        """A message for who reads the conversation. It starts no run, and it is not vital."""
        if found.status == "waiting_for_confirmation":
            return  # any message would approve what waits there
        content = {
            "messageKey": key,
            "targetId": str(record.child),
            "taskKey": record.task_key,
            "owningMainId": str(record.owner),
        }
        # The child is stopped, whether the server takes this or not.
        with contextlib.suppress(Unavailable, ServerRefused):
            text = "CANCEL_MISSION\n" + compact(content)
            self._parts.provider.post(record.child, text, run=False)

    def resume(
        self, caller: Caller, *, target: object, task: object, key: object, context: object
    ) -> Steered:
        """Go on with a child that has ended, with facts that cannot widen what it may do.

        Raises NotPermitted, InvalidMission, NoSuchChild, Conflict, CheckoutRefused, Busy where
        it is at work, Unavailable, ServerRefused, ConfigurationError for a child of another
        gateway, and what `Bus.wake` raises.
        """
        child, named = _own(caller, "resume_mission", target, task)
        chosen, facts = terms.message_key(key), terms.context(context)
        with self._parts.journal.changing(child):
            outcome = self._resume(self._parts.journal.load(child), chosen, facts)
        return Steered(chosen, named, child, outcome)

    def _resume(self, record: Record, key: str, facts: dict[str, Any]) -> Outcome:
        parts, noted, sha256 = self._parts, RESUME + key, digest(facts)
        earlier = record.notes.get(noted)
        if earlier is not None and earlier.sha256 != sha256:
            raise Conflict(f"it was resumed with other facts under {key}: choose another key")
        if earlier is not None and earlier.id is not None:
            return "replayed"
        if record.state in (*UNSTARTED, "refused"):
            raise Busy(f"child {record.child} has not begun ({record.state}): create it again")
        belonging.require(parts, record)
        resume_id = digest([str(record.child), noted])
        marker = f'"resumeId":"{resume_id}"'
        if earlier is None or parts.provider.find_message(record.child, marker) is None:
            record = self._reopened(record, noted, Note(sha256=sha256), marker)
        else:
            record = record.model_copy(update={"owed": marker})
        content = {
            "messageKey": key,
            "resumeId": resume_id,
            "taskKey": record.task_key,
            "context": facts,
        }
        text = "RESUME_MISSION\n" + compact(content)
        record, run = letters.post_once(parts, record, marker, text)
        if run is None:
            raise Unavailable(
                "the agent server does not show the message it has just taken: resume it again "
                "with the same key"
            )
        now = to_text(parts.clock.now())
        changes: dict[str, Any] = {
            "state": "delivered",
            "owed": None,
            "mission_run": run,
            "seen": None,
            "seen_since": now,
            "run_since": now,
            "reopened": False,
        }
        done = record.with_note(noted, Note(sha256=sha256, id=run, ends=len(record.ends)))
        parts.journal.save(done.model_copy(update=changes))
        return "resumed"

    def _reopened(self, record: Record, noted: str, note: Note, marker: str) -> Record:
        """Ready for a message that sets it to work: its last end is told, its gate open.

        From here on it is looked up by the rounds, whatever becomes of this process.
        """
        parts = self._parts
        if record.state == "delivered":
            record = ends.conclude(parts, record)
        found = parts.provider.conversation(record.child)
        if found is None:
            raise NoSuchChild(f"the agent server does not know child {record.child} any more")
        if found.status in ("running", "waiting_for_confirmation", "deleting"):
            raise Busy(
                f"child {record.child} is {found.status.replace('_', ' ')}: "
                "wait for its wake, or cancel it first"
            )
        parts.checkouts.validate(record.child, record.checkout, exact=False)
        changes = {"state": "delivered", "owed": marker}
        record = parts.journal.save(record.with_note(noted, note).model_copy(update=changes))
        parts.gates.open(record.child)
        return record


def _own(caller: Caller, action: Action, target: object, task: object) -> tuple[UUID, str]:
    caller.require_parent(action)
    child, named = uuid_of(target, "targetId"), task_key(task)
    if child_id(caller.subject, named) != child:
        raise NotPermitted(f"{child} is not the child of your task {named}")
    return child, named


def _as_ended(conversation: Conversation) -> Outcome:
    ended: dict[str, Outcome] = {"finished": "finished", "error": "error", "stuck": "stuck"}
    return ended[conversation.status]
