"""What a child says: results, questions, links. Each becomes a message in its owner's box.

The journal notes what is said under a message key before it is sent. The same again is a
repeat, and sends once more only what may not have arrived; other content is a conflict. The
send itself has a key as well, so that a repeat never becomes a second message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agent_bus.errors import BusFull, Conflict, NotPermitted
from agent_bus.openhands.gateway import terms
from agent_bus.openhands.gateway.caller import Caller
from agent_bus.openhands.gateway.journal import Letter, Note, Question, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.wire import compact, digest
from agent_bus.sending import Draft

_KINDS = {"RESULT": "result", "NEEDS_INPUT": "question", "NAVIGATION": "links"}
"""What each is called on the bus."""
OPEN_QUESTIONS = 20
"""Questions of one child that may wait for a decision at once."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was said is in the owner's box, or stands in the queue of approvals."""

    message_key: str
    replayed: bool
    id: str


class Reports:
    """Speaks for children."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def result(self, caller: Caller, *, result: object, kind: object, key: object) -> Accepted:
        """send_to_parent. Raises NotPermitted, InvalidMission, Conflict and what a send raises."""
        content = terms.result(result)
        named = "RESULT" if kind is None else terms.report_kind(kind)
        chosen = terms.result_key(content) if key is None else terms.message_key(key)
        return self._report(caller, named, chosen, content)

    def links(self, caller: Caller, *, links: object) -> Accepted:
        """publish_navigation_links. Raises as `result` does."""
        content = terms.links(links)
        return self._report(caller, "NAVIGATION", terms.navigation_key(content), {"links": content})

    def question(self, caller: Caller, *, question: object, options: object) -> Accepted:
        """request_user_decision: an approval of the bus. Raises as `result` does."""
        text, offered = terms.question(question), terms.options(options)
        key = terms.decision_key(text, offered)
        content = {"question": text, "options": list(offered)}

        def ask(record: Record) -> tuple[Record, str]:
            if sum(asked.decision is None for asked in record.questions) >= OPEN_QUESTIONS:
                raise BusFull(
                    f"{OPEN_QUESTIONS} of its questions wait for a decision: wait for those first"
                )
            request, addressee = self._ask(record, key, text, offered)
            # Before anything else can fail: somebody may decide it at once.
            asked = record.with_question(Question(key=key, request=request))
            record = self._parts.journal.save(asked)
            if addressee != record.owner_box:
                # An owner that decides itself has the request in its box already.
                self._send(record, "NEEDS_INPUT", key, content | {"approval": request})
            return record, request

        return self._noted(caller, f"DECISION {key}", key, content, ask)

    def _ask(
        self, record: Record, key: str, text: str, options: tuple[str, ...]
    ) -> tuple[str, str]:
        details = {
            "child": str(record.child),
            "task_key": record.task_key,
            "role": record.role,
            "owner": record.owner_box,
            "conversation_url": self._parts.provider.url(record.child),
        }
        receipt = self._parts.bus.request_approval(
            self._parts.redaction(text),
            options=[self._parts.redaction(option) for option in options],
            details=details,
            key=f"{record.child}:{key}",
            about=f"{record.task_key} ({record.role})",
        )
        return receipt.id, receipt.to

    def _report(self, caller: Caller, kind: str, key: str, content: Mapping[str, Any]) -> Accepted:
        def send(record: Record) -> tuple[Record, str]:
            return record, self._send(record, kind, key, content)

        return self._noted(caller, f"{kind} {key}", key, content, send)

    def _noted(
        self,
        caller: Caller,
        noted: str,
        key: str,
        content: Mapping[str, Any],
        act: Callable[[Record], tuple[Record, str]],
    ) -> Accepted:
        caller.require("send_message")
        journal, sha256 = self._parts.journal, digest(dict(content))
        with journal.changing(caller.subject):
            record = _own(journal.load(caller.subject), caller.owner)
            earlier = record.notes.get(noted)
            if earlier is not None and earlier.sha256 != sha256:
                raise Conflict(f"something else was said under the key {key}: choose another key")
            if earlier is not None and earlier.id is not None:
                return Accepted(key, replayed=True, id=earlier.id)
            note = Note(sha256=sha256, ends=len(record.ends))
            record = journal.save(record.with_note(noted, note))
            record, ident = act(record)
            record = record.with_note(noted, note.model_copy(update={"id": ident}))
            journal.save(self._copied(record, noted.partition(" ")[0], key, content))
        return Accepted(key, replayed=earlier is not None, id=ident)

    def _send(self, record: Record, kind: str, key: str, content: Mapping[str, Any]) -> str:
        redaction = self._parts.redaction
        draft = Draft(
            kind=_KINDS[kind],
            subject=f"{record.task_key} ({record.role}): {_KINDS[kind]}",
            body=redaction(compact(dict(content))),
            data=_envelope(record, kind, redaction(key)),
        )
        sent = self._parts.bus.send_one(
            record.owner_box, draft, key=f"{record.child}:{kind}:{key}", force=True
        )
        return sent.id

    def _copied(self, record: Record, kind: str, key: str, content: Mapping[str, Any]) -> Record:
        """With a letter to an owner that is a conversation itself."""
        if not self._parts.owner_conversation_of(record):
            return record
        named = "NEEDS_INPUT" if kind == "DECISION" else kind
        dedupe = digest([str(record.child), kind, key])
        text = self._parts.redaction(compact(dict(content)))
        said = _envelope(record, named, self._parts.redaction(key))
        whole = {**said, "text": text, "dedupeKey": dedupe}
        return record.with_letter(
            Letter(
                to=record.owner,
                marker=f'"dedupeKey":"{dedupe}"',
                text=f"{named}\n{compact(whole)}",
            )
        )


def _envelope(record: Record, kind: str, key: str) -> dict[str, Any]:
    """What is said about every report."""
    return {
        "kind": kind,
        "messageKey": key,
        "owningMainId": str(record.owner),
        "childId": str(record.child),
        "taskKey": record.task_key,
        "role": record.role,
    }


def _own(record: Record, owner: UUID) -> Record:
    if record.owner != owner:
        raise NotPermitted("this child reports to another Main")
    return record
