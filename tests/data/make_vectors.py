"""Make vectors.json: message files and decisions with what a reader must say of each.

    python make_vectors.py > vectors.json

It knows the format from docs/format.md alone and uses nothing of agent-bus, so that the
product and these cases cannot share a mistake. The same input gives the same bytes. Sealed keys
are computed by `cryptography`, HMACs by the standard library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MESSAGE = b"application/vnd.agent-bus.message+json"
DECISION = b"application/vnd.agent-bus.decision+json"
BUS = "01m8pbay00000000000000000b"
OTHER_BUS = "01m8pbay00000000000000000c"
AT = "2026-12-01T08:30:00.000Z"
NOW = "2026-12-01T09:00:00.000Z"


def key(number: int, state: str = "active", **more: str) -> dict[str, str]:
    secret = hashlib.sha256(b"agent-bus test key %d" % number).digest()
    ended = {} if state == "active" else {"retired_at": AT}
    return {
        "kid": f"{number:016x}",
        "secret": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
        "state": state,
        "created_at": "2026-10-01T00:00:00.000Z",
        **ended,
        **more,
    }


NORTH, NORTH_OLD, NORTH_LEAKED = key(0xA1), key(0xA2, "retired"), key(0xA3, "revoked")
NORTH_SEALED = key(0xA4, alg="ed25519")
SOUTH, CHIEF, STRANGER = key(0xB1), key(0xC1), key(0xD1)
KEYRINGS = [
    {"agent": "north", "keys": [NORTH_OLD, NORTH_LEAKED, NORTH_SEALED, NORTH]},
    {"agent": "south", "keys": [SOUTH]},
    {"agent": "chief", "keys": [CHIEF]},
]


PASSPHRASE = "lighthouse keeper's élan"


def text64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def private(number: int) -> bytes:
    return hashlib.sha256(b"agent-bus test seed %d" % number).digest()


def public(number: int) -> bytes:
    made = Ed25519PrivateKey.from_private_bytes(private(number))
    return made.public_key().public_bytes_raw()


def box(number: int) -> dict[str, Any]:
    """The private half under the passphrase, with the cheapest scrypt that is allowed."""
    salt, nonce = private(number + 1)[:16], private(number + 2)[:12]
    secret = hashlib.scrypt(PASSPHRASE.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
    bound = f"agent-bus/1 sealed key harbour {number:016x} {public(number).hex()}".encode()
    sealed = AESGCM(secret).encrypt(nonce, private(number), bound)
    cost = {"kdf": "scrypt", "n": 2**14, "r": 8, "p": 1}
    parts = {"salt": text64(salt), "nonce": text64(nonce), "ciphertext": text64(sealed)}
    return {**cost, **parts}


def endorsed(number: int, by: int) -> dict[str, str]:
    words = ["agent-bus/1 next key", "harbour", f"{by:016x}", f"{number:016x}"]
    statement = "".join(f"{word}\n" for word in [*words, text64(public(number))])
    signature = Ed25519PrivateKey.from_private_bytes(private(by)).sign(statement.encode())
    return {"endorsed_by": f"{by:016x}", "endorsement": signature.hex()}


def sealed_key(number: int, state: str = "active", **more: Any) -> dict[str, Any]:
    ended = {} if state == "active" else {"retired_at": AT}
    return {
        "kid": f"{number:016x}",
        "alg": "ed25519",
        "public": text64(public(number)),
        "state": state,
        "created_at": "2026-10-01T00:00:00.000Z",
        **ended,
        **more,
    }


HARBOUR_PLAIN = key(0xE0, "retired")
HARBOUR_OLD = sealed_key(0xE1, "retired")
HARBOUR = sealed_key(0xE4, sealed=box(0xE4), **endorsed(0xE4, 0xE1))
# Its endorsement is that of another key.
HARBOUR_FALSE = sealed_key(0xE8, **(endorsed(0xE4, 0xE1)))
KEYRINGS.append({"agent": "harbour", "keys": [HARBOUR_PLAIN, HARBOUR_OLD, HARBOUR_FALSE, HARBOUR]})


def sealed(body: bytes, by: dict[str, Any] = HARBOUR, kind: bytes = MESSAGE) -> bytes:
    signer = Ed25519PrivateKey.from_private_bytes(private(int(by["kid"], 16)))
    return f"agent-bus/1 {by['kid']} {signer.sign(pae(kind, body)).hex()}\n".encode() + body


def pae(kind: bytes, body: bytes) -> bytes:
    words = [b"DSSEv1", str(len(kind)).encode(), kind, str(len(body)).encode(), body]
    return b" ".join(words)


def signed(body: bytes, by: dict[str, str] = NORTH, kind: bytes = MESSAGE) -> bytes:
    secret = base64.urlsafe_b64decode(by["secret"] + "=")
    mac = hmac.new(secret, pae(kind, body), hashlib.sha256).hexdigest()
    return f"agent-bus/1 {by['kid']} {mac}\n".encode() + body


def line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def ident(number: int) -> str:
    return f"01m8p{number:021d}"


def message(number: int, **fields: Any) -> dict[str, Any]:
    start = {"id": ident(number), "bus": BUS, "from": "north", "to": "south", "sent_at": AT}
    return {**start, "kind": "note", "subject": "tide", "body": "high water at nine", **fields}


def text(number: int, old: str, new: str, **fields: Any) -> bytes:
    """A payload that no JSON writer makes: one passage replaced by another."""
    return line(message(number, **fields)).replace(old.encode(), new.encode(), 1)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def good() -> list[tuple[str, str, bytes]]:
    full = message(
        2,
        recipients=["south", "chief"],
        thread=ident(90),
        reply_to=ident(91),
        priority="urgent",
        expires_at="2026-12-01T08:56:00.000Z",
        data={"depth": [1, -2.5, True, None, {"unit": "m"}]},
    )
    return [
        ("plain", "only what every message has", signed(line(message(1)))),
        ("full", "every field; expired, but within the tolerance", signed(line(full))),
        ("scripts", "text beyond ASCII", signed(line(message(3, body="прилив 🌊 مدّ \u2028")))),
        ("escaped", "a writer that escapes all", signed(json.dumps(message(4)).encode() + b"\n")),
        ("spaced", "white space between fields", signed(text(5, '","to"', '" ,\t"to"'))),
        ("retired", "signed before a rotation", signed(line(message(6)), NORTH_OLD)),
        ("deepest", "31 levels in data", signed(line(message(7, data=nested(31))))),
        ("longest", "65536 bytes of body", signed(line(message(8, body="ä" * 32768)))),
        ("harbour", "a sealed key", sealed(line(message(9, **{"from": "harbour"})))),
        (
            "harbour-old",
            "a sealed key before a rotation",
            sealed(line(message(10, **{"from": "harbour"})), HARBOUR_OLD),
        ),
    ]


def of_another_algorithm() -> list[tuple[str, str, str, bytes]]:
    """The algorithm is the key's, whatever the header looks like."""
    body = line(message(36, **{"from": "harbour"}))
    known = {"kid": HARBOUR["kid"], "secret": HARBOUR["public"]}
    mac = signed(body, known)
    plain = line(message(37))
    head, _, rest = signed(plain).partition(b"\n")
    return [
        ("short", "the public half as the secret of an HMAC", "bad-signature", mac),
        ("twice-as-long", "an HMAC twice", "bad-signature", head + head[-64:] + b"\n" + rest),
        ("one-bit", "a sealed key, one bit", "bad-signature", flipped(sealed(body), -4)),
        ("other-type", "a sealed decision", "bad-signature", sealed(body, kind=DECISION)),
        ("lent", "sealed by another", "wrong-sender", sealed(line(message(38)))),
    ]


def bad() -> list[tuple[str, str, str, bytes]]:
    plain = signed(line(message(20)))
    return [
        *of_another_algorithm(),
        ("no-file", "an empty file", "malformed", b""),
        ("no-header", "the payload alone", "malformed", line(message(21))),
        ("next-version", "a later format", "malformed", plain.replace(b"bus/1", b"bus/2", 1)),
        ("two-spaces", "a header of another form", "malformed", plain.replace(b"1 0", b"1  0", 1)),
        ("leaked", "a revoked key", "revoked-key", signed(line(message(22)), NORTH_LEAKED)),
        ("later", "a key of a later kind", "unknown-key", signed(line(message(23)), NORTH_SEALED)),
        ("stranger", "a key of nobody", "unknown-key", signed(line(message(24)), STRANGER)),
        ("flipped", "one bit", "bad-signature", flipped(plain, len(plain) - 4)),
        ("cut", "without its end", "bad-signature", plain[:-9]),
        ("decision", "another type", "bad-signature", signed(line(message(25)), kind=DECISION)),
        ("not-json", "signed prose", "malformed", signed(b"high water\n")),
        ("list", "signed, but no object", "malformed", signed(b"[]\n")),
        ("twice", "a field twice", "malformed", signed(text(26, '"kind"', '"body":"","kind"'))),
        ("deeper", "33 levels", "malformed", signed(line(message(27, data=nested(32))))),
        ("huge", "no double", "malformed", signed(text(28, '"n":1', '"n":1e400', data={"n": 1}))),
        ("more", "a field too many", "malformed", signed(line(message(29, colour="red")))),
        ("long", "65537 bytes of body", "malformed", signed(line(message(30, body="a" * 65537)))),
        ("borrowed", "signed by another", "wrong-sender", signed(line(message(31)), SOUTH)),
        ("stray", "for another box", "wrong-recipient", signed(line(message(32, to="chief")))),
        ("abroad", "of another bus", "wrong-bus", signed(line(message(33, bus=OTHER_BUS)))),
        (
            "late",
            "over",
            "expired",
            signed(line(message(34, expires_at="2026-12-01T08:54:59.999Z"))),
        ),
    ]


def cases() -> list[dict[str, str]]:
    rows = [(name, why, "ok", data) for name, why, data in good()] + bad()
    found = []
    for name, why, expect, data in rows:
        try:
            filed = json.loads(data.partition(b"\n")[2] or b"{}")["id"]
        except (ValueError, KeyError, TypeError):
            filed = ident(20)
        found.append(case(name, why, expect, data, filed))
    found.append(case("renamed", "under another id", "misfiled", good()[0][2], ident(99)))
    return found


def case(name: str, why: str, expect: str, data: bytes, filed: str) -> dict[str, str]:
    packed = base64.b64encode(data).decode()
    return {
        "name": name,
        "why": why,
        "box": "south",
        "file_id": filed,
        "expect": expect,
        "file_b64": packed,
    }


def decisions(request: bytes) -> list[dict[str, str]]:
    digest = hashlib.sha256(request.partition(b"\n")[2]).hexdigest()
    good = {
        "request": ident(80),
        "request_sha256": digest,
        "bus": BUS,
        "decision": "sail",
        "by": "chief",
        "decided_at": AT,
    }

    def by_harbour(**fields: str) -> bytes:
        return line({**good, "by": "harbour", **fields})

    def made(signer: dict[str, str] = CHIEF, kind: bytes = DECISION, **fields: str) -> bytes:
        return signed(line({**good, **fields}), signer, kind)

    rows = [
        ("first", "valid", made(reason="fair wind")),
        ("by-south", "invalid", made(SOUTH, by="south")),
        ("for-chief", "invalid", made(SOUTH)),
        ("own", "invalid", made(NORTH, by="north")),
        ("withdrawn", "valid", made(NORTH, by="north", decision="withdraw")),
        ("other-words", "invalid", made(request_sha256="0" * 64)),
        ("no-option", "invalid", made(decision="swim")),
        ("too-late", "invalid", made(decided_at="2026-12-02T00:00:00.001Z")),
        ("as-message", "invalid", made(kind=MESSAGE)),
        ("extra", "invalid", made(colour="red")),
        ("sealed", "valid", sealed(by_harbour(), kind=DECISION)),
        ("sealed-as-message", "invalid", sealed(by_harbour())),
        ("sealed-for-chief", "invalid", sealed(by_harbour(by="chief"), kind=DECISION)),
        (
            "public-as-secret",
            "invalid",
            signed(by_harbour(), {"kid": HARBOUR["kid"], "secret": HARBOUR["public"]}, DECISION),
        ),
    ]
    return [
        {"name": name, "expect": expect, "file_b64": base64.b64encode(data).decode()}
        for name, expect, data in rows
    ]


def main() -> None:
    request = signed(
        line(
            message(
                80,
                to="chief",
                kind="approval_request",
                expires_at="2026-12-02T00:00:00.000Z",
                data={"options": ["sail", "wait"]},
            )
        )
    )
    vectors = {
        "bus": BUS,
        "admins": ["chief", "harbour"],
        "now": NOW,
        "keyrings": KEYRINGS,
        "passphrase": PASSPHRASE,
        "private": {HARBOUR["kid"]: text64(private(0xE4))},
        "chain": {
            "agent": "harbour",
            "fingerprints": [hashlib.sha256(public(0xE1)).hexdigest()],
            "kids": [HARBOUR_OLD["kid"], HARBOUR["kid"]],
        },
        "cases": cases(),
        "request": {"file_b64": base64.b64encode(request).decode()},
        "decisions": decisions(request),
    }
    sys.stdout.write(json.dumps(vectors, indent=1) + "\n")


main()
