"""Bus: what front ends call, as one identity or as nobody."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus.bus import Bus
from agent_bus.errors import (
    ConfigurationError,
    IdentityMissing,
    InvalidName,
    NoBus,
    NoSuchMessage,
    NotPermitted,
    StorageError,
    UsageError,
    VerificationError,
)
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.sending import Draft
from agent_bus.settings import Settings
from agent_bus.testing import ManualClock, TemporaryBus


@pytest.fixture
def alice(held: TemporaryBus) -> Bus:
    return held.as_agent("alice")


@pytest.fixture
def bob(held: TemporaryBus) -> Bus:
    return held.as_agent("bob")


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
