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
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from agent_bus import records
from agent_bus.clock import Clock, from_text, to_text
from agent_bus.delivery import APPROVAL_REQUEST, Delivery
from agent_bus.envelope import FILE_LIMIT, Judged, encode_decision, kid_of, open_decision
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
    UsageError,
    VerificationError,
)
from agent_bus.files import Folder, UnfitFile
from agent_bus.keys import KeyIndex
from agent_bus.locks import locked
from agent_bus.names import AgentName, MessageId, agent_name, is_message_id
from agent_bus.payload import Decision, Message
from agent_bus.reading import Judge, reason, storage_errors
from agent_bus.requests import (
    DEFAULT_OPTIONS,
    WITHDRAW,
    Request,
    check_reason,
    check_right,
    earlier,
    notice_of,
    request_content,
    request_of,
)
from agent_bus.sealing import Signer
from agent_bus.store import Store, open_or_make

__all__ = [
    "DEFAULT_OPTIONS",
    "WITHDRAW",
    "Approvals",
    "Decided",
    "Request",
    "earlier",
    "request_content",
]


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
        with self._store.open("approvals") as folder:
            judge = self._store.judge()
            for ident in self._ids(".request"):
                try:
                    request = self._request(folder, judge, ident)
                except (VerificationError, FileNotFoundError, InvalidMessage):
                    continue  # `unusable` and `doctor` report it
                decided = self._valid_decision(folder, request, judge.keys)
                if decided is None and not self._is_over(request):
                    waiting.append(request)
        return waiting

    @storage_errors()
    def unusable(self) -> list[tuple[MessageId, str]]:
        """The files in the queue that are no valid request, with what is wrong, oldest first.

        Not those that an admin has decided: their keys may have been revoked since.
        """
        found = []
        with self._store.open("approvals") as folder:
            judge = self._store.judge()
            for ident in self._ids(".request"):
                try:
                    self._request(folder, judge, ident)
                except FileNotFoundError:
                    continue
                except (VerificationError, InvalidMessage) as error:
                    if not self._is_decided(folder, judge, ident):
                        found.append((ident, getattr(error, "outcome", "malformed")))
        return found

    def _is_decided(self, folder: Folder, judge: Judge, ident: MessageId) -> bool:
        try:
            data = folder.read(f"{ident}.decision", FILE_LIMIT)
            owner, decision = open_decision(data, judge.keys)
        except (FileNotFoundError, UnfitFile, ValueError):
            return False
        return owner in self._admins and decision.request == ident

    def request(self, ident: MessageId) -> Request:
        """A request by its id, decided or not.

        Raises NoSuchMessage, and VerificationError for a file that does not verify.
        """
        try:
            with self._store.open("approvals") as folder:
                return self._request(folder, self._store.judge(), ident)
        except FileNotFoundError:
            raise NoSuchMessage(f"no approval request {ident}") from None

    def _request(self, folder: Folder, judge: Judge, ident: MessageId) -> Request:
        judged = judge.file(folder, f"{ident}.request", None, ident)
        if judged.message is not None and self._was_pruned(judged.message):
            judged = Judged("replayed", "it was removed before; this is a copy", raw=judged.raw)
        if judged.message is None or judged.message.kind != APPROVAL_REQUEST:
            outcome = "malformed" if judged.message else judged.outcome
            raise VerificationError(
                f"approval request {ident} is {outcome}: {judged.detail or 'of another kind'}",
                outcome=outcome,
            )
        return request_of(judged.message, judged)

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
        signer: Signer,
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
        check_right(request, decision, by, may_decide)
        check_reason(reason)
        self._check_key(request, by, signer)
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

    def complete(self, by: AgentName, signer: Signer) -> int:
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
            notice, key = self._notice_of(request, decision), _notice_key(request.message.id)
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

    def _write(self, request: Request, draft: Decision, signer: Signer) -> Decided:
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

    def _valid_decision(
        self, folder: Folder, request: Request, keys: KeyIndex | None = None
    ) -> Decision | None:
        try:
            data = folder.read(f"{request.message.id}.decision", FILE_LIMIT)
            owner, decision = open_decision(data, keys or self._store.judge().keys)
        except (FileNotFoundError, UnfitFile, ValueError):
            return None
        return None if self.objection(request, owner, decision, kid_of(data)) else decision

    def objection(
        self, request: Request, owner: AgentName, decision: Decision, kid: str | None
    ) -> str | None:
        """Why a verified decision does not count for this request, or None if it does.

        `kid` is the key that signed it.
        """
        message = request.message
        own = decision.by == message.sender
        demanded = request.needs is not None and not own
        unfit = demanded and not request.is_key_needed(owner, kid, self._store.keys.index())
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
            f"not signed by the sealed key of {request.needs} that it needs": unfit,
        }
        return next((why for why, holds in objections.items() if holds), None)

    def addressee(self, me: AgentName, to: str | None) -> AgentName:
        """The admin who is asked: by default the first who is not oneself.

        Raises UsageError for a name that is no admin, ConfigurationError if nobody is left.
        """
        others = [name for name in self._admins if name != me]
        if to is None and not others:
            raise ConfigurationError(f"this bus has no admin but {me}: none to ask")
        if to is not None and agent_name(to) not in self._admins:
            known = ", ".join(self._admins) or "there is none"
            raise UsageError(f"{to} is no admin of this bus: ask {known}")
        return others[0] if to is None else agent_name(to)

    def demand(self, name: AgentName) -> dict[str, str]:
        """What a request holds that this name alone may decide, with its sealed key.

        Raises UsageError if it has none.
        """
        keys = self._store.keys.index()
        ring = keys.rings.get(name)
        if name not in self._admins or ring is None or not ring.is_sealed:
            raise UsageError(
                f"{name} is no admin with a sealed key, so no request can need it: "
                f"agent-bus keygen {name} --sealed makes one, at a terminal"
            )
        self._store.pins.ensure(keys)
        key = ring.signing_key()
        self.check_pin(name, key)
        return {"needs": name, "needs_key": key.fingerprint}

    def check_pin(self, name: AgentName, key: Signer) -> None:
        """Refuse a key that the pin of its name does not know. Raises ConfigurationError."""
        pinned = self._store.judge().keys.pinned.get(name)
        if pinned is not None and key.kid not in pinned.kids:
            raise ConfigurationError(
                f"the key of {name} is not the one that is pinned on this bus: somebody has "
                "replaced the keyring or the pin; agent-bus doctor says more"
            )

    def _check_key(self, request: Request, by: AgentName, signer: Signer) -> None:
        self.check_pin(by, signer)
        keys = self._store.keys.index()
        if by != request.message.sender and not request.is_key_needed(by, signer.kid, keys):
            raise NotPermitted(
                f"{request.message.id} names the sealed key of {by} that has to decide it, and "
                "this is another: it has to be asked again"
            )

    def _notify(self, request: Request, decision: Decision, signer: Signer) -> None:
        notice, key = self._notice_of(request, decision), _notice_key(request.message.id)
        try:
            self._delivery.deliver(notice, signer, key)
        except (NotDelivered, BusFull) as error:
            raise DeliveryUncertain(
                f"the decision on {request.message.id} stands, but {notice.to} was not told "
                f"({error}): decide the same once more",
                key=key,
            ) from error

    def _notice_of(self, request: Request, decision: Decision) -> Message:
        ident, now = MessageId(self._clock.new_id()), to_text(self._clock.now())
        return notice_of(request.message, decision, ident, now)

    def _is_over(self, request: Request) -> bool:
        expires = request.message.expires_at
        return expires is not None and self._clock.now() > from_text(expires)

    def _ids(self, suffix: str) -> list[MessageId]:
        with self._store.open("approvals") as folder:
            names = folder.names()
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return sorted(MessageId(stem) for stem in stems if is_message_id(stem))


def _repeated(first: Decision, draft: Decision) -> Decided:
    if first.decision == draft.decision:
        return Decided(first, repeated=True)
    raise Conflict(
        f"request {draft.request} was decided by {first.by} at {first.decided_at}: "
        f"{first.decision[:80]!a}; that stands"
    )


def _notice_key(ident: MessageId) -> str:
    return f"decision:{ident}"
