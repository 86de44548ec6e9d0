"""The queue of approvals: requests, decisions, and the messages that tell of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from agent_bus.delivery import APPROVAL_REQUEST
from agent_bus.doctor.examination import LEFTOVER_AGE, ROOT_BAD, Aside, Examination
from agent_bus.envelope import kid_of, open_decision
from agent_bus.errors import NoSuchMessage, VerificationError
from agent_bus.files import Folder
from agent_bus.locks import locked
from agent_bus.names import MessageId, is_message_id

_INTO: Aside = ("approvals", "bad")
_REQUEST, _DECISION, _LOCK = ".request", ".decision", ".lock"


@dataclass(frozen=True, slots=True)
class _Objection:
    code: str
    text: str
    raw: bytes


def examine(ex: Examination, queue: Folder) -> None:
    """Look at every request and every decision. The boxes were looked at before."""
    decisions = []
    for name, status in ex.entries(queue):
        with ex.guard(queue.path / name):
            if name == "bad":
                if (bad := ex.folder(queue, name, ROOT_BAD)) is not None:
                    bad.close()
            elif ex.is_plain(queue, name, status, _INTO):
                stem, suffix = name[:26], name[26:]
                if is_message_id(stem) and suffix == _DECISION:
                    decisions.append(MessageId(stem))
                elif is_message_id(stem) and suffix == _REQUEST:
                    _request(ex, queue, name, MessageId(stem))
                else:
                    _stray(ex, queue, name, status.st_mtime)
    # After the requests: what a repair took away makes a decision decide nothing.
    for ident in decisions:
        with ex.guard(queue.path / f"{ident}{_DECISION}"):
            _decision(ex, queue, ident)
    if ex.judge is None:
        return
    _unqueued(ex, queue)
    with ex.guard(queue.path):
        _undelivered(ex, queue)


def _stray(ex: Examination, queue: Folder, name: str, changed: float) -> None:
    if name == _LOCK:
        return
    if not name.startswith("."):
        text = "is neither a request nor a decision"
        ex.aside("unknown-entry", "error", queue, name, text, _INTO)
    elif ex.now / 1000 - changed > LEFTOVER_AGE:
        ex.aside("leftover", "warning", queue, name, "was left by a crash", _INTO)


def _request(ex: Examination, queue: Folder, name: str, ident: MessageId) -> None:
    data = ex.content(queue, name)
    if data is None:
        return
    if ex.judge is None:
        ex.mode(queue, name)
        return
    message = ex.outcome(queue, name, ex.judge.data(data, None, ident), _INTO)
    if message is None:
        return
    if message.kind != APPROVAL_REQUEST:
        text = f"is a message of kind {message.kind}, no request"
        ex.aside("malformed", "error", queue, name, text, _INTO)
    elif ident in ex.seen.pruned.get(message.to, ()):
        text = "is a request whose message was removed before"
        ex.aside("replayed", "error", queue, name, text, _INTO)
    elif ident in ex.seen.standing.get(message.to, ()):
        return
    elif ex.bus.store.find(message.to, ident) is None:
        text = (
            f"waits in the queue, but its message is not in the box of {message.to}: decide it, "
            f"or let {message.sender} withdraw it (agent-bus decide {ident} withdraw)"
        )
        ex.note("request-without-message", "warning", queue.path / name, text)


def _unqueued(ex: Examination, queue: Folder) -> None:
    for message in ex.seen.requests:
        if queue.status(f"{message.id}{_REQUEST}") is None:
            text = f"request {message.id} of {message.sender} is not in the queue: ask once more"
            ex.note("request-not-queued", "warning", queue.path, text)


def _decision(ex: Examination, queue: Folder, ident: MessageId) -> None:
    if _objection(ex, queue, ident) is None:
        ex.mode(queue, f"{ident}{_DECISION}")
        return
    # Deciders set an invalid one aside themselves, under this lock, and write a new one.
    with locked(queue.path / _LOCK) if ex.repair else contextlib.nullcontext():
        objection = _objection(ex, queue, ident)
        if objection is not None:
            ex.refuse(
                objection.code,
                queue,
                f"{ident}{_DECISION}",
                objection.text,
                objection.raw,
                _INTO,
            )


def _objection(ex: Examination, queue: Folder, ident: MessageId) -> _Objection | None:
    """Why a decision does not count; None if it does, or if its request is the trouble."""
    data = ex.content(queue, f"{ident}{_DECISION}")
    if data is None or ex.judge is None:
        return None
    try:
        request = ex.bus.approvals.request(ident)
        owner, decision = open_decision(data, ex.judge.keys)
    except NoSuchMessage:
        return _Objection("no-request", "decides a request that is not there", data)
    except VerificationError:
        return None
    except ValueError as error:
        code = "unknown-key" if str(error).startswith("unknown-key") else "invalid-decision"
        return _Objection(code, f"is no valid decision: {error}", data)
    why = ex.bus.approvals.objection(request, owner, decision, kid_of(data))
    return _Objection("invalid-decision", f"does not count: {why}", data) if why else None


def _undelivered(ex: Examination, queue: Folder) -> None:
    for request, decision in ex.bus.approvals.undelivered():
        ident = request.message.id
        text = (
            f"the decision was made and not sent: {decision.by} completes it with agent-bus "
            f"decide {ident} {decision.decision}"
        )
        ex.note("decision-not-delivered", "warning", queue.path / f"{ident}{_DECISION}", text)
