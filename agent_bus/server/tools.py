"""tools/list and tools/call: the tools of the bus, and how a call becomes an answer.

Tools come in groups, one for each profile: a group has a table of tools and runs them.

A result goes out twice, as structure and as the same JSON in a text block: some hosts give
the model one, some the other. A failure is one line of text, `code: what, where, what to
do`, without structure; it never ends the server.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import anyio.to_thread
import mcp.types as t
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from agent_bus.errors import AgentBusError
from agent_bus.presence import Attachment
from agent_bus.server import approvals, models, verbs
from agent_bus.server import arguments as given
from agent_bus.server.listing import compact, fault, one_line
from agent_bus.server.verbs import Failure, Service
from agent_bus.server.waiting import Waiting

Verb = Callable[[Any, Any], models.Result]
"""What a tool does: its group's service (for the bus, `Service`) and the arguments."""
Context = ServerRequestContext[Any, Any]

_THREADS = 16
_RESULT_CHARACTERS = 200_000
"""Claude Code puts longer results into a file; a body of 64 KiB is to reach the model whole."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `verb` is None for bus_wait, which is no single blocking call."""

    name: str
    description: str
    arguments: type[given.Arguments]
    result: type[models.Result]
    verb: Verb | None
    reads_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    """Whether it reaches beyond the bus."""
    in_order: bool = False
    """Whether calls are done one at a time, in the order in which they came."""
    meta: dict[str, Any] | None = None

    def listed(self) -> t.Tool:
        """The tool as clients see it."""
        hints = t.ToolAnnotations(read_only_hint=self.reads_only, open_world_hint=self.open_world)
        if not self.reads_only:
            hints.destructive_hint = self.destructive
            hints.idempotent_hint = self.idempotent
        return t.Tool(
            name=self.name,
            description=self.description,
            input_schema=models.input_schema(self.arguments),
            output_schema=models.output_schema(self.result),
            annotations=hints,
            _meta=self.meta,
        )


TOOLS = (
    Tool(
        "bus_send",
        "Write to one or several agents. A receipt each: `id`, or `error`.",
        given.SendArguments,
        models.SendResult,
        verbs.send,
        in_order=True,
    ),
    Tool(
        "bus_inbox",
        "List your messages that are not archived, oldest first. Changes nothing.",
        given.InboxArguments,
        models.InboxResult,
        verbs.inbox,
        reads_only=True,
    ),
    Tool(
        "bus_read",
        "A message's text; marks it read. What does not verify is an error.",
        given.ReadArguments,
        models.ReadResult,
        verbs.read,
        idempotent=True,
        meta={"anthropic/maxResultSizeChars": _RESULT_CHARACTERS},
    ),
    Tool(
        "bus_archive",
        "Acknowledge a message: you are done with it.",
        given.IdArguments,
        models.ArchiveResult,
        verbs.archive,
        idempotent=True,
    ),
    Tool(
        "bus_log",
        "All messages of the bus, newest first; filter by thread or agent.",
        given.LogArguments,
        models.LogResult,
        verbs.log,
        reads_only=True,
    ),
    Tool(
        "bus_wait",
        "Wait for new messages; returns at once if some came since the last wait.",
        given.WaitArguments,
        models.WaitResult,
        None,
        reads_only=True,
    ),
    Tool(
        "bus_request_approval",
        "Ask an admin (`needs`: a sealed one) to decide. The answer is a message: bus_wait.",
        given.RequestArguments,
        models.RequestResult,
        approvals.request_approval,
        in_order=True,
    ),
    Tool(
        "bus_pending_approval",
        "Admins: what waits for a decision.",
        given.NoArguments,
        models.PendingResult,
        approvals.pending_approval,
        reads_only=True,
    ),
    Tool(
        "bus_decide",
        "Admins: decide a request for good. The requester may `withdraw` it.",
        given.DecideArguments,
        models.DecideResult,
        approvals.decide,
        # One decision ends a request for ever, so that a host should ask before this.
        destructive=True,
        idempotent=True,
        in_order=True,
    ),
    Tool(
        "bus_verify",
        "Check signatures: one id or all. With `next`, call again with id=next.",
        given.OptionalIdArguments,
        models.VerifyResult,
        verbs.verify,
        reads_only=True,
    ),
    Tool(
        "bus_status",
        "Who you are, who is attached, who has unread mail; with id: was it read?",
        given.OptionalIdArguments,
        models.StatusResult,
        verbs.status,
        reads_only=True,
    ),
)


class Group(Protocol):
    """The tools of a profile."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Its tools, in the order in which they are listed."""

    async def run(self, context: Context, tool: Tool, asked: Any) -> models.Result:
        """Do what a tool of this group was called for. May raise anything."""


class Toolbox:
    """Answers tools/list and tools/call."""

    def __init__(self, *groups: Group) -> None:
        self._tools = {tool.name: (tool, group) for group in groups for tool in group.tools}
        self._listed = [tool.listed() for tool, _ in self._tools.values()]

    async def list(self, _: Context, __: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        """All tools; they never change while the server runs."""
        return t.ListToolsResult(tools=self._listed)

    async def call(self, context: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
        """One call. Raises MCPError for a tool that does not exist, and nothing else."""
        found = self._tools.get(params.name)
        if found is None:
            raise MCPError(t.INVALID_PARAMS, f"unknown tool: {one_line(params.name, 80)}")
        tool, group = found
        try:
            asked = given.parse(tool.name, tool.arguments, params.arguments)
            result = await group.run(context, tool, asked)
            return _answer(result.wire())
        except Exception as error:  # noqa: BLE001 - no tool error ends the server
            return _failure(tool.name, error)


class BusTools:
    """The tools of profile `bus`. Make it on the event loop."""

    def __init__(self, service: Service, tools: tuple[Tool, ...] = TOOLS) -> None:
        self.tools: Sequence[Tool] = tools
        self._service = service
        self._waiting = Waiting(service)
        self._threads = anyio.CapacityLimiter(_THREADS)
        # A lock and no limiter of one: it goes to whoever waits longest, and to nobody else.
        self._order = anyio.Lock()

    async def run(self, context: Context, tool: Tool, asked: Any) -> models.Result:
        """One call."""
        note_session(self._service.attachment, context.meta)
        verb = tool.verb
        if verb is None:
            assert isinstance(asked, given.WaitArguments)
            return await self._waiting.wait(context, asked)

        def run() -> models.Result:
            self._service.attachment.seen()
            return verb(self._service, asked)

        # Never abandoned: what was begun is finished, whether somebody waits for it or not.
        async with self._order if tool.in_order else contextlib.nullcontext():
            return await anyio.to_thread.run_sync(run, limiter=self._threads)


def note_session(attachment: Attachment, meta: object) -> None:
    """Codex names its session in each call, and not in the environment."""
    named = meta.get("threadId") if isinstance(meta, Mapping) else None
    if isinstance(named, str):
        attachment.name_session(named)


def _answer(value: dict[str, Any]) -> t.CallToolResult:
    text = t.TextContent(type="text", text=compact(value))
    return t.CallToolResult(content=[text], structured_content=value)


def _failure(tool: str, error: Exception) -> t.CallToolResult:
    if isinstance(error, Failure):
        text = f"{error.code}: {error}"
    elif isinstance(error, AgentBusError | OSError):
        text = fault(error)
    else:
        text = f"internal: {type(error).__name__}: {one_line(str(error), 300)}"
        _logger.error("%s: %s", tool, text)
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)], is_error=True)
