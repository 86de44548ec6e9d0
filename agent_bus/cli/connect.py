"""`connect claude|codex`: the exact commands and configuration for one agent on this bus.

Nothing is changed here: the text is for a person to read and to run. The name of the agent
goes into no file that git tracks, since such a file reaches every worktree.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument

from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.options import Shared, open_as, verb
from agent_bus.errors import UsageError

SERVER = "agent-bus"
_TOOL_TIMEOUT = 330
"""Seconds: `bus_wait` takes up to 300."""


@dataclass(frozen=True, kw_only=True)
class Connect(Shared):
    """The options of `connect`."""

    host: Annotated[str, Argument(metavar="claude|codex", help="The program to connect.")]


@verb
def connect(options: Connect) -> None:
    """Print how to connect Claude Code or Codex as one agent; changes nothing.

    The agent needs a key: agent-bus init --agents NAME, or agent-bus keygen NAME.
    """
    describe = _HOSTS.get(options.host)
    if describe is None:
        raise UsageError(f"no host {options.host[:40]!a}: choose {' or '.join(_HOSTS)}")
    bus, program = open_as(options), program_command()
    lines = describe(bus, program)
    if options.json:
        render.put_json(
            {
                "host": options.host,
                "identity": bus.identity,
                "command": [*program, "mcp"],
                "environment": {"AGENT_MSG_AS": bus.identity} | _environment(bus),
                "writable_roots": [str(bus.address.path)],
                "text": "\n".join(lines),
            }
        )
        return
    for line in lines:
        render.put(render.visible(line))


def program_command() -> list[str]:
    """How this program was started, with an absolute path, for others to start it so too."""
    started = sys.argv[0]
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-m", "agent_bus"]
    return [os.path.abspath(shutil.which(started) or started)]


def _environment(bus: Bus) -> dict[str, str]:
    """What leads a server to this bus from anywhere, without the name."""
    chosen = bus.settings
    where = {"AGENT_BUS_PROJECT_DIR": str(bus.address.project)}
    if chosen.bus is not None:
        where = {"AGENT_MSG_BUS": str(bus.address.path)}
    if chosen.keys != chosen.data / "keys":
        where["AGENT_MSG_KEYS"] = str(os.path.abspath(chosen.keys))
    return where


def _filtered_environment(bus: Bus) -> dict[str, str]:
    """The same for a host that hands on HOME and hardly anything else."""
    data = bus.settings.data
    usual = Path("~/.local/share").expanduser()
    if sys.platform == "linux" and bus.settings.bus is None and data.parent != usual:
        return _environment(bus) | {"XDG_DATA_HOME": str(data.parent)}
    return _environment(bus)


def _claude(bus: Bus, program: Sequence[str]) -> list[str]:
    given = {"AGENT_MSG_AS": bus.identity} | _environment(bus)
    words = ["claude", "mcp", "add", "--scope", "local", SERVER]
    for name, value in given.items():
        words += ["--env", f"{name}={value}"]
    words += ["--", *program, "mcp"]
    return [
        *_exporting(bus, "claude"),
        f"# 2. Once, in {bus.address.project} (kept in your own settings, never in git):",
        shlex.join(words),
        "",
        "# 3. To be woken without asking, let the agent's Monitor run:",
        shlex.join([*program, "watch"]),
    ]


def _codex(bus: Bus, program: Sequence[str]) -> list[str]:
    given = _filtered_environment(bus)
    environment = ", ".join(f"{name} = {_toml(value)}" for name, value in given.items())
    text = [
        *_exporting(bus, "codex"),
        "# 2. In ~/.codex/config.toml. The name comes from the environment, which Codex hands on",
        "#    only where env_vars says so; without it the server refuses to start.",
        f"[mcp_servers.{SERVER}]",
        f"command = {_toml(program[0])}",
        f"args = [{', '.join(_toml(word) for word in (*program[1:], 'mcp'))}]",
        f"env = {{ {environment} }}",
        'env_vars = ["AGENT_MSG_AS"]',
        "required = true",
        f"tool_timeout_sec = {_TOOL_TIMEOUT}",
        "",
        "# 3. For the agent's own shell: its sandbox must let it write to the bus. If you have",
        f"#    this table already, add the path to it. The keys ({bus.keys.folder})",
        "#    need only be readable there.",
        "[sandbox_workspace_write]",
        f"writable_roots = [{_toml(os.path.realpath(bus.address.path))}]",
    ]
    named = {name: value for name, value in given.items() if name != "AGENT_BUS_PROJECT_DIR"}
    if named:
        text += [
            "",
            "# 4. The shell finds the bus by these; Codex may leave out names with KEY in them.",
            "[shell_environment_policy.set]",
            *(f"{name} = {_toml(value)}" for name, value in named.items()),
        ]
    return text


def _exporting(bus: Bus, host: str) -> list[str]:
    return [
        "# 1. In the shell that starts it, so that the agent's own shell is bound to the name too:",
        f"export AGENT_MSG_AS={bus.identity}",
        f"#    ... and then: {host}",
        "",
    ]


def _toml(text: str) -> str:
    # A basic string of TOML is written as one of JSON, as long as nothing becomes two \u.
    return json.dumps(text, ensure_ascii=False)


_HOSTS: dict[str, Callable[[Bus, Sequence[str]], list[str]]] = {"claude": _claude, "codex": _codex}
