"""What the gateway needs of whoever runs the children's conversations.

Two implement it: `agent_server.AgentServer`, and `testing.PlayedServer`, whose runs a test
plays. Each call is one or a few requests with a time limit. All raise Unavailable (nothing is
known of the effect) and ServerRefused (nothing happened), and none is repeated here: whether a
repeat is safe is for the caller to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import UUID

Status = Literal[
    "idle",
    "running",
    "paused",
    "waiting_for_confirmation",
    "finished",
    "error",
    "stuck",
    "deleting",
]
ENDED: tuple[Status, ...] = ("finished", "error", "stuck")
"""The states in which a run has ended by itself."""
OPEN_TO_MESSAGES: tuple[Status, ...] = ("idle", "finished", "error", "stuck")
"""The states in which a message neither approves an action nor overrides a person's pause."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as the provider sees it now."""

    id: UUID
    status: Status
    folder: str
    """Its working directory."""
    tags: Mapping[str, str]
    last_user_message: str | None
    """The id of the newest message of role user: it names the run."""
    is_acp: bool = False
    """Whether an ACP agent works in it: a message would supersede what it is doing."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """The MCP servers that its agent has now, name and URL: once its runtime has started, also
    those that plugins of the workspace have brought."""


@dataclass(frozen=True, slots=True)
class McpEntry:
    """An MCP server that a child is given."""

    name: str
    url: str
    bearer: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """The conversation that is to be made. It is made idle: no message, no run."""

    child: UUID
    folder: Path
    title: str
    tags: Mapping[str, str]
    """Keys are a-z 0-9, values at most 256 characters."""
    instructions: str
    """What is added to the system prompt."""
    servers: tuple[McpEntry, ...]
    """All MCP servers of the child: it gets exactly these."""
    gate: Path
    """While this file is missing, every tool call of the child is blocked."""
    hook: StopHook | None
    agent: Mapping[str, Any] | None
    """Which agent it is, as the provider understands it; None for the provider's own."""


@dataclass(frozen=True, slots=True)
class StopHook:
    """What tells the gateway that a run has finished."""

    url: str
    header: Path
    """A 0600 file with the one header line that carries the token."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What the events after the message that began a run say.

    `answer` is the final text of that run alone, whole; "" if there is none.
    """

    answer: str = ""
    error_code: str | None = None
    error_text: str | None = None
    used_tools: bool = False


class Provider(Protocol):
    """Runs conversations."""

    def conversation(self, ident: UUID) -> Conversation | None:
        """How it stands, or None if the provider does not know it (HTTP 404)."""
        ...

    def create(self, order: Order) -> bool:
        """Make it, idle. False: it was there already, and nothing of the order was applied."""
        ...

    def post(self, ident: UUID, text: str, *, run: bool = True) -> bool:
        """Add a user message and start a run.

        False: the message was saved, but there is no room for a run now; call `run` later
        and never post it again.
        """
        ...

    def run(self, ident: UUID) -> bool:
        """Start a run. False: there is no room now. True also if it is running already."""
        ...

    def interrupt(self, ident: UUID) -> None:
        """Stop the run at once; it then is paused. Does nothing to one that does not run."""
        ...

    def reject(self, ident: UUID, reason: str) -> None:
        """Refuse what waits for a confirmation; it is idle then. Nothing else happens to it."""
        ...

    def find_message(self, ident: UUID, marker: str) -> str | None:
        """The id of the user message whose text contains a marker, or None."""
        ...

    def run_end(self, ident: UUID, run: str | None) -> RunEnd:
        """What happened after the message `run`; None for after the newest user message."""
        ...

    def url(self, ident: UUID) -> str:
        """What a person opens the conversation under."""
        ...
