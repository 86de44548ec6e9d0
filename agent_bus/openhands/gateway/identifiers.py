"""Who is who: the UUIDs of Mains and children, task keys, and the box of a Main.

A (Main, task key) pair has exactly one child: its id is a UUIDv5 (RFC 9562, section 5.5) of
both. A bus identity is a Main as well, under a UUIDv5 of the bus and its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID, uuid5

from agent_bus.errors import InvalidMission
from agent_bus.names import AgentName, MessageId

NAMESPACE = UUID("ab1fbaf1-cc0e-4a2e-9cf2-6e4cb2ee8c89")
ROOT_TASK = "root"
"""The task key of a Main's own capability."""

_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)


def task_key(text: object) -> str:
    """A task key, the identity of a task within one Main. Raises InvalidMission."""
    if not isinstance(text, str) or _TASK.fullmatch(text) is None:
        raise InvalidMission(
            f"no task key: {_shown(text)}; use 1 to 128 of A-Z a-z 0-9 . _ : -, "
            "beginning with a letter or digit"
        )
    return text


def uuid_of(text: object, what: str) -> UUID:
    """A UUID in its usual form, with dashes. Raises InvalidMission."""
    try:
        found = UUID(text if isinstance(text, str) else "")
    except ValueError:
        found = None
    if found is None or str(found) != str(text).lower():
        raise InvalidMission(f"{what} is no UUID: {_shown(text)}")
    return found


def child_id(main: UUID, task: str) -> UUID:
    """The one child of a Main's task."""
    return uuid5(NAMESPACE, f"{main}:{task}")


def main_id(bus: MessageId, name: AgentName) -> UUID:
    """The Main that a bus identity is."""
    return uuid5(NAMESPACE, f"agent-bus:{bus}:{name}")


def conversation_box(main: UUID) -> AgentName:
    """The box of a Main that is an OpenHands conversation and no bus identity."""
    return AgentName(f"openhands-{main}")


def box_of(main: UUID, bus: MessageId, names: Iterable[AgentName]) -> AgentName:
    """The box of a Main: that of the bus identity it is, or that of its conversation."""
    return next((name for name in names if main_id(bus, name) == main), conversation_box(main))


def _shown(value: object) -> str:
    return ascii(value[:80]) if isinstance(value, str) else f"a {type(value).__name__}"
