"""`openhands children|show`: which children there are. Neither asks the agent server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from agent_bus.cli import render
from agent_bus.cli.openhands.missions import CHILD_HELP
from agent_bus.cli.options import Shared, open_anonymous, verb
from agent_bus.errors import StorageError, UsageError
from agent_bus.openhands.gateway import settings

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.journal import Record

HEAD = (
    *("child", "task key", "role", "state", "status"),
    *("since", "owner", "last end", "problem"),
)
SPARE = ("owner", "role", "since", "status")
"""What a narrow terminal leaves out, the first one first."""


@dataclass(frozen=True, kw_only=True)
class Listed(Shared):
    """The options of `openhands children`."""

    every: Annotated[bool, Option("--all", help="Also those that have ended.")] = False
    state: Annotated[
        str | None,
        Option("--state", metavar="STATE", help="Only these: delivered, ended, refused …"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Shown(Shared):
    """The options of `openhands show`."""

    child: Annotated[str, Argument(metavar="CHILD", help=CHILD_HELP)]


@verb
def children(options: Listed) -> int:
    """List the children that are at work, the newest last.

    `since` is when the agent server first said that status. Asks no agent server: what
    stands here is from the last look of agent-bus openhands serve or an MCP server.
    """
    from agent_bus.openhands.gateway.journal import LIVING

    wanted = _states(options.state)
    records, problems = _records(options)
    default = None if options.every else LIVING
    states = wanted or default
    shown = [record for record in records if states is None or record.state in states]
    if options.json:
        for record in shown:
            render.put_json(_fields(record))
    else:
        render.table(HEAD, map(_columns, shown), spare=SPARE)
        left = len(records) - len(shown)
        if left and states is default:
            render.say(f"{left} more have ended: --all lists them")
    for line in problems:
        render.say(line)
    return StorageError.exit_code if problems else 0


@verb
def show(options: Shown) -> None:
    """Show all that is known of a child.

    Its task, its checkout, its ends with their wakes, what it has asked. Asks no agent server.
    """
    from agent_bus.openhands.gateway import children as journal

    records, problems = _records(options)
    for line in problems:
        render.say(line)
    record = journal.pick(records, options.child)
    if options.json:
        render.put_json(_whole(record))
        return
    for name, value in _lines(record):
        render.put(f"{name}: {render.visible(value)}")


def _records(options: Shared) -> tuple[list[Record], list[str]]:
    from agent_bus.openhands.gateway import children as journal

    bus = open_anonymous(options)
    return journal.of_bus(bus.address.path, bus.clock)


def _states(text: str | None) -> Sequence[str] | None:
    from typing import get_args

    from agent_bus.openhands.gateway.journal import State

    if text is not None and text not in get_args(State):
        raise UsageError(f"no state {text[:40]!a}: there are {', '.join(get_args(State))}")
    return None if text is None else (text,)


def _columns(record: Record) -> tuple[str, ...]:
    end = record.last_end
    return (
        str(record.child),
        record.task_key,
        record.role,
        record.state,
        record.seen or "-",
        record.seen_since or record.updated_at,
        record.owner_box,
        end.status if end else "-",
        record.problem or "-",
    )


def _fields(record: Record) -> dict[str, Any]:
    """The same for programs, a little more of it."""
    end = record.last_end
    return {
        "child": str(record.child),
        "task_key": record.task_key,
        "role": record.role,
        "state": record.state,
        "status": record.seen,
        "since": record.seen_since,
        "owner": str(record.owner),
        "owner_box": record.owner_box,
        "last_end": end.model_dump(mode="json") if end else None,
        "problem": record.problem,
        "url": _url(record),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def _whole(record: Record) -> dict[str, Any]:
    return _fields(record) | {
        "repository": record.repository,
        "branch": record.branch,
        "head_sha": record.head_sha,
        "worktree": _worktree(record),
        "capabilities": list(record.capabilities),
        "mission": json.loads(record.mission),
        "ends": [end.model_dump(mode="json") for end in record.ends],
        "questions": [question.model_dump(mode="json") for question in record.questions],
        "reports_to_gateway": record.reports_to_gateway,
    }


def _lines(record: Record) -> Iterator[tuple[str, str]]:
    yield "child", str(record.child)
    yield "task key", record.task_key
    yield "task", str(json.loads(record.mission).get("immediateTask", ""))
    yield "role", record.role + "".join(f", with {name}" for name in record.capabilities)
    yield "owner", f"{record.owner_box} (Main {record.owner})"
    yield "state", record.state
    since = f" since {record.seen_since}" if record.seen_since else ""
    yield "status", f"{record.seen or 'not looked at yet'}{since}"
    if record.problem:
        yield "problem", record.problem
    yield "repository", record.repository
    yield "branch", record.branch
    yield "head", f"{record.head_sha} (where it began)"
    yield "worktree", _worktree(record)
    yield "conversation", _url(record) or "set OPENHANDS_URL to see its address"
    reports = "has the gateway's tools" if record.reports_to_gateway else "its final answer alone"
    yield "reports", reports
    yield "made at", record.created_at
    for end in record.ends:
        yield "end", f"{end.status} at {end.at}, wake {end.wake}, run {end.run}"
    for question in record.questions:
        yield "question", f"{question.request} ({question.decision or 'waits for a decision'})"


def _url(record: Record) -> str | None:
    """Where people find it. The variables are about one server, and it may be on another."""
    url, public = settings.server_url_of(), settings.public_url_of()
    base = public if url in (None, record.server) else record.server
    return f"{base}/conversations/{record.child}" if base else None


def _worktree(record: Record) -> str:
    from agent_bus.openhands.gateway.mirror import Workspace

    return str(Workspace(Path(record.workspace)).worktrees / f"child-{record.child}")
