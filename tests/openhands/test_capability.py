"""The `evx1_` capability: one spelling, one error, nothing taken on trust."""

from __future__ import annotations

import base64
import hmac
import struct
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_bus.errors import InvalidCapability, NotPermitted, UsageError
from agent_bus.openhands.gateway.caller import Action, Role
from agent_bus.openhands.gateway.capability import (
    CHILD_ACTIONS,
    Capability,
    caller,
    child_capability_token,
    completion_token,
    decode,
    encode,
    main_capability_token,
)
from agent_bus.openhands.gateway.identifiers import child_id

SECRET = b"test-secret"
MAIN = UUID("11111111-1111-4111-8111-111111111111")
CHILD = UUID("ac0e4948-30e3-593d-8169-c06a02eee9f4")
NOW = 1_787_184_000
"""2026-08-20T00:00:00Z"""
HOUR, DAY = 3600, 86400
REFUSED = "this capability is not valid here: ask whoever started you for a new one"

MAIN_CREATES = (
    "evx1_AREREREREUERgRERERERERERERERERFBEYERERERERERaoZDgGqGUZABAQAEcm9vdN2TDZ_qLN6JAGVf5XhIxX8hx"
    "nE7yOPGWdCUoGQ4LdZY"
)
MAIN_STEERS = (
    "evx1_AREREREREUERgRERERERERERERERERFBEYERERERERERaoZDgGqGUZABDQAEcm9vdH40iqm3AMWeRNllIAwOPEdbh"
    "HfSsS3ArpljW2K3ob1p"
)
WRITER = (
    "evx1_AREREREREUERgRERERERERGsDklIMONZPYFpwGoC7un0aoZDgGqHlQAFDgAKd3JpdGVyLTYwNCGF_znqahKo8BU1-"
    "SYgfBJ5Az1ocYTCP-Cxg8-CMFMW"
)
VECTORS = [MAIN_CREATES, MAIN_STEERS, WRITER]

read = partial(decode, secrets=[SECRET])


def refused(token: object, *secrets: bytes, now: int = NOW) -> str:
    """The reason for which a token is refused, after a look at what is said aloud."""
    with pytest.raises(InvalidCapability) as caught:
        decode(token, secrets or [SECRET], now=now)
    assert str(caught.value) == REFUSED
    assert caught.value.__cause__ is None
    assert caught.value.reason
    if isinstance(token, str) and len(token) > 10:
        assert token not in caught.value.reason
    return caught.value.reason


def payload_of(token: str) -> bytes:
    body = token.removeprefix("evx1_")
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


def spelled(data: bytes) -> str:
    return "evx1_" + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(payload: bytes, secret: bytes = SECRET) -> str:
    return spelled(payload + hmac.digest(secret, payload, "sha256"))


def raw(
    task: bytes = b"root",
    *,
    version: int = 1,
    expires_at: int = NOW + HOUR,
    role: int = 1,
    bits: int = 1,
    size: int | None = None,
) -> str:
    """A correctly signed token that says anything."""
    fields = (version, MAIN.bytes, MAIN.bytes, NOW, expires_at, role, bits)
    length = len(task) if size is None else size
    return signed(struct.pack(">B16s16sIIBBH", *fields, length) + task)


def test_the_child_of_a_task_is_always_the_same() -> None:
    assert child_id(MAIN, "writer-604") == child_id(MAIN, "writer-604") == CHILD


def test_the_vectors_are_minted_to_the_byte() -> None:
    steering: frozenset[Action] = frozenset({"send_message", "cancel_mission", "resume_mission"})
    for_an_hour = partial(main_capability_token, issued_at=NOW, expires_at=NOW + HOUR)

    assert for_an_hour(SECRET, MAIN, actions={"create_child"}) == MAIN_CREATES
    assert for_an_hour("test-secret", str(MAIN)) == MAIN_STEERS
    writer = child_capability_token(
        SECRET, MAIN, "writer-604", "writer", issued_at=NOW, actions=steering
    )
    assert writer == WRITER


def test_the_vectors_are_read() -> None:
    assert read(MAIN_CREATES, now=NOW) == Capability(
        MAIN, MAIN, "root", "main", frozenset({"create_child"}), NOW, NOW + HOUR
    )
    assert read(MAIN_STEERS, now=NOW).actions == {
        "create_child",
        "cancel_mission",
        "resume_mission",
    }
    found = read(WRITER, now=NOW)
    assert (found.owner, found.subject, found.task_key, found.role) == (
        MAIN,
        CHILD,
        "writer-604",
        "writer",
    )
    assert (found.issued_at, found.expires_at) == (NOW, NOW + DAY)


@pytest.mark.parametrize("token", VECTORS)
def test_one_flipped_bit_of_what_is_signed_or_of_the_signature_is_refused(token: str) -> None:
    data = payload_of(token)
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        assert refused(spelled(bytes(flipped))) == "no live secret has signed it"


@pytest.mark.parametrize("token", VECTORS)
def test_one_flipped_bit_of_the_text_is_refused(token: str) -> None:
    for place in range(len(token) * 8):
        letters = list(token)
        letters[place // 8] = chr(ord(letters[place // 8]) ^ 1 << place % 8)
        refused("".join(letters))


@pytest.mark.parametrize("token", VECTORS)
def test_a_shortened_or_lengthened_text_is_refused(token: str) -> None:
    for end in range(len(token)):
        refused(token[:end])
    for more in ("=", "==", "\n", "\r\n", " ", "A", "AAAA", ".", "\0", "é"):
        refused(token + more)
        refused(more + token)
        refused(token[:40] + more + token[40:])


@pytest.mark.parametrize(
    "token",
    [
        "",
        "evx1_",
        "evx2_" + WRITER[5:],
        WRITER.upper(),
        WRITER.replace("-", "+").replace("_", "/"),
        "evx1_" + "A" * 100_000,
        "evx1_" + "A" * 102,
        "evx1_A",
        "evx1_٠١٢",
        "\ud800",
        None,
        WRITER.encode(),
        7,
    ],
    ids=lambda token: ascii(token)[:20],
)
def test_what_is_no_capability_is_refused(token: object) -> None:
    refused(token)


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    token = child_capability_token(SECRET, MAIN, "t1", "qa", issued_at=NOW)
    data = payload_of(token)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    others = [
        other
        for letter in alphabet
        if (other := token[:-1] + letter) != token and payload_of(other) == data
    ]

    assert len(others) == 15
    assert {refused(other) for other in others} == {"another spelling of the same bytes"}


def test_an_expiry_is_exact() -> None:
    last = NOW + HOUR - 1

    assert read(MAIN_CREATES, now=last).expires_at == last + 1
    assert refused(MAIN_CREATES, now=last + 1) == "expired"


def test_the_clock_of_who_minted_may_be_a_minute_ahead() -> None:
    assert read(MAIN_CREATES, now=NOW - 60).issued_at == NOW
    assert refused(MAIN_CREATES, now=NOW - 61) == "issued in the future"


def test_a_childs_capability_lasts_a_day() -> None:
    token = child_capability_token(SECRET, MAIN, "writer-604", "writer", issued_at=NOW)

    assert read(token, now=NOW + DAY - 1).actions == CHILD_ACTIONS == {"send_message"}
    refused(token, now=NOW + DAY)


def test_a_completion_token_says_that_a_run_has_ended_and_no_more() -> None:
    token = completion_token(SECRET, MAIN, "writer-604", "writer", issued_at=NOW)

    found = read(token, now=NOW + 30 * DAY - 1)
    assert found.actions == {"complete"}
    assert (found.subject, found.owner) == (CHILD, MAIN)
    for action in ("create_child", "send_message", "cancel_mission", "resume_mission"):
        with pytest.raises(NotPermitted):
            caller(found).require(action)
    caller(found).require("complete")
    refused(token, now=NOW + 30 * DAY)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (raw(role=0), "an unknown role"),
        (raw(role=10), "an unknown role"),
        (raw(role=255), "an unknown role"),
        (raw(bits=0), "no action, or an unknown one"),
        (raw(bits=16), "no action, or an unknown one"),
        (raw(bits=1 | 64), "no action, or an unknown one"),
        (raw(bits=128), "no action, or an unknown one"),
        (raw(version=0), "another version"),
        (raw(version=2), "another version"),
        (raw(size=3), "the task key has another length than is said"),
        (raw(size=5), "the task key has another length than is said"),
        (raw(size=65535), "the task key has another length than is said"),
        (raw(b"\xff\xfe"), "no task key"),
        (raw(b""), "no task key"),
        (raw(b"root\n"), "no task key"),
        (raw(b"-root"), "no task key"),
        (raw("r\N{CYRILLIC SMALL LETTER O}t".encode()), "no task key"),
        (raw(b"a" * 129), "no task key"),
        (raw(b"a" * 400), "too long"),
        (raw(expires_at=NOW), "over before it was issued"),
        (raw(expires_at=NOW - 30), "over before it was issued"),
    ],
)
def test_a_right_signature_does_not_make_nonsense_right(token: str, why: str) -> None:
    assert refused(token) == why


def test_each_of_several_secrets_verifies_and_no_other_does() -> None:
    secrets = [b"one", b"two", SECRET]

    for place in range(3):
        assert decode(WRITER, secrets[place:] + secrets[:place], now=NOW).subject == CHILD
    refused(WRITER, b"one", b"two")
    with pytest.raises(InvalidCapability):
        decode(WRITER, [], now=NOW)


def test_an_empty_secret_verifies_nothing() -> None:
    forged = signed(payload_of(WRITER)[:-32], b"")

    refused(forged, b"", SECRET)


def test_a_child_with_the_right_bit_still_has_no_children() -> None:
    token = child_capability_token(
        SECRET, MAIN, "writer-604", "writer", issued_at=NOW, actions={"create_child"}
    )
    writer = caller(read(token, now=NOW))

    writer.require("create_child")
    with pytest.raises(NotPermitted, match="a writer has no children"):
        writer.require_parent("create_child")


def test_a_main_sends_nothing_to_a_parent() -> None:
    main = caller(read(MAIN_STEERS, now=NOW))

    main.require_parent("create_child")
    with pytest.raises(NotPermitted, match="send_message"):
        main.require("send_message")


def test_a_deputys_child_reports_to_the_deputy() -> None:
    token = child_capability_token(
        SECRET,
        MAIN,
        "issue-7",
        "deputy",
        issued_at=NOW,
        actions={"create_child", "send_message"},
    )
    deputy = caller(read(token, now=NOW))
    deputy.require_parent("create_child")
    below = child_capability_token(SECRET, deputy.subject, "review", "reviewer", issued_at=NOW)
    reviewer = caller(read(below, now=NOW))

    assert reviewer.owner == deputy.subject != deputy.owner == MAIN
    assert reviewer.subject == child_id(deputy.subject, "review")


GOOD = Capability(MAIN, CHILD, "writer-604", "writer", frozenset({"send_message"}), NOW, NOW + HOUR)


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "11111111-1111-4111-8111-11111111111"},
        {"subject": "no uuid"},
        {"subject": 7},
        {"task_key": ""},
        {"task_key": "a\n"},
        {"task_key": "a" * 129},
        {"task_key": "ä"},
        {"role": "boss"},
        {"role": "plan-author"},
        {"actions": frozenset()},
        {"actions": frozenset({"mint"})},
        {"actions": frozenset({"send_message", "mint"})},
        {"expires_at": NOW},
        {"expires_at": NOW - 1},
        {"issued_at": -1},
        {"expires_at": 1 << 32},
        {"issued_at": float(NOW)},
        {"issued_at": True},
    ],
    ids=",".join,
)
def test_nothing_is_minted_that_would_be_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        encode(replace(GOOD, **change), SECRET)


def test_nothing_is_signed_with_an_empty_secret() -> None:
    with pytest.raises(UsageError, match="empty secret"):
        encode(GOOD, b"")
    for secret in ("", "\ud800"):
        with pytest.raises(UsageError):
            main_capability_token(secret, MAIN, issued_at=NOW, expires_at=NOW + 1)


def test_a_child_is_never_a_main() -> None:
    with pytest.raises(UsageError, match="no main"):
        child_capability_token(SECRET, MAIN, "writer-604", "main", issued_at=NOW)


TASKS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", fullmatch=True)
ROLES = ("main", "deputy", "spec", "planner", "writer", "reviewer", "qa", "repair", "waiter")
ACTIONS = ("create_child", "send_message", "cancel_mission", "resume_mission", "complete")


@st.composite
def capabilities(draw: st.DrawFn) -> Capability:
    issued = draw(st.integers(0, (1 << 32) - 2))
    return Capability(
        owner=draw(st.uuids()),
        subject=draw(st.uuids()),
        task_key=draw(TASKS),
        role=cast("Role", draw(st.sampled_from(ROLES))),
        actions=cast(
            "frozenset[Action]", draw(st.frozensets(st.sampled_from(ACTIONS), min_size=1))
        ),
        issued_at=issued,
        expires_at=draw(st.integers(issued + 1, (1 << 32) - 1)),
    )


@given(capabilities(), st.binary(min_size=1))
def test_what_is_written_is_read(capability: Capability, secret: bytes) -> None:
    token = encode(capability, secret)

    assert len(token) <= 279
    assert decode(token, [secret], now=capability.issued_at) == capability
    assert decode(token, [secret], now=capability.expires_at - 1) == capability
    refused(token, secret, now=capability.expires_at)


@pytest.mark.parametrize(("task", "length"), [("a", 109), ("root", 113), ("a" * 128, 279)])
def test_lengths_are_those_of_the_format(task: str, length: int) -> None:
    assert len(encode(replace(GOOD, task_key=task), SECRET)) == length


@given(st.text() | st.text().map("evx1_".__add__) | st.binary(max_size=400).map(spelled))
def test_any_text_is_refused_in_the_same_words(text: str) -> None:
    refused(text)


@given(capabilities(), st.data())
def test_signed_bytes_are_what_their_reading_would_write_or_refused(
    capability: Capability, data: st.DataObject
) -> None:
    payload = bytearray(payload_of(encode(capability, SECRET))[:-32])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    token = signed(bytes(payload))
    now = data.draw(st.sampled_from([capability.issued_at, capability.expires_at - 1]))

    try:
        found = decode(token, [SECRET], now=now)
    except InvalidCapability:
        refused(token, now=now)
    else:
        assert encode(found, SECRET) == token


@given(st.binary(max_size=300), st.integers(0, 1 << 32))
def test_any_signed_bytes_are_refused_in_the_same_words(data: bytes, now: int) -> None:
    refused(signed(data), now=now)
