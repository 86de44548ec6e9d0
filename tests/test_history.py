"""Looking things up: pages, filters, threads, parts of ids."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from agent_bus import history
from agent_bus.bus import Bus
from agent_bus.errors import NoSuchMessage, UsageError
from agent_bus.history import Filter
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.reading import Place, Stored
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

BOB = AgentName("bob")
DAY = 24 * 3600


def say(sender: Bus, body: str, to: str = "bob", **fields: Any) -> MessageId:
    return sender.send_one(to, Draft(body=body, **fields)).id


def bodies(found: Iterable[Stored]) -> list[str | None]:
    return [stored.judged.message.body if stored.judged.message else None for stored in found]


def test_an_inbox_is_oldest_first_and_comes_in_pages(alice: Bus, bob: Bus) -> None:
    for number in range(5):
        say(alice, str(number))

    first = bob.inbox(limit=2)
    assert (bodies(first.messages), first.total, first.next) == (["0", "1"], 5, 2)
    last = bob.inbox(limit=2, page=3)
    assert (bodies(last.messages), last.total, last.next) == (["4"], 5, None)
    assert bob.inbox(page=9).messages == ()
    assert bob.inbox(limit=5).next is None


def test_an_inbox_holds_what_is_read_but_not_what_is_done(alice: Bus, bob: Bus) -> None:
    ids = [say(alice, str(number)) for number in range(3)]
    bob.read(ids[0])
    bob.read(ids[1], archive=True)

    assert bodies(bob.inbox().messages) == ["0", "2"]
    assert bodies(bob.inbox(unread=True).messages) == ["2"]
    assert [stored.place.state for stored in bob.inbox().messages] == ["read", "new"]


def test_looking_moves_nothing(alice: Bus, bob: Bus) -> None:
    ident = say(alice, "x")
    bob.inbox()
    bob.log()
    bob.thread(ident)
    list(bob.verify())
    bob.message_status(ident)

    assert bob.store.find(BOB, ident) == Place(BOB, ident, "new")


def test_an_inbox_is_filtered_by_sender_and_kind(alice: Bus, bob: Bus, held: TemporaryBus) -> None:
    say(alice, "a")
    say(alice, "b", kind="task")
    say(held.as_agent("user"), "c", kind="task")

    found = bob.inbox(Filter(sender="alice", kind="task"))
    assert (bodies(found.messages), found.total) == (["b"], 1)
    assert bodies(bob.inbox(Filter(kind="task"), limit=1).messages) == ["b"]
    assert bob.inbox(Filter(kind="task"), limit=1).next == 2


def test_the_log_is_newest_first_over_all_boxes_and_archives(
    alice: Bus, bob: Bus, clock: ManualClock
) -> None:
    for number in range(6):
        clock.advance(20 * DAY)
        ident = say(alice, str(number)) if number % 2 else say(bob, str(number), to="alice")
        if number in (1, 2):
            (bob if number % 2 else alice).archive(ident)

    assert bodies(alice.log().messages) == ["5", "4", "3", "2", "1", "0"]
    page = alice.log(limit=2, page=2)
    assert (bodies(page.messages), page.total, page.next) == (["3", "2"], None, 3)
    assert alice.log(limit=6).next is None
    assert bodies(alice.log(Filter(agent="bob"), limit=3).messages) == ["5", "4", "3"]
    assert bodies(alice.log(Filter(sender="bob")).messages) == ["4", "2", "0"]
    since = clock.now() - 45 * DAY * 1000
    assert bodies(alice.log(Filter(since=since)).messages) == ["5", "4", "3"]


def test_an_id_in_two_folders_is_listed_once(alice: Bus, bob: Bus, held: TemporaryBus) -> None:
    ident = say(alice, "x")
    box = held.path / "messages" / "bob"
    archive = box / "archive" / month_of(ident)
    archive.mkdir(parents=True, mode=0o700)
    os.link(box / "new" / message_file(ident), archive / message_file(ident))

    assert bodies(bob.log().messages) == ["x"]
    assert bob.log().messages[0].place.state == "archived"
    assert bob.inbox().messages == ()


def test_a_thread_is_the_whole_conversation_from_any_of_its_messages(
    alice: Bus, bob: Bus, clock: ManualClock
) -> None:
    first = say(alice, "one")
    say(alice, "aside")
    clock.advance(40 * DAY)
    second = say(bob, "two", to="alice", reply_to=first)
    bob.archive(first)
    third = say(alice, "three", reply_to=second)

    for ident in (first, second, third, third[-8:]):
        assert bodies(alice.thread(ident)) == ["one", "two", "three"]


def test_an_answer_from_a_machine_with_an_earlier_clock_belongs_to_its_thread(
    alice: Bus, bob: Bus, clock: ManualClock
) -> None:
    first = say(alice, "one")
    clock.jump(-3600)
    late = Bus.open(bob.settings, identity="bob", clock=ManualClock(clock.now()))
    say(late, "two", to="alice", reply_to=first)

    assert sorted(map(str, bodies(alice.thread(first)))) == ["one", "two"]


def test_a_thread_that_nobody_wrote_in_is_refused(alice: Bus) -> None:
    with pytest.raises(NoSuchMessage):
        alice.thread("01kbb000000000000000000001")


def test_what_does_not_verify_is_listed_without_its_content(
    alice: Bus, bob: Bus, held: TemporaryBus
) -> None:
    ident, other = say(alice, "secret"), say(alice, "fine")
    path = held.path / "messages" / "bob" / "new" / message_file(ident)
    path.write_bytes(path.read_bytes().replace(b"secret", b"Secret"))

    page = bob.inbox()
    assert [stored.judged.outcome for stored in page.messages] == ["bad-signature", "ok"]
    assert page.messages[0].judged.message is None
    assert bodies(bob.inbox(Filter(kind="note")).messages) == ["fine"]
    assert bodies(bob.log(Filter(agent="bob")).messages) == ["fine", None]
    assert other in {stored.place.id for stored in bob.log().messages}


IDS = [MessageId(text) for text in ("01kbb000000000000000000aaa", "01kbb000000000000000000baa")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(IDS[0], IDS[0]), ("0aaa", IDS[0]), ("0BAA", IDS[1]), ("01kbb000000000000000000b", IDS[1])],
)
def test_part_of_an_id_is_enough_if_it_fits_one(text: str, expected: str) -> None:
    assert history.resolve(text, lambda: IDS) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [("01kbb", UsageError), ("aaa", UsageError), ("", UsageError), ("zzzz", NoSuchMessage)],
)
def test_part_of_an_id_that_fits_none_or_several_is_refused(
    text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        history.resolve(text, lambda: IDS)


def test_a_whole_id_wins_without_a_look_at_the_others() -> None:
    def never() -> list[MessageId]:
        raise AssertionError

    assert history.resolve(IDS[0], never) == IDS[0]


@pytest.mark.parametrize(("limit", "page"), [(0, 1), (1, 0), (-1, 1)])
def test_pages_begin_at_one(bob: Bus, limit: int, page: int) -> None:
    with pytest.raises(UsageError):
        bob.inbox(limit=limit, page=page)
    with pytest.raises(UsageError):
        bob.log(limit=limit, page=page)
