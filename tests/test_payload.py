"""The strict parser: what a payload may hold, rule by rule."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent_bus.names import AgentName, MessageId
from agent_bus.payload import (
    BODY_LIMIT,
    DATA_LIMIT,
    Decision,
    Message,
    is_one_line,
    parse_decision,
    parse_message,
)

AT = "2026-11-30T12:00:00.000Z"
ID, BUS, OTHER = (MessageId(f"01kbb{number:021}") for number in (1, 2, 3))
ALICE, BOB = AgentName("alice"), AgentName("bob")
MESSAGE = Message(ID, BUS, ALICE, BOB, AT, subject="s", body="b")
DECISION = Decision(ID, "a" * 64, BUS, "approve", BOB, AT)


def written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def with_fields(**fields: Any) -> bytes:
    value = MESSAGE.payload() | fields
    return written({name: entry for name, entry in value.items() if entry is not ...})


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = {"x": value} if level % 2 else [value]
    return {"x": value}


def test_a_message_survives_being_written() -> None:
    full = Message(
        ID,
        BUS,
        ALICE,
        BOB,
        AT,
        kind="task",
        recipients=(BOB, ALICE),
        thread=OTHER,
        reply_to=OTHER,
        priority="low",
        expires_at=AT,
        data={"a": None, "b": [1.5, True]},
    )

    assert parse_message(written(full.payload())) == full
    assert parse_message(written(MESSAGE.payload())) == MESSAGE


def test_what_is_not_given_is_not_written() -> None:
    always = ["id", "bus", "from", "to", "sent_at", "kind", "subject", "body"]

    assert list(MESSAGE.payload()) == always


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"id": ...}, "id is missing"),
        ({"subject": ...}, "subject is missing"),
        ({"body": ...}, "body is missing"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"\u202e": 1}, r"unknown field '\u202e'"),
        ({"id": "x"}, "id is not an id"),
        ({"bus": BUS.upper()}, "bus is not"),
        ({"from": "Alice"}, "from is not"),
        ({"to": "../bob"}, "to is not"),
        ({"sent_at": "2026-11-30T12:00:00Z"}, "sent_at is not"),
        ({"sent_at": "2026-02-29T12:00:00.000Z"}, "sent_at is not"),
        ({"sent_at": 1}, "sent_at is not"),
        ({"kind": "Note"}, "kind is not"),
        ({"subject": "a\nb"}, "subject is not"),
        ({"subject": "a" * 201}, "subject is not"),
        ({"subject": None}, "subject is not"),
        ({"body": "a" * (BODY_LIMIT + 1)}, "body is not"),
        ({"body": "ä" * (BODY_LIMIT // 2) + "a"}, "body is not"),
        ({"body": 1}, "body is not"),
        ({"recipients": []}, "recipients is not"),
        ({"recipients": ["bob", "bob"]}, "recipients is not"),
        ({"recipients": [["bob"]]}, "recipients is not"),
        ({"recipients": ["alice"]}, "to is not among the recipients"),
        ({"recipients": [f"a{n}" for n in range(64)] + ["bob"]}, "recipients is not"),
        ({"thread": None}, "thread is not"),
        ({"reply_to": ""}, "reply_to is not"),
        ({"priority": "asap"}, "priority is not"),
        ({"priority": []}, "priority is not"),
        ({"expires_at": "never"}, "expires_at is not"),
        ({"data": []}, "data is not"),
        ({"data": None}, "data is not"),
        ({"data": {"x": "a" * DATA_LIMIT}}, "data is not"),
        ({"data": nested(32)}, "nested more than 32 deep"),
    ],
)
def test_a_rule_that_is_broken_is_named(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        parse_message(with_fields(**fields))
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"body": ""},
        {"body": "\x00\x1b[31m\r\n\u2028"},
        {"body": "a" * BODY_LIMIT},
        {"subject": "ä" * 200},
        {"data": {}},
        {"data": nested(30)},
        {"data": {"null": None, "big": 10**300, "tiny": -1e-300}},
        {"recipients": ["bob"]},
        {"sent_at": "2028-02-29T23:59:59.999Z"},
    ],
)
def test_what_the_rules_allow_is_taken(fields: dict[str, Any]) -> None:
    parse_message(with_fields(**fields))


GOOD = with_fields()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'"text"\n',
        GOOD[:-1],
        GOOD + b"\n",
        GOOD + b"{}\n",
        b"\xef\xbb\xbf" + GOOD,
        GOOD.decode().encode("utf-16"),
        GOOD.replace(b'"b"', b'"\xff"'),
        GOOD.replace(b'"b"', b'"\xed\xa0\x80"'),
        GOOD.replace(b'"b"', b'"\\ud800"'),
        GOOD.replace(b'"b"', b'"a\nb"'),
        GOOD.replace(b'"kind"', b'"body":"b","kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":{"y":1,"y":1}},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"\\ud800":1},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":["\\udfff"]},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":NaN},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":-Infinity},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":1e999},"kind"'),
        GOOD.replace(b'"kind"', b'"data":{"x":1%b},"kind"' % (b"0" * 5000)),
        GOOD.replace(b'"kind"', b'"data":{"x":%b},"kind"' % (b"[" * 100_000)),
        GOOD.replace(b'"', b"'"),
        GOOD.replace(b'"kind"', b'//\n"kind"'),
    ],
)
def test_what_json_alone_would_let_through_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        parse_message(payload)


def test_two_sends_share_their_content_whatever_their_times_and_ids() -> None:
    again = Message(OTHER, BUS, ALICE, BOB, "2027-01-01T00:00:00.000Z", subject="s", body="b")
    alone = Message(ID, BUS, ALICE, BOB, AT, subject="s", body="b", recipients=(BOB, ALICE))
    other = Message(ID, BUS, ALICE, BOB, AT, subject="s", body="c")

    assert again.content_hash() == MESSAGE.content_hash() == alone.content_hash()
    assert other.content_hash() != MESSAGE.content_hash()


def test_a_decision_survives_being_written() -> None:
    reasoned = Decision(ID, "a" * 64, BUS, "deny", BOB, AT, reason="no\nway")

    assert parse_decision(written(DECISION.payload())) == DECISION
    assert parse_decision(written(reasoned.payload())) == reasoned


@pytest.mark.parametrize(
    "fields",
    [
        {"request": "x"},
        {"bus": None},
        {"by": "Bob"},
        {"decided_at": "today"},
        {"decision": 1},
        {"reason": None},
        {"more": "x"},
        {"decision": ...},
    ],
)
def test_a_decision_of_another_form_is_refused(fields: dict[str, Any]) -> None:
    value: dict[str, Any] = DECISION.payload() | fields
    with pytest.raises(ValueError):
        parse_decision(written({name: entry for name, entry in value.items() if entry is not ...}))


@pytest.mark.parametrize("text", ["a\n", "\r", "\t", "\x7f", "\x85", "\u2028", "\u2029", None, 1])
def test_a_line_is_one_line_everywhere(text: object) -> None:
    assert not is_one_line(text)
    assert is_one_line("")
    assert is_one_line("ä \u202e 🌊")
