"""Time and ids."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_bus.clock import (
    IdSource,
    SystemClock,
    duration,
    from_text,
    id_time,
    moment,
    seconds,
    to_text,
)
from agent_bus.errors import UsageError
from agent_bus.names import is_message_id

LAST = 253_402_300_799_999
NOW = 1_796_000_000_000


@given(st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=50))
def test_ids_grow_whatever_the_clock_does(times: list[int]) -> None:
    source = IdSource()

    ids = [source.next(now) for now in times]

    assert all(is_message_id(ident) for ident in ids)
    assert ids == sorted(set(ids))


def test_an_id_carries_its_time() -> None:
    assert id_time(IdSource().next(NOW)) == NOW


def test_threads_never_share_an_id() -> None:
    clock = SystemClock()
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: clock.new_id(), range(4000)))

    assert len(set(ids)) == 4000


def test_two_sources_at_one_moment_make_different_ids() -> None:
    assert len({IdSource().next(NOW) for _ in range(1000)}) == 1000


def test_the_system_clock_is_that_of_the_machine() -> None:
    clock = SystemClock()

    assert abs(clock.now() - time.time() * 1000) < 60_000
    assert clock.monotonic() <= clock.monotonic()


@given(st.integers(0, LAST))
def test_a_time_survives_being_written(milliseconds: int) -> None:
    assert from_text(to_text(milliseconds)) == milliseconds


def test_a_time_that_no_calendar_knows_is_the_last_one() -> None:
    assert to_text(id_time("7zzzzzzzzzzzzzzzzzzzzzzzzz")) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-30",
        "2026-11-30T12:00:00Z",
        "2026-11-30T12:00:00.0Z",
        "2026-11-30T12:00:00.000+00:00",
        "2026-11-30 12:00:00.000Z",
        "2026-11-30t12:00:00.000z",
        "2026-02-30T12:00:00.000Z",
        "2026-13-01T12:00:00.000Z",
        "2026-11-30T24:00:00.000Z",
        "2026-06-30T23:59:60.000Z",
        "0000-01-01T00:00:00.000Z",
        "2026-11-30T12:00:00.000Z\n",
        "\u0662026-11-30T12:00:00.000Z",
        "２026-11-30T12:00:00.000Z",
    ],
)
def test_another_form_of_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604800), ("0s", 0)]
)
def test_durations(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1.5h", "1w", " 1s", "1s ", "1H", "٣s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW - 7_200_000),
        ("2026-11-30", 1_795_996_800_000),
        ("2026-11-30T02:00:00+02:00", 1_795_996_800_000),
        ("2026-11-30T00:00:00Z", 1_795_996_800_000),
    ],
)
def test_a_moment_that_a_person_names(text: str, expected: int) -> None:
    assert moment(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-30T00:00:00", "2026-02-30"])
def test_a_moment_that_could_mean_two_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        moment(text, NOW)


@pytest.mark.parametrize("text", ["0s", "90s", "10m", "25h", "7d", "1s"])
def test_a_duration_is_written_as_it_was_read(text: str) -> None:
    assert duration(seconds(text)) == text
