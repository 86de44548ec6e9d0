"""A keyring and its keys, as values and as bytes.

The algorithm belongs to the key, never to the message: what this version cannot compute is
an unknown key, whatever a message claims. Of a sealed key (ed25519) the keyring holds the public
half, and the private one only under a passphrase; `sealing` does the arithmetic.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from agent_bus.clock import from_text
from agent_bus.errors import IdentityMissing
from agent_bus.names import AgentName, is_agent_name

State = Literal["active", "retired", "revoked"]

HMAC_SHA256 = "hmac-sha256"
ED25519 = "ed25519"
SECRET_BYTES = 32
PUBLIC_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
CIPHERTEXT_BYTES = 48
"""32 bytes of private key, and the tag of AES-GCM."""
_KID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_STATES = ("active", "retired", "revoked")
_REQUIRED = {"kid", "secret", "state", "created_at"}
_OPTIONAL = {"alg", "retired_at"}
_SEALED_REQUIRED = {"kid", "alg", "public", "state", "created_at"}
_SEALED_OPTIONAL = {"sealed", "endorsed_by", "endorsement", "retired_at"}
_BOX = {"kdf", "n", "r", "p", "salt", "nonce", "ciphertext"}
_SIGNATURE = re.compile(r"[0-9a-f]{128}", re.ASCII)

# A keyring must not make its reader use gigabytes, nor be cheap to guess at: 128 * n * r bytes
# lie between 16 and 256 MiB.
SCRYPT_N = tuple(2**power for power in range(14, 19))
SCRYPT_R = 8
SCRYPT_P = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class SealedBox:
    """A private key under a passphrase: scrypt (RFC 7914), then AES-256-GCM."""

    n: int
    p: int
    salt: bytes
    nonce: bytes
    ciphertext: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """One signing key. `secret` is 32 bytes and never shown.

    A sealed key has `public` (32 bytes) instead, and while it signs a `box`. `endorsed_by` is
    the kid of the sealed key before it, and `endorsement` that one's signature (64 bytes).
    """

    kid: str
    secret: bytes = field(repr=False)
    state: State
    created_at: str
    retired_at: str | None = None
    alg: str = HMAC_SHA256
    public: bytes = b""
    box: SealedBox | None = field(default=None, repr=False)
    endorsed_by: str | None = None
    endorsement: bytes = b""

    @property
    def is_sealed(self) -> bool:
        """Whether it signs only where a passphrase was typed."""
        return self.alg == ED25519 and bool(self.public)

    @property
    def is_known(self) -> bool:
        """Whether this version can verify what it signs."""
        return self.alg == HMAC_SHA256 or self.is_sealed

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public half in hex; of a sealed key alone."""
        return hashlib.sha256(self.public).hexdigest() if self.is_sealed else ""


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of one agent, oldest first."""

    agent: AgentName
    keys: tuple[Key, ...]

    def signing_key(self) -> Key:
        """The newest active key. Raises IdentityMissing if every key is retired or revoked.

        Where one of the active keys is sealed, only a sealed one: whoever can write a keyring
        could add a key that needs no passphrase.
        """
        active = [key for key in self.keys if key.state == "active"]
        active = [key for key in active if key.is_sealed] or active
        if not active:
            raise IdentityMissing(
                f"{self.agent} has no active key: unless it was retired on purpose, "
                f"agent-bus keys rotate {self.agent}"
            )
        # Of two that were made in one millisecond the later one in the file.
        return max(reversed(active), key=lambda key: key.created_at)

    @property
    def is_sealed(self) -> bool:
        """Whether the name signs with a sealed key."""
        return any(key.is_sealed and key.state == "active" for key in self.keys)


def dump(ring: Keyring) -> bytes:
    """A keyring as it stands on disk."""
    keys = [_dump_key(key) for key in ring.keys]
    return json.dumps({"agent": ring.agent, "keys": keys}, indent=1).encode() + b"\n"


def _dump_key(key: Key) -> dict[str, object]:
    alg = {"alg": key.alg} if key.alg != HMAC_SHA256 else {}
    state = {"state": key.state, "created_at": key.created_at}
    ended = {"retired_at": key.retired_at} if key.retired_at else {}
    if not key.is_sealed:
        return {"kid": key.kid, "secret": encode_secret(key.secret), **alg, **state, **ended}
    box = {"sealed": _dump_box(key.box)} if key.box else {}
    endorsed = {"endorsed_by": key.endorsed_by, "endorsement": key.endorsement.hex()}
    return {
        "kid": key.kid,
        **alg,
        "public": encode_secret(key.public),
        **box,
        **(endorsed if key.endorsed_by else {}),
        **state,
        **ended,
    }


def _dump_box(box: SealedBox) -> dict[str, object]:
    return {
        "kdf": "scrypt",
        "n": box.n,
        "r": SCRYPT_R,
        "p": box.p,
        "salt": encode_secret(box.salt),
        "nonce": encode_secret(box.nonce),
        "ciphertext": encode_secret(box.ciphertext),
    }


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
    return _decode(text, SECRET_BYTES, "a secret")


def _decode(text: object, length: int, what: str) -> bytes:
    shown = text if isinstance(text, str) else ""
    try:
        found = base64.urlsafe_b64decode(shown + "=" * (-len(shown) % 4))
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != length or encode_secret(found) != text:
        raise ValueError(f"{what} is {length} bytes in base64url without padding")
    return found


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
    if "public" in value or "sealed" in value:
        return _parse_sealed_key(value)
    if not set(value) >= _REQUIRED or not set(value) <= _REQUIRED | _OPTIONAL:
        raise ValueError("a key has kid, secret, state, created_at, and may have alg, retired_at")
    fields = _checked(value)
    return Key(
        kid=fields["kid"],
        secret=decode_secret(fields["secret"]),
        state=cast("State", fields["state"]),
        created_at=fields["created_at"],
        retired_at=fields.get("retired_at"),
        alg=fields.get("alg", HMAC_SHA256),
    )


def _parse_sealed_key(value: dict[str, object]) -> Key:
    names = set(value)
    if not names >= _SEALED_REQUIRED or not names <= _SEALED_REQUIRED | _SEALED_OPTIONAL:
        raise ValueError("a sealed key has kid, alg, public, state, created_at, and no secret")
    box = value.get("sealed")
    fields = _checked({name: entry for name, entry in value.items() if name != "sealed"})
    if fields["alg"] != ED25519:
        raise ValueError(f"a key with a public half is of {ED25519}")
    by, endorsement = fields.get("endorsed_by"), fields.get("endorsement", "")
    if (by is None) != (not endorsement) or not (by is None or is_kid(by)):
        raise ValueError("endorsed_by is a key id, and stands with its endorsement")
    if endorsement and not _SIGNATURE.fullmatch(endorsement):
        raise ValueError("an endorsement has 128 hex digits")
    return Key(
        kid=fields["kid"],
        secret=b"",
        state=cast("State", fields["state"]),
        created_at=fields["created_at"],
        retired_at=fields.get("retired_at"),
        alg=ED25519,
        public=_decode(fields["public"], PUBLIC_BYTES, "a public key"),
        box=None if box is None else _parse_box(json_object(box)),
        endorsed_by=by,
        endorsement=bytes.fromhex(endorsement),
    )


def _parse_box(value: dict[str, object]) -> SealedBox:
    if set(value) != _BOX or value["kdf"] != "scrypt":
        raise ValueError("a sealed key has kdf (scrypt), n, r, p, salt, nonce, ciphertext")
    n, r, p = value["n"], value["r"], value["p"]
    if not (type(n) is type(r) is type(p) is int and n in SCRYPT_N and p in SCRYPT_P):
        raise ValueError(f"scrypt takes n from 2^14 to 2^18 and p from 1 to {SCRYPT_P[-1]} here")
    if r != SCRYPT_R:
        raise ValueError(f"scrypt takes r = {SCRYPT_R} here")
    return SealedBox(
        n=n,
        p=p,
        salt=_decode(value["salt"], SALT_BYTES, "a salt"),
        nonce=_decode(value["nonce"], NONCE_BYTES, "a nonce"),
        ciphertext=_decode(value["ciphertext"], CIPHERTEXT_BYTES, "a sealed private key"),
    )


def _checked(value: dict[str, object]) -> dict[str, str]:
    """What all keys share: text, a key id, a state, times."""
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
    return fields
