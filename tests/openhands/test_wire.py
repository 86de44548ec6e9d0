"""JSON in its one form, and how what comes in is copied."""

from __future__ import annotations

import json

import pytest

from agent_bus.errors import InvalidMission
from agent_bus.openhands.gateway.wire import compact, digest, json_object, member, text


def test_the_compact_form_is_sorted_ascii_without_spaces() -> None:
    value = {"b": [1, 2.5, None, True], "a": "é\n", "B": {}}

    assert compact(value) == '{"B":{},"a":"\\u00e9\\n","b":[1,2.5,null,true]}'
    assert json.loads(compact(value)) == value
    assert digest(value) == digest(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_the_compact_form_has_no_numbers_that_json_has_not(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        compact(value)


def test_a_copy_shares_nothing_with_what_was_given() -> None:
    given = {"a": [{"b": ["c"]}]}
    taken = json_object(given, "x", 100)

    given["a"][0]["b"].append("d")

    assert taken == {"a": [{"b": ["c"]}]}


@pytest.mark.parametrize("value", [{}, {"a": None}, {"é": ["\x00", -1e300, False]}, {"": {"": []}}])
def test_the_limit_is_exact(value: dict[str, object]) -> None:
    size = len(compact(value))

    assert json_object(value, "x", size) == value
    with pytest.raises(InvalidMission, match="x is longer than"):
        json_object(value, "x", size - 1)


def test_the_largest_numbers_are_those_of_a_double() -> None:
    assert json_object({"a": 2**1023 - 1, "b": -(2**1023) + 1}, "x", 1000)
    for number in (2**1024, -(2**1024)):
        with pytest.raises(InvalidMission, match=r"x\.a holds a number"):
            json_object({"a": number}, "x", 1000)


def test_an_error_names_a_key_without_repeating_what_it_hides() -> None:
    assert member("x", "plain_Key-1") == "x.plain_Key-1"
    assert member("x", "\u202e\n\ud800") == "x.'\\u202e\\n\\ud800'"
    assert len(member("x", "é" * 10_000)) < 500


@pytest.mark.parametrize("value", ["x", " x ", "\u200bx", "é"])
def test_a_text_is_taken_as_it_is(value: str) -> None:
    assert text(value, "x") == value
