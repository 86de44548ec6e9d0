"""The set of ids that one observer was shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_bus.cursor import Cursor
from agent_bus.names import MessageId


def ids(*names: str) -> list[MessageId]:
    return [MessageId(name) for name in names]


def test_what_is_unread_at_the_start_is_not_fresh() -> None:
    cursor = Cursor(ids("a", "b"))

    assert cursor.fresh(ids("a", "b", "c")) == ids("c")


def test_the_order_of_the_listing_is_kept() -> None:
    assert Cursor().fresh(ids("c", "a", "b")) == ids("c", "a", "b")


def test_an_earlier_id_that_lands_later_is_fresh() -> None:
    """A watermark would pass it over."""
    cursor = Cursor()
    cursor.mark(ids("m"))

    assert cursor.fresh(ids("a", "m")) == ids("a")


def test_looking_marks_nothing() -> None:
    cursor = Cursor()

    assert cursor.fresh(ids("a")) == cursor.fresh(ids("a")) == ids("a")


def test_what_was_marked_is_fresh_for_a_call_that_began_before() -> None:
    cursor = Cursor()
    began = cursor.position
    cursor.mark(ids("a"))

    assert cursor.fresh(ids("a"), since=began) == ids("a")
    assert cursor.fresh(ids("a"), since=cursor.position) == []


def test_existing_ids_are_given_once_when_asked_for() -> None:
    cursor = Cursor(ids("a", "b"))

    assert cursor.fresh(ids("a", "b"), include_existing=True) == ids("a", "b")
    cursor.mark(ids("a"))

    assert cursor.fresh(ids("a", "b"), include_existing=True) == ids("b")
    assert cursor.fresh(ids("a", "b")) == []


def test_what_lay_there_before_stays_so_when_it_was_shown() -> None:
    cursor = Cursor(ids("a", "b", "c"))
    cursor.mark(ids("a"))

    assert cursor.from_before(ids("a", "b", "d")) == ids("a", "b")


def test_a_listing_that_comes_out_short_once_repeats_nothing() -> None:
    cursor = Cursor(ids("a"))
    cursor.mark(ids("b"))

    assert cursor.fresh([]) == []
    assert cursor.fresh(ids("a", "b")) == []


def test_ids_that_are_gone_are_forgotten() -> None:
    """An observer that lives for months holds about as many ids as are unread."""
    cursor = Cursor(MessageId(f"old{n}") for n in range(3000))
    for n in range(5000):
        unread = ids(f"new{n}")
        assert cursor.fresh(unread) == unread
        cursor.mark(unread)

    assert len(cursor) < 1100
    assert cursor.from_before(MessageId(f"old{n}") for n in range(3000)) == []


@given(st.lists(st.sets(st.integers(0, 30)), max_size=20))
def test_every_id_is_shown_exactly_once_while_it_is_unread(arrivals: list[set[int]]) -> None:
    cursor = Cursor()
    unread: list[MessageId] = []
    shown: list[MessageId] = []
    for batch in arrivals:
        unread = sorted({*unread, *(MessageId(f"{n:02}") for n in batch)})
        fresh = cursor.fresh(unread)
        cursor.mark(fresh)
        shown += fresh

    assert sorted(shown) == unread


def test_what_did_not_reach_its_caller_is_fresh_again() -> None:
    cursor = Cursor(ids("a"))
    cursor.mark(ids("a", "b"))
    cursor.unmark(ids("a", "b", "never marked"))

    assert cursor.fresh(ids("a", "b")) == ids("b")
    assert cursor.fresh(ids("a", "b"), include_existing=True) == ids("a", "b")
