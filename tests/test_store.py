"""Boxes: list, read, archive, sweep."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from agent_bus.errors import NoBus, StorageError, UnsafePermissions
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.reading import Place
from agent_bus.sending import Draft
from agent_bus.store import Store
from agent_bus.testing import ManualClock, TemporaryBus

ALICE, BOB = AgentName("alice"), AgentName("bob")


@pytest.fixture
def store(bus: TemporaryBus) -> Store:
    return bus.as_agent("bob").store


def send(bus: TemporaryBus, count: int = 1) -> list[MessageId]:
    alice = bus.as_agent("alice")
    return [alice.send_one("bob", Draft(body=str(number))).id for number in range(count)]


def parts(bus: TemporaryBus, ident: MessageId) -> list[str]:
    found = (bus.path / "messages" / "bob").glob(f"**/{message_file(ident)}")
    return sorted(str(path.parent.relative_to(bus.path / "messages" / "bob")) for path in found)


def test_a_message_goes_from_new_to_cur_to_the_archive_of_its_month(
    bus: TemporaryBus, store: Store
) -> None:
    [ident] = send(bus)
    new = Place(BOB, ident, "new")
    assert parts(bus, ident) == ["new"]

    read = store.mark_read(new)
    assert (read.state, parts(bus, ident)) == ("read", ["cur"])
    done = store.archive(read)
    assert (done.state, parts(bus, ident)) == ("archived", [f"archive/{month_of(ident)}"])
    assert [event.event for event in store.journal(BOB)] == ["read", "archived"]


def test_what_is_further_on_is_not_moved_back(bus: TemporaryBus, store: Store) -> None:
    [ident] = send(bus)
    done = store.archive(Place(BOB, ident, "new"))

    assert store.mark_read(done) == done
    assert store.archive(done) == done
    store.mark_read(Place(BOB, ident, "new"))
    store.archive(Place(BOB, ident, "read"))
    assert parts(bus, ident) == [f"archive/{month_of(ident)}"]


def test_archiving_completes_what_a_crash_left_in_two_folders(
    bus: TemporaryBus, store: Store
) -> None:
    [ident] = send(bus)
    box = bus.path / "messages" / "bob"
    os.link(box / "new" / message_file(ident), box / "cur" / message_file(ident))

    found = store.find(BOB, ident)
    assert found is not None
    store.archive(found)

    assert parts(bus, ident) == [f"archive/{month_of(ident)}"]


def test_lists_are_sorted_and_hold_each_id_once(bus: TemporaryBus, store: Store) -> None:
    ids = send(bus, 6)
    for ident in ids[:2]:
        store.archive(Place(BOB, ident, "new"))
    for ident in ids[2:4]:
        store.mark_read(Place(BOB, ident, "new"))

    assert store.unread(BOB) == ids[4:]
    assert [place.id for place in store.places(BOB, ("new", "read", "archived"))] == ids
    assert [place.state for place in store.places(BOB, ("read", "new"))] == [
        *("read", "read", "new", "new")
    ]
    assert store.months(BOB) == [month_of(ids[0])]
    assert store.archived_in(BOB, month_of(ids[0])) == ids[:2]


def test_what_is_no_message_and_no_box_is_not_listed(bus: TemporaryBus, store: Store) -> None:
    [ident] = send(bus)
    messages = bus.path / "messages"
    (messages / "bob" / "new" / "notes.txt").write_text("x")
    (messages / "bob" / "new" / ".hidden.msg").write_text("x")
    (messages / "readme").write_text("x")
    (messages / "Upper").mkdir()
    (messages / "link").symlink_to(messages / "bob")

    assert store.boxes() == ["alice", "bob", "conductor", "user"]
    assert store.unread(BOB) == [ident]
    assert bus.as_agent("bob").log().messages[0].place.id == ident


def test_a_box_that_is_not_there_is_empty(store: Store) -> None:
    nobody = AgentName("nobody")

    assert store.unread(nobody) == []
    assert store.places(nobody, ("new", "read", "archived")) == []
    assert store.months(nobody) == []
    assert list(store.journal(nobody)) == []
    assert store.sweep(nobody) == 0


def test_a_bus_that_is_gone_is_named(bus: TemporaryBus, store: Store) -> None:
    send(bus)
    shutil.rmtree(bus.path)

    for act in (store.boxes, lambda: store.unread(BOB), lambda: store.make_box(BOB)):
        with pytest.raises(NoBus, match=str(bus.path)):
            act()
    assert not bus.path.exists()


def test_a_box_that_others_may_change_is_refused(bus: TemporaryBus, store: Store) -> None:
    send(bus)
    (bus.path / "messages" / "bob" / "new").chmod(0o777)

    with pytest.raises(UnsafePermissions, match="chmod 700"):
        store.unread(BOB)
    with pytest.raises(UnsafePermissions, match="chmod 700"):
        bus.as_agent("alice").send_one("bob", Draft(body="x"))


def test_a_box_that_became_a_link_leads_nowhere(
    bus: TemporaryBus, store: Store, tmp_path: Path
) -> None:
    send(bus)
    box = bus.path / "messages" / "bob"
    box.rename(tmp_path / "elsewhere")
    box.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageError):
        bus.as_agent("bob").inbox()


def test_a_box_without_its_empty_folders_still_works(bus: TemporaryBus, store: Store) -> None:
    """Tools that copy a tree often leave empty folders out."""
    [ident] = send(bus)
    for part in ("tmp", "cur"):
        (bus.path / "messages" / "bob" / part).rmdir()

    assert bus.as_agent("bob").archive(ident).state == "archived"
    send(bus)


def test_a_journal_that_cannot_be_written_keeps_nobody_from_reading(
    bus: TemporaryBus, store: Store
) -> None:
    [ident] = send(bus)
    (bus.path / "messages" / "bob" / "journal").mkdir()

    assert bus.as_agent("bob").read(ident).place.state == "read"
    assert parts(bus, ident) == ["cur"]


def test_two_processes_of_one_identity_may_move_the_same_messages(bus: TemporaryBus) -> None:
    """Sixteen readers and archivers at once: no error, and every message ends archived."""
    ids = send(bus, 30)
    buses = [bus.as_agent("bob") for _ in range(4)]
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for ident in ids:
                if number % 2:
                    buses[number].read(ident)
                else:
                    buses[number].archive(ident)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    store = buses[0].store
    states = [place.state for ident in ids if (place := store.find(BOB, ident))]
    assert states == ["archived"] * len(ids)


def test_leftovers_are_swept_after_36_hours(held: TemporaryBus, clock: ManualClock) -> None:
    store = held.as_agent("bob").store
    tmp = held.path / "messages" / "bob" / "tmp"
    for name, hours in (("old", 37), ("young", 35)):
        (tmp / name).write_text("x")
        at = clock.now() / 1000 - hours * 3600
        os.utime(tmp / name, (at, at))

    assert store.sweep(BOB) == 1
    assert [path.name for path in tmp.iterdir()] == ["young"]


def test_a_box_is_made_for_this_user_alone(bus: TemporaryBus, store: Store) -> None:
    before = os.umask(0)
    try:
        store.make_box(AgentName("carol")).close()
    finally:
        os.umask(before)

    box = bus.path / "messages" / "carol"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (box, *box.iterdir())}
    assert modes == dict.fromkeys(("carol", "tmp", "new", "cur"), 0o700)
