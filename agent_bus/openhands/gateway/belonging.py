"""Which gateway looks after a child, where those of one bus have different settings.

A conversation is on one agent server, its worktree and its gate in one workspace. A gateway
that was started with others would take the child for lost, or refuse its checkout.
"""

from __future__ import annotations

from agent_bus.errors import ConfigurationError
from agent_bus.openhands.gateway.journal import Record
from agent_bus.openhands.gateway.parts import Parts

_LEFT = "only a gateway that has the same looks after it"
_BROUGHT = "the same create_child again brings it here"


def require(parts: Parts, record: Record) -> None:
    """Raise ConfigurationError if a child is another gateway's. Raises Unavailable as well."""
    why = objection(parts, record)
    if why is not None:
        raise ConfigurationError(why)


def objection(parts: Parts, record: Record) -> str | None:
    """Why a child is another gateway's, or None if it is this one's. Raises Unavailable."""
    settings = parts.settings
    left = _BROUGHT if record.state == "begun" else _LEFT
    if record.workspace != str(settings.workspace):
        return (
            f"child {record.child} has its worktree in another AGENT_BUS_OPENHANDS_WORKSPACE: "
            f"{left}"
        )
    # One server can have several addresses: that it knows the child is what counts.
    if record.server != settings.url and parts.provider.conversation(record.child) is None:
        return f"child {record.child} is on another agent server, {record.server}: {left}"
    return None
