"""Approvals: one queue for everything that waits for a person.

A request is a message of kind `approval_request`; delivery links it into `approvals/` as
well, where every admin sees it. Its decision is a signed file beside it, written once under
an exclusive name: the first valid one wins for good. It binds the hash of the request's
payload, so that nothing can be swapped after the look. Asked, decided, delivered and read
are separate facts: the requester gets the decision as a message of its own, under the key
`decision:<id>`, and whoever finds that step missing completes it.

    approvals/<id>.request    a link to the signed request
             /<id>.decision   the one signed decision
             /bad             decisions that did not verify, set aside
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agent_bus import records
from agent_bus.clock import Clock, from_text, to_text
from agent_bus.delivery import APPROVAL_REQUEST, Delivery
from agent_bus.envelope import FILE_LIMIT, Judged, encode_decision, open_decision
from agent_bus.errors import (
    AgentBusError,
    BusFull,
    ConfigurationError,
    Conflict,
    DeliveryUncertain,
    InvalidDecision,
    InvalidMessage,
    NoSuchMessage,
    NotDelivered,
    NotPermitted,
    VerificationError,
)
from agent_bus.files import Folder, UnfitFile
from agent_bus.keyring import Key
from agent_bus.locks import locked
from agent_bus.names import AgentName, MessageId, is_message_id
from agent_bus.payload import SUBJECT_LIMIT, Decision, Message, is_one_line
from agent_bus.reading import reason
from agent_bus.store import Store, open_or_make

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


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that counts. `repeated`: it had been made before, and stands."""

    decision: Decision
    repeated: bool


class Approvals:
    """The queue of one bus. `admins` are those of bus.json, all of them."""

    def __init__(
        self, store: Store, delivery: Delivery, clock: Clock, admins: Sequence[AgentName]
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._clock = clock
        self._admins = tuple(admins)

    def pending(self) -> list[Request]:
        """The requests without a valid decision that have not expired, oldest first."""
        waiting = []
        for ident in self._ids(".request"):
            try:
                request = self.request(ident)
            except (VerificationError, NoSuchMessage, InvalidMessage):
                continue  # `doctor` and `verify` report it
            if not self._is_over(request) and self.decision(request) is None:
                waiting.append(request)
        return waiting

    def request(self, ident: MessageId) -> Request:
        """A request by its id, decided or not.

        Raises NoSuchMessage, and VerificationError for a file that does not verify.
        """
        name = f"{ident}.request"
        try:
            with self._store.open("approvals") as folder:
                judged = self._store.judge().file(folder, name, None, ident)
        except FileNotFoundError:
            raise NoSuchMessage(f"no approval request {ident}") from None
        if judged.message is not None and self._was_pruned(judged.message):
            judged = Judged("replayed", "it was removed before; this is a copy", raw=judged.raw)
        if judged.message is None or judged.message.kind != APPROVAL_REQUEST:
            outcome = "malformed" if judged.message else judged.outcome
            raise VerificationError(
                f"approval request {ident} is {outcome}: {judged.detail or 'of another kind'}",
                outcome=outcome,
            )
        return _request(judged.message, judged)

    def _was_pruned(self, message: Message) -> bool:
        try:
            with self._store.box(message.to) as box:
                return records.was_pruned(box, message.id) is not None
        except FileNotFoundError:
            return False

    def decision(self, request: Request) -> Decision | None:
        """The valid decision on a request, if there is one."""
        with self._store.open("approvals") as folder:
            return self._valid_decision(folder, request)

    def decide(
        self,
        ident: MessageId,
        decision: str,
        *,
        by: AgentName,
        signer: Key,
        may_decide: bool,
        reason: str | None = None,
        sha256: str | None = None,
    ) -> Decided:
        """Write the decision and send it to the requester.

        `may_decide`: whether this process acts as an admin; `sha256`: what the caller was
        shown. Raises NotPermitted, NoSuchMessage, InvalidDecision, Conflict,
        VerificationError, NotDelivered and DeliveryUncertain.
        """
        request = self.request(ident)
        _check_right(request, decision, by, may_decide)
        _check_reason(reason)
        if sha256 is not None and sha256 != request.sha256:
            raise Conflict(f"request {ident} is not what was shown: its sha256 is {request.sha256}")
        draft = Decision(
            request=ident,
            request_sha256=request.sha256,
            bus=self._store.bus,
            decision=decision,
            by=by,
            decided_at=to_text(self._clock.now()),
            reason=reason,
        )
        decided = self._write(request, draft, signer)
        if decided.decision.by == by:
            self._notify(request, decided.decision, signer)
        return decided

    def complete(self, by: AgentName, signer: Key) -> int:
        """Send what this admin decided and never sent, after a crash. Returns how many."""
        sent = 0
        for request, decision in self.undelivered():
            # What fails is named by `doctor`; it must not keep a server from starting.
            if decision.by == by:
                with contextlib.suppress(AgentBusError):
                    self._notify(request, decision, signer)
                    sent += 1
        return sent

    def undelivered(self) -> Iterator[tuple[Request, Decision]]:
        """Valid decisions whose message to the requester is missing."""
        for request, decision in self._decisions(self._ids(".decision")):
            notice, key = self._notice(request, decision), _notice_key(request.message.id)
            if not self._delivery.arrived(notice.sender, notice.to, key):
                yield request, decision

    def decided(self, limit: int) -> list[tuple[Request, Decision]]:
        """The newest requests that were decided, and how."""
        return list(islice(self._decisions(reversed(self._ids(".decision"))), limit))

    def _decisions(self, ids: Iterable[MessageId]) -> Iterator[tuple[Request, Decision]]:
        for ident in ids:
            try:
                request = self.request(ident)
            except (VerificationError, NoSuchMessage):
                continue
            decision = self.decision(request)
            if decision is not None:
                yield request, decision

    def _write(self, request: Request, draft: Decision, signer: Key) -> Decided:
        if self._is_over(request):
            first = self.decision(request)
            if first is None:
                raise InvalidDecision(
                    f"request {draft.request} expired at {request.message.expires_at}: ask again"
                )
        data = encode_decision(draft, signer)
        name = f"{draft.request}.decision"
        with self._store.open("approvals") as folder:
            for _ in range(3):
                try:
                    folder.put_new(name, data)
                except FileExistsError:
                    first = self._valid_decision(folder, request)
                    if first is not None:
                        return _repeated(first, draft)
                    self._set_aside(folder, name, request)
                    continue
                except OSError as error:
                    raise NotDelivered(f"nothing was decided: {reason(error)}") from error
                self._flush(folder, draft)
                return Decided(draft, repeated=False)
        raise NotDelivered(f"{folder.path / name} is in the way: agent-bus doctor --repair")

    def _flush(self, folder: Folder, draft: Decision) -> None:
        try:
            folder.sync()
        except OSError as error:
            raise DeliveryUncertain(
                f"the decision on {draft.request} is written, but perhaps not on disk "
                f"({reason(error)}): decide the same once more",
                key=_notice_key(draft.request),
            ) from error

    def _set_aside(self, folder: Folder, name: str, request: Request) -> None:
        """Move an invalid decision away.

        Judged again under a lock: of two processes that do it at once, the second would take
        away what the first has written since.
        """
        problems = self._store.keys.index().problems
        if problems:
            # It may be valid, and signed with a key that cannot be read just now.
            raise ConfigurationError(f"{name} cannot be judged: {problems[0]}")
        with locked(folder.path / ".lock"), open_or_make(folder, "bad") as bad:
            if folder.status(name) and self._valid_decision(folder, request) is None:
                folder.move_folder(name, bad, f"{name}.{secrets.token_hex(4)}")

    def _valid_decision(self, folder: Folder, request: Request) -> Decision | None:
        try:
            data = folder.read(f"{request.message.id}.decision", FILE_LIMIT)
            owner, decision = open_decision(data, self._store.keys.index())
        except (FileNotFoundError, UnfitFile, ValueError):
            return None
        return None if self.objection(request, owner, decision) else decision

    def objection(self, request: Request, owner: AgentName, decision: Decision) -> str | None:
        """Why a verified decision does not count for this request, or None if it does."""
        message = request.message
        own = decision.by == message.sender
        late = message.expires_at and from_text(decision.decided_at) > from_text(message.expires_at)
        objections = {
            f"signed by {owner} in the name of {decision.by}": owner != decision.by,
            "made on another bus": decision.bus != message.bus,
            "made on another request": decision.request != message.id,
            "made on another content": decision.request_sha256 != request.sha256,
            f"{decision.by} is no admin of this bus": not own and decision.by not in self._admins,
            "decided by the requester itself": own and decision.decision != WITHDRAW,
            "no option of the request": not own and decision.decision not in request.options,
            "made after the request had expired": bool(late),
        }
        return next((why for why, holds in objections.items() if holds), None)

    def _notify(self, request: Request, decision: Decision, signer: Key) -> None:
        notice, key = self._notice(request, decision), _notice_key(request.message.id)
        try:
            self._delivery.deliver(notice, signer, key)
        except (NotDelivered, BusFull) as error:
            raise DeliveryUncertain(
                f"the decision on {request.message.id} stands, but {notice.to} was not told "
                f"({error}): decide the same once more",
                key=key,
            ) from error

    def _notice(self, request: Request, decision: Decision) -> Message:
        """The message that tells the requester; of a withdrawal, the one who was asked."""
        asked = request.message
        return Message(
            id=MessageId(self._clock.new_id()),
            bus=asked.bus,
            sender=decision.by,
            to=asked.to if decision.by == asked.sender else asked.sender,
            sent_at=to_text(self._clock.now()),
            kind="approval_decision",
            subject=f"{decision.decision}: {asked.subject}"[:SUBJECT_LIMIT],
            body=decision.reason or "",
            thread=asked.thread or asked.id,
            reply_to=asked.id,
            data=decision.payload(),
        )

    def _is_over(self, request: Request) -> bool:
        expires = request.message.expires_at
        return expires is not None and self._clock.now() > from_text(expires)

    def _ids(self, suffix: str) -> list[MessageId]:
        with self._store.open("approvals") as folder:
            names = folder.names()
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return sorted(MessageId(stem) for stem in stems if is_message_id(stem))


def earlier(
    request: Request, decided: Iterable[tuple[Request, Decision]]
) -> list[tuple[Request, Decision]]:
    """What became of the same question of the same agent: who was refused may ask again."""
    asked = request.message
    words = asked.body.casefold().split()
    return [
        (other, decision)
        for other, decision in decided
        if other.message.id != asked.id
        and other.message.sender == asked.sender
        and other.message.body.casefold().split() == words
    ]


def request_content(
    question: str, options: Sequence[str], details: Any
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
    subject = "".join(" " if not is_one_line(char) else char for char in first)[:SUBJECT_LIMIT]
    return subject, {"options": chosen} | ({} if details is None else {"details": details})


def _request(message: Message, judged: Judged) -> Request:
    data = message.data or {}
    options = data.get("options")
    offered = options if isinstance(options, list) else []
    return Request(
        message=message,
        sha256=judged.sha256,
        options=tuple(option for option in offered if isinstance(option, str)),
        details=data.get("details"),
    )


def _check_right(request: Request, decision: str, by: AgentName, may_decide: bool) -> None:
    ident, asker = request.message.id, request.message.sender
    if by == asker:
        if decision != WITHDRAW:
            raise NotPermitted(f"{by} asked for {ident} itself, and may only {WITHDRAW} it")
    elif not may_decide:
        raise NotPermitted(f"{by} is no admin of this bus and cannot decide {ident}")
    elif decision not in request.options:
        offered = ", ".join(json.dumps(option) for option in request.options)
        raise InvalidDecision(f"{decision[:80]!a} is no option of {ident}: choose {offered}")


def _check_reason(reason: str | None) -> None:
    # As JSON, where a control character takes six bytes: the notice carries it as data.
    text = json.dumps(reason, ensure_ascii=False)
    if len(text.encode("utf-8", "surrogatepass")) > _REASON_LIMIT:
        raise InvalidDecision(f"a reason has at most {_REASON_LIMIT} bytes as JSON")


def _repeated(first: Decision, draft: Decision) -> Decided:
    if first.decision == draft.decision:
        return Decided(first, repeated=True)
    raise Conflict(
        f"request {draft.request} was decided by {first.by} at {first.decided_at}: "
        f"{first.decision[:80]!a}; that stands"
    )


def _notice_key(ident: MessageId) -> str:
    return f"decision:{ident}"
