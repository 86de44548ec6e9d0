"""Make vectors.json: message files and decisions with what a reader must say of each.

    python make_vectors.py > vectors.json

It knows the format from docs/format.md alone and uses nothing of agent-bus, so that the
product and these cases cannot share a mistake. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from typing import Any

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
    ]


def bad() -> list[tuple[str, str, str, bytes]]:
    plain = signed(line(message(20)))
    return [
        ("no-file", "an empty file", "malformed", b""),
        ("no-header", "the payload alone", "malformed", line(message(21))),
        ("next-version", "a later format", "malformed", plain.replace(b"bus/1", b"bus/2", 1)),
        ("two-spaces", "a header of another form", "malformed", plain.replace(b"1 0", b"1  0", 1)),
        ("leaked", "a revoked key", "revoked-key", signed(line(message(22)), NORTH_LEAKED)),
        ("sealed", "a key of a later kind", "unknown-key", signed(line(message(23)), NORTH_SEALED)),
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
        "admins": ["chief"],
        "now": NOW,
        "keyrings": KEYRINGS,
        "cases": cases(),
        "request": {"file_b64": base64.b64encode(request).decode()},
        "decisions": decisions(request),
    }
    sys.stdout.write(json.dumps(vectors, indent=1) + "\n")


main()
