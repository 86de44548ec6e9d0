"""`openhands create|cancel|resume`: what an owner does with its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.openhands.opening import acting, opened, read_object, telling, waiting
from agent_bus.cli.options import Shared, load_settings, require_person, verb
from agent_bus.errors import (
    AgentBusError,
    CheckoutRefused,
    TimedOut,
    Unavailable,
    UsageError,
)

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.caller import Caller
    from agent_bus.openhands.gateway.creation import Created
    from agent_bus.openhands.gateway.gateway import Gateway
    from agent_bus.openhands.gateway.journal import Record
    from agent_bus.openhands.gateway.steering import Steered

_Text = str | None

CHILD_HELP = "Its id, a unique part of it, or its task key."
_GO_ON = "Go on with your task."


@dataclass(frozen=True, kw_only=True)
class Create(Shared):
    """The options of `openhands create`."""

    task_key: Annotated[
        str, Argument(metavar="TASK_KEY", help="Your name for the task: one child per name.")
    ]
    role: Annotated[
        str,
        Option(
            "--role",
            metavar="ROLE",
            help="spec, planner, writer, reviewer, qa, repair or waiter.",
        ),
    ]
    mission_file: Annotated[
        str, Option("--mission", metavar="FILE", help="The mission as JSON (- for stdin).")
    ]
    capability: Annotated[
        list[str] | None,
        Option("--capability", metavar="NAME", help="runtime_environment, for qa and repair."),
    ] = None
    wait: Annotated[
        str, Option("--wait", metavar="TIME", help="How long to wait for its start: 45s, 2m.")
    ] = "45s"


@dataclass(frozen=True, kw_only=True)
class Cancel(Shared):
    """The options of `openhands cancel`."""

    child: Annotated[str, Argument(metavar="CHILD", help=CHILD_HELP)]
    key: Annotated[
        _Text, Option("--key", metavar="KEY", help="The same key again is no second message.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Resume(Cancel):
    """The options of `openhands resume`."""

    context_file: Annotated[
        _Text, Option("--context", metavar="FILE", help="What has changed, as JSON (- for stdin).")
    ] = None
    note: Annotated[_Text, Option("--note", metavar="TEXT", help="The same in a sentence.")] = None


@verb
def create(options: Create) -> int:
    """Hand a mission to a new child; prints its id.

    The same task key with the same mission is the same child, so that a create that was
    interrupted can be called again. The child works in a worktree of its own, which is made
    from the mirror of its repository: agent-bus openhands mirror OWNER/REPO.
    """
    bus = acting(options)
    wait = waiting(options.wait, "--wait")
    mission = read_object(options.mission_file, "the mission")
    with opened(options) as gateway, telling(f"child {options.task_key} starts") as tell:
        created = gateway.create_child(
            gateway.identity_caller(bus.identity),
            task_key=options.task_key,
            role=options.role,
            mission=mission,
            capabilities=options.capability,
            wait=wait,
            progress=tell,
        )
    _show_created(created, json=options.json)
    return _outcome(created)


@verb
def cancel(options: Cancel) -> None:
    """Stop a child at once. What it has done stays in its worktree.

    Its owner may do this, and an admin (with --as only at a terminal).
    """
    bus = acting(options)
    with opened(options) as gateway, telling(f"looking for child {options.child}") as tell:
        record, caller = _steered(options, gateway, bus)
        tell(f"stopping child {record.task_key}")
        done = gateway.cancel_mission(
            caller,
            target=str(record.child),
            task_key=record.task_key,
            message_key=options.key,
        )
    _show_steered(done, json=options.json)


@verb
def resume(options: Resume) -> None:
    """Tell a child to go on, and what has changed.

    Its mission and what it may do stay as they are. Its owner may do this, and an admin (with
    --as only at a terminal).
    """
    bus = acting(options)
    context = _context(options)
    key = options.key or f"resume:{bus.clock.new_id()}"
    with opened(options) as gateway, telling(f"looking for child {options.child}") as tell:
        record, caller = _steered(options, gateway, bus)
        tell(f"telling child {record.task_key} to go on")
        try:
            done = gateway.resume_mission(
                caller,
                target=str(record.child),
                task_key=record.task_key,
                message_key=key,
                context=context,
            )
        except Unavailable as error:
            raise Unavailable(f"{error}; to try it again safely: --key {key}") from None
    _show_steered(done, json=options.json)


def _steered(options: Cancel, gateway: Gateway, bus: Bus) -> tuple[Record, Caller]:
    """The child, and as whom it is steered. Raises NoSuchChild and NotPermitted."""
    own = gateway.identity_caller(bus.identity).subject
    record = gateway.child(options.child, own)
    caller = gateway.steering_caller(record, bus.identity)
    if record.owner != own:
        # An admin decides here for somebody else.
        require_person(options, load_settings(options))
    return record, caller


def _context(options: Resume) -> dict[str, Any]:
    if options.context_file is None:
        return {"note": _GO_ON if options.note is None else options.note}
    if options.note is not None:
        raise UsageError("the context is given twice: choose one of --context and --note")
    return read_object(options.context_file, "the context")


def _outcome(created: Created) -> int:
    """The exit code, and in words what is not as it was asked for."""
    if created.state in ("delivered", "ended"):
        return 0
    error: AgentBusError
    if created.state == "refused":
        error = CheckoutRefused(created.problem or "its admission failed")
    elif created.state == "cancelled":
        render.say("it was cancelled: a new attempt needs another task key, or resume")
        return 0
    else:
        why = f" ({created.problem})" if created.problem else ""
        error = TimedOut(
            f"its mission is not delivered yet{why}: call this again, or let "
            "agent-bus openhands serve go on with it"
        )
    render.say(str(error))
    return error.exit_code


def _show_created(created: Created, *, json: bool) -> None:
    if json:
        render.put_json(
            {
                "child": str(created.child),
                "url": created.conversation_url,
                "created": created.created,
                "state": created.state,
                "problem": created.problem,
            }
        )
        return
    render.put(str(created.child))
    known = "was made" if created.created else "was there already"
    render.say(f"it {known}, and is {created.state}: {created.conversation_url}")


def _show_steered(done: Steered, *, json: bool) -> None:
    if json:
        render.put_json(
            {
                "child": str(done.child),
                "task_key": done.task_key,
                "key": done.message_key,
                "outcome": done.outcome,
            }
        )
        return
    render.table(("child", "task key", "outcome"), [(str(done.child), done.task_key, done.outcome)])
