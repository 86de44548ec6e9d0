"""The six tools of profile `openhands`: what they take, do and answer.

No tool takes a capability or says who calls: the transport does. On stdio the caller is the
identity of the process, over HTTP it is whom the Authorization header names. The gateway
judges what is given; here it is only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
from pydantic import BeforeValidator, Field, WithJsonSchema

from agent_bus.openhands.gateway.journal import UNSTARTED
from agent_bus.server import models
from agent_bus.server.arguments import Arguments, OptionalText, Text, Texts
from agent_bus.server.tools import Context, Tool

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.caller import Caller
    from agent_bus.openhands.gateway.gateway import Gateway
    from agent_bus.openhands.gateway.reports import Accepted

THREADS = 16
PROGRESS_INTERVAL = 5.0
"""Seconds between two notes to a client that asked for them; some give up after ten."""

_GOES_ON = (
    "the mission is not delivered yet and goes on without you: the same call again says how it "
    "stands, and never makes a second child"
)


def _object(value: object) -> object:
    """A JSON object; text that is a JSON object is that object."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError(f'is an object like {{"a": 1}}, not {ascii(value)[:80]}')
    return value


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_CHECKOUT = {
    "repository": _TEXT | {"description": "owner/name"},
    "branch": _TEXT | {"description": "a new one"},
    "headSha": _TEXT | {"description": "40 hex digits"},
}
_MEMBERS = {
    "immediateTask": _TEXT | {"description": "begins `Your task now:`"},
    "links": {"type": "object"},
    "checkout": {
        "type": "object",
        "properties": _CHECKOUT,
        "required": list(_CHECKOUT),
        "additionalProperties": False,
    },
    "allowedMutations": _TEXTS | {"description": "empty for reviewer, qa, waiter"},
    "prohibitions": _TEXTS,
    "skills": _TEXTS,
    "evidence": _TEXTS,
}
_MISSION = {"type": "object", "properties": _MEMBERS, "required": list(_MEMBERS)}

Object = Annotated[dict[str, Any], BeforeValidator(_object), WithJsonSchema({"type": "object"})]
Mission = Annotated[dict[str, Any], BeforeValidator(_object), WithJsonSchema(_MISSION)]
TaskKey = Annotated[Text, Field(alias="taskKey", description="your name for the task")]
TargetId = Annotated[Text, Field(alias="targetId", description="childId of your child")]
_SAME = "the same key again is no second message"


class CreateArguments(Arguments):
    """A child that is wanted."""

    task_key: TaskKey
    role: Annotated[
        Text, Field(description="spec, planner, writer, reviewer, qa, repair or waiter")
    ]
    mission: Mission
    capabilities: Annotated[
        Texts | None, Field(description="runtime_environment, for qa and repair")
    ] = None


class ReportArguments(Arguments):
    """A report of a child."""

    result: Object
    kind: Annotated[OptionalText, Field(description="RESULT (default) or NEEDS_INPUT")] = None
    message_key: Annotated[OptionalText, Field(alias="messageKey", description=_SAME)] = None


class QuestionArguments(Arguments):
    """A question for a person."""

    question: Text
    options: Annotated[Texts, Field(description="2 to 5 answers")]


class CancelArguments(Arguments):
    """A child that is to stop."""

    target_id: TargetId
    task_key: TaskKey
    message_key: Annotated[OptionalText, Field(alias="messageKey", description=_SAME)] = None


class ResumeArguments(Arguments):
    """A child that is to go on."""

    target_id: TargetId
    task_key: TaskKey
    message_key: Annotated[Text, Field(alias="messageKey", description=_SAME)]
    context: Annotated[Object, Field(description="what has changed; cannot change the mission")]


class LinksArguments(Arguments):
    """Links that people want."""

    links: Annotated[
        Object,
        WithJsonSchema({"type": "object", "additionalProperties": _TEXT}),
        Field(description="1 to 12 URLs by short names: issue, pr, main ..."),
    ]


class CreateResult(models.Result):
    """The child, and how far it is."""

    conversation_url: str = Field(serialization_alias="conversationUrl")
    provider: Literal["openhands"] = "openhands"
    created: bool
    child_id: str = Field(serialization_alias="childId")
    state: str
    problem: str | None = None
    hint: str | None = None


class AcceptedResult(models.Result):
    """What was said has arrived."""

    accepted: bool = True
    message_key: str = Field(serialization_alias="messageKey")
    replayed: bool | None = None
    id: str


class CancelResult(models.Result):
    """The child works no more."""

    accepted: bool = True
    message_key: str = Field(serialization_alias="messageKey")
    task_key: str = Field(serialization_alias="taskKey")
    outcome: str
    terminal: bool = True


class ResumeResult(models.Result):
    """The child was told to go on."""

    accepted: bool = True
    message_key: str = Field(serialization_alias="messageKey")
    task_key: str = Field(serialization_alias="taskKey")
    replayed: bool | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool: of whom, for whom, and who is told how it goes on."""

    gateway: Gateway
    caller: Caller
    progress: Callable[[str], None]


def create_child(call: Call, asked: CreateArguments) -> CreateResult:
    """create_child."""
    made = call.gateway.create_child(
        call.caller,
        task_key=asked.task_key,
        role=asked.role,
        mission=asked.mission,
        capabilities=asked.capabilities,
        progress=call.progress,
    )
    return CreateResult(
        conversation_url=made.conversation_url,
        created=made.created,
        child_id=str(made.child),
        state=made.state,
        problem=made.problem,
        hint=_GOES_ON if made.state in UNSTARTED else None,
    )


def send_to_parent(call: Call, asked: ReportArguments) -> AcceptedResult:
    """send_to_parent."""
    accepted = call.gateway.send_to_parent(
        call.caller, result=asked.result, kind=asked.kind, message_key=asked.message_key
    )
    return _accepted(accepted)


def request_user_decision(call: Call, asked: QuestionArguments) -> AcceptedResult:
    """request_user_decision."""
    return _accepted(
        call.gateway.request_user_decision(
            call.caller, question=asked.question, options=asked.options
        )
    )


def publish_navigation_links(call: Call, asked: LinksArguments) -> AcceptedResult:
    """publish_navigation_links."""
    return _accepted(call.gateway.publish_navigation_links(call.caller, links=asked.links))


def cancel_mission(call: Call, asked: CancelArguments) -> CancelResult:
    """cancel_mission."""
    steered = call.gateway.cancel_mission(
        call.caller,
        target=asked.target_id,
        task_key=asked.task_key,
        message_key=asked.message_key,
    )
    return CancelResult(
        message_key=steered.message_key, task_key=steered.task_key, outcome=steered.outcome
    )


def resume_mission(call: Call, asked: ResumeArguments) -> ResumeResult:
    """resume_mission."""
    steered = call.gateway.resume_mission(
        call.caller,
        target=asked.target_id,
        task_key=asked.task_key,
        message_key=asked.message_key,
        context=asked.context,
    )
    return ResumeResult(
        message_key=steered.message_key,
        task_key=steered.task_key,
        replayed=steered.outcome == "replayed" or None,
    )


TOOLS = (
    Tool(
        "create_child",
        "Hand a mission to a new child. One child per taskKey; the same call again is safe.",
        CreateArguments,
        CreateResult,
        create_child,
        idempotent=True,
        open_world=True,
    ),
    Tool(
        "send_to_parent",
        "Children: report to your parent. Do it before you finish.",
        ReportArguments,
        AcceptedResult,
        send_to_parent,
        idempotent=True,
    ),
    Tool(
        "request_user_decision",
        "Children: ask a person to decide. The answer comes as a message to you.",
        QuestionArguments,
        AcceptedResult,
        request_user_decision,
        idempotent=True,
    ),
    Tool(
        "cancel_mission",
        "Stop a child of yours for good.",
        CancelArguments,
        CancelResult,
        cancel_mission,
        # What the child was doing is not taken up again by itself.
        destructive=True,
        idempotent=True,
        open_world=True,
    ),
    Tool(
        "resume_mission",
        "Let a child of yours that has ended or waits go on with its mission.",
        ResumeArguments,
        ResumeResult,
        resume_mission,
        idempotent=True,
        open_world=True,
    ),
    Tool(
        "publish_navigation_links",
        "Children: show your parent links to what you work on.",
        LinksArguments,
        AcceptedResult,
        publish_navigation_links,
        idempotent=True,
    ),
)


class MissionTools:
    """The tools of profile `openhands`. Make it on the event loop.

    `caller` says who calls; it may block. `outward` makes the error that the client is told
    out of one that was raised.
    """

    def __init__(
        self,
        gateway: Gateway,
        caller: Callable[[Context], Caller],
        *,
        outward: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        self.tools: Sequence[Tool] = TOOLS
        self._gateway = gateway
        self._caller = caller
        self._outward = outward
        self._threads = anyio.CapacityLimiter(THREADS)

    async def run(self, context: Context, tool: Tool, asked: Any) -> models.Result:
        """One call."""
        outcome: models.Result | Exception
        news = _News()
        async with anyio.create_task_group() as group:
            group.start_soon(news.tell, context)
            # An error that leaves the group would come out wrapped.
            try:
                outcome = await self._in_thread(context, tool, asked, news)
            except Exception as error:  # noqa: BLE001
                outcome = self._outward(error)
            group.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _in_thread(
        self, context: Context, tool: Tool, asked: Any, news: _News
    ) -> models.Result:
        verb = tool.verb
        assert verb is not None

        def run() -> models.Result:
            return verb(Call(self._gateway, self._caller(context), news), asked)

        # What was begun is finished in its thread, whether somebody waits for it or not.
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._threads)


class _News:
    """What a call says of how it goes on: from its thread to a client that asked for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._text = "at work"

    def __call__(self, text: str) -> None:
        """Say how it goes on; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note, text)

    async def tell(self, context: Context) -> None:
        """Tell the client, also that nothing has changed; until cancelled."""
        count = 0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), PROGRESS_INTERVAL)
            self._changed.clear()
            count += 1
            await context.session.report_progress(count, None, self._text)

    def _note(self, text: str) -> None:
        self._text = text
        self._changed.set()


def _accepted(said: Accepted) -> AcceptedResult:
    return AcceptedResult(message_key=said.message_key, replayed=said.replayed or None, id=said.id)
