"""Sealed keys: sealing, opening, endorsing, and what a keyring may hold of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent_bus import sealing
from agent_bus.envelope import encode_message, judge
from agent_bus.errors import Conflict, IdentityMissing, NotPermitted, UsageError
from agent_bus.keyring import Keyring, dump, parse_keyring
from agent_bus.keys import KeyIndex, Keys
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Message
from agent_bus.sealing import Keychain, Opened
from agent_bus.testing import ManualClock

ALICE, BOB = AgentName("alice"), AgentName("bob")
AT = "2026-11-30T12:00:00.000Z"
WORDS = "correct horse battery staple"
KEY, OPENED = sealing.make(ALICE, "ab" * 8, AT, WORDS, 2**14)
NEXT, OPENED_NEXT = sealing.make(ALICE, "cd" * 8, AT, WORDS, 2**14)


def test_the_arithmetic_is_that_of_rfc_8032() -> None:
    """Its test 2 (section 7.1)."""
    private = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert Opened("0" * 16, private).sign(b"\x72") == signature
    assert sealing.verify(public, signature, b"\x72")
    assert not sealing.verify(public, signature, b"\x73")
    assert not sealing.verify(b"\xff" * 32, signature, b"\x72")
    assert not sealing.verify(public, signature[:32], b"\x72")


def test_a_sealed_key_survives_being_written_and_opens() -> None:
    ring = Keyring(ALICE, (KEY, sealing.endorse(ALICE, NEXT, OPENED)))
    again = parse_keyring(dump(ring))
    assert again == ring
    assert sealing.open_key(ALICE, again.keys[0], WORDS) == OPENED
    assert sealing.is_endorsed(ALICE, again.keys[1], again.keys[0])
    assert OPENED.private not in dump(ring)
    assert "private" not in repr(OPENED)
    assert "ciphertext" not in repr(KEY)


def test_each_making_differs() -> None:
    again, _ = sealing.make(ALICE, KEY.kid, AT, WORDS, 2**14)
    assert again.box is not None
    assert KEY.box is not None
    assert (again.public, again.box.salt) != (KEY.public, KEY.box.salt)


@pytest.mark.parametrize("change", ["agent", "kid", "public", "box", "n"])
def test_a_private_half_opens_only_in_its_own_entry(change: str) -> None:
    agent = BOB if change == "agent" else ALICE
    assert KEY.box is not None
    moved = {
        "agent": KEY,
        "kid": replace(KEY, kid="ef" * 8),
        "public": replace(KEY, public=NEXT.public),
        "box": replace(KEY, box=NEXT.box),
        "n": replace(KEY, box=replace(KEY.box, n=2**15)),
    }[change]
    with pytest.raises(NotPermitted, match="not the passphrase"):
        sealing.open_key(agent, moved, WORDS)


def test_an_endorsement_is_for_one_key_of_one_name() -> None:
    endorsed = sealing.endorse(ALICE, NEXT, OPENED)
    assert not sealing.is_endorsed(BOB, endorsed, KEY)
    assert not sealing.is_endorsed(ALICE, replace(endorsed, public=KEY.public), KEY)
    assert not sealing.is_endorsed(ALICE, replace(endorsed, kid="ef" * 8), KEY)
    assert not sealing.is_endorsed(ALICE, endorsed, replace(KEY, kid="ef" * 8))
    assert not sealing.is_endorsed(ALICE, endorsed, replace(KEY, public=NEXT.public))
    assert not sealing.is_endorsed(ALICE, NEXT, KEY)


@pytest.mark.parametrize("words", ["", "x" * 11, "x" * 1025, "\ud800" * 20])
def test_an_unfit_passphrase_is_refused_without_being_repeated(words: str) -> None:
    with pytest.raises(UsageError) as caught:
        sealing.make(ALICE, "ab" * 8, AT, words, 2**14)
    assert not words or words not in str(caught.value)


# -- what a keyring may hold


def changed(part: str | None = None, /, **fields: object) -> bytes:
    value: dict[str, Any] = json.loads(dump(Keyring(ALICE, (KEY,))))
    target = value["keys"][0] if part is None else value["keys"][0][part]
    for name, entry in fields.items():
        if entry is None:
            target.pop(name)
        else:
            target[name] = entry
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        changed(public="short"),
        changed(public=None),
        changed(alg="hmac-sha256"),
        changed(alg="rot13"),
        changed(alg=None),
        changed(secret="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"),
        changed(sealed="x"),
        changed(sealed=[]),
        changed(endorsed_by="ab" * 8),
        changed(endorsement="0" * 128),
        changed(endorsed_by="ab" * 8, endorsement="0" * 127),
        changed(endorsed_by="x", endorsement="0" * 128),
        changed("sealed", kdf="argon2id"),
        changed("sealed", n=2**13),
        changed("sealed", n=2**19),
        changed("sealed", n=2**40),
        changed("sealed", n=2**17 - 1),
        changed("sealed", n=float(2**17)),
        changed("sealed", n=True),
        changed("sealed", r=9),
        changed("sealed", r=2**30),
        changed("sealed", p=0),
        changed("sealed", p=5),
        changed("sealed", p=True),
        changed("sealed", salt="AAAA"),
        changed("sealed", nonce="AAAA"),
        changed("sealed", ciphertext="AAAA"),
        changed("sealed", ciphertext=None),
        changed("sealed", more=1),
    ],
)
def test_what_is_no_sealed_key_is_refused_before_anything_is_computed(data: bytes) -> None:
    """Above all a cost that would take gigabytes."""
    with pytest.raises(ValueError):
        parse_keyring(data)


def test_the_dearest_cost_that_is_read_takes_a_quarter_of_a_gigabyte() -> None:
    ring = parse_keyring(changed("sealed", n=2**18))
    assert ring.keys[0].box is not None
    assert 128 * ring.keys[0].box.n * 8 == 256 << 20
    assert 128 * sealing.COST * 8 == 128 << 20


# -- in the folder of keyrings


@pytest.fixture
def keys(tmp_path: Any, clock: ManualClock) -> Keys:
    return Keys(tmp_path / "keys", clock)


def test_sealing_retires_the_keys_that_need_no_passphrase(keys: Keys) -> None:
    old = keys.generate(ALICE)
    made = keys.seal(ALICE, WORDS, 2**14)
    first, second = keys.load(ALICE).keys
    assert (first.kid, first.state, second) == (old.kid, "retired", made)
    assert keys.load(ALICE).signing_key() == made
    assert [line.event for line in keys.rotations()] == ["added", "added", "retired"]
    assert isinstance(keys.signer(ALICE), Opened)
    for make in (lambda: keys.seal(ALICE, WORDS, 2**14), lambda: keys.generate(ALICE)):
        with pytest.raises(Conflict):
            make()
    with pytest.raises(NotPermitted):
        keys.rotate(ALICE)
    keys.lock(ALICE)
    with pytest.raises(NotPermitted, match="alice is sealed: decide in agent-bus approvals"):
        keys.signer(ALICE)


def test_a_newer_key_without_a_seal_signs_nothing(keys: Keys) -> None:
    sealed = keys.seal(ALICE, WORDS, 2**14)
    plain = replace(keys.generate(BOB), created_at="2030-01-01T00:00:00.000Z")
    ring = Keyring(ALICE, (sealed, plain))
    assert ring.signing_key() == sealed


def test_a_sealed_name_can_be_revoked_and_retired_without_a_passphrase(keys: Keys) -> None:
    key = keys.seal(ALICE, WORDS, 2**14)
    assert keys.revoke(ALICE, key.kid).box is None
    with pytest.raises(IdentityMissing):
        keys.signer(ALICE)
    again = keys.seal(ALICE, WORDS, 2**14)
    assert again.endorsed_by is None
    keys.retire_agent(ALICE)
    assert not keys.load(ALICE).is_sealed


# -- in memory


def test_an_opened_key_is_forgotten_after_the_last_use_whichever_clock_says_so() -> None:
    clock = ManualClock()
    chain = Keychain(clock)
    chain.keep(ALICE, OPENED)
    clock.advance(sealing.FORGET_AFTER - 1)
    assert chain.get(ALICE, OPENED.kid) == OPENED
    clock.advance(sealing.FORGET_AFTER - 1)
    assert chain.has(ALICE, OPENED.kid)
    clock.jump(1)
    assert not chain.has(ALICE, OPENED.kid)
    assert chain.get(ALICE, OPENED.kid) is None
    clock.jump(-3600)
    assert chain.get(ALICE, OPENED.kid) is None


def test_an_opened_key_is_of_one_name_and_one_key() -> None:
    chain = Keychain(ManualClock())
    chain.keep(ALICE, OPENED)
    assert chain.get(BOB, OPENED.kid) is None
    assert chain.has(ALICE, OPENED.kid)
    assert chain.get(ALICE, OPENED_NEXT.kid) is None
    chain.forget(ALICE)
    assert chain.get(ALICE, OPENED.kid) is None


# -- in the envelope


def test_the_algorithm_is_that_of_the_key() -> None:
    ids = (MessageId(f"01kbb{number:021}") for number in (1, 2))
    message = Message(*ids, ALICE, BOB, AT, body="x")
    index = KeyIndex({KEY.kid: (ALICE, KEY)})

    def look(data: bytes) -> str:
        return judge(
            data, keys=index, bus=message.bus, box=BOB, ident=message.id, now=1_796_000_000_000
        ).outcome

    good = encode_message(message, OPENED)
    assert look(good) == "ok"
    mac = encode_message(message, replace(KEY, alg="hmac-sha256", secret=KEY.public))
    assert look(mac) == "bad-signature"
    for at in (30, 120, len(good) - 5):
        assert look(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]) != "ok"
    with pytest.raises(NotPermitted):
        encode_message(message, KEY)
    unknown = replace(KEY, alg="rot13")
    index.owners[KEY.kid] = (ALICE, unknown)
    assert look(good) == "unknown-key"
