"""How each host is connected: which files get what.

The name of an agent stands in none of them. A file of a project reaches all who share it, and
Claude Code reads its local ones in every worktree of a repository (seen in 2.1.332), so that
all agents there would speak under one name. Each host takes the name from the environment
that it was started in.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_bus.bus import Bus
from agent_bus.errors import UsageError
from agent_bus.git import repository
from agent_bus.hosts import block, document, guard, outside
from agent_bus.hosts.document import SERVER
from agent_bus.hosts.events import EVENTS
from agent_bus.hosts.guard import Program
from agent_bus.hosts.settings import Homes
from agent_bus.openhands.gateway import settings as gateway_settings

TOOL_TIMEOUT = 330
"""Seconds: `bus_wait` takes up to 300."""
_SHELL = (
    "The agent's shell finds the bus by these; Codex may leave out names with KEY in them. In "
    "the same file:"
)
_WINDOWS = (
    "Start each window as codex --no-daemon. All others share one background process, and so "
    "the environment and the name of the window that came first."
)
_TRUST = (
    "Codex runs no hook before you have trusted it, and says nothing of it: open codex and type "
    "/hooks. A changed hook has to be trusted anew."
)


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a host: how it is changed, and what a person would put there."""

    path: Path
    what: str
    """What it is for, in a few words."""
    put: Callable[[bytes | None], bytes]
    take: Callable[[bytes], bytes]
    lines: tuple[str, ...]
    """What a person is to do instead, or to put into the file."""
    by_hand: bool = False
    """Whether the lines are a command and not what the file is to hold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps for one host."""

    host: str
    steps: tuple[Step, ...]
    after: tuple[str, ...] = ()
    """What remains to be done by a person."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host is connected, and how our program is started."""

    folder: Path
    """The project's folder: that of the repository or, for hosts that look into the working
    folder, that one."""
    homes: Homes
    words: Sequence[str]
    """Our program."""


def connecting(host: str, bus: Bus, place: Place, *, hooks: bool) -> Plan:
    """What connects a host to a bus. Raises UsageError."""
    made = _MAKERS.get(host)
    if made is None:
        raise UsageError(f"no host {host[:40]!a}: choose {', '.join(_MAKERS)}")
    if hooks and host not in EVENTS:
        raise UsageError(
            f"{host} has no hooks that agent-bus knows: leave out --hooks, and tell the agent to "
            "look into bus_inbox when it begins and to use bus_wait"
        )
    return made(bus, place, hooks)


def disconnecting(host: str, place: Place, name: str | None) -> Plan:
    """What takes that out again, with or without a bus. Raises UsageError."""
    if host not in _MAKERS:
        raise UsageError(f"no host {host[:40]!a}: choose {', '.join(_MAKERS)}")
    files = _FILES[host](place)
    return Plan(host, tuple(_taking(path, servers, name) for path, servers in files))


def carry_out(plan: Plan) -> list[tuple[Step, outside.Outcome]]:
    """Change the files. Raises what `outside.change` raises; each file is whole at any time."""
    return [(step, outside.change(step.path, step.put)) for step in plan.steps]


def take_out(plan: Plan) -> list[tuple[Step, outside.Outcome]]:
    """Change the files back. What is not there, or holds nothing of ours, stays as it is."""
    return [(step, outside.change(step.path, _emptied(step))) for step in plan.steps]


def environment(bus: Bus) -> dict[str, str]:
    """What leads a server to this bus from anywhere, without the name.

    Where it is to offer the tools for children, also to their agent server.
    """
    chosen = bus.settings
    where = {"AGENT_BUS_PROJECT_DIR": str(bus.address.project)}
    if chosen.bus is not None:
        where = {"AGENT_MSG_BUS": str(bus.address.path)}
    if chosen.keys != chosen.data / "keys":
        where["AGENT_MSG_KEYS"] = str(os.path.abspath(chosen.keys))
    return where | offered(bus)


def offered(bus: Bus) -> dict[str, str]:
    """Which tools the server is to offer, where that is not the usual, and what they need."""
    profiles = bus.settings.profiles
    if profiles == ("bus",):
        return {}
    needed = gateway_settings.for_hosts() if "openhands" in profiles else {}
    return {"AGENT_BUS_PROFILES": ",".join(profiles)} | needed


def filtered_environment(bus: Bus) -> dict[str, str]:
    """The same for a host that hands on HOME and hardly anything else."""
    data = bus.settings.data
    usual = Path("~/.local/share").expanduser()
    if sys.platform == "linux" and bus.settings.bus is None and data.parent != usual:
        return environment(bus) | {"XDG_DATA_HOME": str(data.parent)}
    return environment(bus)


def project_of(folder: Path) -> Path:
    """The folder under which Claude Code keeps what is local to a project.

    That of the repository, also for its linked worktrees; else the folder itself.
    """
    found = repository(folder)
    return found.project if found else Path(os.path.realpath(folder))


# -- the hosts


def _claude(bus: Bus, place: Place, hooks: bool) -> Plan:
    given = {"AGENT_MSG_AS": "${AGENT_MSG_AS}"} | environment(bus)
    entry = {
        "type": "stdio",
        "command": place.words[0],
        "args": [*place.words[1:], "mcp"],
        "env": given,
    }
    words = ["claude", "mcp", "add", "--scope", "local", SERVER]
    for name, value in given.items():
        words += ["--env", f"{name}={value}"]
    project = project_of(place.folder)
    path, servers = _claude_servers(place)
    server = _json_step(
        path,
        "the server",
        lambda value: document.put_server(value, servers, entry),
        servers,
        (shlex.join([*words, "--", *place.words, "mcp"]),),
    )
    steps = [replace(server, by_hand=True)]
    if hooks:
        steps.append(_hook_step(project / ".claude/settings.local.json", bus, place, "claude"))
    monitor = ("To be woken without hooks, let the agent's Monitor run:",)
    watch = (shlex.join([*place.words, "watch"]),)
    return Plan("claude", tuple(steps), () if hooks else monitor + watch)


def _codex(bus: Bus, place: Place, hooks: bool) -> Plan:
    given, root = filtered_environment(bus), os.path.realpath(bus.address.path)
    server = (
        f"[mcp_servers.{SERVER}]",
        f"command = {block.quoted(place.words[0])}",
        f"args = [{', '.join(block.quoted(word) for word in (*place.words[1:], 'mcp'))}]",
        f"env = {block.table(given)}",
        "# The name comes from the environment; Codex hands on only what is named here.",
        f"env_vars = [{', '.join(map(block.quoted, _inherited(bus, given)))}]",
        "required = true",
        f"tool_timeout_sec = {TOOL_TIMEOUT}",
    )
    shell = (
        "# The agent's own shell has to write to the bus. The keys need only be readable there.",
        "[sandbox_workspace_write]",
        f"writable_roots = [{block.quoted(root)}]",
    )
    path = place.homes.codex / "config.toml"
    steps = [
        Step(
            path,
            "the server, and the sandbox of the agent's shell",
            lambda data: block.put(data, server, shell),
            block.take,
            (*server, "", *shell),
        )
    ]
    after: tuple[str, ...] = (_WINDOWS,)
    needless = {"AGENT_BUS_PROJECT_DIR", *offered(bus)}
    named = {name: value for name, value in given.items() if name not in needless}
    if named:
        after += (_SHELL, "[shell_environment_policy.set]")
        after += tuple(f"{name} = {block.quoted(value)}" for name, value in named.items())
    after += _codex_roots(path, root)
    if hooks:
        steps.append(_hook_step(place.homes.codex / "hooks.json", bus, place, "codex"))
        after += (_TRUST,)
    return Plan("codex", tuple(steps), after)


def _inherited(bus: Bus, given: dict[str, str]) -> list[str]:
    """What Codex is to hand on from its own environment: the name, and what is secret."""
    key = "openhands" in bus.settings.profiles and "OPENHANDS_API_KEY_FILE" not in given
    return ["AGENT_MSG_AS", *(["OPENHANDS_API_KEY"] if key else [])]


def _gemini(bus: Bus, place: Place, hooks: bool) -> Plan:
    entry = {
        "command": place.words[0],
        "args": [*place.words[1:], "mcp"],
        "env": {"AGENT_MSG_AS": "${AGENT_MSG_AS}"} | environment(bus),
        "timeout": TOOL_TIMEOUT * 1000,
    }
    path, servers = _gemini_servers(place)
    step = _server_step(path, servers, entry)
    if hooks:
        step = _both(step, _hook_step(path, bus, place, "gemini"))
    return Plan("gemini", (step,))


def _opencode(bus: Bus, place: Place, hooks: bool) -> Plan:  # noqa: ARG001 - it has none
    entry = {
        "type": "local",
        "command": [*place.words, "mcp"],
        "environment": {"AGENT_MSG_AS": "{env:AGENT_MSG_AS}"} | environment(bus),
        "enabled": True,
    }
    path, servers = _opencode_servers(place)
    return Plan("opencode", (_server_step(path, servers, entry),))


def _cursor(bus: Bus, place: Place, hooks: bool) -> Plan:  # noqa: ARG001 - none are known
    entry = {
        "command": place.words[0],
        "args": [*place.words[1:], "mcp"],
        "env": {"AGENT_MSG_AS": "${env:AGENT_MSG_AS}"} | environment(bus),
    }
    path, servers = _cursor_servers(place)
    return Plan("cursor", (_server_step(path, servers, entry),))


def _claude_servers(place: Place) -> tuple[Path, tuple[str, ...]]:
    project = str(project_of(place.folder))
    return place.homes.claude / ".claude.json", ("projects", project, "mcpServers")


def _gemini_servers(place: Place) -> tuple[Path, tuple[str, ...]]:
    return place.folder / ".gemini/settings.json", ("mcpServers",)


def _opencode_servers(place: Place) -> tuple[Path, tuple[str, ...]]:
    commented = place.folder / "opencode.jsonc"
    return commented if commented.exists() else place.folder / "opencode.json", ("mcp",)


def _cursor_servers(place: Place) -> tuple[Path, tuple[str, ...]]:
    return place.folder / ".cursor/mcp.json", ("mcpServers",)


_MAKERS: dict[str, Callable[[Bus, Place, bool], Plan]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
    "cursor": _cursor,
}
_FILES: dict[str, Callable[[Place], list[tuple[Path, tuple[str, ...] | None]]]] = {
    "claude": lambda place: [
        _claude_servers(place),
        (project_of(place.folder) / ".claude/settings.local.json", ()),
    ],
    "codex": lambda place: [
        (place.homes.codex / "config.toml", None),
        (place.homes.codex / "hooks.json", ()),
    ],
    "gemini": lambda place: [_gemini_servers(place)],
    "opencode": lambda place: [_opencode_servers(place)],
    "cursor": lambda place: [_cursor_servers(place)],
}
"""Where each host may have something of ours: the way to our server in a JSON file, or None
for the file of TOML."""


# -- parts


def _server_step(path: Path, servers: tuple[str, ...], entry: dict[str, Any]) -> Step:
    shown: dict[str, Any] = {}
    document.put_server(shown, servers, entry)
    lines = tuple(json.dumps(shown, indent=2, ensure_ascii=False).split("\n"))
    return _json_step(
        path,
        "the server",
        lambda value: document.put_server(value, servers, entry),
        servers,
        lines,
    )


def _hook_step(path: Path, bus: Bus, place: Place, host: str) -> Step:
    leading = {
        "AGENT_MSG_BUS": str(bus.address.path),
        "AGENT_MSG_KEYS": os.path.abspath(bus.settings.keys),
    }
    marks = shlex.quote(os.path.join(os.path.abspath(bus.settings.data), "hooks"))
    groups = guard.groups(Program(place.words, leading, marks), host)
    lines = json.dumps({"hooks": groups}, indent=2, ensure_ascii=False).split("\n")
    return _json_step(
        path, "the hooks", lambda value: document.put_hooks(value, groups), (), tuple(lines)
    )


def _both(first: Step, second: Step) -> Step:
    """Two changes of one file as one."""
    shown = document.parse("\n".join(first.lines).encode())
    shown |= document.parse("\n".join(second.lines).encode())
    return Step(
        first.path,
        f"{first.what} and {second.what}",
        lambda data: second.put(first.put(data)),
        first.take,
        tuple(json.dumps(shown, indent=2, ensure_ascii=False).split("\n")),
    )


def _json_step(
    path: Path,
    what: str,
    edit: Callable[[dict[str, Any]], None],
    servers: tuple[str, ...],
    lines: tuple[str, ...],
) -> Step:
    def put(data: bytes | None) -> bytes:
        value = document.parse(data)
        before = json.dumps(value)
        edit(value)
        # What is right already is not written in another form.
        return data if data and json.dumps(value) == before else document.dump(value, data)

    return Step(path, what, put, _taking(path, servers, None).take, lines)


def _taking(path: Path, servers: tuple[str, ...] | None, name: str | None) -> Step:
    def take(data: bytes) -> bytes:
        if servers is None:
            return block.take(data)
        value = document.parse(data)
        before = json.dumps(value)
        if servers:
            document.take_server(value, servers, name)
        document.take_hooks(value)
        return data if json.dumps(value) == before else document.dump(value, data)

    return Step(path, "what agent-bus has put there", lambda data: data or b"", take, ())


def _emptied(step: Step) -> Callable[[bytes | None], bytes | None]:
    def edit(data: bytes | None) -> bytes | None:
        if data is None:
            return None
        left = step.take(data)
        if left == data or not _is_empty(left):
            return left
        # It is removed only where there was nothing but ours in it before as well.
        before = outside.read(outside.backup_of(step.path))
        return None if before is None or _is_empty(step.take(before)) else left

    return edit


def _is_empty(data: bytes) -> bool:
    return data.strip() in (b"", b"{}")


def _codex_roots(path: Path, root: str) -> tuple[str, ...]:
    there = outside.read(path)
    if there is None or b"sandbox_workspace_write" not in block.take(there):
        return ()
    if not block.lacks_root(block.take(there), root):
        return ()
    advice = (
        f"{path} has a table sandbox_workspace_write of its own: put {block.quoted(root)} into "
        "its writable_roots, so that the agent's shell can write to the bus."
    )
    return (advice,)
