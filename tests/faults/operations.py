"""What is done to a bus while it is being harmed, and what must hold afterwards.

An operation is prepared, got ready (all that may be loaded is loaded), performed, checked,
performed again in peace, and checked once more. Every check gives a list of what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from looking import (
    ALICE,
    BOB,
    BODY,
    CAROL,
    Outcome,
    Ready,
    attempt,
    bus,
    everything,
    notices,
    settings,
    unfit,
    with_body,
)

from agent_bus import create, records
from agent_bus.clock import SystemClock
from agent_bus.errors import Conflict, NoBus, StorageError, VerificationError
from agent_bus.names import AgentName, message_id
from agent_bus.reading import storage_errors
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

OLD = 1_700_000_000_000
"""A time long before now, in milliseconds since 1970."""
_DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a user does. Paths are of a folder that holds bus and keys."""

    prepare: Callable[[Path], str]
    """Makes the bus, and gives the id of what the rest is about."""
    ready: Callable[[Path, str, str | None], Ready]
    """Opens the bus and gives the act itself; the last argument is a key to retry with."""
    check: Callable[[Path, str, Outcome], Iterator[str]]
    """What is wrong after it ended like this."""
    recheck: Callable[[Path, str, Outcome], Iterator[str]]
    """What is wrong after it has been repeated; the outcome is that of the first time."""


def repeat(operation: Operation, root: Path, ident: str, first: Outcome) -> list[str]:
    """Perform once more without harm, and give what is wrong then."""
    second = attempt(operation.ready(root, ident, first.key))
    if second.code != "ok":
        return [f"after {first.code} repeating gave {second.code}: {second.text}"]
    return list(operation.recheck(root, ident, first))


# -- send, with and without a key; and an approval request, which stands in the queue as well


def _make_bus(root: Path) -> str:
    root.mkdir(exist_ok=True)
    TemporaryBus("alice", "bob", folder=root)
    return ""


def _send(root: Path, _: str, key: str | None) -> Ready:
    opened = bus(root, "alice")
    return lambda: opened.send_one("bob", Draft(body=BODY), key=key).id


def _send_keyed(root: Path, _ident: str, _key: str | None) -> Ready:
    return _send(root, "", "a key of its own")


def _send_second(root: Path, _ident: str, key: str | None) -> Ready:
    opened = bus(root, "alice")
    # What a first send keeps open is used again.
    opened.send_one("bob", Draft(body="the first"))
    return lambda: opened.send_one("bob", Draft(body=BODY), key=key).id


def _ask(root: Path, _ident: str, _key: str | None) -> Ready:
    opened = bus(root, "alice")
    return lambda: opened.request_approval(BODY, key="the key of the question").id


def _check_sent(root: Path, _: str, outcome: Outcome) -> Iterator[str]:
    yield from unfit(root)
    found = with_body(root)
    if len(found) > 1:
        yield f"it is there {len(found)} times"
    if outcome.code == "ok" and found != [outcome.ident]:
        yield f"a receipt was given for {outcome.ident}, and there is {found}"
    if outcome.is_refusal and found:
        yield f"{outcome.code} was said, and it is there"


def _recheck_sent(root: Path, _: str, outcome: Outcome) -> Iterator[str]:
    yield from unfit(root)
    found = with_body(root)
    if len(found) != 1:
        yield f"after a repetition it is there {len(found)} times"
    if outcome.code == "ok" and outcome.ident not in found:
        yield "the first message was replaced"


def _recheck_sent_unkeyed(root: Path, _: str, outcome: Outcome) -> Iterator[str]:
    yield from unfit(root)
    found = with_body(root)
    # Without a key a second send is a second message, but where the first said it was none.
    wanted = {"ok": (2,), "died": (1, 2)}.get(outcome.code, (1,))
    if len(found) not in wanted:
        yield f"after {outcome.code} and a second send it is there {len(found)} times"


def _check_asked(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    yield from _check_sent(root, ident, outcome)
    queued = [request.message.id for request in bus(root, "conductor").pending()]
    if outcome.code == "ok" and queued != [outcome.ident]:
        yield f"a receipt was given for {outcome.ident}, and {queued} waits"
    if outcome.is_refusal and queued:
        yield f"{outcome.code} was said, and it waits for a decision"
    if set(with_body(root)) - set(queued):
        yield "it is in the box and not in the queue"


def _recheck_asked(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    yield from _recheck_sent(root, ident, outcome)
    queued = [request.message.id for request in bus(root, "conductor").pending()]
    if queued != with_body(root):
        yield f"{queued} waits, {with_body(root)} was asked"


# -- read and archive


def _deliver(root: Path) -> str:
    _make_bus(root)
    return bus(root, "alice").send_one("bob", Draft(body=BODY)).id


def _deliver_read(root: Path) -> str:
    ident = _deliver(root)
    bus(root, "bob").read(ident)
    return ident


def _read(root: Path, ident: str, _: str | None) -> Ready:
    opened = bus(root, "bob")

    def read() -> str:
        stored = opened.read(ident)
        if not stored.judged.ok:
            raise VerificationError(stored.judged.detail, outcome=stored.judged.outcome)
        if stored.place.state == "new":
            raise StorageError("it was shown, and stays unread")
        return stored.place.id

    return read


def _archive(root: Path, ident: str, _: str | None) -> Ready:
    opened = bus(root, "bob")
    return lambda: opened.archive(ident).id


def _stands(state: str) -> Callable[[Path, str, Outcome], Iterator[str]]:
    def check(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
        yield from unfit(root)
        if with_body(root) != [ident]:
            yield f"{ident} is lost, or there twice: {with_body(root)}"
        place = bus(root).store.find(BOB, message_id(ident))
        if outcome.code == "ok" and (place is None or place.state != state):
            yield f"it should be {state}, and is {place}"

    return check


def _recheck_moved(state: str) -> Callable[[Path, str, Outcome], Iterator[str]]:
    check = _stands(state)
    return lambda root, ident, _: check(root, ident, Outcome("ok", ident))


# -- decide


def _asked(root: Path) -> str:
    _make_bus(root)
    return bus(root, "alice").request_approval("May I?").id


def _decide(root: Path, ident: str, _: str | None) -> Ready:
    opened = bus(root, "conductor")
    return lambda: opened.decide(ident, "approve").decision.request


def _check_decided(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    yield from unfit(root)
    approvals = bus(root).approvals
    decision = approvals.decision(approvals.request(message_id(ident)))
    told = len(notices(root))
    if told > 1 or (told and decision is None):
        yield f"{told} notices, decision {decision}"
    if outcome.code == "ok" and (decision is None or told != 1):
        yield f"decided, and there is {decision} with {told} notices"
    if outcome.is_refusal and decision is not None:
        yield f"{outcome.code} was said, and it is decided"


def _recheck_decided(root: Path, ident: str, _: Outcome) -> Iterator[str]:
    yield from _check_decided(root, ident, Outcome("ok", ident))
    opened = bus(root, "conductor")
    if opened.pending():
        yield "it is decided, and still waits"
    if attempt(lambda: opened.decide(ident, "deny").decision.request).code != "conflict":
        yield "another decision was taken"


# -- keys


def _rotate(root: Path, _ident: str, _key: str | None) -> Ready:
    opened = bus(root)

    @storage_errors()  # as the front ends do
    def rotate() -> str:
        return opened.keys.rotate(ALICE).kid

    return rotate


def _generate(root: Path, _ident: str, _key: str | None) -> Ready:
    opened = bus(root)

    @storage_errors()
    def generate() -> str:
        try:
            return opened.keys.generate(CAROL).kid
        except Conflict:
            return opened.keys.load(CAROL).signing_key().kid

    return generate


def _has_key(agent: AgentName, *, always: bool) -> Callable[[Path, str, Outcome], Iterator[str]]:
    def check(root: Path, _: str, outcome: Outcome) -> Iterator[str]:
        yield from unfit(root)
        keys = bus(root).keys
        yield from keys.index().problems
        if agent not in keys.agents():
            if always or outcome.code == "ok":
                yield f"the keyring of {agent} is gone"
            return
        active = [key.kid for key in keys.load(agent).keys if key.state == "active"]
        if len(active) != 1:
            yield f"{agent} has {len(active)} active keys"
        if outcome.code == "ok" and active != [outcome.ident]:
            yield f"the new key is {outcome.ident}, and {active} is active"
        if agent not in keys.known():
            yield f"{agent} is not known any more"

    return check


def _recheck_key(agent: AgentName) -> Callable[[Path, str, Outcome], Iterator[str]]:
    check = _has_key(agent, always=True)

    def recheck(root: Path, ident: str, _: Outcome) -> Iterator[str]:
        signed = attempt(lambda: bus(root, agent).send_one("bob", Draft(body="signed anew")).id)
        yield from check(root, ident, Outcome("died"))
        if signed.code != "ok":
            yield f"{agent} cannot sign: {signed.text}"

    return recheck


# -- init


def _nothing(root: Path) -> str:
    root.mkdir(exist_ok=True)
    return ""


def _init(root: Path, _ident: str, _key: str | None) -> Ready:
    chosen, clock = settings(root), SystemClock()
    return lambda: create.create(chosen, clock).file.bus


def _check_created(root: Path, _: str, outcome: Outcome) -> Iterator[str]:
    try:
        found = bus(root).file.bus
    except NoBus:
        if outcome.code == "ok":
            yield "it was made, and there is none"
        return
    if outcome.code == "ok" and found != outcome.ident:
        yield f"bus {outcome.ident} was made, and {found} is there"
    yield from (
        f"{name} is missing" for name in create.FOLDERS if not (root / "bus" / name).is_dir()
    )


# -- prune


def _deliver_old(root: Path) -> str:
    root.mkdir(exist_ok=True)
    clock = ManualClock(OLD)
    then = TemporaryBus("alice", "bob", folder=root, clock=clock)
    ident = then.as_agent("alice").send_one("bob", Draft(body=BODY), key="old").id
    then.as_agent("bob").read(ident, archive=True)
    return ident


def _prune(root: Path, _ident: str, _key: str | None) -> Ready:
    opened = bus(root)

    def prune() -> str:
        done = opened.prune(archived=_DAY)
        if done.kept_bad:
            raise StorageError("it could not be read, and stays")
        return ""

    return prune


def _check_pruned(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    opened = bus(root)
    whole = message_id(ident)
    with opened.store.box(BOB) as box:
        kept = records.was_pruned(box, whole)
    there = opened.store.find(BOB, whole)
    if kept is None and there is None:
        yield "it is gone, and nothing is remembered of it"
    if outcome.code == "ok" and (there or not kept):
        yield f"it was pruned: {there}, remembered {kept}"
    if kept is None:
        yield from unfit(root)


def _recheck_pruned(root: Path, ident: str, _: Outcome) -> Iterator[str]:
    yield from _check_pruned(root, ident, Outcome("ok"))
    again = bus(root, "alice").send_one("bob", Draft(body=BODY), key="old")
    if not again.duplicate or again.id != ident or everything(root):
        yield f"its key gave a second message: {again}"


OPERATIONS: dict[str, Operation] = {
    "send": Operation(_make_bus, _send, _check_sent, _recheck_sent_unkeyed),
    "second": Operation(_make_bus, _send_second, _check_sent, _recheck_sent_unkeyed),
    "keyed": Operation(_make_bus, _send_keyed, _check_sent, _recheck_sent),
    "ask": Operation(_make_bus, _ask, _check_asked, _recheck_asked),
    "read": Operation(_deliver, _read, _stands("read"), _recheck_moved("read")),
    "archive": Operation(_deliver_read, _archive, _stands("archived"), _recheck_moved("archived")),
    "decide": Operation(_asked, _decide, _check_decided, _recheck_decided),
    "rotate": Operation(_deliver, _rotate, _has_key(ALICE, always=True), _recheck_key(ALICE)),
    "keygen": Operation(_make_bus, _generate, _has_key(CAROL, always=False), _recheck_key(CAROL)),
    "init": Operation(_nothing, _init, _check_created, _check_created),
    "prune": Operation(_deliver_old, _prune, _check_pruned, _recheck_pruned),
}


def named(name: str) -> Operation:
    """The operation of this name. Those of the gateway are loaded when they are asked for."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    from missions import MISSIONS

    return MISSIONS[name]
