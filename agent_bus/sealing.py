"""Sealed keys: Ed25519 (RFC 8032), the private half under a passphrase.

Verifying needs the public half alone. The private one is opened by the process in which
somebody typed the passphrase, stays in that process's memory, and is forgotten after a while;
it is never written. `cryptography` is loaded only where a sealed key verifies or signs.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import unicodedata
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from agent_bus.clock import Clock
from agent_bus.errors import NotPermitted, UsageError
from agent_bus.keyring import (
    ED25519,
    NONCE_BYTES,
    SALT_BYTES,
    SCRYPT_R,
    Key,
    SealedBox,
    encode_secret,
)
from agent_bus.names import AgentName

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

COST = 2**17
"""scrypt's n: 128 MiB and about half a second for each guess."""
SHORTEST = 12
"""Characters of a passphrase: whoever can read the keyring may guess at it for years."""
LONGEST = 1024
FORGET_AFTER = 15 * 60
"""Seconds without a signature after which an opened key is forgotten."""

_SEAL = b"agent-bus/1 sealed key"
_ENDORSEMENT = b"agent-bus/1 next key"
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class Opened:
    """A sealed key whose private half this process holds."""

    kid: str
    private: bytes = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """64 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).sign(data)


Signer = Key | Opened
"""What a message can be signed with: a key with a secret, or an opened one."""


def make(
    agent: AgentName, kid: str, created_at: str, passphrase: str, cost: int = COST
) -> tuple[Key, Opened]:
    """A new sealed key, and the same opened. Raises UsageError for an unfit passphrase."""
    check_passphrase(passphrase)
    private = secrets.token_bytes(32)
    key = Key(kid, b"", "active", created_at, alg=ED25519, public=_public(private))
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    box = SealedBox(cost, 1, salt, nonce, b"")
    sealed = _cipher(box, passphrase).encrypt(nonce, private, _bound(agent, key))
    return replace(key, box=replace(box, ciphertext=sealed)), Opened(kid, private)


def open_key(agent: AgentName, key: Key, passphrase: str) -> Opened:
    """Open a sealed key. Raises NotPermitted for another passphrase than the right one."""
    from cryptography.exceptions import InvalidTag

    if key.box is None:
        raise NotPermitted(f"key {key.kid} of {agent} holds no private half that could be opened")
    wrong = NotPermitted(f"that is not the passphrase of key {key.kid} of {agent}")
    try:
        cipher = _cipher(key.box, passphrase)
        private = cipher.decrypt(key.box.nonce, key.box.ciphertext, _bound(agent, key))
    except (InvalidTag, UsageError):
        raise wrong from None
    if _public(private) != key.public:
        raise wrong
    return Opened(key.kid, private)


def check_passphrase(passphrase: str) -> None:
    """Refuse one that is easily guessed. Raises UsageError, which does not repeat it."""
    if len(passphrase) < SHORTEST:
        raise UsageError(
            f"a passphrase has at least {SHORTEST} characters: take four or more random words"
        )
    _encoded(passphrase)


def endorse(agent: AgentName, key: Key, by: Opened) -> Key:
    """A new key with the signature of the one before it."""
    signature = by.sign(_statement(agent, key, by.kid))
    return replace(key, endorsed_by=by.kid, endorsement=signature)


@lru_cache(maxsize=256)
def is_endorsed(agent: AgentName, key: Key, by: Key) -> bool:
    """Whether `by` has signed that `key` comes after it."""
    return key.endorsed_by == by.kid and verify(
        by.public, key.endorsement, _statement(agent, key, by.kid)
    )


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature is that of the data under a public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def harden() -> None:
    """Keep other programs of this user out of this process's memory, as far as Linux does it.

    No core dump, no debugger, no /proc/PID/mem: root alone has them then. Elsewhere nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class Keychain:
    """The opened keys of this process, each forgotten some time after its last use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[AgentName, tuple[Opened, float, int]] = {}
        self._timers: dict[AgentName, threading.Timer] = {}

    def keep(self, agent: AgentName, opened: Opened) -> None:
        """Remember an opened key."""
        with self._lock:
            self._touch(agent, opened)

    def get(self, agent: AgentName, kid: str) -> Opened | None:
        """The opened key of this id, whose time begins anew; None if there is none."""
        with self._lock:
            opened = self._present(agent, kid)
            if opened is None:
                self._drop(agent)
            else:
                self._touch(agent, opened)
            return opened

    def has(self, agent: AgentName, kid: str) -> bool:
        """Whether `get` would give it; its time goes on."""
        with self._lock:
            return self._present(agent, kid) is not None

    def forget(self, agent: AgentName) -> None:
        """Forget the opened key of an agent."""
        with self._lock:
            self._drop(agent)

    def _present(self, agent: AgentName, kid: str) -> Opened | None:
        opened, since, since_wall = self._opened.get(agent, (None, 0.0, 0))
        # Both clocks: one stands still while the machine sleeps, the other may be set back.
        passed = self._clock.monotonic() - since, (self._clock.now() - since_wall) / 1000
        fits = opened is not None and opened.kid == kid and max(passed) < FORGET_AFTER
        return opened if fits else None

    def _touch(self, agent: AgentName, opened: Opened) -> None:
        self._drop(agent)
        self._opened[agent] = opened, self._clock.monotonic(), self._clock.now()
        # Also where nobody asks any more.
        timer = threading.Timer(FORGET_AFTER, self.forget, [agent])
        timer.daemon = True
        timer.start()
        self._timers[agent] = timer

    def _drop(self, agent: AgentName) -> None:
        self._opened.pop(agent, None)
        if (timer := self._timers.pop(agent, None)) is not None:
            timer.cancel()


def _cipher(box: SealedBox, passphrase: str) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    kdf = Scrypt(salt=box.salt, length=32, n=box.n, r=SCRYPT_R, p=box.p)
    return AESGCM(kdf.derive(_encoded(passphrase)))


def _encoded(passphrase: str) -> bytes:
    """NFC, since a browser and a terminal may spell one accent in two ways."""
    try:
        data = unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise UsageError("the passphrase is no text in UTF-8") from None
    if len(data) > LONGEST:
        raise UsageError(f"a passphrase has at most {LONGEST} bytes")
    return data


def _public(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _bound(agent: AgentName, key: Key) -> bytes:
    """What a sealed private half belongs to: moved to another entry, it does not open."""
    return b"%b %b %b %b" % (_SEAL, agent.encode(), key.kid.encode(), key.public.hex().encode())


def _statement(agent: AgentName, key: Key, by: str) -> bytes:
    words = (agent, by, key.kid, encode_secret(key.public))
    return b"\n".join((_ENDORSEMENT, *(word.encode() for word in words), b""))
