"""Message <-> signed bytes. The one place that signs, verifies and parses.

A file is a header line and the payload's exact bytes:

    agent-bus/1 <kid: 16 hex> <signature: 64 or 128 hex> LF
    {"id":"01k…","bus":"01k…","from":"backend-orch","to":"conductor",…} LF

The signature is HMAC-SHA256 (64 hex) or, of a sealed key, Ed25519 (128 hex) over PAE(type,
payload bytes), the pre-authentication encoding of DSSE v1. It covers the raw bytes and is
checked before anything is parsed, so that no byte of a payload is looked at that its sender
did not write, and nothing is ever re-serialised to verify it. `judge` applies the rules in a
fixed order and gives the first one that fails (docs/format.md).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agent_bus.clock import from_text
from agent_bus.errors import InvalidMessage, NotPermitted
from agent_bus.keyring import Key
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Decision, Message, parse_decision, parse_message
from agent_bus.sealing import Opened, Signer, verify

MESSAGE_TYPE = b"application/vnd.agent-bus.message+json"
DECISION_TYPE = b"application/vnd.agent-bus.decision+json"

FILE_LIMIT = 512 * 1024
CLOCK_TOLERANCE = 5 * 60 * 1000
"""Milliseconds by which the reader's clock may differ before a message has expired."""

Outcome = Literal[
    "ok",
    "malformed",
    "revoked-key",
    "unknown-key",
    "bad-signature",
    "wrong-sender",
    "wrong-recipient",
    "misfiled",
    "wrong-bus",
    "replayed",
    "expired",
]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_HEADER = re.compile(rb"agent-bus/1 ([0-9a-f]{16}) ([0-9a-f]{64}|[0-9a-f]{128})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a message file turned out to be.

    `message` is there only for `ok` and `expired`; `raw` are the stored bytes, which nobody
    vouches for otherwise.
    """

    outcome: Outcome
    detail: str = ""
    message: Message | None = None
    raw: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        """Whether it may be shown as a message that is offered now."""
        return self.outcome == "ok"

    @property
    def sha256(self) -> str:
        """The hash of the payload's bytes, which a decision binds."""
        return hashlib.sha256(self.raw.partition(b"\n")[2]).hexdigest()


def pae(payload_type: bytes, payload: bytes) -> bytes:
    """DSSE v1 pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type, len(payload), payload)


def encode_message(message: Message, key: Signer) -> bytes:
    """The signed file of a message. Raises InvalidMessage if a reader would refuse it."""
    data = sign_message(message, key)
    try:
        parse_message(data.partition(b"\n")[2])
    except ValueError as error:
        raise InvalidMessage(str(error)) from None
    return data


def sign_message(message: Message, key: Signer) -> bytes:
    """The signed file of a message, whose rules are still to be checked: `judge` does.

    Raises InvalidMessage for what no file can hold.
    """
    return _sign(message.payload(), MESSAGE_TYPE, key)


def encode_decision(decision: Decision, key: Signer) -> bytes:
    """The signed file of a decision."""
    return _sign(decision.payload(), DECISION_TYPE, key)


def judge(
    data: bytes,
    *,
    keys: KeyIndex,
    bus: MessageId,
    box: AgentName | None,
    ident: MessageId | None,
    now: int,
    pruned: Callable[[MessageId], bool] = lambda _: False,
) -> Judged:
    """Apply every rule to a message file that stands under `ident` in `box`.

    None for either leaves its rule out: a link outside the boxes has another name. `now` is
    in milliseconds since 1970. Never raises for anything that a file can hold.
    """
    opened = _verify(data, MESSAGE_TYPE, keys)
    if isinstance(opened, Judged):
        return opened
    owner, payload = opened
    try:
        message = parse_message(payload)
    except ValueError as error:
        return Judged("malformed", str(error), raw=data)
    misplaced = _misplaced(message, owner, bus, box, ident)
    if misplaced:
        return replace(misplaced, raw=data)
    if pruned(message.id):
        return Judged("replayed", "this message was removed before; this is a copy", raw=data)
    if has_expired(message, now):
        return Judged("expired", f"expired at {message.expires_at}", message, data)
    return Judged("ok", "", message, data)


def has_expired(message: Message, now: int) -> bool:
    """Whether a message is not offered any more; `now` is in milliseconds since 1970."""
    expires = message.expires_at
    return expires is not None and now > from_text(expires) + CLOCK_TOLERANCE


def open_decision(data: bytes, keys: KeyIndex) -> tuple[AgentName, Decision]:
    """Verify and parse a decision file: whose key signed it, and what it says.

    Raises ValueError. Whether it counts is for `approvals` to say.
    """
    owner, payload = open_signed(data, DECISION_TYPE, keys)
    return owner, parse_decision(payload)


def open_signed(data: bytes, payload_type: bytes, keys: KeyIndex) -> tuple[AgentName, bytes]:
    """Whose key signed a file of this type, and its payload. Raises ValueError."""
    opened = _verify(data, payload_type, keys)
    if isinstance(opened, Judged):
        raise ValueError(f"{opened.outcome}: {opened.detail}")
    return opened


def kid_of(data: bytes) -> str | None:
    """The key id in the header of a file, which proves nothing by itself."""
    found = _HEADER.fullmatch(data.partition(b"\n")[0])
    return found[1].decode() if found else None


def sign_payload(payload: Mapping[str, Any], payload_type: bytes, key: Signer) -> bytes:
    """The signed file of a JSON object, of any size. Raises InvalidMessage."""
    try:
        data = _ENCODER.encode(payload).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidMessage(f"this cannot be written as JSON in UTF-8: {error}") from None
    signature = _signature(key, pae(payload_type, data))
    return b"agent-bus/1 %b %b\n%b" % (key.kid.encode(), signature.encode(), data)


def _sign(payload: Mapping[str, Any], payload_type: bytes, key: Signer) -> bytes:
    signed = sign_payload(payload, payload_type, key)
    if len(signed) > FILE_LIMIT:
        raise InvalidMessage(f"the file would have {len(signed)} bytes, more than {FILE_LIMIT}")
    return signed


def _signature(key: Signer, data: bytes) -> str:
    if isinstance(key, Opened):
        return key.sign(data).hex()
    if key.is_sealed:
        raise NotPermitted(f"key {key.kid} is sealed: it signs only where it was opened")
    return hmac.digest(key.secret, data, "sha256").hex()


def _holds(key: Key, signature: bytes, data: bytes) -> bool:
    """Whether a signature in hex is that of a key. The key says by which algorithm."""
    if key.is_sealed:
        # 64 hex digits are no signature of this kind, and never tried as another.
        whole = bytes.fromhex(signature.decode())
        return len(whole) == 64 and verify(key.public, whole, data)
    return hmac.compare_digest(_signature(key, data).encode(), signature)


def _known(kid: str, keys: KeyIndex, data: bytes) -> tuple[AgentName, Key] | Judged:
    """The key of this id and whose it is, if it counts on this bus."""
    owner, key = keys.owners.get(kid, (None, None))
    if owner is None or key is None or not (key.is_known or key.state == "revoked"):
        why = "; ".join((f"no keyring holds key {kid}", *keys.problems))
        return Judged("unknown-key", why, raw=data)
    if key.state == "revoked":
        return Judged("revoked-key", f"key {kid} of {owner} was revoked", raw=data)
    pinned = keys.pinned.get(owner)
    if pinned is not None and kid not in pinned.kids and not pinned.kept(data):
        why = f"{owner} is sealed on this bus, and its key {kid} does not count here"
        return Judged("unknown-key", why, raw=data)
    return owner, key


def _verify(data: bytes, payload_type: bytes, keys: KeyIndex) -> tuple[AgentName, bytes] | Judged:
    if len(data) > FILE_LIMIT and payload_type in (MESSAGE_TYPE, DECISION_TYPE):
        return Judged("malformed", f"has more than {FILE_LIMIT} bytes", raw=data)
    header, _, payload = data.partition(b"\n")
    found = _HEADER.fullmatch(header)
    if found is None:
        return Judged("malformed", "the first line is no header of agent-bus/1", raw=data)
    kid = found[1].decode()
    known = _known(kid, keys, data)
    if isinstance(known, Judged):
        return known
    owner, key = known
    if not _holds(key, found[2], pae(payload_type, payload)):
        return Judged("bad-signature", f"the bytes are not those that key {kid} signed", raw=data)
    return owner, payload


def _misplaced(
    message: Message,
    owner: AgentName,
    bus: MessageId,
    box: AgentName | None,
    ident: MessageId | None,
) -> Judged | None:
    if message.sender != owner:
        return Judged("wrong-sender", f"from {message.sender}, but signed by {owner}")
    if box is not None and message.to != box:
        return Judged("wrong-recipient", f"addressed to {message.to}, lying in the box of {box}")
    if ident is not None and message.id != ident:
        return Judged("misfiled", f"its id is {message.id}")
    if message.bus != bus:
        return Judged("wrong-bus", f"a message of bus {message.bus}")
    return None
