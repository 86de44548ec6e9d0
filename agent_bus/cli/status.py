"""`whoami status`: who this process is, how each agent stands, what became of a message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from agent_bus import resolve
from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.options import (
    ID_HELP,
    Shared,
    check_as,
    identity,
    is_bound,
    load_settings,
    verb,
)
from agent_bus.clock import SystemClock, duration, to_text
from agent_bus.errors import AgentBusError, ConfigurationError
from agent_bus.keys import Keys
from agent_bus.presence import Process
from agent_bus.settings import Settings
from agent_bus.standing import AgentStatus, MessageStatus
from agent_bus.unread import Unread

_NEGLECTED = 20
HEAD = ("agent", "unread", "oldest unread", "attached", "last seen", "bad files")


@dataclass(frozen=True, kw_only=True)
class Status(Shared):
    """The options of `status`."""

    id: Annotated[str | None, Argument(metavar="[ID]", help=ID_HELP)] = None


@verb
def whoami(options: Shared) -> int:
    """Show who you are, which bus this is and how that came about.

    Shows what can be shown where something is wrong, and ends with the code of the first
    problem.
    """
    loaded = load_settings(options)
    check_as(options, loaded)
    record: dict[str, object] = dict.fromkeys(
        ("identity", "admin", "bus", "bus_id", "project", "how")
    )
    record |= {"keys": str(loaded.keys), "has_key": False}
    problems: list[AgentBusError] = []
    for look in (_look_for_address, _look_for_identity, _look_for_bus):
        try:
            look(options, loaded, record)
        except AgentBusError as error:
            problems.append(error)
    if options.json:
        render.put_json(record)
    else:
        for name, value in record.items():
            shown = (
                "-" if value is None else str(value).lower() if value in (True, False) else value
            )
            render.put(f"{name.replace('_', ' ')}: {render.visible(str(shown))}")
    for text in dict.fromkeys(str(problem) for problem in problems):
        render.say(text)
    return problems[0].exit_code if problems else 0


@verb
def status(options: Status) -> None:
    """Show how each agent stands; or, with an id, what became of a message.

    Needs no identity. With one, also which of one's own messages nobody has read for a while
    (AGENT_BUS_UNREAD_AFTER, 10m).
    """
    loaded = load_settings(options)
    check_as(options, loaded)
    nobody = options.as_name is None and not is_bound(loaded)
    if options.id is not None:
        bus = Bus.open(loaded, identity=None if nobody else identity(options, loaded))
        _show_message(bus.message_status(options.id), json=options.json)
        return
    bus = Bus.open(loaded)
    neglected: tuple[Unread, ...] = ()
    # It answers also where the name is what is wrong.
    with contextlib.suppress(ConfigurationError):
        if not nobody:
            bus = Bus.open(loaded, identity=identity(options, loaded))
            neglected = bus.unread_by_others().messages
    _show_agents(bus.status(), neglected, json=options.json)
    if neglected and not options.json:
        _tell_neglected(neglected, bus)


def _look_for_address(options: Shared, loaded: Settings, record: dict[str, object]) -> None:  # noqa: ARG001
    where = resolve.address(loaded)
    record |= {"bus": str(where.path), "project": str(where.project), "how": where.how}


def _look_for_identity(options: Shared, loaded: Settings, record: dict[str, object]) -> None:
    if options.as_name is None and not is_bound(loaded):
        return
    name = identity(options, loaded)
    record["identity"] = name
    Keys(loaded.keys, SystemClock()).load(name).signing_key()
    record["has_key"] = True


def _look_for_bus(options: Shared, loaded: Settings, record: dict[str, object]) -> None:  # noqa: ARG001
    bus = Bus.open(loaded)
    record |= {"bus_id": bus.file.bus, "admin": record["identity"] in bus.admins}


def _show_agents(agents: Iterable[AgentStatus], neglected: Sequence[Unread], *, json: bool) -> None:
    found = list(agents)
    if json:
        for agent in found:
            theirs = [one for one in neglected if one.to == agent.agent]
            render.put_json(_record(agent) | {"unread_from_you": [_mine(one) for one in theirs]})
    else:
        render.table(HEAD, (_columns(agent) for agent in found))
    for agent in found:
        _warn(agent)


def _record(agent: AgentStatus) -> dict[str, object]:
    attached = [_process(process) for process in agent.attached]
    since = [process.started_at for process in agent.attached]
    return {
        "agent": agent.agent,
        "unread": agent.unread,
        "oldest_unread": _time(agent.oldest_unread),
        "attached": attached,
        "attached_since": min(since, default=None),
        "last_seen": _time(agent.last_seen),
        "bad": [
            {"id": bad.place.id, "outcome": bad.judged.outcome, "detail": bad.judged.detail}
            for bad in agent.bad
        ],
    }


def _mine(one: Unread) -> dict[str, object]:
    return {"id": one.id, "subject": one.message.subject, "sent_at": one.message.sent_at}


def _tell_neglected(neglected: Sequence[Unread], bus: Bus) -> None:
    """What a sender should know stands with the talk: the table has a line per agent."""
    limit = duration(bus.settings.unread_after)
    render.say(f"{len(neglected)} of your messages have been unread for more than {limit}:")
    for one in neglected[:_NEGLECTED]:
        since = "attached" if one.attached else "not attached"
        if not one.attached:
            since += f", last seen {_time(one.last_seen) or 'never'}"
        render.say(f"{one.id} to {one.to} ({since}): {one.message.subject}")
    if len(neglected) > _NEGLECTED:
        render.say(f"… and {len(neglected) - _NEGLECTED} more")


def _process(process: Process) -> dict[str, object]:
    return {
        "pid": process.pid,
        "role": process.role,
        "started_at": process.started_at,
        "mode": process.mode,
        "session": process.session,
        "host": process.host,
        "version": process.version,
    }


def _columns(agent: AgentStatus) -> tuple[str, ...]:
    attached = ", ".join(f"{p.role} since {p.started_at}" for p in agent.attached)
    return (
        agent.agent,
        str(agent.unread),
        _time(agent.oldest_unread) or "-",
        attached or "-",
        _time(agent.last_seen) or "never",
        str(len(agent.bad)),
    )


def _warn(agent: AgentStatus) -> None:
    servers = [str(process.pid) for process in agent.attached if process.role == "mcp"]
    if len(servers) > 1:
        render.say(
            f"{len(servers)} MCP servers act as {agent.agent} (processes {', '.join(servers)}): "
            "each sees every message; give each agent a name of its own"
        )
    for bad in agent.bad:
        render.say(
            f"{bad.place.id} in the box of {agent.agent} is {bad.judged.outcome}: "
            f"{bad.judged.detail}"
        )


def _show_message(found: Iterable[MessageStatus], *, json: bool) -> None:
    records = [
        {
            "id": one.id,
            "to": one.to,
            "delivered_at": one.delivered_at,
            "read_at": one.read_at,
            "archived_at": one.archived_at,
            "attached": one.attached,
        }
        for one in found
    ]
    if json:
        for record in records:
            render.put_json(record)
        return
    head = ("id", "to", "delivered at", "read at", "archived at", "attached")
    rows = ([str(value or "-") for value in record.values()] for record in records)
    render.table(head, ([*row[:-1], "yes" if row[-1] == "True" else "no"] for row in rows))


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else to_text(milliseconds)
