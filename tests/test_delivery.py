"""Delivery, step by step: what stands where, and what is never replaced."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus.clock import to_text
from agent_bus.delivery import RESERVED_PLACES, UNREAD_LIMIT, Delivery
from agent_bus.envelope import encode_message
from agent_bus.errors import (
    BusFull,
    Conflict,
    InvalidMessage,
    NotDelivered,
    UnsafePermissions,
    VerificationError,
)
from agent_bus.keyring import Key
from agent_bus.names import AgentName, MessageId, message_file, sent_file
from agent_bus.payload import Message
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

ALICE, BOB = AgentName("alice"), AgentName("bob")


class Post:
    """alice's deliveries to bob, and a look at what they left on disk."""

    def __init__(self, made: TemporaryBus) -> None:
        self.bus = made.as_agent("alice")
        self.clock = made.clock
        self.delivery = Delivery(self.bus.store, made.clock)
        self.box = made.path / "messages" / "bob"
        self.sent = made.path / "sent" / "alice"
        self.approvals = made.path / "approvals"

    @property
    def key(self) -> Key:
        return self.bus.keys.load(ALICE).signing_key()

    def message(self, body: str = "hello", kind: str = "note") -> Message:
        ident, at = MessageId(self.clock.new_id()), to_text(self.clock.now())
        return Message(ident, self.bus.store.bus, ALICE, BOB, at, kind, body=body)

    def names(self, part: str) -> list[str]:
        return sorted(path.name for path in (self.box / part).iterdir())


@pytest.fixture
def post(held: TemporaryBus) -> Post:
    return Post(held)


def test_a_message_is_one_file_of_this_user_in_new_and_nothing_is_left_in_tmp(post: Post) -> None:
    message = post.message()
    done = post.delivery.deliver(message, post.key)

    path = post.box / "new" / message_file(message.id)
    assert (done.id, done.duplicate) == (message.id, False)
    assert path.read_bytes() == encode_message(message, post.key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_nlink == 1
    assert post.names("tmp") == []
    assert not post.sent.exists()


def test_a_keyed_message_is_remembered_by_a_link_to_itself(post: Post) -> None:
    message = post.message()
    post.delivery.deliver(message, post.key, "k")

    remembered = post.sent / sent_file(BOB, "k")
    assert remembered.samefile(post.box / "new" / message_file(message.id))
    assert remembered.stat().st_nlink == 2


def test_the_same_key_again_is_the_first_message(post: Post) -> None:
    first = post.delivery.deliver(post.message(), post.key, "k")
    again = post.delivery.deliver(post.message(), post.key, "k")

    assert (again.id, again.duplicate) == (first.id, True)
    assert post.names("new") == [message_file(first.id)]
    assert post.names("tmp") == []


def test_other_content_under_the_same_key_is_a_conflict(post: Post) -> None:
    first = post.delivery.deliver(post.message(), post.key, "k")
    before = (post.box / "new" / message_file(first.id)).read_bytes()

    with pytest.raises(Conflict, match=first.id):
        post.delivery.deliver(post.message("other"), post.key, "k")
    assert (post.box / "new" / message_file(first.id)).read_bytes() == before
    assert post.names("new") == [message_file(first.id)]


def test_a_key_counts_per_sender_and_recipient(post: Post, held: TemporaryBus) -> None:
    post.delivery.deliver(post.message(), post.key, "k")
    to_user = replace(post.message(), to=AgentName("user"))
    from_bob = replace(post.message(), sender=BOB)

    assert not post.delivery.deliver(to_user, post.key, "k").duplicate
    bobs = held.as_agent("bob").keys.load(BOB).signing_key()
    assert not post.delivery.deliver(from_bob, bobs, "k").duplicate
    assert len(post.names("new")) == 2


def test_an_equal_id_is_never_replaced(post: Post) -> None:
    message = post.message()
    post.delivery.deliver(message, post.key)

    with pytest.raises(Conflict):
        post.delivery.deliver(replace(message, body="other"), post.key)
    assert post.delivery.deliver(message, post.key).duplicate
    assert (post.box / "new" / message_file(message.id)).read_bytes() == encode_message(
        message, post.key
    )


@pytest.mark.parametrize("what", ["garbage", "folder", "link"])
def test_what_stands_in_the_way_is_a_conflict_and_stays(post: Post, what: str) -> None:
    message = post.message()
    path = post.box / "new" / message_file(message.id)
    if what == "garbage":
        path.write_bytes(b"x")
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")

    with pytest.raises(Conflict):
        post.delivery.deliver(message, post.key)
    assert path.is_symlink() or path.is_dir() or path.read_bytes() == b"x"
    assert post.names("tmp") == []


def test_what_a_reader_would_refuse_is_not_written(post: Post, held: TemporaryBus) -> None:
    for unfit in (
        replace(post.message(), sender=BOB),
        replace(post.message(), bus=MessageId("01kbb000000000000000000001")),
        replace(post.message(), expires_at="2020-01-01T00:00:00.000Z"),
    ):
        with pytest.raises(NotDelivered, match="would not verify"):
            post.delivery.deliver(unfit, post.key)
    with pytest.raises(InvalidMessage):
        post.delivery.deliver(post.message("x" * 70_000), post.key)
    assert post.names("new") == post.names("tmp") == []


def test_a_first_try_that_got_as_far_as_its_memory_is_completed_with_its_own_file(
    post: Post,
) -> None:
    """A process died after the link into sent/ and before that into new/."""
    first = post.message()
    post.delivery.deliver(first, post.key, "k")
    (post.box / "new" / message_file(first.id)).unlink()

    again = post.delivery.deliver(post.message(), post.key, "k")

    assert (again.id, again.duplicate) == (first.id, True)
    assert post.names("new") == [message_file(first.id)]


def test_a_first_try_that_expired_on_the_way_is_not_delivered_late(
    post: Post, clock: ManualClock
) -> None:
    first = replace(post.message(), expires_at=to_text(clock.now() + 60_000))
    post.delivery.deliver(first, post.key, "k")
    (post.box / "new" / message_file(first.id)).unlink()
    clock.advance(3600)

    with pytest.raises(NotDelivered, match="use a new key"):
        post.delivery.deliver(post.message(), post.key, "k")
    assert post.names("new") == []


@pytest.mark.parametrize("part", ["cur", "archive"])
def test_a_keyed_message_that_was_read_or_archived_is_not_sent_again(
    post: Post, held: TemporaryBus, part: str
) -> None:
    first = post.delivery.deliver(post.message(), post.key, "k")
    held.as_agent("bob").read(first.id, archive=part == "archive")

    assert post.delivery.deliver(post.message(), post.key, "k").duplicate
    assert post.names("new") == []


def test_a_memory_that_does_not_verify_is_reported(post: Post) -> None:
    post.delivery.deliver(post.message(), post.key, "k")
    remembered = post.sent / sent_file(BOB, "k")
    remembered.unlink()
    remembered.write_bytes(b"x")

    with pytest.raises(VerificationError, match="agent-bus doctor") as caught:
        post.delivery.deliver(post.message(), post.key, "k")
    assert caught.value.outcome == "malformed"
    assert post.delivery.arrived(ALICE, BOB, "k") is False


def test_a_send_without_a_key_can_be_looked_for_by_its_id(post: Post, held: TemporaryBus) -> None:
    message = post.message()
    assert post.delivery.sent_before(message) is None
    post.delivery.deliver(message, post.key)

    found = post.delivery.sent_before(replace(message, sent_at="2030-01-01T00:00:00.000Z"))
    assert found is not None
    assert found.duplicate
    with pytest.raises(Conflict):
        post.delivery.sent_before(replace(message, body="other"))
    held.as_agent("bob").archive(message.id)
    assert post.delivery.sent_before(message) is not None


def test_whether_a_keyed_message_arrived_is_seen_wherever_it_stands(
    post: Post, held: TemporaryBus, clock: ManualClock
) -> None:
    assert not post.delivery.arrived(ALICE, BOB, "k")
    done = post.delivery.deliver(post.message(), post.key, "k")
    assert post.delivery.arrived(ALICE, BOB, "k")
    bob = held.as_agent("bob")
    bob.archive(done.id)
    assert post.delivery.arrived(ALICE, BOB, "k")
    clock.advance(60)
    assert bob.prune(archived=0).removed == 1
    assert post.delivery.arrived(ALICE, BOB, "k")


# -- approvals


def test_a_request_stands_in_the_queue_and_in_the_box_as_one_file(post: Post) -> None:
    message = post.message(kind="approval_request")
    post.delivery.deliver(message, post.key)

    entry = post.approvals / f"{message.id}.request"
    assert entry.samefile(post.box / "new" / message_file(message.id))


def test_a_request_that_could_not_be_delivered_leaves_the_queue_again(post: Post) -> None:
    message = post.message(kind="approval_request")
    (post.box / "new" / message_file(message.id)).write_bytes(b"x")

    with pytest.raises(Conflict):
        post.delivery.deliver(message, post.key)
    assert list(post.approvals.iterdir()) == []


# -- limits


def fill(post: Post, count: int, start: int = 0) -> None:
    """Hard links with names like ids: what counts is how many there are."""
    source = post.box / "source"
    if not source.exists():
        source.write_bytes(b"x")
    for number in range(start, start + count):
        os.link(source, post.box / "new" / f"01kbb{number:021}.msg")


@pytest.fixture(scope="module")
def links() -> int:
    """How many links one file may have here (ext4: 65,000)."""
    return os.pathconf("/", "PC_LINK_MAX")


def test_a_full_box_takes_no_more_and_says_what_to_do(
    post: Post, clock: ManualClock, links: int, held: TemporaryBus
) -> None:
    if links < UNREAD_LIMIT + RESERVED_PLACES + 2:
        pytest.skip(f"a file has at most {links} links here")
    fill(post, UNREAD_LIMIT - 1)
    post.delivery.deliver(post.message(), post.key)
    clock.advance(2)

    before = sorted(os.listdir(post.box / "new"))
    with pytest.raises(BusFull, match=r"box of bob holds 10000 unread.*let bob read or archive"):
        post.delivery.deliver(post.message(), post.key)
    with pytest.raises(BusFull):
        post.delivery.deliver(post.message(), post.key, "k")
    assert sorted(os.listdir(post.box / "new")) == before
    assert not post.sent.exists()

    # A hundred places are kept for approvals and wakes.
    post.delivery.deliver(post.message(kind="approval_request"), post.key)
    post.delivery.deliver(post.message(kind="wake"), post.key)
    fill(post, RESERVED_PLACES - 2, start=UNREAD_LIMIT)
    clock.advance(2)
    with pytest.raises(BusFull, match="holds 10100 unread"):
        post.delivery.deliver(post.message(kind="approval_request"), post.key)
    assert len(list(post.approvals.iterdir())) == 1

    # What makes room lets the next one in; other boxes were never full.
    assert not held.as_agent("alice").send_one("user", Draft(body="x")).duplicate
    for number in range(200):
        (post.box / "new" / f"01kbb{number:021}.msg").unlink()
    clock.advance(2)
    post.delivery.deliver(post.message(), post.key)


def test_a_retry_of_what_was_sent_is_answered_though_the_box_is_full(
    post: Post, clock: ManualClock, links: int
) -> None:
    if links < UNREAD_LIMIT + 2:
        pytest.skip(f"a file has at most {links} links here")
    first = post.delivery.deliver(post.message(), post.key, "k")
    fill(post, UNREAD_LIMIT)
    clock.advance(2)

    assert post.delivery.deliver(post.message(), post.key, "k").id == first.id


def test_a_box_is_made_on_the_first_message_to_it(post: Post, held: TemporaryBus) -> None:
    carol = replace(post.message(), to=AgentName("carol"))
    post.delivery.deliver(carol, post.key)

    assert (held.path / "messages" / "carol" / "new" / message_file(carol.id)).exists()


def test_a_bus_without_a_sent_folder_gets_one(post: Post, held: TemporaryBus) -> None:
    (held.path / "sent").rmdir()
    post.delivery.deliver(post.message(), post.key, "k")

    assert Path(held.path / "sent" / "alice").is_dir()


def test_a_box_that_was_moved_away_is_never_written_to(post: Post) -> None:
    """The box is kept open between deliveries, but it is its path that counts."""
    first = post.delivery.deliver(post.message(), post.key)
    aside = post.box.with_name("aside")
    post.box.rename(aside)

    second = post.delivery.deliver(post.message(), post.key)

    assert [path.name for path in (aside / "new").iterdir()] == [message_file(first.id)]
    assert post.names("new") == [message_file(second.id)]


@pytest.mark.parametrize("part", ["tmp", "new", "."])
def test_a_part_of_a_box_that_was_removed_does_not_stop_the_next_but_one(
    post: Post, part: str
) -> None:
    post.delivery.deliver(post.message(), post.key)
    shutil.rmtree(post.box / part)

    message = post.message()
    try:
        post.delivery.deliver(message, post.key)
    except NotDelivered:
        post.delivery.deliver(message, post.key)

    assert message_file(message.id) in post.names("new")


def test_a_box_that_became_loose_is_refused(post: Post) -> None:
    post.delivery.deliver(post.message(), post.key)
    (post.box / "new").chmod(0o777)

    with pytest.raises(UnsafePermissions, match="chmod 700"):
        post.delivery.deliver(post.message(), post.key)


def test_after_a_failure_the_folders_are_opened_anew(post: Post) -> None:
    """A folder whose flush has failed must not be flushed again: it may say that all is well."""
    message = post.message()
    post.delivery.deliver(message, post.key)
    kept = post.delivery._open(BOB)
    assert post.delivery._open(BOB) is kept
    with pytest.raises(Conflict):
        post.delivery.deliver(replace(message, body="other"), post.key)

    assert post.delivery._open(BOB) is not kept
