"""Reading a box while it moves: a message is found wherever it stands."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_bus.errors import NoSuchMessage, StorageError
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.reading import Place, reason, storage_errors
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

BOB = AgentName("bob")


@pytest.fixture
def ident(bus: TemporaryBus) -> MessageId:
    return bus.as_agent("alice").send_one("bob", Draft(body="hello")).id


def box(bus: TemporaryBus) -> Path:
    return bus.path / "messages" / "bob"


def link(bus: TemporaryBus, ident: MessageId, origin: str, target: str) -> None:
    """What a move leaves that a crash cut short."""
    (box(bus) / target).mkdir(parents=True, exist_ok=True, mode=0o700)
    os.link(box(bus) / origin / message_file(ident), box(bus) / target / message_file(ident))


def test_an_id_in_two_folders_counts_as_in_the_later_one(
    bus: TemporaryBus, ident: MessageId
) -> None:
    store = bus.as_agent("bob").store
    assert store.find(BOB, ident) == Place(BOB, ident, "new")
    link(bus, ident, "new", "cur")
    assert store.find(BOB, ident) == Place(BOB, ident, "read")
    assert store.unread(BOB) == []
    link(bus, ident, "new", f"archive/{month_of(ident)}")
    assert store.find(BOB, ident) == Place(BOB, ident, "archived")
    assert store.load(BOB, ident).place.state == "archived"
    assert store.places(BOB, ("new", "read")) == [Place(BOB, ident, "read")]


def test_a_message_that_is_being_moved_is_never_missed(bus: TemporaryBus) -> None:
    """One thread moves messages new → cur → archive; another keeps loading all of them."""
    alice, store = bus.as_agent("alice"), bus.as_agent("bob").store
    places = [
        Place(BOB, alice.send_one("bob", Draft(body=str(number))).id, "new") for number in range(40)
    ]
    done = threading.Event()

    def move() -> None:
        mover = bus.as_agent("bob").store
        for place in places:
            mover.archive(mover.mark_read(place))
        done.set()

    thread = threading.Thread(target=move)
    thread.start()
    try:
        while not done.is_set():
            assert [stored.judged.ok for stored in store.load_all(places)] == [True] * 40
    finally:
        thread.join()


def test_a_message_that_is_gone_is_no_such_message(bus: TemporaryBus, ident: MessageId) -> None:
    store = bus.as_agent("bob").store
    (box(bus) / "new" / message_file(ident)).unlink()

    assert store.find(BOB, ident) is None
    assert list(store.load_all([Place(BOB, ident, "new")])) == []
    with pytest.raises(NoSuchMessage):
        store.load(BOB, ident)
    with pytest.raises(NoSuchMessage):
        store.load(AgentName("nobody"), ident)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.close(held[0])


def test_a_process_without_descriptors_does_not_blame_the_message(
    bus: TemporaryBus, ident: MessageId, request: pytest.FixtureRequest
) -> None:
    reader = bus.as_agent("bob")
    with reader.store.reader(BOB) as opened:
        opened.find(ident)
        request.getfixturevalue("few_descriptors")
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/", os.O_RDONLY))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                opened.load(ident)
            with pytest.raises(StorageError, match="too many files are open in this process"):
                reader.inbox()
        finally:
            for fd in held:
                os.close(fd)


def test_an_error_says_where_and_what_to_do() -> None:
    full = OSError(errno.ENOSPC, "x", "/bus/tmp/1")

    assert reason(full) == "No space left on device at /bus/tmp/1: free some space"
    with pytest.raises(StorageError, match="free some space"), storage_errors():
        raise full


def test_a_listed_message_is_found_where_it_has_gone_since(
    bus: TemporaryBus, ident: MessageId
) -> None:
    store, listed = bus.as_agent("bob").store, Place(BOB, ident, "new")
    with store.reader(BOB) as reader:
        assert reader.states(["new", "read"]) == {ident: "new"}
        assert reader.load_listed(listed) == store.load(BOB, ident)
        store.mark_read(listed)
        moved = reader.load_listed(listed)
        assert moved is not None
        assert moved.place.state == "read"
        store.archive(moved.place)
        moved = reader.load_listed(listed)
        assert moved is not None
        assert moved.place.state == "archived"


def test_a_copy_of_what_is_archived_counts_as_archived(bus: TemporaryBus, ident: MessageId) -> None:
    """Put back by hand, or left by a crash: the listing of new shows it all the same."""
    store = bus.as_agent("bob").store
    store.archive(Place(BOB, ident, "new"))
    month = box(bus) / "archive" / month_of(ident)
    (box(bus) / "new" / message_file(ident)).write_bytes((month / message_file(ident)).read_bytes())

    assert store.unread(BOB) == [ident]
    (stored,) = store.load_all([Place(BOB, ident, "new")])
    assert stored.place.state == "archived"
    assert bus.as_agent("bob").inbox().messages == ()
