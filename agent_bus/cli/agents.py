"""`agents list|retire`: who is there, and taking a name out of use without losing its mail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from agent_bus import doubts
from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.app import TextCommand, group
from agent_bus.cli.keys import Named
from agent_bus.cli.options import (
    Shared,
    identity,
    is_bound,
    load_settings,
    open_anonymous,
    optional_name,
    verb,
)
from agent_bus.delivery import RESERVED_KINDS
from agent_bus.errors import Conflict, NotPermitted, UnknownRecipient, UsageError
from agent_bus.names import RESERVED, AgentName, MessageId, agent_name, is_conversation
from agent_bus.payload import DATA_LIMIT, SUBJECT_LIMIT, Message
from agent_bus.reading import Stored
from agent_bus.sending import Draft
from agent_bus.standing import AgentStatus

agents = group(help="List agents, and retire one.")

_FORWARDED_DATA = DATA_LIMIT - 1024
"""Bytes of a message's data that still fit when more is added."""
HEAD = ("agent", "role", "keys", "unread", "attached")


@dataclass(frozen=True, kw_only=True)
class Retire(Named):
    """The options of `agents retire`."""

    forward_to: Annotated[
        str | None,
        Option("--forward-to", metavar="OTHER", help="Who gets its unread messages (for admins)."),
    ] = None
    force: Annotated[bool, Option("--force", help="Leave its unread messages where they are.")] = (
        False
    )


@verb
def list_agents(options: Shared) -> None:
    """List the agents that have a key or a box here. Needs no identity."""
    bus = open_anonymous(options)
    known, keyed = set(bus.known()), set(bus.keys.agents())
    retired = _retired(bus)
    entries = [_Entry(bus, status, known, keyed, retired) for status in bus.status()]
    if options.json:
        for entry in entries:
            render.put_json(entry.record())
    else:
        render.table(HEAD, (entry.columns() for entry in entries))


@verb
def retire(options: Retire) -> None:
    """Take a name out of use: it signs nothing more, and nobody writes to it.

    What it signed stays valid. Keys are shared by all buses of this user, so it is retired
    on all of them.
    """
    name, other = agent_name(options.name), optional_name(options.forward_to)
    bus = _open(options, needed=other is not None)
    _check(bus, name, other)
    if other is None and not options.force:
        _require_empty(bus, name)
    told: set[MessageId] = set()
    forwarded = _forward_all(bus, name, other, told)
    bus.keys.retire_agent(name)
    # What arrived between the two steps.
    forwarded += _forward_all(bus, name, other, told)
    left = len(bus.store.unread(name))
    if options.json:
        render.put_json({"agent": name, "retired": True, "forwarded": forwarded, "unread": left})
    else:
        render.table(("agent", "forwarded", "unread"), [(name, str(len(forwarded)), str(left))])


agents.command("list", cls=TextCommand)(list_agents)
agents.command("retire", cls=TextCommand)(retire)


class _Entry:
    def __init__(
        self,
        bus: Bus,
        status: AgentStatus,
        known: set[AgentName],
        keyed: set[AgentName],
        retired: set[AgentName],
    ) -> None:
        self._status = status
        self._admin = status.agent in bus.file.admins
        self._known = status.agent in known
        self._retired = status.agent in retired and not self._known
        self._key = status.agent in keyed

    def record(self) -> dict[str, object]:
        return {
            "agent": self._status.agent,
            "admin": self._admin,
            "retired": self._retired,
            "key": self._key,
            "unread": self._status.unread,
            "attached": bool(self._status.attached),
        }

    def columns(self) -> tuple[str, ...]:
        role = "admin" if self._admin else "agent" if self._known else "-"
        if self._status.agent == RESERVED:
            role = "gateway"
        elif is_conversation(self._status.agent):
            role = "conversation"
        role = "retired" if self._retired else role
        attached = "attached" if self._status.attached else "-"
        key = "has a key" if self._key else "no key"
        return (self._status.agent, role, key, str(self._status.unread), attached)


def _retired(bus: Bus) -> set[AgentName]:
    """The names whose retirement is what the history says last."""
    found: set[AgentName] = set()
    for line in bus.keys.rotations():
        if line.event == "agent_retired":
            found.add(line.agent)
        elif line.event == "added":
            found.discard(line.agent)
    return found


def _open(options: Retire, *, needed: bool) -> Bus:
    """As an admin, where there is an identity; forwarding needs one, to sign."""
    loaded = load_settings(options)
    if options.as_name is None and not is_bound(loaded) and not needed:
        return Bus.open(loaded)
    bus = Bus.open(loaded, identity=identity(options, loaded))
    if not bus.is_admin:
        raise NotPermitted(f"{bus.identity} is no admin of this bus and can retire nobody")
    return bus


def _check(bus: Bus, name: AgentName, other: AgentName | None) -> None:
    known = bus.known()
    if name in bus.file.admins:
        raise NotPermitted(f"{name} is an admin of this bus, as bus.json says, and stays")
    if name not in known:
        raise UnknownRecipient(f"nobody here is called {name}: agent-bus agents list")
    if other == name:
        raise UsageError(f"--forward-to {other} is the agent that retires: name another one")
    if other is not None and other not in known:
        raise UnknownRecipient(f"nobody here is called {other}: agent-bus agents list")


def _require_empty(bus: Bus, name: AgentName) -> None:
    unread = len(bus.store.unread(name))
    if unread:
        raise Conflict(
            f"{name} has {unread} unread messages: --forward-to OTHER sends them on, "
            "--force leaves them"
        )


def _forward_all(
    bus: Bus, name: AgentName, other: AgentName | None, told: set[MessageId]
) -> list[str]:
    """Send on what is unread; what does not verify or has expired stays. Returns the new ids.

    `told` are the ids that were said to stay.
    """
    if other is None:
        return []
    forwarded = []
    for stored in bus.store.load_all(bus.store.places(name, ("new",))):
        message = stored.judged.message
        if message is None or not stored.judged.ok:
            if stored.place.id not in told:
                render.say(f"{stored.place.id} is {stored.judged.outcome} and stays: {name} had it")
                told.add(stored.place.id)
            continue
        forwarded.append(_forward(bus, stored, message, other))
    return forwarded


def _forward(bus: Bus, stored: Stored, message: Message, other: AgentName) -> str:
    """One message, signed by the admin who acts; a repeat after a crash makes no second one."""
    data: dict[str, object] = {
        "forwarded_from": message.to,
        "original": message.id,
        "from": message.sender,
        "sent_at": message.sent_at,
        "kind": message.kind,
    }
    if doubt := doubts.of_wake(message):
        data["warning"] = doubt
    if message.data is not None and len(json.dumps(message.data)) < _FORWARDED_DATA:
        data["data"] = message.data
    draft = Draft(
        body=message.body,
        subject=f"Fwd: {message.subject or '(no subject)'}"[:SUBJECT_LIMIT],
        kind="note" if message.kind in RESERVED_KINDS else message.kind,
        thread=message.thread or message.id,
        priority=message.priority,
        data=data,
    )
    receipt = bus.send_one(other, draft, key=f"forward:{message.id}")
    bus.store.archive(stored.place)
    return receipt.id
