"""The secrets that capabilities are signed with, and which capabilities were taken back.

They stand in `<keys>/gateway.json` (0600 in a 0700 folder), beside the keyrings and under their
rules: read anew at each use, changed under a lock, replaced whole. A capability is signed with
the newest active key. A retired key verifies for 24 hours more, as long as a child's capability
lasts; a revoked one verifies nothing. What a child's Stop hook holds may be older than that: it
is refused then, and the end of the run is found by looking.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from uuid import UUID

from agent_bus.clock import Clock, from_text, to_text
from agent_bus.errors import ConfigurationError, InvalidMission, StorageError, UsageError
from agent_bus.files import Folder, UnfitFile, make_folders
from agent_bus.keyring import (
    SECRET_BYTES,
    Key,
    State,
    decode_secret,
    encode_secret,
    is_kid,
    json_object,
)
from agent_bus.locks import locked
from agent_bus.names import GATEWAY
from agent_bus.openhands.gateway.capability import Capability, decode, refusal
from agent_bus.openhands.gateway.identifiers import uuid_of
from agent_bus.reading import reason

__all__ = ["FILE", "GRACE", "Listed", "SigningKeys"]

FILE = f"{GATEWAY}.json"
GRACE = 24 * 3600
"""Seconds for which a retired key still verifies."""

_LOCK = f".{GATEWAY}.lock"
_LIMIT = 8 << 20
_LATEST = 0xFFFFFFFF
_REQUIRED = {"kid", "secret", "state", "created_at"}
_STATES = ("active", "retired", "revoked")


@dataclass(frozen=True, slots=True)
class Listed:
    """A key as it may be shown. Times as in `clock.to_text`."""

    kid: str
    state: State
    created_at: str
    retired_at: str | None


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the file holds, oldest first."""

    keys: tuple[Key, ...] = ()
    revoked: tuple[tuple[UUID, int], ...] = ()
    """Capabilities that were taken back, by subject and time of issue."""

    @property
    def active(self) -> list[Key]:
        return [key for key in self.keys if key.state == "active"]


class SigningKeys:
    """The gateway's secrets in one folder of keyrings.

    All methods raise UnsafePermissions, ConfigurationError for a file that is not of its form,
    and StorageError; those that change something raise Busy as well.
    """

    def __init__(self, folder: Path, clock: Clock, extra: str | None = None) -> None:
        """`extra` is one more secret that verifies: the value of EVEX_MESSAGING_SECRET.

        Raises ConfigurationError if it has fewer than 32 bytes.
        """
        self.folder = folder
        self._clock = clock
        self._extra = () if extra is None else (_extra(extra),)

    def ensure(self) -> None:
        """Make a key if there is no active one, so that there is something to sign with."""
        if not self._read().active:
            self._change(lambda old: old if old.active else self._with_new(old))

    def newest(self) -> bytes:
        """The secret to sign with: always one of our own, never the extra one."""
        self.ensure()
        # Of two that were made in one millisecond the later one in the file.
        active = reversed(self._read().active)
        return max(active, key=lambda key: key.created_at).secret

    def secrets(self) -> list[bytes]:
        """Every secret that may have signed what is still good."""
        return self._live(self._read())

    def verify(self, token: object) -> Capability:
        """What a capability says that holds now. Raises InvalidCapability for any other text."""
        contents = self._read()
        found = decode(token, self._live(contents), now=self._clock.now() // 1000)
        if (found.subject, found.issued_at) in contents.revoked:
            raise refusal("revoked")
        return found

    def rotate(self) -> Listed:
        """Add a new key and retire the active ones."""
        now = to_text(self._clock.now())

        def change(old: _Contents) -> _Contents:
            kept = tuple(_retired(key, now) for key in old.keys)
            return self._with_new(replace(old, keys=kept))

        return _listed(self._change(change).keys[-1])

    def revoke(self, kid: str) -> Listed:
        """Mark a key as leaked: it verifies nothing from now on.

        If it was the only active one, a new one takes its place. Raises UsageError for a key
        that is not there.
        """
        now = to_text(self._clock.now())

        def change(old: _Contents) -> _Contents:
            if kid not in [key.kid for key in old.keys]:
                raise UsageError(
                    f"the gateway has no key {ascii(kid)[:40]}: agent-bus openhands keys list"
                )
            keys = tuple(_revoked(key, now) if key.kid == kid else key for key in old.keys)
            new = replace(old, keys=keys)
            return new if new.active else self._with_new(new)

        return next(_listed(key) for key in self._change(change).keys if key.kid == kid)

    def listing(self) -> list[Listed]:
        """All keys without their secrets, oldest first."""
        return [_listed(key) for key in self._read().keys]

    def revoke_token(self, subject: UUID, issued_at: int) -> None:
        """Take back what a subject was given at a moment (seconds since 1970).

        All capabilities of that subject and that second go together, a child's completion
        token too. Raises UsageError for a time that no capability can have.
        """
        if type(issued_at) is not int or not 0 <= issued_at <= _LATEST:
            raise UsageError(f"a capability is issued at whole seconds since 1970, to {_LATEST}")
        entry = (subject, issued_at)
        self._change(
            lambda old: old if entry in old.revoked else replace(old, revoked=(*old.revoked, entry))
        )

    def is_revoked(self, subject: UUID, issued_at: int) -> bool:
        """Whether that was taken back."""
        return (subject, issued_at) in self._read().revoked

    def _live(self, contents: _Contents) -> list[bytes]:
        now = self._clock.now()
        return [*(key.secret for key in contents.keys if _is_live(key, now)), *self._extra]

    def _with_new(self, old: _Contents) -> _Contents:
        kid, secret = secrets.token_hex(8), secrets.token_bytes(SECRET_BYTES)
        key = Key(kid, secret, "active", to_text(self._clock.now()))
        return replace(old, keys=(*old.keys, key))

    def _read(self) -> _Contents:
        with _storage():
            try:
                with Folder.open(self.folder, private=True) as folder:
                    return _load(folder)
            except FileNotFoundError:
                return _Contents()

    def _change(self, change: Callable[[_Contents], _Contents]) -> _Contents:
        with _storage():
            make_folders(self.folder).close()
            with Folder.open(self.folder, private=True) as folder, locked(self.folder / _LOCK):
                old = _load(folder)
                new = change(old)
                if new != old:
                    folder.replace(FILE, _dump(new))
                return new


@contextlib.contextmanager
def _storage() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the gateway's keys: {reason(error)}") from error


def _extra(text: str) -> bytes:
    try:
        # What the environment holds need not be UTF-8: these are its very bytes.
        secret = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise ConfigurationError(
            f"EVEX_MESSAGING_SECRET has fewer than {SECRET_BYTES} bytes: "
            "set a longer random one, or none"
        )
    return secret


def _is_live(key: Key, now: int) -> bool:
    if key.state == "retired":
        return now < from_text(key.retired_at or key.created_at) + GRACE * 1000
    return key.state == "active"


def _retired(key: Key, now: str) -> Key:
    return replace(key, state="retired", retired_at=now) if key.state == "active" else key


def _revoked(key: Key, now: str) -> Key:
    return replace(key, state="revoked", retired_at=key.retired_at or now)


def _listed(key: Key) -> Listed:
    return Listed(key.kid, key.state, key.created_at, key.retired_at)


def _load(folder: Folder) -> _Contents:
    path = folder.path / FILE
    try:
        return _parse(folder.read(FILE, _LIMIT, private=True))
    except FileNotFoundError:
        return _Contents()
    except UnfitFile as error:
        raise ConfigurationError(f"{path} {error}") from None
    except (ValueError, RecursionError) as error:
        # The text of a JSON error shows where, but one of UTF-8 shows bytes.
        foreign = isinstance(error, json.JSONDecodeError | UnicodeError | RecursionError)
        why = "no JSON" if foreign else error
        raise ConfigurationError(
            f"{path} cannot be used: {why}; restore a backup, or move it away for new keys"
        ) from None


def _dump(contents: _Contents) -> bytes:
    revoked = [{"subject": str(who), "issued_at": at} for who, at in contents.revoked]
    value = {"keys": [_dump_key(key) for key in contents.keys], "revoked": revoked}
    data = json.dumps(value, indent=1).encode() + b"\n"
    if len(data) > _LIMIT:
        # A larger one could not be read again, and nothing at all would be verified.
        raise ConfigurationError(f"{FILE} is full: revoke the key itself, and move the file away")
    return data


def _dump_key(key: Key) -> dict[str, str]:
    ended = {"retired_at": key.retired_at} if key.retired_at else {}
    return {
        "kid": key.kid,
        "secret": encode_secret(key.secret),
        "state": key.state,
        "created_at": key.created_at,
        **ended,
    }


def _parse(data: bytes) -> _Contents:
    """Raises ValueError, never showing a secret."""
    value = json_object(json.loads(data))
    if not {"keys"} <= set(value) <= {"keys", "revoked"}:
        raise ValueError("it has keys and revoked, and nothing else")
    keys = tuple(_parse_key(entry) for entry in _list(value["keys"], "keys"))
    if len({key.kid for key in keys}) != len(keys):
        raise ValueError("two keys share one id")
    revoked = _list(value.get("revoked", []), "revoked")
    return _Contents(keys, tuple(dict.fromkeys(map(_parse_revoked, revoked))))


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    return value


def _parse_key(entry: object) -> Key:
    value = json_object(entry)
    if not _REQUIRED <= set(value) <= _REQUIRED | {"retired_at"}:
        raise ValueError("a key has kid, secret, state, created_at, and may have retired_at")
    if not all(isinstance(field, str) for field in value.values()):
        raise ValueError("every field of a key is text")
    fields = cast("dict[str, str]", value)
    if not is_kid(fields["kid"]) or fields["state"] not in _STATES:
        raise ValueError(f"a key id has 16 hex digits, and a key is {', '.join(_STATES)}")
    if fields["state"] == "retired" and "retired_at" not in fields:
        raise ValueError("a retired key has retired_at")
    if not all(_is_time(fields[name]) for name in ("created_at", "retired_at") if name in fields):
        raise ValueError("created_at and retired_at are times like 2026-11-30T12:00:00.000Z")
    return Key(
        kid=fields["kid"],
        secret=decode_secret(fields["secret"]),
        state=cast("State", fields["state"]),
        created_at=fields["created_at"],
        retired_at=fields.get("retired_at"),
    )


def _is_time(text: str) -> bool:
    try:
        from_text(text)
    except ValueError:
        return False
    return True


def _parse_revoked(entry: object) -> tuple[UUID, int]:
    value = json_object(entry)
    if set(value) != {"subject", "issued_at"}:
        raise ValueError("what is revoked has subject and issued_at")
    at = value["issued_at"]
    try:
        subject = uuid_of(value["subject"], "subject")
    except InvalidMission as error:
        raise ValueError(str(error)) from None
    if type(at) is not int or not 0 <= at <= _LATEST:
        raise ValueError("issued_at is a time in whole seconds since 1970")
    return subject, at
