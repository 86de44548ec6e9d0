"""Capabilities: who may do what for which task until when, in one signed line of text.

`evx1_` and base64url without padding (RFC 4648, section 5) of this, integers big-endian:

    version u8 = 1 | owner 16 | subject 16 | issued at u32 | expires at u32 | role u8
    | actions u8 | length u16 | task key, UTF-8 | HMAC-SHA256 (RFC 2104) of all before it

Times are whole seconds since 1970. Nothing in it is hidden: it proves, and keeps no secret. Bits
of actions: create_child 1, send_message 2, cancel_mission 4, resume_mission 8, complete 32. Bit
16 stays free, since other programs that speak this format have an action more (read_usage). Role
4 is planner, which some of them call plan-author.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from uuid import UUID

from agent_bus.errors import InvalidCapability, InvalidMission, UsageError
from agent_bus.openhands.gateway.caller import MAIN_ACTIONS, Action, Caller, Role
from agent_bus.openhands.gateway.identifiers import ROOT_TASK, child_id, task_key, uuid_of

__all__ = [
    "CHILD_ACTIONS",
    "CHILD_LIFETIME",
    "COMPLETION_LIFETIME",
    "LIMIT",
    "MAIN_ACTIONS",
    "SKEW",
    "Capability",
    "caller",
    "child_capability_token",
    "completion_token",
    "decode",
    "encode",
    "main_capability_token",
    "refusal",
]

LIMIT = 512
"""Characters of a text that is looked at; the longest capability has 279."""
SKEW = 60
"""Seconds by which the clock of who minted may be ahead. An expiry is exact."""
CHILD_LIFETIME = 24 * 3600
COMPLETION_LIFETIME = 30 * 24 * 3600
"""Longer than a child's own: the end of a task that took days still has to be told."""

CHILD_ACTIONS: frozenset[Action] = frozenset({"send_message"})
"""A child neither cancels nor resumes itself."""
_COMPLETE: frozenset[Action] = frozenset({"complete"})

_PREFIX = "evx1_"
_TEXT = re.compile(rf"{_PREFIX}([A-Za-z0-9_-]+)", re.ASCII)
_HEAD = struct.Struct(">B16s16sIIBBH")
_VERSION = 1
_MAC_BYTES = 32
_LATEST = 0xFFFFFFFF
_ROLES: dict[Role, int] = {
    "main": 1,
    "deputy": 2,
    "spec": 3,
    "planner": 4,
    "writer": 5,
    "reviewer": 6,
    "qa": 7,
    "repair": 8,
    "waiter": 9,
}
_ROLE_OF = {number: role for role, number in _ROLES.items()}
_BITS: dict[Action, int] = {
    "create_child": 1,
    "send_message": 2,
    "cancel_mission": 4,
    "resume_mission": 8,
    "complete": 32,
}
_REFUSED = "this capability is not valid here: ask whoever started you for a new one"


@dataclass(frozen=True, slots=True)
class Capability:
    """What one says; times in seconds since 1970."""

    owner: UUID
    """The Main that the subject reports to; a Main's own id for a Main."""
    subject: UUID
    """Who holds it."""
    task_key: str
    role: Role
    actions: frozenset[Action]
    issued_at: int
    expires_at: int
    """The first second in which it is worth nothing."""


def refusal(reason: str) -> InvalidCapability:
    """The one error of all refusals: its text is always the same, `reason` is for the log."""
    return InvalidCapability(_REFUSED, reason=reason)


def encode(capability: Capability, secret: bytes) -> str:
    """The text of a capability, signed with any secret but an empty one.

    Raises UsageError for what no capability may say.
    """
    if not secret:
        raise UsageError("a capability cannot be signed with an empty secret")
    payload = _payload(capability)
    return _PREFIX + _base64(payload + _mac(secret, payload))


def decode(token: object, secrets: Sequence[bytes], *, now: int) -> Capability:
    """What a text says, if one of these secrets has signed it and it holds `now` (seconds).

    Raises InvalidCapability for anything else, always with the same text.
    """
    found = _parse(_authentic(_bytes(token), secrets))
    if now < found.issued_at - SKEW:
        raise refusal("issued in the future")
    if now >= found.expires_at:
        raise refusal("expired")
    return found


def caller(capability: Capability) -> Caller:
    """The caller that presents a capability: what it may do is for `Caller` to say."""
    return Caller(
        subject=capability.subject,
        owner=capability.owner,
        task_key=capability.task_key,
        role=capability.role,
        actions=capability.actions,
    )


def main_capability_token(
    secret: str | bytes,
    main_id: UUID | str,
    *,
    issued_at: int,
    expires_at: int,
    actions: AbstractSet[Action] = MAIN_ACTIONS,
) -> str:
    """The capability of a Main, for a host that starts one. Times in seconds since 1970.

    How long it lasts is the host's choice; hours rather than days. Raises UsageError.
    """
    main = _uuid(main_id, "the Main's id")
    made = Capability(main, main, ROOT_TASK, "main", frozenset(actions), issued_at, expires_at)
    return encode(made, _secret(secret))


def child_capability_token(
    secret: str | bytes,
    owner: UUID | str,
    task: str,
    role: Role,
    *,
    issued_at: int,
    expires_at: int | None = None,
    actions: AbstractSet[Action] = CHILD_ACTIONS,
) -> str:
    """The capability of the one child of a task; it lasts 24 hours unless told otherwise.

    `owner` is the subject of whoever creates the child: what a deputy's child reports reaches
    the deputy, not the Main above it. Raises UsageError.
    """
    if role == "main":
        raise UsageError("a child is no main: give it another role")
    parent = _uuid(owner, "the owner")
    child = child_id(parent, task_key(task))
    until = issued_at + CHILD_LIFETIME if expires_at is None else expires_at
    made = Capability(parent, child, task, role, frozenset(actions), issued_at, until)
    return encode(made, _secret(secret))


def completion_token(
    secret: str | bytes, owner: UUID | str, task: str, role: Role, *, issued_at: int
) -> str:
    """What a child's Stop hook presents: good for saying that a run has ended, and no more.

    It lasts 30 days, as long as its secret does. Raises UsageError.
    """
    return child_capability_token(
        secret,
        owner,
        task,
        role,
        issued_at=issued_at,
        expires_at=issued_at + COMPLETION_LIFETIME,
        actions=_COMPLETE,
    )


def _payload(capability: Capability) -> bytes:
    task = task_key(capability.task_key).encode("ascii")
    head = _HEAD.pack(
        _VERSION,
        _uuid(capability.owner, "the owner").bytes,
        _uuid(capability.subject, "the subject").bytes,
        *_times(capability.issued_at, capability.expires_at),
        _role_number(capability.role),
        _action_bits(capability.actions),
        len(task),
    )
    return head + task


def _times(issued_at: int, expires_at: int) -> tuple[int, int]:
    if not all(type(time) is int and 0 <= time <= _LATEST for time in (issued_at, expires_at)):
        raise UsageError(f"a capability's times are whole seconds since 1970, up to {_LATEST}")
    if expires_at <= issued_at:
        raise UsageError("a capability must expire after it was issued")
    return issued_at, expires_at


def _role_number(role: Role) -> int:
    if role not in _ROLES:
        raise UsageError(f"no role: {ascii(role)[:80]}; use {', '.join(_ROLES)}")
    return _ROLES[role]


def _action_bits(actions: AbstractSet[Action]) -> int:
    if not actions or not actions <= set(_BITS):
        raise UsageError(f"a capability needs actions, out of {', '.join(_BITS)}")
    return sum(_BITS[action] for action in actions)


def _uuid(value: UUID | str, what: str) -> UUID:
    return value if isinstance(value, UUID) else uuid_of(value, what)


def _secret(secret: str | bytes) -> bytes:
    try:
        return secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise UsageError("the secret is no text that UTF-8 can hold") from None


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, payload, "sha256")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(token: object) -> bytes:
    """The bytes of a text in its one spelling."""
    if not isinstance(token, str):
        raise refusal("no text")
    if len(token) > LIMIT:
        raise refusal("too long")
    form = _TEXT.fullmatch(token)
    if form is None:
        raise refusal("not of the form evx1_<base64url>")
    body = form[1]
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except binascii.Error:
        raise refusal("no base64url") from None
    if _base64(data) != body:
        raise refusal("another spelling of the same bytes")
    if len(data) < _HEAD.size + _MAC_BYTES:
        raise refusal("too short")
    return data


def _authentic(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """The payload, if it was signed with one of the secrets."""
    payload, signature = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    # All are tried, so that the time does not tell which one fits. An empty secret is no secret.
    fits = [hmac.compare_digest(_mac(secret, payload), signature) for secret in secrets if secret]
    if not any(fits):
        raise refusal("no live secret has signed it")
    return payload


def _parse(payload: bytes) -> Capability:
    version, owner, subject, issued_at, expires_at, role, bits, length = _HEAD.unpack_from(payload)
    if version != _VERSION:
        raise refusal("another version")
    if len(payload) != _HEAD.size + length:
        raise refusal("the task key has another length than is said")
    if role not in _ROLE_OF:
        raise refusal("an unknown role")
    if not bits or bits & ~sum(_BITS.values()):
        raise refusal("no action, or an unknown one")
    if expires_at <= issued_at:
        raise refusal("over before it was issued")
    return Capability(
        owner=UUID(bytes=owner),
        subject=UUID(bytes=subject),
        task_key=_task(payload[_HEAD.size :]),
        role=_ROLE_OF[role],
        actions=frozenset(action for action, bit in _BITS.items() if bits & bit),
        issued_at=issued_at,
        expires_at=expires_at,
    )


def _task(data: bytes) -> str:
    try:
        return task_key(data.decode())
    except (UnicodeDecodeError, InvalidMission):
        raise refusal("no task key") from None
