"""`connect`, `disconnect`: one host program on this bus, by hand or written into its files.

The name of the agent goes into no file: it is exported where the host is started.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.options import Shared, as_path, open_as, optional_name, verb
from agent_bus.hosts import plans, settings
from agent_bus.hosts.outside import BACKUP, Outcome
from agent_bus.hosts.plans import Place, Plan, Step

HOSTS = "claude|codex|gemini|opencode|cursor"


@dataclass(frozen=True, kw_only=True)
class Disconnect(Shared):
    """The options of `disconnect`."""

    host: Annotated[str, Argument(metavar=HOSTS, help="The program.")]


@dataclass(frozen=True, kw_only=True)
class Connect(Disconnect):
    """The options of `connect`."""

    hooks: Annotated[
        bool, Option("--hooks", help="Also tell the agent of new messages by the host's hooks.")
    ] = False
    write: Annotated[
        bool, Option("--write", help="Change the host's files; else only show what to do.")
    ] = False


@verb
def connect(options: Connect) -> None:
    """Connect Claude Code, Codex, Gemini CLI, opencode or Cursor as one agent.

    Prints what to do, or does it with --write: what a file holds stays, and a copy of it is
    put beside it. The agent needs a key: agent-bus init --agents NAME, or agent-bus keygen
    NAME.
    """
    bus = open_as(options)
    plan = plans.connecting(options.host, bus, _place(options), hooks=options.hooks)
    done = plans.carry_out(plan) if options.write else []
    lines = [*_exporting(bus, options.host), *(_written(done) or _to_do(plan)), *_after(plan)]
    if options.json:
        render.put_json(_record(bus, plan, lines, done))
        return
    for line in lines:
        render.put(render.visible(line))


@verb
def disconnect(options: Disconnect) -> None:
    """Take out of a host's files what connect has put there; needs no bus.

    With --as only if it is that agent's.
    """
    plan = plans.disconnecting(options.host, _place(options), optional_name(options.as_name))
    for step, outcome in plans.take_out(plan):
        if options.json:
            render.put_json({"file": str(step.path), "outcome": outcome})
        elif outcome == "unchanged":
            render.say(f"{step.path} holds nothing of agent-bus")
        else:
            render.put(render.visible(f"{step.path}: {outcome}"))


def program_command() -> list[str]:
    """How this program was started, with an absolute path, for others to start it so too."""
    started = sys.argv[0]
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-m", "agent_bus"]
    return [os.path.abspath(shutil.which(started) or started)]


def _place(options: Shared) -> Place:
    folder = as_path(options.project) if options.project else Path.cwd()
    return Place(Path(os.path.realpath(folder)), settings.load(), program_command())


def _record(
    bus: Bus, plan: Plan, lines: list[str], done: list[tuple[Step, Outcome]]
) -> dict[str, object]:
    outcomes = {id(step): outcome for step, outcome in done}
    return {
        "host": plan.host,
        "identity": bus.identity,
        "command": [*program_command(), "mcp"],
        "environment": {"AGENT_MSG_AS": bus.identity} | plans.environment(bus),
        "writable_roots": [str(bus.address.path)],
        "files": [
            {"file": str(step.path), "what": step.what, "outcome": outcomes.get(id(step))}
            for step in plan.steps
        ],
        "text": "\n".join(lines),
    }


def _exporting(bus: Bus, host: str) -> list[str]:
    return [
        f"# 1. In the shell that starts {host}, so that the server, the hooks and the agent's own",
        "#    shell are all bound to the name; without it the server refuses to start.",
        f"export AGENT_MSG_AS={bus.identity}",
        "",
    ]


def _to_do(plan: Plan) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(plan.steps, 2):
        where = "Once" if step.by_hand else f"In {step.path}"
        lines += [f"# {number}. {where}: {step.what}", *step.lines, ""]
    return lines


def _written(done: list[tuple[Step, Outcome]]) -> list[str]:
    lines = [f"# {step.path}: {outcome} ({step.what})" for step, outcome in done]
    if any(outcome == "written" for _, outcome in done):
        lines.append(f"# What a file held before stands beside it under the name with {BACKUP}.")
    return [*lines, ""] if lines else []


def _after(plan: Plan) -> list[str]:
    if not plan.after:
        return []
    first, *rest = plan.after
    return [f"# Then: {first}", *rest]
