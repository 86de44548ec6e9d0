"""By which keys messages are judged, and when an unknown key may only be lost.

A file that no key verifies is either forged or has lost its key. What has lost its key is
not moved aside: with the keyring back, it is a message again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName

_KID = slice(len("agent-bus/1 "), len("agent-bus/1 ") + 16)


@dataclass(frozen=True, slots=True)
class Trust:
    """The keys, and what rotations.jsonl says of those that are missing."""

    index: KeyIndex
    recorded: Mapping[str, AgentName]
    """Every key id that was ever recorded, and whose it was."""
    has_keyrings: bool
    """Whether anybody who has a box here has a keyring: else it is another bus's folder."""

    known: frozenset[AgentName]
    """Every agent that has a key, or had one and was not retired."""

    def lost_key(self, raw: bytes) -> str | None:
        """What to do about the key of a file that no key verifies; None if it is forged."""
        kid = raw[_KID].decode("ascii", "replace")
        owner, key = self.index.owners.get(kid, (None, None))
        if key is not None and key.is_known:
            return f"agent-bus keys pin {owner} makes it count, if it is older than the seal"
        if key is not None:
            return "its key is of a kind that this version does not know, use a newer one"
        if kid in self.recorded:
            return f"restore the keyring of {self.recorded[kid]} from a backup"
        if self.index.problems:
            return "mend the keyrings first"
        if not self.has_keyrings:
            return "no box here has a keyring, check AGENT_MSG_KEYS"
        return None
