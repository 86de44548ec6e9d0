"""A sealed name: an agent that has every file and every variable of the bus cannot decide.

What the agent does here is what a program of the same Unix user can do with little effort:
read all keys, sign with those that can be read, write any file. What it would have to do
beyond (read another process's memory, replace the program, replace keyring and pin at once)
stands in docs/threat-model.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent_bus import doctor, keeping, sealing
from agent_bus.bus import Bus
from agent_bus.clock import to_text
from agent_bus.envelope import encode_decision, encode_message
from agent_bus.errors import ConfigurationError, InvalidName, NotPermitted, UsageError
from agent_bus.keyring import Key, Keyring, dump, parse_keyring
from agent_bus.keys import Keys
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Decision, Message
from agent_bus.pins import Pins
from agent_bus.sealing import Opened, Signer
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

USER = AgentName("user")
WORDS = "correct horse battery staple"
CHEAP = 2**14


def seal(bus: TemporaryBus, name: AgentName = USER) -> Opened:
    """What `keygen NAME --sealed` does, with a cheaper scrypt."""
    anonymous = Bus.open(bus.settings, clock=bus.clock)
    anonymous.keys.seal(name, WORDS, CHEAP)
    signer = anonymous.keys.signer(name)
    assert isinstance(signer, Opened)
    keeping.pin(anonymous.store, name, signer)
    return signer


@dataclass
class Agent:
    """An agent that means harm: it can read and write all files of its Unix user."""

    bus: TemporaryBus
    ident: MessageId

    @property
    def ring_file(self) -> Path:
        return self.bus.settings.keys / "user.json"

    @property
    def pin_file(self) -> Path:
        return self.bus.path / "pins" / "user.json"

    def ring(self) -> Keyring:
        return parse_keyring(self.ring_file.read_bytes())

    def write_ring(self, *keys: Key) -> None:
        self.ring_file.write_bytes(dump(Keyring(USER, keys)))

    def old_key(self) -> Key:
        """The key that the name had before: retired, and there to be read."""
        return next(key for key in self.ring().keys if not key.is_sealed)

    def own_key(self) -> tuple[Key, Opened]:
        """A sealed key of the agent's own making."""
        now = to_text(self.bus.clock.now())
        return sealing.make(USER, "e" * 16, now, "agents own words", CHEAP)

    def decide(self, signer: Signer, *, at: int | None = None) -> None:
        """Put a decision beside the request, and its message into the requester's box."""
        requester = self.bus.as_agent("alice")
        request = requester.approvals.request(self.ident)
        decision = Decision(
            request=self.ident,
            request_sha256=request.sha256,
            bus=requester.file.bus,
            decision="approve",
            by=USER,
            decided_at=to_text(at or self.bus.clock.now()),
        )
        (self.bus.path / "approvals" / f"{self.ident}.decision").write_bytes(
            encode_decision(decision, signer)
        )
        notice = Message(
            id=MessageId(self.bus.clock.new_id()),
            bus=requester.file.bus,
            sender=USER,
            to=AgentName("alice"),
            sent_at=decision.decided_at,
            kind="approval_decision",
            subject="approve",
            reply_to=self.ident,
            data=decision.payload(),
        )
        box = self.bus.path / "messages" / "alice" / "new"
        (box / f"{notice.id}.msg").write_bytes(encode_message(notice, signer))


@pytest.fixture
def ask(held: TemporaryBus) -> MessageId:
    """A request that any admin might decide."""
    return held.as_agent("alice").request_approval("Drop the table?", to="user").id


@pytest.fixture
def agent(held: TemporaryBus, ask: MessageId) -> Agent:
    seal(held)
    return Agent(held, ask)


def is_decided(bus: TemporaryBus, ident: MessageId) -> bool:
    """Whether a fresh process of the requester finds a decision, on the queue or in its box."""
    alice = bus.as_agent("alice")
    told = [stored for stored in alice.inbox().messages if stored.judged.message is not None]
    queued = alice.approvals.decision(alice.approvals.request(ident)) is not None
    waits = any(request.message.id == ident for request in bus.as_agent("user").pending())
    assert queued != waits
    return queued or bool(told)


# -- what the owner can do


def test_with_the_passphrase_it_is_decided(held: TemporaryBus, agent: Agent) -> None:
    user = held.as_agent("user")
    assert user.is_locked

    user.unlock(WORDS)

    assert not user.is_locked
    assert user.decide(agent.ident, "approve").decision.by == "user"
    assert is_decided(held, agent.ident)
    data = (held.path / "approvals" / f"{agent.ident}.decision").read_bytes()
    assert len(data.split(b" ")[2].partition(b"\n")[0]) == 128


def test_a_sealed_name_sends_with_its_passphrase_alone(held: TemporaryBus, agent: Agent) -> None:
    user = held.as_agent("user")
    with pytest.raises(NotPermitted, match="agent-bus approvals"):
        user.send_one("bob", Draft(body="x"))
    assert held.as_agent("bob").inbox().total == 0
    user.unlock(WORDS)
    user.send_one("bob", Draft(body="x"))
    [stored] = held.as_agent("bob").inbox().messages
    assert stored.judged.ok


def test_the_opened_key_is_forgotten_after_a_while(
    held: TemporaryBus, agent: Agent, clock: ManualClock
) -> None:
    user = held.as_agent("user")
    user.unlock(WORDS)
    clock.advance(sealing.FORGET_AFTER - 1)
    user.send_one("bob", Draft(body="still there"))
    clock.advance(sealing.FORGET_AFTER - 1)
    assert not user.is_locked
    clock.advance(1)
    assert user.is_locked
    with pytest.raises(NotPermitted):
        user.decide(agent.ident, "approve")


def test_a_wrong_passphrase_opens_nothing(held: TemporaryBus, agent: Agent) -> None:
    user = held.as_agent("user")
    for wrong in ("", WORDS + " ", WORDS.upper(), "x" * 2000, "\ud800"):
        with pytest.raises(NotPermitted, match="not the passphrase"):
            user.unlock(wrong)
    assert user.is_locked


# -- what the agent cannot


def test_it_signs_with_the_key_that_the_name_had_before(held: TemporaryBus, agent: Agent) -> None:
    """Now, and with a time from before the seal."""
    for at in (None, held.clock.now() - 3_600_000):
        agent.decide(agent.old_key(), at=at)
        assert not is_decided(held, agent.ident)


def test_it_makes_that_key_active_again(held: TemporaryBus, agent: Agent) -> None:
    sealed = agent.ring().keys[-1]
    active = replace(agent.old_key(), state="active", retired_at=None)
    for ring in ([active, sealed], [sealed, active], [active]):
        agent.write_ring(*ring)
        agent.decide(active)
        assert not is_decided(held, agent.ident)
        with pytest.raises((NotPermitted, ConfigurationError)):
            held.as_agent("user").decide(agent.ident, "approve")
    assert "key-changed" in codes(held)


def test_it_asks_in_the_past_and_answers_itself(held: TemporaryBus, agent: Agent) -> None:
    """A request whose id and time are older than the seal is no older request."""
    bob = held.as_agent("bob")
    old = Bus.open(held.settings, identity="bob", clock=ManualClock(held.clock.now() - 10**9))
    agent.ident = old.request_approval("May bob?", to="user").id
    request = bob.approvals.request(agent.ident)
    assert request.message.sent_at < to_text(held.clock.now() - 10**8)
    agent.decide(agent.old_key(), at=held.clock.now() - 10**9 + 1000)

    assert not is_decided(held, agent.ident)


def test_it_puts_a_sealed_key_of_its_own_into_the_keyring(held: TemporaryBus, agent: Agent) -> None:
    old, mine, sealed = agent.old_key(), agent.own_key(), agent.ring().keys[-1]
    claimed = replace(mine[0], endorsed_by=sealed.kid, endorsement=b"e" * 64)
    own = sealing.endorse(USER, mine[0], Opened(sealed.kid, mine[1].private))
    for ring in (
        [old, mine[0]],
        [old, sealed, mine[0]],
        [old, sealed, claimed],
        [old, sealed, own],
        [mine[0]],
        [old, replace(sealed, public=mine[0].public, box=mine[0].box)],
    ):
        agent.write_ring(*ring)
        agent.decide(Opened(ring[-1].kid, mine[1].private))
        assert not is_decided(held, agent.ident)
    with pytest.raises(ConfigurationError, match="not the one that is pinned"):
        held.as_agent("user").unlock("agents own words")


def test_it_claims_another_algorithm(held: TemporaryBus, agent: Agent) -> None:
    """The public half is known to all: as the secret of an HMAC it signs nothing."""
    sealed = agent.ring().keys[-1]
    agent.decide(Key(sealed.kid, sealed.public, "active", sealed.created_at))
    assert not is_decided(held, agent.ident)

    path = held.path / "approvals" / f"{agent.ident}.decision"
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(head + head[-64:] + b"\n" + rest)
    assert not is_decided(held, agent.ident)


def test_it_edits_the_list_of_older_files(held: TemporaryBus, agent: Agent) -> None:
    agent.decide(agent.old_key())
    data = (held.path / "approvals" / f"{agent.ident}.decision").read_bytes()
    kept = held.path / "pins" / "user.kept"
    line = json.dumps(hashlib.sha256(data).hexdigest()).encode()
    kept.write_bytes(kept.read_bytes().replace(b'"files":[', b'"files":[' + line))
    assert not is_decided(held, agent.ident)
    assert "bad-kept" in codes(held)

    mine = agent.own_key()[1]
    Pins(held.path, held.as_agent("alice").file.bus, held.clock).keep(
        USER, [hashlib.sha256(data).hexdigest()], mine
    )
    assert not is_decided(held, agent.ident)


def test_it_spoils_or_replaces_the_pin(held: TemporaryBus, agent: Agent) -> None:
    mine, opened = agent.own_key()
    good = agent.pin_file.read_text()
    agent.pin_file.write_text("{")
    agent.decide(agent.old_key())
    assert not is_decided(held, agent.ident)
    assert "bad-pin" in codes(held)

    agent.pin_file.write_text(good.replace(agent.ring().keys[-1].fingerprint, mine.fingerprint))
    agent.decide(opened)
    assert not is_decided(held, agent.ident)
    assert "key-changed" in codes(held)


def test_it_replaces_keyring_and_pin_at_once_under_a_process_that_runs(
    held: TemporaryBus, agent: Agent
) -> None:
    """Who has seen the pin before takes no other for it."""
    alice = held.as_agent("alice")
    request = alice.approvals.request(agent.ident)
    mine, opened = agent.own_key()
    old = agent.pin_file.read_text()
    agent.pin_file.write_text(old.replace(agent.ring().keys[-1].fingerprint, mine.fingerprint))
    agent.write_ring(mine)

    agent.decide(opened)

    assert alice.approvals.decision(request) is None
    agent.pin_file.unlink()
    assert alice.approvals.decision(request) is None


def test_what_needs_the_sealed_key_holds_where_keyring_and_pin_are_replaced(
    held: TemporaryBus, agent: Agent
) -> None:
    """The request names the key, under the signature of who asks."""
    agent.ident = held.as_agent("alice").request_approval("Really?", needs="user").id
    mine, opened = agent.own_key()
    old = agent.pin_file.read_text()
    agent.pin_file.write_text(old.replace(agent.ring().keys[-1].fingerprint, mine.fingerprint))
    agent.write_ring(mine)

    agent.decide(opened)

    alice = held.as_agent("alice")
    assert alice.approvals.decision(alice.approvals.request(agent.ident)) is None


def test_another_admin_does_not_count_for_what_needs_the_sealed_one(
    held: TemporaryBus, agent: Agent
) -> None:
    alice, conductor = held.as_agent("alice"), held.as_agent("conductor")
    ident = alice.request_approval("Really?", needs="user").id
    [request] = [one for one in conductor.pending() if one.message.id == ident]
    assert (request.needs, request.message.to) == ("user", "user")
    with pytest.raises(NotPermitted, match="needs a decision of 'user'"):
        conductor.decide(ident, "approve")

    user = held.as_agent("user")
    user.unlock(WORDS)
    user.decide(ident, "approve")
    assert alice.approvals.decision(request) is not None


def test_a_message_that_tells_of_a_decision_which_nobody_made_is_doubted(
    held: TemporaryBus, agent: Agent
) -> None:
    """Any agent can sign a message of this kind with its own key, and put it into a box."""
    alice, bob = held.as_agent("alice"), held.as_agent("bob")
    request = alice.approvals.request(agent.ident)
    told = Decision(
        agent.ident, request.sha256, alice.file.bus, "approve", AgentName("bob"), to_text(0)
    )
    for data in (told.payload(), {}, None, {"request": "../x"}):
        notice = Message(
            id=MessageId(held.clock.new_id()),
            bus=alice.file.bus,
            sender=AgentName("bob"),
            to=AgentName("alice"),
            sent_at=to_text(held.clock.now()),
            kind="approval_decision",
            subject="approve: Drop the table?",
            data=data,
        )
        assert "nobody has made it" in (alice.doubt(notice) or "")
    bob.send_one("alice", Draft(body="x"))
    user = held.as_agent("user")
    user.unlock(WORDS)
    user.decide(agent.ident, "approve")
    messages = [stored.judged.message for stored in alice.inbox().messages]
    assert len(messages) == 2
    assert all(message and alice.doubt(message) is None for message in messages)


# -- what was there before


def test_what_was_decided_and_sent_before_the_seal_still_counts(held: TemporaryBus) -> None:
    alice, user = held.as_agent("alice"), held.as_agent("user")
    ident = alice.request_approval("Before?", to="user").id
    user.decide(ident, "approve")
    user.send_one("bob", Draft(body="before"))

    seal(held)

    assert is_decided(held, ident)
    [stored] = held.as_agent("bob").inbox().messages
    assert stored.judged.ok


def test_on_a_bus_that_nobody_pinned_the_first_look_does(
    held: TemporaryBus, ask: MessageId
) -> None:
    held.as_agent("user").send_one("bob", Draft(body="before"))
    Keys(held.settings.keys, held.clock).seal(USER, WORDS, CHEAP)
    assert "not-pinned" in codes(held)
    held.as_agent("bob").attend()
    [stored] = held.as_agent("bob").inbox().messages
    # Nobody has vouched for it yet; `keys pin` does, and says how many there are.
    assert stored.judged.outcome == "unknown-key"
    bus = Bus.open(held.settings, clock=held.clock)
    bus.keys.unlock(USER, WORDS)
    signer = bus.keys.signer(USER)
    assert isinstance(signer, Opened)
    assert keeping.pin(bus.store, USER, signer) == 0
    assert keeping.pin(bus.store, USER, signer, again=True) == 1
    assert held.as_agent("bob").inbox().messages[0].judged.ok
    agent = Agent(held, ask)
    agent.decide(agent.old_key())
    assert not is_decided(held, ask)
    assert keeping.pin(bus.store, USER, signer) == 1
    assert not is_decided(held, ask)


# -- rotation


def test_a_rotated_key_counts_since_the_one_before_has_endorsed_it(
    held: TemporaryBus, agent: Agent
) -> None:
    ident = held.as_agent("alice").request_approval("Really?", needs="user").id
    reader = held.as_agent("alice")
    first = agent.ring().keys[-1]
    keys = Keys(held.settings.keys, held.clock)
    with pytest.raises(NotPermitted):
        keys.rotate(USER)
    with pytest.raises(NotPermitted):
        keys.rotate_sealed(USER, "not the passphrase", WORDS, CHEAP)
    assert agent.ring().keys[-1] == first

    second = keys.rotate_sealed(USER, WORDS, "another long passphrase", CHEAP)

    retired = next(key for key in agent.ring().keys if key.kid == first.kid)
    assert (retired.state, retired.box) == ("retired", None)
    assert second.endorsed_by == first.kid
    user = held.as_agent("user")
    user.unlock("another long passphrase")
    user.decide(ident, "approve")
    assert reader.approvals.decision(reader.approvals.request(ident)) is not None
    assert not [code for code in codes(held) if code.startswith(("key-", "bad-", "pinned"))]


def test_a_revoked_key_endorses_nothing_but_what_was_pinned(
    held: TemporaryBus, agent: Agent
) -> None:
    keys = Keys(held.settings.keys, held.clock)
    first = agent.ring().keys[-1]
    keys.rotate_sealed(USER, WORDS, WORDS, CHEAP)
    held.as_agent("bob").attend()
    thief = sealing.make(USER, "d" * 16, to_text(0), WORDS, CHEAP)
    keys.revoke(USER, first.kid)

    user = held.as_agent("user")
    user.unlock(WORDS)
    user.send_one("bob", Draft(body="after"))
    assert held.as_agent("bob").inbox().messages[0].judged.ok

    stolen = sealing.open_key(USER, first, WORDS)
    agent.write_ring(*agent.ring().keys, sealing.endorse(USER, thief[0], stolen))
    agent.decide(thief[1])
    assert not is_decided(held, agent.ident)


# -- refusals


def test_only_a_sealed_admin_can_be_needed(held: TemporaryBus, agent: Agent) -> None:
    alice = held.as_agent("alice")
    for name in ("conductor", "bob", "nobody"):
        with pytest.raises(UsageError, match="--sealed"):
            alice.request_approval("x?", needs=name)
    with pytest.raises(InvalidName):
        alice.request_approval("x?", needs="../user")


def test_a_demand_that_nobody_can_meet_blocks_and_harms_nobody(
    held: TemporaryBus, agent: Agent
) -> None:
    alice = held.as_agent("alice")
    ident = alice.request_approval("x?", details=None).id
    path = held.path / "approvals" / f"{ident}.request"
    request = alice.approvals.request(ident)
    data = dict(request.message.data or {}) | {"needs": {"not": "a name"}}
    odd = replace(request.message, data=data)
    path.write_bytes(encode_message(odd, alice.keys.load(AgentName("alice")).signing_key()))
    with pytest.raises(NotPermitted):
        held.as_agent("conductor").decide(ident, "approve")
    assert alice.decide(ident, "withdraw").decision.by == "alice"


def test_the_doctor_names_a_key_without_a_seal_beside_a_sealed_one(
    held: TemporaryBus, agent: Agent
) -> None:
    assert doctor.is_content(
        one for one in doctor.examine(held.as_agent("alice")) if one.code != "not-durable"
    )
    active = replace(agent.old_key(), state="active", retired_at=None)
    agent.write_ring(active, agent.ring().keys[-1])
    assert "unsealed-key" in codes(held)


def codes(bus: TemporaryBus) -> set[str]:
    return {finding.code for finding in doctor.examine(Bus.open(bus.settings, clock=bus.clock))}
