"""`keys list|rotate|revoke`: which keys there are; their secrets are never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from agent_bus.cli import render
from agent_bus.cli.app import TextCommand, group
from agent_bus.cli.options import Shared, check_as, load_settings, verb
from agent_bus.clock import SystemClock
from agent_bus.errors import AgentBusError, UsageError
from agent_bus.keyring import Key, is_kid
from agent_bus.keys import Keys
from agent_bus.names import AgentName, agent_name

keys = group(help="List, rotate and revoke keys.")

HEAD = ("agent", "key id", "state", "made at", "ended at")


@dataclass(frozen=True, kw_only=True)
class Listed(Shared):
    """The options of `keys list`."""

    name: Annotated[str | None, Argument(metavar="[NAME]", help="Only this agent.")] = None


@dataclass(frozen=True, kw_only=True)
class Named(Shared):
    """The options of `keys rotate`."""

    name: Annotated[str, Argument(metavar="NAME", help="The agent.")]


@dataclass(frozen=True, kw_only=True)
class Revoked(Named):
    """The options of `keys revoke`."""

    kid: Annotated[str, Argument(metavar="KID", help="The id of the key: 16 hex digits.")]


@verb
def list_keys(options: Listed) -> int:
    """List keys: whose, which, and whether they sign (active), verify (retired) or neither."""
    found = _keys(options)
    agents = found.agents() if options.name is None else [agent_name(options.name)]
    failed = 0
    entries: list[tuple[AgentName, Key]] = []
    for agent in agents:
        try:
            entries += ((agent, key) for key in found.load(agent).keys)
        except AgentBusError as error:
            render.say(str(error))
            failed = failed or error.exit_code
    _show(entries, json=options.json)
    return failed


@verb
def rotate(options: Named) -> None:
    """Give an agent a new key. What the old one signed stays valid."""
    agent = agent_name(options.name)
    _show([(agent, _keys(options).rotate(agent))], json=options.json)


@verb
def revoke(options: Revoked) -> None:
    """Mark a key as leaked: nothing that it signed, or will sign, is valid any more."""
    agent = agent_name(options.name)
    if not is_kid(options.kid):
        raise UsageError(f"no key id: {options.kid[:40]!a}; agent-bus keys list {agent} shows them")
    found = _keys(options)
    _show([(agent, found.revoke(agent, options.kid))], json=options.json)
    if all(key.state != "active" for key in found.load(agent).keys):
        render.say(f"{agent} has no active key now: agent-bus keys rotate {agent} makes one")


keys.command("list", cls=TextCommand)(list_keys)
keys.command("rotate", cls=TextCommand)(rotate)
keys.command("revoke", cls=TextCommand)(revoke)


def _keys(options: Shared) -> Keys:
    loaded = load_settings(options)
    check_as(options, loaded)
    return Keys(loaded.keys, SystemClock())


def _show(entries: list[tuple[AgentName, Key]], *, json: bool) -> None:
    if not json:
        rows = ((a, k.kid, k.state, k.created_at, k.retired_at or "-") for a, k in entries)
        render.table(HEAD, rows)
        return
    for agent, key in entries:
        render.put_json(
            {
                "agent": agent,
                "kid": key.kid,
                "alg": key.alg,
                "state": key.state,
                "created_at": key.created_at,
                "retired_at": key.retired_at,
            }
        )
