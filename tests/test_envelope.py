"""Message <-> signed bytes: nothing altered passes, whatever was altered."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_bus.clock import from_text, to_text
from agent_bus.envelope import (
    CLOCK_TOLERANCE,
    DECISION_TYPE,
    FILE_LIMIT,
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
from agent_bus.names import AgentName, MessageId, is_agent_name, is_kind
from agent_bus.payload import Decision, Message, is_one_line

NOW = 1_796_000_000_000
AT = to_text(NOW)
ALICE, BOB, CAROL = (AgentName(name) for name in ("alice", "bob", "carol"))
ID, BUS, OTHER = (MessageId(f"01kbb{number:021}") for number in (1, 2, 3))
KEY = Key("a1" * 8, bytes(range(32)), "active", AT)
RETIRED = replace(KEY, kid="a2" * 8, secret=bytes(range(1, 33)), state="retired")
REVOKED = replace(KEY, kid="a3" * 8, secret=bytes(range(2, 34)), state="revoked")
SEALED = replace(KEY, kid="a4" * 8, secret=bytes(range(3, 35)), alg="ed25519")
CAROLS = replace(KEY, kid="c1" * 8, secret=bytes(range(4, 36)))
KEYS = KeyIndex(
    {key.kid: (ALICE, key) for key in (KEY, RETIRED, REVOKED, SEALED)}
    | {CAROLS.kid: (CAROL, CAROLS)}
)
MESSAGE = Message(ID, BUS, ALICE, BOB, AT, subject="subject", body="body")


def look(data: bytes, **changes: Any) -> Judged:
    rules: dict[str, Any] = {"keys": KEYS, "bus": BUS, "box": BOB, "ident": ID, "now": NOW}
    return judge(data, **(rules | changes))


def signed(payload: bytes, key: Key = KEY, kind: bytes = MESSAGE_TYPE) -> bytes:
    mac = hmac.new(key.secret, pae(kind, payload), hashlib.sha256).hexdigest()
    return f"agent-bus/1 {key.kid} {mac}\n".encode() + payload


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
lines = texts.filter(is_one_line).map(lambda text: text[:200])
ids = st.from_regex(r"[0-7][0-9a-hjkmnp-tv-z]{25}", fullmatch=True).map(MessageId)
agents = st.from_regex(r"[a-z0-9]{1,3}(-[a-z0-9]{1,3})?", fullmatch=True).filter(is_agent_name)
times = st.integers(NOW, 253_402_300_799_999).map(to_text)
scalars: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Message,
    id=st.just(ID),
    bus=st.just(BUS),
    sender=st.just(ALICE),
    to=st.just(BOB),
    sent_at=times,
    kind=st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True).filter(is_kind),
    subject=lines,
    body=texts,
    recipients=st.lists(agents.map(AgentName), max_size=3, unique=True).map(
        lambda names: (BOB, *(name for name in names if name != BOB)) if names else ()
    ),
    thread=st.none() | ids,
    reply_to=st.none() | ids,
    priority=st.sampled_from([None, "low", "normal", "high", "urgent"]),
    expires_at=st.none() | times,
    data=st.none() | st.dictionaries(texts, values, max_size=3),
)


@given(messages)
def test_every_message_survives_being_signed_and_read(message: Message) -> None:
    judged = look(encode_message(message, KEY))

    assert judged.ok, judged.detail
    assert judged.message == message


@given(messages, st.data())
@settings(max_examples=200)
def test_a_bit_flip_anywhere_is_refused(message: Message, data: st.DataObject) -> None:
    file = bytearray(encode_message(message, KEY))
    at = data.draw(st.integers(0, len(file) * 8 - 1))
    file[at // 8] ^= 1 << at % 8

    assert look(bytes(file)).message is None


def test_of_one_message_every_single_bit_flip_is_refused() -> None:
    file = encode_message(MESSAGE, KEY)
    for at in range(len(file) * 8):
        altered = bytearray(file)
        altered[at // 8] ^= 1 << at % 8
        judged = look(bytes(altered))

        assert judged.message is None, at
        assert judged.outcome in ("malformed", "unknown-key", "bad-signature"), at


def test_of_one_message_every_truncation_and_every_addition_is_refused() -> None:
    file = encode_message(MESSAGE, KEY)
    for length in range(len(file)):
        assert look(file[:length]).outcome in ("malformed", "bad-signature"), length
        assert look(file[length:] if length else b"").message is None, length
    for byte in range(256):
        assert look(file + bytes([byte])).outcome == "bad-signature"
        assert look(bytes([byte]) + file).outcome == "malformed"


@given(st.binary(max_size=400))
def test_no_bytes_at_all_make_the_judge_fail(data: bytes) -> None:
    assert look(data).message is None
    assert look(signed(data)).message is None
    assert look(signed(data + b"\n")).message is None


fields = st.sampled_from([*MESSAGE.payload(), "thread", "data", "expires_at", "priority", "x"])


@given(st.dictionaries(fields, values | ids | agents | times, max_size=4))
@settings(max_examples=300)
def test_what_is_signed_but_breaks_a_rule_never_passes(changes: dict[str, Any]) -> None:
    """A payload is signed with a good key, some fields replaced by anything at all."""
    payload: dict[str, Any] = MESSAGE.payload() | changes
    judged = look(signed(json.dumps(payload, ensure_ascii=False).encode() + b"\n"))

    if judged.message is not None:
        assert keeps_the_rules(payload), payload
        assert judged.message.payload() == payload


def keeps_the_rules(payload: dict[str, Any]) -> bool:
    """The rules once more, said in another way."""
    fixed = {"id": ID, "bus": BUS, "from": ALICE, "to": BOB}
    expires = payload.get("expires_at")
    return (
        all(payload[name] == value for name, value in fixed.items())
        and "x" not in payload
        and all(isinstance(payload[name], str) for name in ("sent_at", "kind", "subject", "body"))
        and not set(payload["subject"]) & set("\n\r\u2028\u2029\x85")
        and len(payload["subject"]) <= 200
        and (expires is None or from_text(expires) > 0)
        and isinstance(payload.get("data", {}), dict)
        and payload.get("priority", "low") in ("low", "normal", "high", "urgent")
    )


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_any_json_that_is_signed_is_judged_and_not_shown(value: object) -> None:
    judged = look(signed(json.dumps(value).encode() + b"\n"))

    assert judged.outcome == "malformed"


def test_the_encoding_is_that_of_dsse() -> None:
    """The example of the DSSE protocol, version 1.0.0."""
    encoded = pae(b"http://example.com/HelloWorld", b"hello world")

    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_a_file_is_a_header_line_and_the_payload() -> None:
    header, _, payload = encode_message(MESSAGE, KEY).partition(b"\n")

    assert header.split(b" ")[:2] == [b"agent-bus/1", KEY.kid.encode()]
    assert json.loads(payload) == MESSAGE.payload()
    assert look(encode_message(MESSAGE, KEY)).sha256 == hashlib.sha256(payload).hexdigest()


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (encode_message(MESSAGE, RETIRED), "ok"),
        (encode_message(MESSAGE, REVOKED), "revoked-key"),
        (encode_message(MESSAGE, SEALED), "unknown-key"),
        (encode_message(MESSAGE, replace(KEY, kid="00" * 8)), "unknown-key"),
        (encode_message(MESSAGE, replace(KEY, secret=bytes(32))), "bad-signature"),
        (encode_message(MESSAGE, CAROLS), "wrong-sender"),
        (encode_message(replace(MESSAGE, to=CAROL), KEY), "wrong-recipient"),
        (encode_message(replace(MESSAGE, id=OTHER), KEY), "misfiled"),
        (encode_message(replace(MESSAGE, bus=OTHER), KEY), "wrong-bus"),
        (signed(b"{}\n", kind=DECISION_TYPE), "bad-signature"),
        (signed(b" " * FILE_LIMIT), "malformed"),
    ],
)
def test_the_outcome_is_the_first_rule_that_fails(file: bytes, expected: str) -> None:
    assert look(file).outcome == expected


def test_the_rules_have_an_order() -> None:
    """A file that breaks several: each is named once those before it are mended."""
    wrong = replace(MESSAGE, sender=CAROL, to=CAROL, id=OTHER, bus=OTHER, expires_at=AT)
    steps: dict[str, dict[str, Any]] = {
        "wrong-sender": {"sender": ALICE},
        "wrong-recipient": {"to": BOB},
        "misfiled": {"id": ID},
        "wrong-bus": {"bus": BUS},
        "replayed": {},
    }
    for expected, mended in steps.items():
        judged = look(
            encode_message(wrong, KEY), now=NOW + CLOCK_TOLERANCE + 1, pruned=lambda _: True
        )
        assert judged.outcome == expected
        wrong = replace(wrong, **mended)
    assert look(encode_message(wrong, KEY), now=NOW + CLOCK_TOLERANCE + 1).outcome == "expired"


def test_a_message_expires_five_minutes_after_its_time_by_the_readers_clock() -> None:
    file = encode_message(replace(MESSAGE, expires_at=AT), KEY)

    assert look(file, now=NOW + CLOCK_TOLERANCE).outcome == "ok"
    expired = look(file, now=NOW + CLOCK_TOLERANCE + 1)
    assert expired.outcome == "expired"
    assert expired.message is not None


def test_a_link_outside_the_boxes_may_have_another_name() -> None:
    assert look(encode_message(MESSAGE, KEY), box=None, ident=None).ok


def test_what_a_reader_would_refuse_is_not_signed() -> None:
    unfit: list[dict[str, Any]] = [
        {"subject": "a\nb"},
        {"body": "\ud800"},
        {"data": {"x": float("nan")}},
    ]
    for broken in unfit:
        with pytest.raises(InvalidMessage) as caught:
            encode_message(replace(MESSAGE, **broken), KEY)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidMessage):
        encode_message(replace(MESSAGE, data={"x": object()}), KEY)


DECISION = Decision(ID, "a" * 64, BUS, "approve", ALICE, AT)


def test_a_decision_is_opened_with_the_name_that_signed_it() -> None:
    assert open_decision(encode_decision(DECISION, KEY), KEYS) == (ALICE, DECISION)


def test_of_one_decision_every_bit_flip_and_every_truncation_is_refused() -> None:
    file = encode_decision(DECISION, KEY)
    for at in range(len(file) * 8):
        altered = bytearray(file)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError):
            open_decision(bytes(altered), KEYS)
    for length in range(len(file)):
        with pytest.raises(ValueError):
            open_decision(file[:length], KEYS)


def test_a_message_is_no_decision_and_a_decision_no_message() -> None:
    with pytest.raises(ValueError, match="bad-signature"):
        open_decision(encode_message(MESSAGE, KEY), KEYS)
    assert look(encode_decision(DECISION, KEY)).outcome == "bad-signature"
