"""A new bus and its agents: `init keygen`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from agent_bus import create
from agent_bus.bus import Bus
from agent_bus.cli import passphrase, render
from agent_bus.cli.options import (
    Shared,
    as_path,
    check_as,
    load_settings,
    split_names,
    verb,
)
from agent_bus.cli.send import read_bytes
from agent_bus.clock import SystemClock
from agent_bus.create import Created
from agent_bus.errors import (
    ConfigurationError,
    Conflict,
    IdentityMissing,
    StorageError,
    UsageError,
)
from agent_bus.keyring import Key, Keyring, import_secret, parse_keyring
from agent_bus.keys import Keys
from agent_bus.names import GATEWAY, RESERVED, AgentName, agent_name
from agent_bus.reading import reason
from agent_bus.settings import Settings

_Text = str | None

_KEYRING_LIMIT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Init(Shared):
    """The options of `init`."""

    agents: Annotated[
        list[str] | None,
        Option("--agents", metavar="A,B", help="Keys and boxes for these, and for the admins."),
    ] = None
    adopt: Annotated[
        _Text,
        Option("--adopt", metavar="OLD", help="Take over the bus of a project that has moved."),
    ] = None
    new: Annotated[
        bool, Option("--new", help="An empty bus, where the repository names one that is gone.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Keygen(Shared):
    """The options of `keygen`."""

    name: Annotated[str, Argument(metavar="NAME", help="The agent.")]
    import_file: Annotated[
        _Text,
        Option("--import", metavar="FILE", help="An existing secret or keyring (- for stdin)."),
    ] = None
    sealed: Annotated[
        bool, Option("--sealed", help="A key under a passphrase, which you type at a terminal.")
    ] = False


@verb
def init(options: Init) -> None:
    """Make the bus of this project, with keys and boxes. A second call changes nothing."""
    names = [ordinary_name(name) for name in split_names(options.agents or [])]
    loaded = load_settings(options)
    check_as(options, loaded)
    adopt = None if options.adopt is None else as_path(options.adopt)
    made = create.create(loaded, SystemClock(), adopt=adopt, new=options.new)
    bus = Bus.open(loaded)
    wanted = list(dict.fromkeys((*names, *made.file.admins)))
    keyed = [name for name in wanted if _equip(bus, name)]
    agents = list(dict.fromkeys((*wanted, *bus.store.boxes())))
    for warning in made.warnings:
        render.say(f"warning: {warning}")
    if options.json:
        _record(bus, made, agents, keyed)
    else:
        _tell(bus, made, agents, keyed, adopted=adopt is not None)


@verb
def keygen(options: Keygen) -> None:
    """Make the key of an agent, or take over the one that another tool made.

    A file holds 64 hex digits, 43 characters of base64url, or a whole keyring. Secrets are
    never shown and never taken from the command line.

    With --sealed nobody decides or sends as NAME without the passphrase. A key that NAME had
    before signs no more.
    """
    name = ordinary_name(options.name)
    if options.sealed and options.import_file is not None:
        raise UsageError("--sealed makes a new key, and --import takes one over: give one of them")
    loaded = load_settings(options)
    check_as(options, loaded)
    keys = Keys(loaded.keys, SystemClock())
    if options.sealed:
        key = _seal(loaded, keys, name)
    elif options.import_file is None:
        key = keys.generate(name)
    else:
        key = _import(keys, name, options.import_file)
    if options.json:
        fields = {"agent": name, "kid": key.kid, "state": key.state, "created_at": key.created_at}
        more = {"alg": key.alg, "fingerprint": key.fingerprint} if key.is_sealed else {}
        render.put_json(fields | more | {"keys": str(keys.folder)})
        return
    render.table(("agent", "key id", "state"), [(name, key.kid, key.state)])
    if key.is_sealed:
        render.say(f"its fingerprint is {key.fingerprint}: write it down")
    else:
        render.say(f"the keyring is {keys.folder / name}.json; whoever can read it is {name}")


def _seal(loaded: Settings, keys: Keys, name: AgentName) -> Key:
    with contextlib.suppress(IdentityMissing):
        if keys.load(name).is_sealed:
            raise Conflict(f"{name} is sealed: agent-bus keys rotate {name} makes a new key")
    key = keys.seal(name, passphrase.ask_new(name))
    if not passphrase.pin_everywhere(loaded, name, passphrase.opened(keys, name)):
        render.say(f"no bus was found to pin it on: agent-bus keys pin {name}, where one is")
    return key


def ordinary_name(text: str) -> AgentName:
    """A name that people may give. Raises InvalidName, and UsageError for a reserved one."""
    name = agent_name(text)
    if name == RESERVED:
        raise UsageError(f"{RESERVED} is reserved for wakes of the gateway: choose another name")
    if name == GATEWAY:
        raise UsageError(f"{GATEWAY} is reserved for the gateway's own keys: choose another name")
    return name


def _equip(bus: Bus, name: AgentName) -> bool:
    """Give an agent its box, and a key where it has none. Whether it got a key."""
    try:
        bus.store.make_box(name).close()
    except OSError as error:
        raise StorageError(f"{name} has no box: {reason(error)}") from error
    try:
        bus.keys.load(name).signing_key()
    except IdentityMissing:
        bus.keys.generate(name)
        return True
    return False


def _record(bus: Bus, made: Created, agents: list[AgentName], keyed: list[AgentName]) -> None:
    render.put_json(
        {
            "bus": str(bus.address.path),
            "bus_id": made.file.bus,
            "created": made.created,
            "agents": agents,
            "new_keys": keyed,
            "admins": list(made.file.admins),
            "project": str(bus.address.project),
            "how": bus.address.how,
            "keys": str(bus.keys.folder),
            "warnings": list(made.warnings),
        }
    )


def _tell(
    bus: Bus, made: Created, agents: list[AgentName], keyed: list[AgentName], *, adopted: bool
) -> None:
    render.put(render.visible(str(bus.address.path)))
    known = "was taken over" if adopted else "stands there already"
    render.say(f"bus {made.file.bus} " + ("was made" if made.created else known))
    render.say(f"agents: {', '.join(agents)} (admins: {', '.join(made.file.admins)})")
    new = ", ".join(keyed) or "none, all had one"
    render.say(f"new keys in {bus.keys.folder}: {new}")
    render.say(f"next: agent-bus connect claude --as {agents[0]} (or codex)")


def _import(keys: Keys, name: AgentName, file: str) -> Key:
    data = read_bytes(None if file == "-" else file, _KEYRING_LIMIT, private=True)
    try:
        if not data.lstrip().startswith(b"{"):
            return keys.generate(name, import_secret(data))
        ring = parse_keyring(data)
    except (ValueError, RecursionError) as error:
        # The text of a JSON error holds a position and no content.
        raise ConfigurationError(f"{file} cannot be imported: {error}") from None
    return _restore(keys, name, ring, file)


def _restore(keys: Keys, name: AgentName, ring: Keyring, file: str) -> Key:
    if ring.agent != name:
        raise UsageError(f"{file} is the keyring of {ring.agent}: agent-bus keygen {ring.agent}")
    if not ring.keys:
        raise ConfigurationError(f"{file} holds no key")
    keys.restore(ring)
    return ring.keys[-1]
