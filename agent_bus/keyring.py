"""A keyring and its keys, as values and as bytes.

The algorithm belongs to the key, never to the message: what this version cannot compute is
an unknown key, whatever a message claims.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from agent_bus.clock import from_text
from agent_bus.errors import IdentityMissing
from agent_bus.names import AgentName, is_agent_name

State = Literal["active", "retired", "revoked"]

HMAC_SHA256 = "hmac-sha256"
SECRET_BYTES = 32
_KID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_STATES = ("active", "retired", "revoked")
_REQUIRED = {"kid", "secret", "state", "created_at"}
_OPTIONAL = {"alg", "retired_at"}


@dataclass(frozen=True, slots=True)
class Key:
    """One signing key. `secret` is 32 bytes and never shown."""

    kid: str
    secret: bytes = field(repr=False)
    state: State
    created_at: str
    retired_at: str | None = None
    alg: str = HMAC_SHA256


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of one agent, oldest first."""

    agent: AgentName
    keys: tuple[Key, ...]

    def signing_key(self) -> Key:
        """The newest active key. Raises IdentityMissing if every key is retired or revoked."""
        active = [key for key in self.keys if key.state == "active"]
        if not active:
            raise IdentityMissing(
                f"{self.agent} has no active key: agent-bus keys rotate {self.agent}"
            )
        # Of two that were made in one millisecond the later one in the file.
        return max(reversed(active), key=lambda key: key.created_at)


def dump(ring: Keyring) -> bytes:
    """A keyring as it stands on disk."""
    keys = [
        {
            "kid": key.kid,
            "secret": encode_secret(key.secret),
            **({"alg": key.alg} if key.alg != HMAC_SHA256 else {}),
            "state": key.state,
            "created_at": key.created_at,
            **({"retired_at": key.retired_at} if key.retired_at else {}),
        }
        for key in ring.keys
    ]
    return json.dumps({"agent": ring.agent, "keys": keys}, indent=1).encode() + b"\n"


def parse_keyring(data: bytes) -> Keyring:
    """Read a keyring. Raises ValueError saying what is wrong, never showing a secret."""
    value = json_object(json.loads(data))
    if set(value) != {"agent", "keys"} or not is_agent_name(value["agent"]):
        raise ValueError("no keyring: it has an agent and its keys, and nothing else")
    if not isinstance(value["keys"], list):
        raise ValueError("keys is no list")
    keys = tuple(_parse_key(json_object(entry)) for entry in value["keys"])
    if len({key.kid for key in keys}) != len(keys):
        raise ValueError("two keys share one id")
    return Keyring(AgentName(str(value["agent"])), keys)


def encode_secret(secret: bytes) -> str:
    """base64url without padding (RFC 4648, section 5)."""
    return base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


def decode_secret(text: str) -> bytes:
    """32 bytes from base64url without padding, in its one canonical spelling.

    Raises ValueError.
    """
    try:
        secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != SECRET_BYTES or encode_secret(secret) != text:
        raise ValueError(f"a secret is {SECRET_BYTES} bytes in base64url without padding")
    return secret


def import_secret(data: bytes) -> bytes:
    """32 bytes from a key file of another tool: 64 hex digits, or base64url.

    One line end after them is allowed, since editors add it. Anything else is refused,
    never trimmed: a key that is read in two ways makes two signatures. Raises ValueError.
    """
    text = data.removesuffix(b"\n").removesuffix(b"\r").decode("ascii", "replace")
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    try:
        return decode_secret(text)
    except ValueError:
        raise ValueError(
            "no key: want 64 hex digits or 43 characters of base64url on one line, or a keyring"
        ) from None


def is_kid(text: object) -> bool:
    """Whether text is a key id: 16 hex digits."""
    return isinstance(text, str) and _KID.fullmatch(text) is not None


def json_object(value: Any) -> dict[str, object]:
    """The value, if it is a JSON object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _parse_key(value: dict[str, object]) -> Key:
    if not set(value) >= _REQUIRED or not set(value) <= _REQUIRED | _OPTIONAL:
        raise ValueError("a key has kid, secret, state, created_at, and may have alg, retired_at")
    if not all(isinstance(entry, str) for entry in value.values()):
        raise ValueError("every field of a key is text")
    fields = cast("dict[str, str]", value)
    if not is_kid(fields["kid"]):
        raise ValueError("a key id has 16 hex digits")
    if fields["state"] not in _STATES:
        raise ValueError(f"a key is {', '.join(_STATES)}")
    for name in ("created_at", "retired_at"):
        if name in fields:
            from_text(fields[name])
    return Key(
        kid=fields["kid"],
        secret=decode_secret(fields["secret"]),
        state=cast("State", fields["state"]),
        created_at=fields["created_at"],
        retired_at=fields.get("retired_at"),
        alg=fields.get("alg", HMAC_SHA256),
    )
