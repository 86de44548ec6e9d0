"""`openhands mint|revoke|keys`: capabilities for Mains that have no key, and what signs them.

A capability is a secret: it goes into a new file that nobody else can read, or down a pipe,
and never to a terminal, into an argument or into a log.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args
from uuid import UUID

from typer import Argument, Option

from agent_bus import clock
from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.app import TextCommand, group
from agent_bus.cli.options import Shared, as_path, check_as, load_settings, verb
from agent_bus.cli.send import read_bytes
from agent_bus.clock import SystemClock
from agent_bus.errors import (
    Conflict,
    InvalidCapability,
    StorageError,
    UnknownRecipient,
    UsageError,
)
from agent_bus.files import Folder
from agent_bus.keyring import is_kid
from agent_bus.names import agent_name
from agent_bus.openhands.gateway import settings
from agent_bus.openhands.gateway.caller import MAIN_ACTIONS, Action
from agent_bus.reading import reason

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.signing import Listed, SigningKeys

_Text = str | None

_ACTIONS: tuple[Action, ...] = tuple(
    action for action in get_args(Action) if action in MAIN_ACTIONS
)
_TOKEN_LIMIT = 4096
HEAD = ("key id", "state", "made at", "ended at")


@dataclass(frozen=True, kw_only=True)
class Mint(Shared):
    """The options of `openhands mint`."""

    main: Annotated[
        str,
        Option("--main", metavar="UUID|NAME", help="The conversation, or the agent of this bus."),
    ]
    out: Annotated[
        str, Option("--out", metavar="FILE", help="A new file, yours alone (- for a pipe).")
    ]
    expires_in: Annotated[
        str, Option("--expires-in", metavar="TIME", help="How long it holds: 90s, 15m, 2h, 7d.")
    ] = "1h"
    action: Annotated[
        list[str] | None,
        Option("--action", metavar="ACTION", help=f"Only this: {', '.join(_ACTIONS)}."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Revoke(Shared):
    """The options of `openhands revoke`."""

    file: Annotated[str, Argument(metavar="FILE", help="Where it stands (- for stdin).")]


@dataclass(frozen=True, kw_only=True)
class Kid(Shared):
    """The options of `openhands keys revoke`."""

    kid: Annotated[str, Argument(metavar="KID", help="The id of the key: 16 hex digits.")]


@verb
def mint(options: Mint) -> None:
    """Make the capability of a Main, for whoever starts it.

    It needs no agent server. What it makes is written into a new file of mode 0600, or with
    --out - down a pipe, and never shown: whoever can read it acts as that Main until it
    expires.
    """
    from agent_bus.openhands.gateway.capability import main_capability_token

    if options.out == "-":
        _require_pipe(options)
    main, actions = _main(options), _actions(options)
    issued_at = SystemClock().now() // 1000
    expires_at = issued_at + clock.seconds(options.expires_in)
    token = main_capability_token(
        _signing(options).newest(),
        main,
        issued_at=issued_at,
        expires_at=expires_at,
        actions=actions,
    )
    if options.out == "-":
        render.put(token, flush=True)
        return
    path = as_path(options.out)
    _write(path, token)
    _tell(options, path, main, actions, clock.to_text(expires_at * 1000))


@verb
def revoke(options: Revoke) -> None:
    """Take a capability back before it expires.

    All that its holder was given in the same second is taken back with it.
    """
    data = read_bytes(None if options.file == "-" else options.file, _TOKEN_LIMIT, private=True)
    keys = _signing(options)
    try:
        found = keys.verify(data.decode("ascii", "replace").strip())
    except InvalidCapability:
        raise InvalidCapability(
            "this capability is not valid here: there is nothing to take back"
        ) from None
    keys.revoke_token(found.subject, found.issued_at)
    subject, issued_at = str(found.subject), clock.to_text(found.issued_at * 1000)
    if options.json:
        render.put_json({"subject": subject, "role": found.role, "issued_at": issued_at})
    else:
        row = (subject, found.role, issued_at)
        render.table(("taken back from", "role", "issued at"), [row])


@verb
def list_keys(options: Shared) -> None:
    """List the keys, without their secrets."""
    _show(_signing(options).listing(), json=options.json)


@verb
def rotate(options: Shared) -> None:
    """Sign with a new key from now on.

    What the old one signed holds for 24 hours more.
    """
    _show([_signing(options).rotate()], json=options.json)


@verb
def revoke_key(options: Kid) -> None:
    """Mark a key as leaked: what it signed is worth nothing.

    Children that have one lose their tools for reporting; how they end is seen all the same.
    """
    if not is_kid(options.kid):
        raise UsageError(f"no key id: {options.kid[:40]!a}; agent-bus openhands keys list")
    _show([_signing(options).revoke(options.kid)], json=options.json)


keys = group(help="List, rotate and revoke the keys of capabilities.")
keys.command("list", cls=TextCommand)(list_keys)
keys.command("rotate", cls=TextCommand)(rotate)
keys.command("revoke", cls=TextCommand)(revoke_key)


def _signing(options: Shared) -> SigningKeys:
    from agent_bus.openhands.gateway.signing import SigningKeys

    loaded = load_settings(options)
    check_as(options, loaded)
    return SigningKeys(loaded.keys, SystemClock(), settings.secret_of())


def _main(options: Mint) -> UUID:
    """Whose capability it is. Raises UsageError and UnknownRecipient."""
    try:
        found = UUID(options.main)
    except ValueError:
        found = None
    if found is not None and str(found) == options.main.lower():
        return found
    from agent_bus.openhands.gateway.identifiers import main_id

    name = agent_name(options.main)
    bus = Bus.open(load_settings(options))
    if name not in bus.known():
        raise UnknownRecipient(
            f"nobody here is called {name}: agent-bus agents list, or give the UUID of a "
            "conversation"
        )
    return main_id(bus.file.bus, name)


def _actions(options: Mint) -> frozenset[Action]:
    wanted = set(options.action or _ACTIONS)
    unknown = sorted(wanted - set(_ACTIONS))
    if unknown:
        raise UsageError(
            f"a Main is not given {unknown[0][:40]!a}: --action takes {', '.join(_ACTIONS)}"
        )
    return frozenset(action for action in _ACTIONS if action in wanted)


def _require_pipe(options: Mint) -> None:
    """Refuse what would show the token, or write a file of a mode that nobody chose."""
    if options.json:
        raise UsageError("--out - writes the capability and nothing else: leave out --json")
    try:
        kind = os.fstat(sys.stdout.fileno()).st_mode if sys.stdout is not None else 0
    except (OSError, ValueError):
        kind = 0
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError(
            "--out - needs a pipe, since a capability is a secret: give --out FILE, which is "
            "made readable for you alone"
        )


def _write(path: Path, token: str) -> None:
    try:
        with Folder.open(path.parent, shared=True) as folder:
            folder.create(path.name, token.encode("ascii") + b"\n")
            folder.sync()
    except FileExistsError:
        raise Conflict(f"{path} is there already, and stays: name a new file") from None
    except OSError as error:
        raise StorageError(f"the capability cannot be written: {reason(error)}") from error


def _tell(
    options: Mint, path: Path, main: UUID, actions: frozenset[Action], expires_at: str
) -> None:
    if options.json:
        fields = {"main": str(main), "actions": sorted(actions), "expires_at": expires_at}
        render.put_json(fields | {"file": str(path)})
        return
    render.put(render.visible(str(path)))
    render.say(f"whoever reads it acts as Main {main} until {expires_at}")


def _show(found: list[Listed], *, json: bool) -> None:
    if not json:
        rows = ((key.kid, key.state, key.created_at, key.retired_at or "-") for key in found)
        render.table(HEAD, rows)
        return
    for key in found:
        render.put_json(
            {
                "kid": key.kid,
                "state": key.state,
                "created_at": key.created_at,
                "retired_at": key.retired_at,
            }
        )
