"""Prune: old messages go, their ids stay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent_bus.bus import Bus
from agent_bus.errors import Conflict, NoSuchMessage, StorageError, VerificationError
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

BOB = AgentName("bob")
DAY = 24 * 3600


def files(held: TemporaryBus, ident: MessageId) -> list[Path]:
    return list((held.path / "messages").rglob(message_file(ident)))


def test_only_what_is_old_and_done_is_removed(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    archived, read, unread = (alice.send_one("bob", Draft(body="x")).id for _ in range(3))
    bob.archive(archived)
    bob.read(read)
    clock.advance(10 * DAY)
    young = alice.send_one("bob", Draft(body="x")).id
    bob.archive(young)

    assert bob.prune(archived=11 * DAY).removed == 0
    assert bob.prune(archived=9 * DAY).removed == 1
    assert files(held, archived) == []
    assert all(files(held, ident) for ident in (read, unread, young))
    assert bob.prune(archived=9 * DAY, read=9 * DAY).removed == 1
    assert files(held, read) == []
    assert files(held, unread)
    assert bob.prune(archived=None, read=None).removed == 0


def test_ids_and_keys_of_what_was_removed_are_kept(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    first = alice.send_one("bob", Draft(body="x"), key="k")
    bob.archive(first.id)
    clock.advance(DAY)
    bob.prune(archived=0)
    assert list((held.path / "sent" / "alice").iterdir()) == []

    again = alice.send_one("bob", Draft(body="x"), key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(Conflict):
        alice.send_one("bob", Draft(body="other"), key="k")
    with pytest.raises(Conflict):
        alice.send_one("bob", Draft(body="other"), key=first.id)
    assert alice.send_one("bob", Draft(body="x"), key=first.id).duplicate
    assert bob.inbox().total == 0
    assert list((held.path / "sent" / "alice").iterdir()) == []


@pytest.mark.parametrize("part", ["new", "cur", "archive"])
def test_a_copy_that_is_put_back_is_replayed(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock, part: str
) -> None:
    ident = alice.send_one("bob", Draft(body="x")).id
    [path] = files(held, ident)
    copy = path.read_bytes()
    bob.archive(ident)
    clock.advance(DAY)
    bob.prune(archived=0)

    where = held.path / "messages" / "bob" / part
    where = where / month_of(ident) if part == "archive" else where
    (where / message_file(ident)).write_bytes(copy)

    assert bob.store.load(BOB, ident).judged.outcome == "replayed"
    assert bob.read(ident).judged.message is None


def test_on_a_copied_bus_a_removed_message_does_not_come_back_through_its_key(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock, tmp_path: Path
) -> None:
    """A copy made without hard links: the link in sent/ is a file of its own."""
    first = alice.send_one("bob", Draft(body="x"), key="k")
    bob.archive(first.id)
    for remembered in (held.path / "sent" / "alice").iterdir():
        shutil.copy(remembered, tmp_path / "copy")
        os.replace(tmp_path / "copy", remembered)
    clock.advance(DAY)
    bob.prune(archived=0)

    again = alice.send_one("bob", Draft(body="x"), key="k")

    assert (again.id, again.duplicate) == (first.id, True)
    assert bob.inbox().total == 0


def test_a_prune_that_was_cut_short_is_no_way_back_and_is_finished_by_the_next(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    """The ids were written down, then the process died before a file went."""
    first = alice.send_one("bob", Draft(body="x"), key="k")
    bob.archive(first.id)
    [path] = files(held, first.id)
    copy = path.read_bytes()
    clock.advance(DAY)
    bob.prune(archived=0)
    path.write_bytes(copy)

    assert alice.send_one("bob", Draft(body="x"), key="k").duplicate
    assert bob.inbox().total == 0
    assert bob.prune(archived=0).removed == 1
    assert not path.exists()
    assert alice.send_one("bob", Draft(body="x"), key="k").duplicate


def test_requests_without_a_decision_stay(
    alice: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    chief = held.as_agent("conductor")
    asked, decided = (alice.request_approval(f"{n}?").id for n in range(2))
    for ident in (asked, decided):
        chief.archive(ident)
    chief.decide(decided, "approve")
    clock.advance(DAY)

    done = chief.prune(archived=0)

    assert (done.removed, done.kept_undecided) == (1, 1)
    assert [request.message.id for request in chief.pending()] == [asked]
    assert sorted(path.name for path in (held.path / "approvals").iterdir()) == [f"{asked}.request"]
    with pytest.raises(NoSuchMessage):
        chief.decide(decided, "approve")


def test_a_request_that_is_put_back_into_the_queue_is_replayed(
    alice: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    chief = held.as_agent("conductor")
    ident = alice.request_approval("again?").id
    entry = held.path / "approvals" / f"{ident}.request"
    copy = entry.read_bytes()
    chief.decide(ident, "deny")
    chief.archive(ident)
    clock.advance(DAY)
    chief.prune(archived=0)
    entry.write_bytes(copy)

    assert chief.pending() == []
    with pytest.raises(VerificationError, match="replayed"):
        chief.decide(ident, "approve")


def test_what_does_not_verify_is_kept_and_counted(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    ident = alice.send_one("bob", Draft(body="x")).id
    bob.archive(ident)
    [path] = files(held, ident)
    path.write_bytes(b"x")
    clock.advance(DAY)

    done = bob.prune(archived=0)

    assert (done.removed, done.kept_bad) == (0, 1)
    assert path.exists()


def test_every_file_that_is_looked_at_counts_as_progress(
    alice: Bus, bob: Bus, clock: ManualClock
) -> None:
    for _ in range(3):
        bob.archive(alice.send_one("bob", Draft(body="x")).id)
    clock.advance(DAY)
    steps: list[int] = []

    bob.prune(archived=0, progress=steps.append)

    assert sum(steps) == 3


def test_a_message_that_was_left_in_two_folders_goes_from_both(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    ident = alice.send_one("bob", Draft(body="x")).id
    bob.archive(ident)
    [path] = files(held, ident)
    os.link(path, held.path / "messages" / "bob" / "cur" / path.name)
    clock.advance(DAY)

    assert bob.prune(archived=0).removed == 1
    assert files(held, ident) == []


def test_leftovers_of_crashed_sends_are_swept(
    bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    leftover = held.path / "messages" / "bob" / "tmp" / "x"
    leftover.write_bytes(b"x")
    old = clock.now() / 1000 - 40 * 3600
    os.utime(leftover, (old, old))

    assert bob.prune(archived=0).swept == 1
    assert not leftover.exists()


def test_what_cannot_be_written_down_is_not_removed(
    alice: Bus, bob: Bus, held: TemporaryBus, clock: ManualClock
) -> None:
    ident = alice.send_one("bob", Draft(body="x")).id
    bob.archive(ident)
    clock.advance(DAY)
    (held.path / "messages" / "bob" / "archive" / month_of(ident) / "pruned").mkdir()

    with pytest.raises(StorageError, match="pruning bob stopped"):
        bob.prune(archived=0)
    assert files(held, ident)
