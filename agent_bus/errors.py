"""Every error that agent-bus raises, named after what the caller should do.

They stand in a module of their own so that every other module can import them.
`code` is stable and meant for programs; `exit_code` is what the command line ends
with (sysexits.h); the text is one line: what, where, what to do.
"""

from __future__ import annotations

from typing import ClassVar


class AgentBusError(Exception):
    """Anything that agent-bus refuses or fails to do."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70


class UsageError(AgentBusError):
    """The request cannot be understood: an argument is missing or not of its form."""

    code = "usage"
    exit_code = 64


class InvalidName(UsageError):
    """Text that should name an agent, a message or a kind does not fit the grammar."""

    code = "invalid-name"


class InvalidMessage(AgentBusError):
    """A message cannot be sent as it is: too large, a bad subject, a reserved kind."""

    code = "invalid-message"
    exit_code = 65


class InvalidDecision(AgentBusError):
    """A decision that the request does not offer, or that comes after its expiry."""

    code = "invalid-decision"
    exit_code = 65


class VerificationError(AgentBusError):
    """A stored file is no valid message; `outcome` says why (docs/format.md)."""

    code = "verification"
    exit_code = 65

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class NoSuchMessage(AgentBusError):
    """No message of that id can be seen by this identity."""

    code = "no-such-message"
    exit_code = 66


class UnknownRecipient(AgentBusError):
    """The name has no key and is no admin; nothing was written."""

    code = "unknown-recipient"
    exit_code = 67


class InvalidMission(UsageError):
    """A mission, or another argument of the gateway, breaks a rule; nothing was begun."""

    code = "invalid-mission"


class CheckoutRefused(AgentBusError):
    """A mirror or a worktree is not exactly what the mission says; it was left as it is."""

    code = "checkout"
    exit_code = 65


class NoSuchChild(AgentBusError):
    """No child of that id, or none of this owner."""

    code = "no-such-child"
    exit_code = 66


class Unavailable(AgentBusError):
    """The agent server cannot be reached, or it failed; nothing is known of the effect."""

    code = "unavailable"
    exit_code = 69


class ServerRefused(AgentBusError):
    """The agent server understood a request and refused it; `status` is the HTTP status."""

    code = "server-refused"
    exit_code = 69

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class AdmissionFailed(AgentBusError):
    """A child did not begin; asking again tries again."""

    code = "admission"
    exit_code = 75


class NoBus(AgentBusError):
    """There is no bus at the address, or not the one that the repository names."""

    code = "no-bus"
    exit_code = 69


class NotDelivered(AgentBusError):
    """Nothing became visible; sending again is safe."""

    code = "not-delivered"
    exit_code = 73


class CannotCreate(AgentBusError):
    """A bus, a box or a key could not be made."""

    code = "cannot-create"
    exit_code = 73


class DeliveryUncertain(AgentBusError):
    """The outcome is unknown; send again with `key` to end with exactly one message."""

    code = "delivery-uncertain"
    exit_code = 74

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class StorageError(AgentBusError):
    """Reading or moving a file failed; the operating system's reason is in the text."""

    code = "storage"
    exit_code = 74


class TimedOut(AgentBusError):
    """Nothing arrived within the time that was asked for."""

    code = "timed-out"
    exit_code = 75


class BusFull(AgentBusError):
    """The recipient's box holds as many unread messages as it may."""

    code = "bus-full"
    exit_code = 75


class Busy(AgentBusError):
    """Another process holds a lock for longer than this one may wait."""

    code = "busy"
    exit_code = 75


class Conflict(AgentBusError):
    """Something else already stands under this key or this request; it stays."""

    code = "conflict"
    exit_code = 76


class NotPermitted(AgentBusError):
    """The identity may not do that."""

    code = "not-permitted"
    exit_code = 77


class InvalidCapability(NotPermitted):
    """A capability that is forged, malformed, expired or out of scope; which, is not told.

    `reason` says it, for a log alone.
    """

    code = "capability"

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class ConfigurationError(AgentBusError):
    """The environment, a keyring or a bus.json is not usable as it is."""

    code = "configuration"
    exit_code = 78


class IdentityMissing(ConfigurationError):
    """The process has no identity, or one that has no key."""

    code = "identity"


class UnsafePermissions(ConfigurationError):
    """A key, a box or their folder is open to others, or owned by somebody else."""

    code = "unsafe-permissions"
