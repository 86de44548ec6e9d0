"""The journal and the memory of what was pruned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_bus import records
from agent_bus.files import Folder, make_folders
from agent_bus.names import MessageId, month_of
from agent_bus.records import Event, Pruned

FIRST, SECOND = (MessageId(f"01kbb{number:021}") for number in (1, 2))
AT = "2026-11-30T12:00:00.000Z"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Folder]:
    with make_folders(tmp_path / "box") as made:
        yield made


@pytest.fixture
def month(box: Folder) -> Iterator[Folder]:
    with box.make("archive") as archive, archive.make(month_of(FIRST)) as made:
        yield made


def test_the_journal_gives_back_what_was_noted(box: Folder) -> None:
    records.note(box, AT, "read", FIRST)
    records.note(box, AT, "archived", FIRST)

    assert list(records.events(box)) == [Event(AT, "read", FIRST), Event(AT, "archived", FIRST)]
    assert (box.path / "journal").read_text() == f"{AT} read {FIRST}\n{AT} archived {FIRST}\n"


@pytest.mark.parametrize(
    "line", ["", "x", f"{AT} lost {FIRST}", f"{AT} read x", f"today read {FIRST}", "\0", "é" * 99]
)
def test_a_foreign_line_of_the_journal_is_passed_over(box: Folder, line: str) -> None:
    (box.path / "journal").write_text(f"{line}\n", encoding="latin-1")
    records.note(box, AT, "read", FIRST)

    assert list(records.events(box)) == [Event(AT, "read", FIRST)]


def test_a_torn_tail_of_the_journal_is_ignored_and_hides_no_later_line(box: Folder) -> None:
    (box.path / "journal").write_text(f"{AT} read {FIRST}\n{AT} archi")
    assert list(records.events(box)) == [Event(AT, "read", FIRST)]

    records.note(box, AT, "archived", SECOND)

    assert list(records.events(box))[1:] == [Event(AT, "archived", SECOND)]


def test_a_box_without_a_journal_has_no_events(box: Folder) -> None:
    assert list(records.events(box)) == []
    (box.path / "journal").mkdir()
    assert list(records.events(box)) == []


def test_what_was_pruned_is_found_by_its_id_and_by_its_key(box: Folder, month: Folder) -> None:
    keyed, plain = Pruned(FIRST, "a" * 64, "b" * 64), Pruned(SECOND, None, "c" * 64)
    records.remember_pruned(month, [keyed, plain])

    assert records.was_pruned(box, FIRST) == keyed
    assert records.was_pruned(box, SECOND) == plain
    assert records.pruned_under(box, "a" * 64) == keyed
    assert records.pruned_under(box, "d" * 64) is None
    assert records.was_pruned(box, MessageId("01kbb000000000000000000003")) is None


def test_a_memory_that_was_torn_forgets_nothing_that_is_written_later(
    box: Folder, month: Folder
) -> None:
    (month.path / "pruned").write_text(f"{FIRST} - {'b' * 30}")

    records.remember_pruned(month, [Pruned(SECOND, None, "c" * 64)])

    assert records.was_pruned(box, FIRST) is None
    assert records.was_pruned(box, SECOND) == Pruned(SECOND, None, "c" * 64)


def test_a_box_without_an_archive_forgot_nothing(box: Folder) -> None:
    assert records.was_pruned(box, FIRST) is None
    assert records.pruned_under(box, "a" * 64) is None


def test_the_events_of_one_message_are_all_of_it(box: Folder) -> None:
    for event, ident in (("read", FIRST), ("read", SECOND), ("archived", FIRST)):
        records.note(box, AT, event, ident)

    assert list(records.events(box, SECOND)) == [Event(AT, "read", SECOND)]
    found = list(records.events(box))
    assert list(records.events(box, FIRST)) == [one for one in found if one.id == FIRST]
