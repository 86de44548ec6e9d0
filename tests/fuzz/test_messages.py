"""The judge and the parsers of what is signed: no input raises, and none passes for another."""

from __future__ import annotations

import contextlib
import hmac
import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from agent_bus.clock import to_text
from agent_bus.envelope import (
    DECISION_TYPE,
    MESSAGE_TYPE,
    Judged,
    encode_decision,
    encode_message,
    judge,
    open_decision,
    pae,
)
from agent_bus.errors import InvalidMessage
from agent_bus.keyring import Key
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Decision, Message, parse_decision, parse_message

ALICE, BOB = AgentName("alice"), AgentName("bob")
BUS = MessageId("01kbb" + "0" * 21)
NOW = 1_796_000_000_000
KEY = Key("0123456789abcdef", b"k" * 32, "active", to_text(NOW))
KEYS = KeyIndex({KEY.kid: (ALICE, KEY)})

ids = st.from_regex(r"[0-7][0-9a-hjkmnp-tv-z]{25}", fullmatch=True).map(MessageId)
names = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?", fullmatch=True).map(AgentName)
times = st.integers(0, 253_402_300_799_999).map(to_text)
lines = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=200)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
messages = st.builds(
    Message,
    id=ids,
    bus=st.just(BUS),
    sender=st.just(ALICE),
    to=st.just(BOB),
    sent_at=times,
    kind=st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True),
    subject=lines,
    body=texts,
    recipients=st.lists(names, max_size=5, unique=True).map(
        lambda some: (*(n for n in some if n != BOB), BOB) if some else ()
    ),
    thread=st.none() | ids,
    reply_to=st.none() | ids,
    priority=st.none() | st.sampled_from(["low", "normal", "high", "urgent"]),
    expires_at=st.none() | times,
    data=st.none() | st.dictionaries(texts, plain_values, max_size=4),
)


def judged(data: bytes, ident: MessageId | None = None) -> Judged:
    """What a reader makes of a file in bob's box."""
    return judge(data, keys=KEYS, bus=BUS, box=BOB, ident=ident, now=NOW)


def signed(payload: bytes, kind: bytes = MESSAGE_TYPE) -> bytes:
    """Anything at all, signed by alice."""
    mac = hmac.digest(KEY.secret, pae(kind, payload), "sha256").hex()
    return f"agent-bus/1 {KEY.kid} {mac}\n".encode() + payload


@given(st.binary(max_size=2000))
def test_no_bytes_are_a_message_by_chance(data: bytes) -> None:
    assert judged(data).message is None
    assert judged(b"agent-bus/1 " + data).message is None


@given(messages)
def test_a_message_comes_back_as_it_was_signed(message: Message) -> None:
    try:
        data = encode_message(message, KEY)
    except InvalidMessage:
        assume(False)
    found = judged(data, message.id)
    assert found.outcome in ("ok", "expired")
    assert found.message is not None
    assert json.dumps(found.message.payload()) == json.dumps(message.payload())
    assert found.message.content_hash() == message.content_hash()


@given(messages, st.data())
def test_any_change_of_a_file_shows(message: Message, data: st.DataObject) -> None:
    try:
        file = encode_message(message, KEY)
    except InvalidMessage:
        assume(False)
    start = data.draw(st.integers(0, len(file)))
    end = data.draw(st.integers(start, min(len(file), start + 100)))
    changed = file[:start] + data.draw(st.binary(max_size=100)) + file[end:]
    if changed != file:
        assert judged(changed, message.id).message is None


@given(st.binary(max_size=500) | st.text().map(lambda text: json.dumps(text).encode() + b"\n"))
def test_signed_rubbish_is_no_message(payload: bytes) -> None:
    assert judged(signed(payload)).outcome == "malformed"


@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5), messages, st.data())
def test_a_signed_object_of_whatever_fields_is_judged(
    odd: dict[str, Any], message: Message, data: st.DataObject
) -> None:
    payload: dict[str, Any] = message.payload()
    for name in data.draw(st.lists(st.sampled_from(sorted(payload)), max_size=3)):
        payload[name] = data.draw(json_values)
    text = json.dumps(payload | odd, ensure_ascii=data.draw(st.booleans()))
    found = judged(signed(text.encode("utf-8", "surrogatepass") + b"\n"), message.id)
    if found.message is not None:
        assert not odd.keys() - message.payload().keys()
        again = json.dumps(found.message.payload(), ensure_ascii=False).encode() + b"\n"
        assert parse_message(again) == found.message


@given(st.binary(max_size=300))
def test_the_parsers_raise_nothing_but_value_errors(payload: bytes) -> None:
    for parse in (parse_message, parse_decision):
        for tail in (b"", b"\n"):
            with contextlib.suppress(ValueError):
                parse(payload + tail)


@given(st.integers(1, 100_000), st.sampled_from(["[", '{"a":', "[{"]))
def test_nesting_is_refused_however_deep(depth: int, opening: str) -> None:
    assert judged(signed(opening.encode() * depth + b"\n")).outcome == "malformed"
    closed = '{"data":' + "[" * depth + "]" * depth + "}\n"
    assert judged(signed(closed.encode())).outcome == "malformed"


@given(ids, ids, st.text(max_size=50), names, times, st.none() | st.text(max_size=50))
def test_a_decision_comes_back_and_is_no_message(
    request: MessageId, bus: MessageId, text: str, by: AgentName, at: str, reason: str | None
) -> None:
    decision = Decision(request, "0" * 64, bus, text, by, at, reason)
    try:
        file = encode_decision(decision, KEY)
    except InvalidMessage:
        assume(False)
    assert open_decision(file, KEYS) == (ALICE, decision)
    assert judged(file).outcome == "bad-signature"
    assert judged(signed(file.partition(b"\n")[2])).outcome == "malformed"


@given(st.binary(max_size=300))
def test_signed_rubbish_is_no_decision(payload: bytes) -> None:
    for file in (payload, signed(payload, DECISION_TYPE), signed(payload + b"\n", DECISION_TYPE)):
        try:
            open_decision(file, KEYS)
        except ValueError:
            continue
        raise AssertionError(file)
