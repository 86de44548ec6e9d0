"""P8: a file that does not verify is never shown as a message.

Torn, altered, misfiled, oversized, replayed, or not signed by a key of the sender it names: it
is reported with the reason, never deleted, and never hides the messages behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus.bus import Bus
from agent_bus.clock import to_text
from agent_bus.envelope import FILE_LIMIT, encode_decision, encode_message
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.payload import Decision, Message
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

ALICE, BOB = AgentName("alice"), AgentName("bob")
ID = MessageId("01kbb000000000000000000001")


class Forger:
    """Somebody who can write into the bus, and holds bob's key but not alice's."""

    def __init__(self, made: TemporaryBus) -> None:
        self.bus = made
        self.new = made.path / "messages" / "bob" / "new"
        self.path = self.new / message_file(ID)
        self.alice = made.as_agent("alice")

    def message(self, **changes: object) -> Message:
        at = to_text(self.bus.clock.now())
        message = Message(ID, self.alice.store.bus, ALICE, BOB, at, body="pay me")
        return replace(message, **changes)  # type: ignore[arg-type]

    def signed(self, signer: str = "alice", **changes: object) -> bytes:
        key = self.alice.keys.load(AgentName(signer)).signing_key()
        return encode_message(self.message(**changes), key)

    def write(self, data: bytes) -> None:
        self.path.write_bytes(data)


def edited(forger: Forger) -> None:
    forger.write(forger.signed().replace(b"pay me", b"pay ME"))


def edited_in_the_sender(forger: Forger) -> None:
    forger.write(forger.signed("bob", sender=BOB).replace(b'"bob"', b'"alice"', 1))


def torn(forger: Forger) -> None:
    forger.write(forger.signed()[:-20])


def empty(forger: Forger) -> None:
    forger.write(b"")


def sparse(forger: Forger) -> None:
    """What a power cut may leave of a file that was never flushed."""
    forger.write(bytes(300))


def signed_by_another(forger: Forger) -> None:
    forger.write(forger.signed("bob"))


def signed_by_nobody(forger: Forger) -> None:
    key = forger.alice.keys.load(ALICE).signing_key()
    forger.write(encode_message(forger.message(), replace(key, kid="00" * 8)))


def signed_with_a_revoked_key(forger: Forger) -> None:
    forger.write(forger.signed())
    first = forger.alice.keys.load(ALICE).signing_key()
    forger.alice.keys.revoke(ALICE, first.kid)
    forger.alice.keys.rotate(ALICE)


def copied_from_another_box(forger: Forger) -> None:
    forger.write(forger.signed(to=AgentName("user")))


def copied_to_another_id(forger: Forger) -> None:
    forger.write(forger.signed(id=MessageId("01kbb000000000000000000002")))


def copied_from_another_bus(forger: Forger) -> None:
    forger.write(forger.signed(bus=MessageId("01kbb000000000000000000003")))


def oversized(forger: Forger) -> None:
    forger.write(forger.signed() + b" " * FILE_LIMIT)


def a_decision(forger: Forger) -> None:
    key = forger.alice.keys.load(ALICE).signing_key()
    at = to_text(forger.bus.clock.now())
    decision = Decision(ID, "a" * 64, forger.alice.store.bus, "approve", ALICE, at)
    forger.write(encode_decision(decision, key))


def a_link(forger: Forger) -> None:
    outside = forger.bus.path.parent / "outside"
    outside.write_bytes(forger.signed())
    forger.path.symlink_to(outside)


def a_pipe(forger: Forger) -> None:
    os.mkfifo(forger.path)


def a_folder(forger: Forger) -> None:
    forger.path.mkdir()


FORGERIES: dict[Callable[[Forger], None], str] = {
    edited: "bad-signature",
    edited_in_the_sender: "bad-signature",
    torn: "bad-signature",
    empty: "malformed",
    sparse: "malformed",
    signed_by_another: "wrong-sender",
    signed_by_nobody: "unknown-key",
    signed_with_a_revoked_key: "revoked-key",
    copied_from_another_box: "wrong-recipient",
    copied_to_another_id: "misfiled",
    copied_from_another_bus: "wrong-bus",
    oversized: "malformed",
    a_decision: "bad-signature",
    a_link: "malformed",
    a_pipe: "malformed",
    a_folder: "malformed",
}


@pytest.fixture
def forger(bus: TemporaryBus) -> Forger:
    return Forger(bus)


def texts(bus: Bus) -> list[str]:
    found = [stored.judged.message for stored in bus.inbox().messages]
    return [message.body for message in found if message]


@pytest.mark.parametrize(
    ("forge", "expected"), FORGERIES.items(), ids=lambda it: getattr(it, "__name__", it)
)
def test_a_forged_file_is_reported_with_the_reason_and_hides_nothing(
    forger: Forger, bus: TemporaryBus, forge: Callable[[Forger], None], expected: str
) -> None:
    forge(forger)
    forger.alice.send_one("bob", Draft(body="behind it"))
    bob = bus.as_agent("bob")

    reported = {stored.place.id: stored.judged for stored in bob.inbox().messages}
    assert reported[ID].outcome == expected
    assert reported[ID].detail
    assert reported[ID].message is None
    assert texts(bob) == ["behind it"]
    assert bob.read(ID).judged.message is None
    assert "behind it" in str(bob.log().messages[0])
    assert [s.judged.outcome for s in bob.verify(ID)] == [expected]
    assert {str(entry.agent): len(entry.bad) for entry in bob.status()}["bob"] == 1
    # It was looked at in every way, and nobody moved or removed it.
    assert os.path.lexists(forger.path)
    bob.prune(archived=0, read=0)
    assert os.path.lexists(forger.path)


def test_a_message_that_was_genuine_before_one_byte_was_changed(
    forger: Forger, bus: TemporaryBus
) -> None:
    ident = forger.alice.send_one("bob", Draft(body="one byte")).id
    path = forger.new / message_file(ident)
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 7):
        altered = bytearray(data)
        altered[at] ^= 1
        path.write_bytes(bytes(altered))
        assert bus.as_agent("bob").read(ident).judged.message is None, at
    path.write_bytes(bytes(data))
    assert bus.as_agent("bob").read(ident).judged.ok


def test_a_genuine_message_in_another_place_is_none(bus: TemporaryBus, forger: Forger) -> None:
    """Copied into another box, under another id, onto another bus of the same agents."""
    ident = forger.alice.send_one("bob", Draft(body="x")).id
    data = (forger.new / message_file(ident)).read_bytes()
    boxes = bus.path / "messages"
    (boxes / "user" / "new" / message_file(ident)).write_bytes(data)
    (boxes / "bob" / "new" / message_file(ID)).write_bytes(data)

    assert bus.as_agent("user").read(ident).judged.outcome == "wrong-recipient"
    assert bus.as_agent("bob").read(ID).judged.outcome == "misfiled"
    assert texts(bus.as_agent("bob")) == ["x"]


def test_a_removed_message_that_is_put_back_is_replayed(
    held: TemporaryBus, clock: ManualClock
) -> None:
    forger = Forger(held)
    ident = forger.alice.send_one("bob", Draft(body="x")).id
    data = (forger.new / message_file(ident)).read_bytes()
    bob = held.as_agent("bob")
    bob.archive(ident)
    clock.advance(60)
    bob.prune(archived=0)
    (forger.new / message_file(ident)).write_bytes(data)

    assert bob.read(ident).judged.outcome == "replayed"
    assert texts(bob) == []


def test_a_thousand_bad_files_hide_no_message(bus: TemporaryBus, forger: Forger) -> None:
    for number in range(1000):
        (forger.new / f"01kbb{number:021}.msg").write_bytes(b"x")
    forger.alice.send_one("bob", Draft(body="behind them"))
    bob = bus.as_agent("bob")

    page = bob.inbox(limit=2000)
    assert [s.judged.message.body for s in page.messages if s.judged.message] == ["behind them"]
    assert len(page.messages) == 1001


def test_a_link_out_of_the_bus_is_never_followed(bus: TemporaryBus, tmp_path: Path) -> None:
    """Not as a file, not as a box, not as a folder of a box."""
    forger = Forger(bus)
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / message_file(ID)).write_bytes(forger.signed())
    (bus.path / "messages" / "carol").symlink_to(secret)
    (forger.new / message_file(ID)).symlink_to(secret / message_file(ID))

    bob = bus.as_agent("bob")
    assert bob.read(ID).judged.outcome == "malformed"
    assert "carol" not in {stored.place.box for stored in bob.verify()}
    with pytest.raises(Exception, match="carol"):
        forger.alice.send_one("carol", Draft(body="x"), force=True)
    assert [path.name for path in secret.iterdir()] == [message_file(ID)]
