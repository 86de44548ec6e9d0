"""Who calls the gateway, and what for. The transport says it, never an argument.

The MCP server on stdio is its bus identity, which is a Main; over HTTP it is who the
capability in the Authorization header names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from agent_bus.errors import NotPermitted
from agent_bus.names import AgentName, MessageId
from agent_bus.openhands.gateway.identifiers import ROOT_TASK, main_id

Role = Literal["main", "deputy", "spec", "planner", "writer", "reviewer", "qa", "repair", "waiter"]
Action = Literal["create_child", "send_message", "cancel_mission", "resume_mission", "complete"]

MAIN_ACTIONS: frozenset[Action] = frozenset({"create_child", "cancel_mission", "resume_mission"})
PARENTS: tuple[Role, ...] = ("main", "deputy")


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who calls, as the transport knows it."""

    subject: UUID
    """Itself: a Main or a child."""
    owner: UUID
    """The Main that it reports to; a Main's own id for a Main."""
    task_key: str
    role: Role
    actions: frozenset[Action]

    @classmethod
    def of_identity(cls, bus: MessageId, name: AgentName) -> Caller:
        """A bus identity, which is a Main."""
        main = main_id(bus, name)
        return cls(main, main, ROOT_TASK, "main", MAIN_ACTIONS)

    def require(self, action: Action) -> None:
        """Raise NotPermitted if this is not among what the caller may do."""
        if action not in self.actions:
            raise NotPermitted(f"a {self.role} may not do this here: it lacks {action}")

    def require_parent(self, action: Action) -> None:
        """Raise NotPermitted unless the caller may have children, and may do this."""
        self.require(action)
        if self.role not in PARENTS:
            raise NotPermitted(f"a {self.role} has no children: only a Main or a deputy has")
