"""Bus: what front ends call, as one identity or as nobody."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus.bus import Bus
from agent_bus.errors import (
    ConfigurationError,
    Conflict,
    IdentityMissing,
    InvalidMessage,
    InvalidName,
    NoBus,
    NoSuchMessage,
    NotPermitted,
    StorageError,
    UsageError,
    VerificationError,
)
from agent_bus.names import RESERVED, AgentName, MessageId, message_file
from agent_bus.sending import Draft
from agent_bus.settings import Settings
from agent_bus.testing import ManualClock, TemporaryBus


@pytest.fixture
def ident(alice: Bus) -> MessageId:
    return alice.send_one("bob", Draft(body="hello")).id


def nobody(held: TemporaryBus) -> Bus:
    return Bus.open(held.settings, clock=held.clock)


def test_a_wrong_address_is_an_error_and_never_a_second_bus(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=tmp_path / "bus")
    with pytest.raises(NoBus, match=str(tmp_path / "bus")):
        Bus.open(settings, identity="alice")
    assert list(tmp_path.iterdir()) == []


def test_where_it_is_allowed_a_bus_is_made(tmp_path: Path) -> None:
    settings = Settings(
        data=tmp_path / "data", keys=tmp_path / "keys", bus=tmp_path / "bus", allow_create=True
    )
    assert Bus.open(settings).admins == ("conductor", "user")
    assert (tmp_path / "bus" / "messages").is_dir()


def test_an_identity_needs_a_key(held: TemporaryBus) -> None:
    for name in ("carol", "", "${AGENT_MSG_AS}", "../alice"):
        with pytest.raises(IdentityMissing):
            held.as_agent(name)


def test_nobody_can_look_but_not_act(held: TemporaryBus, ident: MessageId) -> None:
    bus = nobody(held)

    assert bus.log().messages[0].place.id == ident
    assert [stored.judged.ok for stored in bus.verify()] == [True]
    assert bus.message_status(ident)[0].to == "bob"
    assert not bus.is_admin
    for act in (bus.inbox, lambda: bus.send_one("bob", Draft(body="x")), lambda: bus.read(ident)):
        with pytest.raises(IdentityMissing, match="--as NAME"):
            act()


def test_reading_ones_own_message_marks_it_read(bob: Bus, ident: MessageId) -> None:
    stored = bob.read(ident)

    assert stored.place.state == "read"
    assert stored.judged.message is not None
    assert stored.judged.message.body == "hello"
    assert bob.read(ident[-6:]).place.state == "read"
    assert bob.read(ident, archive=True).place.state == "archived"
    assert bob.read(ident).place.state == "archived"


def test_reading_what_one_sent_or_may_see_moves_nothing(
    alice: Bus, held: TemporaryBus, ident: MessageId
) -> None:
    for reader in (alice, held.as_agent("conductor")):
        assert reader.read(ident).place.state == "new"
    held.add_agent("carol")
    with pytest.raises(NoSuchMessage):
        held.as_agent("carol").read(ident)


def test_of_a_copy_in_ones_own_box_the_own_one_is_read(
    alice: Bus, bob: Bus, held: TemporaryBus, ident: MessageId
) -> None:
    """bob's message lies in alice's box as well: misfiled there, fine in his."""
    boxes = held.path / "messages"
    name = message_file(ident)
    os.link(boxes / "bob" / "new" / name, boxes / "alice" / "new" / name)

    assert bob.read(ident).judged.ok
    assert alice.read(ident).judged.outcome == "wrong-recipient"


def test_what_does_not_verify_comes_back_with_its_outcome_and_is_not_moved(
    bob: Bus, held: TemporaryBus, ident: MessageId
) -> None:
    path = held.path / "messages" / "bob" / "new" / message_file(ident)
    path.write_bytes(path.read_bytes().replace(b"hello", b"jello"))

    stored = bob.read(ident)

    assert (stored.judged.outcome, stored.judged.message) == ("bad-signature", None)
    assert b"jello" in stored.judged.raw
    assert path.exists()


def test_archiving_wants_the_whole_id_of_ones_own_message(
    alice: Bus, bob: Bus, ident: MessageId
) -> None:
    with pytest.raises(InvalidName):
        bob.archive(ident[-6:])
    with pytest.raises(NoSuchMessage):
        alice.archive(ident)
    assert bob.archive(ident).state == "archived"
    assert bob.archive(ident).state == "archived"


def test_the_status_of_agents(
    alice: Bus, bob: Bus, held: TemporaryBus, ident: MessageId, clock: ManualClock
) -> None:
    (held.path / "messages" / "bob" / "new" / "01kbb000000000000000000001.msg").write_bytes(b"x")
    status = {str(entry.agent): entry for entry in alice.status()}

    assert sorted(status) == ["alice", "bob", "conductor", "user"]
    assert status["bob"].unread == 2
    assert [stored.judged.outcome for stored in status["bob"].bad] == ["malformed"]
    assert status["bob"].attached == ()
    assert status["alice"].unread == 0
    assert status["alice"].oldest_unread is None


def test_what_became_of_a_message(
    alice: Bus, bob: Bus, held: TemporaryBus, ident: MessageId, clock: ManualClock
) -> None:
    [status] = alice.message_status(ident)
    assert (status.read_at, status.archived_at) == (None, None)
    clock.advance(60)
    bob.read(ident)
    clock.advance(60)
    bob.archive(ident)

    [status] = alice.message_status(ident[-6:])
    assert status.delivered_at < (status.read_at or "") < (status.archived_at or "")
    assert status.outcome == "ok"

    held.as_agent("conductor").prune(archived=0)
    [status] = alice.message_status(ident)
    assert (status.outcome, bool(status.read_at and status.archived_at)) == ("pruned", True)
    with pytest.raises(NoSuchMessage):
        alice.message_status("0" * 26)


def test_a_message_read_and_archived_in_one_step_was_read(
    alice: Bus, bob: Bus, ident: MessageId
) -> None:
    bob.read(ident, archive=True)

    [status] = alice.message_status(ident)
    assert status.read_at
    assert status.archived_at


def test_what_does_not_verify_is_not_archived(bob: Bus, held: TemporaryBus) -> None:
    ident = "01kbb000000000000000000001"
    file = held.path / "messages" / "bob" / "new" / f"{ident}.msg"
    file.write_bytes(b"forged")

    with pytest.raises(VerificationError):
        bob.archive(ident)

    assert file.read_bytes() == b"forged"


@pytest.fixture
def immutable(held: TemporaryBus) -> Iterator[Path]:
    """The folder of bob's read messages, which not even root may change."""
    folder = held.path / "messages" / "bob" / "cur"
    made = subprocess.run(["chattr", "+i", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"chattr cannot make a folder immutable here: {made.stderr.decode()}")
    yield folder
    subprocess.run(["chattr", "-i", folder], check=True)


def test_a_message_can_be_read_where_it_cannot_be_moved(
    bob: Bus, ident: MessageId, immutable: Path
) -> None:
    assert bob.read(ident).judged.ok
    assert bob.read(ident).place.state == "new"
    assert bob.inbox(unread=True).total == 1


def test_nobody_else_archives_a_message(alice: Bus, ident: MessageId) -> None:
    with pytest.raises(NotPermitted):
        alice.read(ident, archive=True)


def test_a_refused_start_makes_no_bus(tmp_path: Path) -> None:
    wanted = Settings(
        data=tmp_path / "data", keys=tmp_path / "keys", bus=tmp_path / "bus", allow_create=True
    )

    with pytest.raises(IdentityMissing):
        Bus.open(wanted, identity="nokey")

    assert not (tmp_path / "bus").exists()


def test_the_status_of_a_bad_file_with_an_id_from_beyond_time(held: TemporaryBus) -> None:
    ident = "7zzzzzzzzzzzzzzzzzzzzzzzzz"
    (held.path / "messages" / "bob" / "new" / f"{ident}.msg").write_bytes(b"x")

    [status] = nobody(held).message_status(ident)

    assert status.delivered_at == "9999-12-31T23:59:59.999Z"
    held.as_agent("bob").status()
    assert held.as_agent("bob").log().messages[0].place.id == ident


def test_verify_judges_one_a_box_or_all(alice: Bus, held: TemporaryBus, ident: MessageId) -> None:
    other = alice.send_one("user", Draft(body="x")).id

    assert {stored.place.id for stored in alice.verify()} == {ident, other}
    assert [stored.place.id for stored in alice.verify(box="user")] == [other]
    assert [stored.place.id for stored in alice.verify(ident)] == [ident]
    assert (alice.count(), alice.count("bob")) == (2, 1)
    for unknown in ("01kbb000000000000000000001", "zzzzzz"):
        with pytest.raises(NoSuchMessage):
            list(alice.verify(unknown))
    with pytest.raises(NoSuchMessage):
        alice.verify(box="nobody")
    with pytest.raises(InvalidName):
        alice.verify(box="../bob")


def test_an_admin_needs_another_to_ask(tmp_path: Path) -> None:
    settings = Settings(
        data=tmp_path,
        keys=tmp_path / "keys",
        bus=tmp_path / "bus",
        admins=(AgentName("chief"),),
        allow_create=True,
    )
    Bus.open(settings).keys.generate(AgentName("chief"))
    chief = Bus.open(settings, identity="chief")

    with pytest.raises(ConfigurationError, match="no admin but chief"):
        chief.request_approval("x?")
    with pytest.raises(UsageError):
        chief.request_approval("x?", to="user")


def test_admins_are_known_even_before_they_have_a_key(alice: Bus, held: TemporaryBus) -> None:
    (held.settings.keys / "conductor.json").unlink()
    (held.settings.keys / "rotations.jsonl").unlink()

    assert "conductor" in alice.known()
    assert alice.send_one("conductor", Draft(body="x"))


def test_what_the_system_refuses_is_a_storage_error(bob: Bus, held: TemporaryBus) -> None:
    new = held.path / "messages" / "bob" / "new"
    new.rmdir()
    new.write_bytes(b"")
    for act in (bob.inbox, bob.status, bob.log, lambda: bob.read("abcdef"), bob.count):
        with pytest.raises(StorageError) as caught:
            act()
        assert str(new) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_queue_that_is_gone_is_a_storage_error(held: TemporaryBus) -> None:
    (held.path / "approvals").rmdir()
    with pytest.raises(StorageError):
        held.as_agent("conductor").pending()


def test_a_bus_is_safe_to_call_from_several_threads(alice: Bus, bob: Bus) -> None:
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                sent = alice.send_one("bob", Draft(body=f"{number} {turn}")).id
                bob.inbox()
                bob.read(sent, archive=bool(turn % 2))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert bob.count("bob") == 80
    assert bob.inbox().total == 40


def test_attending_makes_the_box_again(bob: Bus, held: TemporaryBus) -> None:
    for part in ("tmp", "new", "cur"):
        (held.path / "messages" / "bob" / part).rmdir()
    (held.path / "messages" / "bob").rmdir()

    bob.attend()

    assert (held.path / "messages" / "bob" / "new").is_dir()


def test_the_environment_of_another_bus_is_another_bus(
    held: TemporaryBus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with TemporaryBus("alice", folder=tmp_path_factory.mktemp("other")) as other:
        mixed = replace(held.settings, bus=other.path)
        stranger = Bus.open(mixed, identity="alice", clock=held.clock)
        ident = stranger.send_one("alice", Draft(body="x")).id

        # Signed with a key that the other bus does not know.
        assert other.as_agent("alice").read(ident).judged.outcome == "unknown-key"


# -- the gateway

CONVERSATION = "openhands-0b54cd32-0e1f-5f0a-9c0b-0123456789ab"


def test_the_name_of_the_gateway_opens_nothing_but_by_its_own_door(held: TemporaryBus) -> None:
    for _ in range(2):
        with pytest.raises(IdentityMissing, match="reserved for the gateway"):
            held.as_agent("openhands")
        gateway = held.as_gateway()

    assert gateway.identity == "openhands"
    assert not gateway.is_admin
    assert (held.path / "messages" / "openhands" / "new").is_dir()
    assert len(gateway.keys.load(gateway.identity).keys) == 1
    gateway.attend()


def test_several_gateways_at_once_share_one_key(held: TemporaryBus) -> None:
    with ThreadPoolExecutor(8) as pool:
        gateways = list(pool.map(lambda _: held.as_gateway(), range(8)))

    assert len(gateways[0].keys.load(gateways[0].identity).keys) == 1
    ids = {gateway.wake("bob", Draft(body="x"), key="one").id for gateway in gateways}
    assert len(ids) == held.as_agent("bob").inbox().total == 1


def test_a_gateway_on_no_bus_makes_no_key(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=tmp_path / "bus")
    with pytest.raises(NoBus):
        Bus.open_gateway(settings)
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_whose_key_was_revoked_stays_out_until_it_is_rotated(held: TemporaryBus) -> None:
    keys = held.as_gateway().keys
    keys.revoke(RESERVED, keys.load(RESERVED).signing_key().kid)
    with pytest.raises(IdentityMissing, match="keys rotate openhands"):
        held.as_gateway()
    keys.rotate(RESERVED)
    assert held.as_gateway().wake("bob", Draft(body="x"), key="k").id


def test_a_wake_reaches_an_agent_and_a_conversation_that_has_no_key(held: TemporaryBus) -> None:
    gateway = held.as_gateway()
    for box in ("bob", CONVERSATION):
        receipt = gateway.wake(box, Draft(subject="Child ended", data={"run": 1}), key="k")
        [stored] = nobody(held).verify(box=box)
        assert (stored.place.id, stored.judged.outcome) == (receipt.id, "ok")
        message = stored.judged.message
        assert message is not None
        assert (message.kind, message.sender, message.to) == ("wake", "openhands", box)
        assert message.data == {"run": 1}


def test_a_wake_under_one_key_is_one_message(held: TemporaryBus) -> None:
    draft = Draft(subject="Child ended")
    first = held.as_gateway().wake(CONVERSATION, draft, key="terminal:1")
    again = held.as_gateway().wake(CONVERSATION, draft, key="terminal:1")

    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    with pytest.raises(Conflict):
        held.as_gateway().wake(CONVERSATION, replace(draft, body="other"), key="terminal:1")
    assert nobody(held).count(CONVERSATION) == 1


def test_nobody_else_makes_a_wake(held: TemporaryBus) -> None:
    for name in ("alice", "user"):
        with pytest.raises(NotPermitted, match="only the gateway"):
            held.as_agent(name).wake("bob", Draft(body="x"), key="k")
    with pytest.raises(IdentityMissing):
        nobody(held).wake("bob", Draft(body="x"), key="k")
    for bus in (held.as_agent("alice"), held.as_gateway()):
        with pytest.raises(InvalidMessage, match="own verbs"):
            bus.send(["bob"], Draft(body="x", kind="wake"))
    assert nobody(held).count() == 0


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 513])
def test_a_wake_wants_a_key_and_a_name(held: TemporaryBus, key: str) -> None:
    with pytest.raises(UsageError):
        held.as_gateway().wake("bob", Draft(body="x"), key=key)
    with pytest.raises(InvalidName):
        held.as_gateway().wake("../bob", Draft(body="x"), key="k")


def test_the_gateway_asks_for_a_child_and_gets_the_decision(held: TemporaryBus) -> None:
    gateway, conductor = held.as_gateway(), held.as_agent("conductor")
    asked = gateway.request_approval("Which?", options=["a", "b"], details={"child": 1}, key="q")
    assert gateway.request_approval(
        "Which?", options=["a", "b"], details={"child": 1}, key="q"
    ).duplicate
    assert asked.to == "conductor"
    [request] = held.as_agent("user").pending()
    assert request.message.sender == "openhands"
    with pytest.raises(NotPermitted):
        gateway.decide(asked.id, "a")
    conductor.decide(asked.id, "b", reason="why not")

    [stored] = gateway.inbox().messages
    told = stored.judged.message
    assert told is not None
    assert (told.kind, told.sender, told.reply_to) == ("approval_decision", "conductor", asked.id)
    assert gateway.doubt(told) is None
    assert gateway.read(stored.place.id, archive=True).place.state == "archived"
    assert not conductor.unread_by_others().messages


def test_the_gateway_withdraws_what_it_asked(held: TemporaryBus) -> None:
    gateway = held.as_gateway()
    asked = gateway.request_approval("Which?", to="user")
    gateway.decide(asked.id, "withdraw")
    assert held.as_agent("user").pending() == []
