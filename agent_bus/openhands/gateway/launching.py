"""The request that makes a conversation, from an order.

Which agent a child is stands in the person's JSON file, or in the settings of the agent
server. Either way its MCP servers are replaced by those of the order, so that a child has
these and no others. Their tokens stand where the agent server keeps secrets: it stores them
encrypted and shows them to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from agent_bus.errors import ConfigurationError
from agent_bus.openhands.gateway.events import QUIET_TOOLS
from agent_bus.openhands.gateway.provider import McpEntry, Order, StopHook

MAX_ITERATIONS = 300
"""Steps of one run, unless the agent file says otherwise."""
TITLE_LIMIT = 200
"""Characters of a title that the agent server takes."""

_SOURCES = ("agent", "agent_settings")
_FURTHER = ("max_iterations", "confirmation_policy", "security_analyzer")
# The server runs a call whose hook was late, so the gate gets all the time it may need.
_GATE_SECONDS = 60
_HOOK_SECONDS = 180


def creation(order: Order, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The body of POST /api/conversations.

    `settings` are the agent settings that the server has stored, with its secrets encrypted;
    they are used if the order names no agent. Raises ConfigurationError.
    """
    return {
        "conversation_id": str(order.child),
        "workspace": {"kind": "LocalWorkspace", "working_dir": str(order.folder)},
        "autotitle": False,
        "max_iterations": MAX_ITERATIONS,
        "tags": dict(order.tags),
        "hook_config": hooks(order),
        **_suffix(order.instructions),
        **(_stored(order, settings) if order.agent is None else _chosen(order, order.agent)),
    }


def hooks(order: Order) -> dict[str, Any]:
    """The gate before every tool call, and the Stop hook if there is one."""
    found = {"pre_tool_use": [_hook("gate", gate_command(order), timeout=_GATE_SECONDS)]}
    if order.hook:
        # A hook that is waited for would stop the whole agent server until it is done.
        command = stop_command(order.hook)
        found["stop"] = [_hook("run-end", command, timeout=_HOOK_SECONDS, wait=False)]
    return found


def gate_command(order: Order) -> str:
    """Exit 2, which alone blocks a call, while the gate's file is missing.

    What ends a turn stays open: blocked, it would be tried until the run's last step.
    """
    return (
        f"test -f {quote(str(order.gate))} && exit 0; "
        f'case "$OPENHANDS_TOOL_NAME" in {"|".join(QUIET_TOOLS)}) exit 0;; esac; '
        "echo 'Tools are still shut: finish this turn without any.' >&2; exit 2"
    )


def stop_command(hook: StopHook) -> str:
    """Post the event, which stands on stdin, with the header that a file holds.

    Everybody who reads the conversation sees this command: it names the file, not its content.
    """
    return (
        # No configuration of the child's, no proxy: the header is for that one address.
        "curl --disable --noproxy '*' --globoff --proto =http,https --silent --output /dev/null "
        "-m 20 --retry 5 --retry-delay 2 --retry-connrefused "
        f"-H 'Content-Type: application/json' -H {quote(f'@{hook.header}')} "
        f"--data-binary @- {quote(hook.url)}"
    )


def _hook(name: str, command: str, *, timeout: int, wait: bool = True) -> dict[str, Any]:
    entry = {"type": "command", "name": name, "command": command, "timeout": timeout}
    return {"matcher": "*", "hooks": [entry if wait else entry | {"async": True}]}


def _suffix(instructions: str) -> dict[str, Any]:
    if not instructions.strip():
        return {}
    return {"agent_launch_additions": {"system_message_suffix_append": instructions}}


def _chosen(order: Order, agent: Mapping[str, Any]) -> dict[str, Any]:
    sources = [name for name in _SOURCES if agent.get(name) is not None]
    strange = [name for name in agent if name not in (*_SOURCES, *_FURTHER)]
    if "agent_profile_id" in agent:
        raise ConfigurationError(
            "the agent file names an agent profile, which brings MCP servers of its own: "
            "write agent or agent_settings into the file of AGENT_BUS_OPENHANDS_AGENT"
        )
    if strange:
        raise ConfigurationError(
            f"the agent file holds {strange[0][:40]!a}: besides agent or agent_settings it may "
            f"hold {', '.join(_FURTHER)}"
        )
    if len(sources) != 1 or not isinstance(agent[sources[0]], Mapping):
        raise ConfigurationError(
            "the agent file names no agent: it holds either agent or agent_settings, an object "
            "as the agent server takes it"
        )
    source = sources[0]
    rest = {name: agent[name] for name in _FURTHER if name in agent}
    return {source: _with_servers(agent[source], order.servers), **rest}


def _stored(order: Order, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    if not settings:
        raise ConfigurationError(
            "the agent server hands out no agent settings of its own (it has none, or no key that "
            "encrypts them): set AGENT_BUS_OPENHANDS_AGENT to a "
            "JSON file that says which agent a child is"
        )
    return {
        "agent_settings": _with_servers(settings, order.servers),
        # Its own keys, which only it can read, go back to it as they came.
        "secrets_encrypted": True,
    }


def _with_servers(agent: Mapping[str, Any], servers: tuple[McpEntry, ...]) -> dict[str, Any]:
    return {**agent, "mcp_config": {entry.name: _server(entry) for entry in servers}}


def _server(entry: McpEntry) -> dict[str, Any]:
    if entry.bearer is None:
        return {"url": entry.url}
    return {"url": entry.url, "auth": {"strategy": "bearer", "value": entry.bearer}}
