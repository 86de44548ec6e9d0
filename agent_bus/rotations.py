"""rotations.jsonl: who had which key id and when. It holds no secret."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agent_bus.clock import from_text
from agent_bus.files import Folder, UnfitFile
from agent_bus.keyring import is_kid, json_object
from agent_bus.names import AgentName, is_agent_name

Event = Literal["added", "retired", "revoked", "agent_retired"]

ROTATIONS = "rotations.jsonl"
_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Rotation:
    """A line of rotations.jsonl."""

    at: str
    agent: AgentName
    event: Event
    kid: str | None = None


def record(folder: Folder, line: Rotation) -> None:
    """Add a line to the history in the folder of keyrings. Durable on return."""
    value = {"at": line.at, "agent": line.agent, "event": line.event}
    if line.kid is not None:
        value["kid"] = line.kid
    folder.append(ROTATIONS, json.dumps(value).encode() + b"\n", durable=True)
    folder.sync()


def known(with_ring: set[AgentName], history: Iterable[Rotation]) -> set[AgentName]:
    """Names that can be written to: those with a keyring, and those that once had one."""
    found = set(with_ring)
    for line in history:
        if line.event == "agent_retired":
            found.discard(line.agent)
        elif line.event == "added":
            found.add(line.agent)
    return found


def history(folder: Folder) -> list[Rotation]:
    """The lines, oldest first; a torn or foreign one is passed over. Raises OSError."""
    try:
        data = folder.read(ROTATIONS, _LIMIT)
    except (FileNotFoundError, UnfitFile):
        return []
    parsed = (_parse(line) for line in data.split(b"\n"))
    return [line for line in parsed if line is not None]


def _parse(line: bytes) -> Rotation | None:
    try:
        value = json_object(json.loads(line))
        agent, event, kid = value["agent"], value["event"], value.get("kid")
        at = str(value["at"])
        from_text(at)
    except (ValueError, KeyError, RecursionError):
        return None
    if not is_agent_name(agent) or event not in ("added", "retired", "revoked", "agent_retired"):
        return None
    return Rotation(
        at,
        AgentName(str(agent)),
        event,
        kid if isinstance(kid, str) and is_kid(kid) else None,
    )
