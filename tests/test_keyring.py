"""Keyrings as values and as bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_bus.errors import IdentityMissing
from agent_bus.keyring import (
    Key,
    Keyring,
    decode_secret,
    dump,
    encode_secret,
    import_secret,
    parse_keyring,
)
from agent_bus.names import AgentName

AT = "2026-11-30T12:00:00.000Z"
KEY = Key("0123456789abcdef", bytes(range(32)), "active", AT)
OLD = replace(KEY, kid="fedcba9876543210", state="retired", retired_at=AT)
RING = Keyring(AgentName("alice"), (OLD, KEY))


def changed(**fields: object) -> bytes:
    value: dict[str, Any] = json.loads(dump(RING))
    for name, entry in fields.items():
        if entry is None:
            value["keys"][1].pop(name)
        else:
            value["keys"][1][name] = entry
    return json.dumps(value).encode()


def test_a_keyring_survives_being_written() -> None:
    assert parse_keyring(dump(RING)) == RING
    sealed = Keyring(RING.agent, (replace(KEY, alg="ed25519"),))
    assert parse_keyring(dump(sealed)) == sealed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"agent":"Alice","keys":[]}',
        b'{"agent":"alice","keys":{}}',
        b'{"agent":"alice","keys":[7]}',
        b'{"agent":"alice","keys":[],"more":1}',
        changed(kid="0123"),
        changed(kid="FEDCBA9876543210"),
        changed(kid=OLD.kid),
        changed(secret="short"),
        changed(secret=encode_secret(KEY.secret) + "="),
        changed(secret=7),
        changed(secret=None),
        changed(state="sleeping"),
        changed(created_at="today"),
        changed(retired_at="today"),
        changed(extra="x"),
        b"[" * 100_000,
    ],
)
def test_what_is_no_keyring_is_refused_without_showing_a_secret(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        parse_keyring(data)
    assert encode_secret(KEY.secret) not in str(caught.value)


def test_a_secret_is_never_shown() -> None:
    assert "secret" not in repr(RING)
    assert encode_secret(KEY.secret) not in repr(RING)


def test_the_newest_active_key_signs() -> None:
    newer = replace(KEY, kid="00000000000000aa", created_at="2026-12-01T00:00:00.000Z")
    newest = replace(newer, kid="00000000000000bb", state="revoked")

    assert Keyring(RING.agent, (newer, KEY, newest)).signing_key() == newer


def test_of_two_keys_of_one_millisecond_the_later_one_signs() -> None:
    later = replace(KEY, kid="00000000000000aa")

    assert Keyring(RING.agent, (KEY, later)).signing_key() == later


def test_without_an_active_key_nobody_signs() -> None:
    with pytest.raises(IdentityMissing, match="agent-bus keys rotate alice"):
        Keyring(RING.agent, (OLD,)).signing_key()


@given(st.binary(min_size=32, max_size=32))
def test_a_secret_has_one_spelling(secret: bytes) -> None:
    text = encode_secret(secret)

    assert decode_secret(text) == secret
    assert "=" not in text


@pytest.mark.parametrize("text", ["", "a", "A" * 42, "A" * 42 + "B", "A" * 44, "A" * 42 + "+"])
def test_another_spelling_of_a_secret_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_secret(text)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_secret_of_another_tool_is_hex_or_base64(end: bytes) -> None:
    assert import_secret(KEY.secret.hex().encode() + end) == KEY.secret
    assert import_secret(KEY.secret.hex().upper().encode() + end) == KEY.secret
    assert import_secret(encode_secret(KEY.secret).encode() + end) == KEY.secret


@pytest.mark.parametrize(
    "data", [b"", b"\n", bytes(32), b" " + b"a" * 64, b"a" * 63, b"a" * 64 + b"\n\n", b"\xff" * 64]
)
def test_a_secret_that_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no key"):
        import_secret(data)
