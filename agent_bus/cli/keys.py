"""`keys list|rotate|revoke|pin`: which keys there are; their secrets are never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from agent_bus import keeping
from agent_bus.cli import passphrase, render
from agent_bus.cli.app import TextCommand, group
from agent_bus.cli.options import Shared, check_as, load_settings, open_anonymous, verb
from agent_bus.clock import SystemClock
from agent_bus.errors import AgentBusError, UsageError
from agent_bus.keyring import Key, is_kid
from agent_bus.keys import Keys
from agent_bus.names import AgentName, agent_name

keys = group(help="List, rotate and revoke keys, and pin sealed ones.")

HEAD = ("agent", "key id", "kind", "state", "made at", "ended at")


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
    """Give an agent a new key. What the old one signed stays valid.

    That of a sealed name is endorsed by the one before it, whose passphrase you type.
    """
    agent = agent_name(options.name)
    loaded = load_settings(options)
    keys = _keys(options)
    if keys.load(agent).is_sealed:
        old = passphrase.ask(f"Passphrase of {agent}: ")
        keys.unlock(agent, old)
        made = keys.rotate_sealed(agent, old, passphrase.ask_new(agent, keep=old))
        passphrase.pin_everywhere(loaded, agent, passphrase.opened(keys, agent))
    else:
        made = keys.rotate(agent)
    _show([(agent, made)], json=options.json)


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


@verb
def pin(options: Named) -> None:
    """Say on this bus which older messages and decisions of a sealed name still count.

    keygen and rotate do it by themselves on the buses that they find. Here all that the name's
    older keys have signed is looked for anew, and counts if you say so.
    """
    agent = agent_name(options.name)
    bus, keys = open_anonymous(options), _keys(options)
    if not keys.load(agent).is_sealed:
        raise UsageError(f"{agent} is not sealed: agent-bus keygen {agent} --sealed")
    keys.unlock(agent, passphrase.ask(f"Passphrase of {agent}: "))
    found = set(keeping.older_files(bus.store, agent, bus.keys.index()))
    new = len(found - bus.store.pins.kept(agent, bus.keys.index()))
    again = bool(new) and _agrees(agent, new)
    kept = keeping.pin(bus.store, agent, passphrase.opened(keys, agent), again=again)
    if options.json:
        render.put_json({"agent": agent, "bus": bus.file.bus, "kept": kept})
    else:
        render.table(("agent", "older files that count"), [(agent, str(kept))])


def _agrees(agent: AgentName, number: int) -> bool:
    render.say(
        f"{number} files here were signed with older keys of {agent}, which every program of "
        "this user can read, and do not count now"
    )
    try:
        return input("Do they count? (y/N) ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


keys.command("pin", cls=TextCommand)(pin)
keys.command("list", cls=TextCommand)(list_keys)
keys.command("rotate", cls=TextCommand)(rotate)
keys.command("revoke", cls=TextCommand)(revoke)


def _keys(options: Shared) -> Keys:
    loaded = load_settings(options)
    check_as(options, loaded)
    return Keys(loaded.keys, SystemClock())


def _kind(key: Key) -> str:
    return f"sealed {key.alg}" if key.is_sealed else key.alg


def _show(entries: list[tuple[AgentName, Key]], *, json: bool) -> None:
    if not json:
        rows = (
            (a, k.kid, _kind(k), k.state, k.created_at, k.retired_at or "-") for a, k in entries
        )
        render.table(HEAD, rows)
        return
    for agent, key in entries:
        render.put_json(
            {
                "agent": agent,
                "kid": key.kid,
                "alg": key.alg,
                "sealed": key.is_sealed,
                "fingerprint": key.fingerprint or None,
                "state": key.state,
                "created_at": key.created_at,
                "retired_at": key.retired_at,
            }
        )
