"""Which gateway looks after a child, where those of one bus have different settings.

A conversation is on one agent server, its worktree and its gate in one workspace. A gateway
that was started with others would take the child for lost, or refuse its checkout.
"""

from __future__ import annotations

from agent_bus.errors import ConfigurationError
from agent_bus.openhands.gateway.journal import Record
from agent_bus.openhands.gateway.parts import Parts


def require(parts: Parts, record: Record) -> None:
    """Raise ConfigurationError if a child is another gateway's. Raises Unavailable as well."""
    settings = parts.settings
    if record.workspace != str(settings.workspace):
        raise ConfigurationError(
            f"a gateway with another AGENT_BUS_OPENHANDS_WORKSPACE looks after child {record.child}"
        )
    # One server can have several addresses: that it knows the child is what counts.
    if record.server != settings.url and parts.provider.conversation(record.child) is None:
        raise ConfigurationError(
            f"a gateway with another OPENHANDS_URL ({record.server}) looks after child "
            f"{record.child}"
        )
