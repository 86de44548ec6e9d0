"""The folder of keyrings: who may sign as whom, rotation, and which names are known.

One file per agent, `<keys>/<agent>.json` (0600 in a 0700 folder), looked at anew before each
signature and read where it has changed, so that a rotation reaches running processes. Sign with
the newest active key; retired keys verify for ever and never sign; a revoked key verifies
nothing.
`<keys>/rotations.jsonl` says who had which key id and when, and holds no secret.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_bus import rotations, sealing
from agent_bus.clock import Clock, to_text
from agent_bus.errors import (
    AgentBusError,
    ConfigurationError,
    Conflict,
    IdentityMissing,
    NotPermitted,
    UsageError,
)
from agent_bus.files import Folder, UnfitFile, make_folders
from agent_bus.keyring import (
    SECRET_BYTES,
    Key,
    Keyring,
    State,
    dump,
    parse_keyring,
)
from agent_bus.locks import locked
from agent_bus.names import GATEWAY, AgentName, is_agent_name
from agent_bus.rotations import ROTATIONS, Event, Rotation
from agent_bus.sealing import Keychain, Opened, Signer

__all__ = ["ROTATIONS", "KeyIndex", "Keys", "Pinned", "Rotation"]

_LIMIT = 1 << 20
_Stamps = dict[str, tuple[int, ...] | None]
"""How files looked from outside, by name."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """What counts as signed by a name on a bus where it is sealed."""

    kids: frozenset[str]
    """Its keys that count: those that were pinned, and those that these have endorsed."""
    kept: Callable[[bytes], bool]
    """Whether a file that an older key signed was on this bus before, by its bytes."""


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Every key of every keyring by its id, as they stood at one moment."""

    owners: dict[str, tuple[AgentName, Key]]
    problems: tuple[str, ...] = ()
    """One line for each file that could not be used."""
    rings: dict[AgentName, Keyring] = field(default_factory=dict)
    known: frozenset[AgentName] = frozenset()
    """Who can be written to: see `Keys.known`."""
    pinned: Mapping[AgentName, Pinned] = field(default_factory=dict)
    """The names that are sealed on the bus where this is used: see `pins`."""


class Keys:
    """The keyrings of one folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._last: tuple[_Stamps, KeyIndex] = ({}, KeyIndex({}))
        self._opened = Keychain(clock)

    def load(self, agent: AgentName) -> Keyring:
        """The keyring of an agent.

        Raises IdentityMissing if there is none, UnsafePermissions if others may read it,
        ConfigurationError if it is no keyring.
        """
        try:
            with self._open() as folder:
                return self._existing(folder, agent)
        except FileNotFoundError:
            raise self._missing(agent) from None

    def agents(self) -> list[AgentName]:
        """The names that have a keyring, sorted."""
        try:
            with self._open() as folder:
                return sorted(_agents(folder.names()))
        except FileNotFoundError:
            return []

    def index(self, agents: Collection[AgentName] | None = None) -> KeyIndex:
        """All keys, read again only where a file has changed on disk.

        With `agents`, only what concerns these is sure to be as it stands now.
        """
        try:
            with self._open() as folder:
                seen, index = self._last
                if agents is not None and _is_unchanged(folder, agents, seen):
                    return index
                everyone = sorted(_agents(folder.names()))
                now = _stamps(folder, everyone)
                if now != seen:
                    index = _build_index(folder, everyone)
                    self._last = now, index
                return index
        except FileNotFoundError:
            return KeyIndex({})

    def known(self) -> set[AgentName]:
        """Names that can be written to: those with a key, and those that had one.

        An agent that was retired is not among them, until it gets a key again.
        """
        return set(self.index().known)

    def rotations(self) -> list[Rotation]:
        """The history, oldest first; a torn or foreign line is passed over."""
        try:
            with self._open() as folder:
                return rotations.history(folder)
        except FileNotFoundError:
            return []

    def generate(self, agent: AgentName, secret: bytes | None = None) -> Key:
        """Make the first key of an agent, from random bytes or from a given secret.

        Raises Conflict if the agent has an active key: that one is rotated, not replaced.
        """
        with self._changing(agent) as folder:
            old = _load_or_none(folder, agent)
            if old and any(key.state == "active" for key in old.keys):
                raise Conflict(
                    f"{agent} has a key already: agent-bus keys rotate {agent} makes a new one"
                )
            key = self._new(secret or secrets.token_bytes(SECRET_BYTES))
            return self._add(folder, agent, old.keys if old else (), key)

    def ensure(self, agent: AgentName) -> None:
        """Make the first key of an agent that has no keyring. Safe between processes.

        Raises IdentityMissing if there is one and its keys are all retired or revoked: whoever
        did that did it on purpose.
        """
        try:
            ring = self.load(agent)
        except IdentityMissing:
            with self._changing(agent) as folder:
                if _load_or_none(folder, agent) is None:
                    self._add(folder, agent, (), self._new(secrets.token_bytes(SECRET_BYTES)))
            ring = self.load(agent)
        ring.signing_key()

    def restore(self, ring: Keyring) -> None:
        """Put a whole keyring in place, its key ids kept. Raises Conflict if one is there."""
        with self._changing(ring.agent) as folder:
            if _load_or_none(folder, ring.agent):
                raise Conflict(f"{ring.agent} has a keyring already in {self.folder}")
            folder.replace(_file(ring.agent), dump(ring))
            for key in ring.keys:
                self._record(folder, ring.agent, "added", key.kid)

    def rotate(self, agent: AgentName) -> Key:
        """Add a new key and retire the active ones; what they signed stays valid.

        Raises IdentityMissing for an agent without a keyring, and NotPermitted for a sealed
        one: `rotate_sealed` has its passphrase.
        """
        with self._changing(agent) as folder:
            old = self._existing(folder, agent)
            if old.is_sealed:
                raise NotPermitted(
                    f"{agent} is sealed: agent-bus keys rotate {agent}, at a terminal"
                )
            return self._succeed(folder, old, self._new(secrets.token_bytes(SECRET_BYTES)))

    def seal(self, agent: AgentName, passphrase: str, cost: int = sealing.COST) -> Key:
        """Make a sealed key, and open it here; the keys that need no passphrase are retired.

        Raises UsageError for an unfit passphrase, and Conflict for a name that is sealed.
        """
        with self._changing(agent) as folder:
            old = _load_or_none(folder, agent) or Keyring(agent, ())
            if old.is_sealed:
                raise Conflict(f"{agent} is sealed: agent-bus keys rotate {agent} makes a new key")
            key, opened = self._new_sealed(agent, passphrase, cost)
            self._succeed(folder, old, key)
        self._opened.keep(agent, opened)
        return key

    def rotate_sealed(
        self, agent: AgentName, passphrase: str, new: str, cost: int = sealing.COST
    ) -> Key:
        """A new sealed key, endorsed by the one before it, whose private half is dropped.

        Raises NotPermitted for a wrong passphrase, UsageError for an unfit new one.
        """
        with self._changing(agent) as folder:
            old = self._existing(folder, agent)
            before = sealing.open_key(agent, old.signing_key(), passphrase)
            key, opened = self._new_sealed(agent, new, cost)
            key = self._succeed(folder, old, sealing.endorse(agent, key, before))
        self._opened.keep(agent, opened)
        return key

    def unlock(self, agent: AgentName, passphrase: str) -> None:
        """Open the sealed key of an agent for this process. Raises NotPermitted."""
        key = self.load(agent).signing_key()
        if key.is_sealed:
            self._opened.keep(agent, sealing.open_key(agent, key, passphrase))

    def lock(self, agent: AgentName) -> None:
        """Forget an opened key."""
        self._opened.forget(agent)

    def is_locked(self, agent: AgentName) -> bool:
        """Whether a passphrase must be typed before this agent can sign here."""
        key = self.load(agent).signing_key()
        return key.is_sealed and not self._opened.has(agent, key.kid)

    def signer(self, agent: AgentName, ring: Keyring | None = None) -> Signer:
        """What this process signs with as an agent; `ring` is a keyring just looked at.

        Raises IdentityMissing, and NotPermitted for a sealed key that is not opened here.
        """
        key = (ring or self.load(agent)).signing_key()
        if not key.is_sealed:
            return key
        opened = self._opened.get(agent, key.kid)
        if opened is None:
            raise NotPermitted(
                f"{agent} is sealed: decide in agent-bus approvals or agent-bus ui, where a "
                "person types the passphrase"
            )
        return opened

    def revoke(self, agent: AgentName, kid: str) -> Key:
        """Mark a key as leaked: it verifies nothing from now on.

        Raises UsageError, and IdentityMissing for an agent without a keyring.
        """
        with self._changing(agent) as folder:
            old = self._existing(folder, agent)
            found = next((key for key in old.keys if key.kid == kid), None)
            if found is None:
                raise UsageError(f"{agent} has no key {kid!a}: agent-bus keys list {agent}")
            at = found.retired_at or to_text(self._clock.now())
            ended = replace(found, state="revoked", retired_at=at, box=None)
            keys = tuple(ended if key.kid == kid else key for key in old.keys)
            folder.replace(_file(agent), dump(Keyring(agent, keys)))
            self._record(folder, agent, "revoked", kid)
            return ended

    def retire_agent(self, agent: AgentName) -> None:
        """Take a name out of use: its keys sign nothing more, and nobody writes to it.

        What it signed stays valid.
        """
        with self._changing(agent) as folder:
            ring = _load_or_none(folder, agent)
            if ring:
                now = to_text(self._clock.now())
                keys = tuple(_ended(key, "retired", now) for key in ring.keys)
                folder.replace(_file(agent), dump(Keyring(agent, keys)))
            self._record(folder, agent, "agent_retired", None)

    def _new(self, secret: bytes) -> Key:
        return Key(secrets.token_hex(8), secret, "active", to_text(self._clock.now()))

    def _new_sealed(self, agent: AgentName, passphrase: str, cost: int) -> tuple[Key, Opened]:
        kid, now = secrets.token_hex(8), to_text(self._clock.now())
        return sealing.make(agent, kid, now, passphrase, cost)

    def _succeed(self, folder: Folder, old: Keyring, key: Key) -> Key:
        """Put a key behind those of a keyring, and retire the active ones."""
        now = to_text(self._clock.now())
        kept = tuple(_ended(key, "retired", now) for key in old.keys)
        self._add(folder, old.agent, kept, key)
        for before, after in zip(old.keys, kept, strict=True):
            if before is not after:
                self._record(folder, old.agent, "retired", before.kid)
        return key

    def _add(self, folder: Folder, agent: AgentName, before: tuple[Key, ...], key: Key) -> Key:
        folder.replace(_file(agent), dump(Keyring(agent, (*before, key))))
        self._record(folder, agent, "added", key.kid)
        return key

    def _record(self, folder: Folder, agent: AgentName, event: Event, kid: str | None) -> None:
        rotations.record(folder, Rotation(to_text(self._clock.now()), agent, event, kid))

    def _existing(self, folder: Folder, agent: AgentName) -> Keyring:
        ring = _load_or_none(folder, agent)
        if ring is None:
            raise self._missing(agent)
        return ring

    def _missing(self, agent: AgentName) -> IdentityMissing:
        return IdentityMissing(f"{agent} has no key in {self.folder}: agent-bus keygen {agent}")

    def _open(self) -> Folder:
        return Folder.open(self.folder, private=True)

    @contextlib.contextmanager
    def _changing(self, agent: AgentName) -> Iterator[Folder]:
        """The keys folder, made where it is missing, with one agent's keyring locked."""
        if agent == GATEWAY:
            raise UsageError(
                f"{GATEWAY} is reserved: {_file(GATEWAY)} is no keyring, choose another name"
            )
        make_folders(self.folder).close()
        with self._open() as folder, locked(self.folder / f".{agent}.lock"):
            yield folder


def _file(agent: AgentName) -> str:
    return f"{agent}.json"


def _agents(names: Iterable[str]) -> list[AgentName]:
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [AgentName(stem) for stem in stems if is_agent_name(stem) and stem != GATEWAY]


def _stamps(folder: Folder, agents: Iterable[AgentName]) -> _Stamps:
    files = [ROTATIONS, *map(_file, agents)]
    return {name: _stamp(folder, name) for name in files}


def _is_unchanged(folder: Folder, agents: Iterable[AgentName], seen: _Stamps) -> bool:
    now = _stamps(folder, agents)
    return bool(seen) and all(seen.get(name) == stamp for name, stamp in now.items())


def _stamp(folder: Folder, name: str) -> tuple[int, ...] | None:
    status = folder.status(name)
    if status is None:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return *times, status.st_ino, status.st_size, status.st_mode, status.st_uid


def _load(folder: Folder, agent: AgentName) -> Keyring:
    name = _file(agent)
    if agent == GATEWAY:
        raise FileNotFoundError(name)
    try:
        ring = parse_keyring(folder.read(name, _LIMIT, private=True))
    except UnfitFile as error:
        raise ConfigurationError(f"{folder.path / name} {error}") from None
    except (ValueError, RecursionError) as error:
        reason = "no JSON" if isinstance(error, json.JSONDecodeError) else error
        raise ConfigurationError(f"{folder.path / name} cannot be used: {reason}") from None
    if ring.agent != agent:
        raise ConfigurationError(
            f"{folder.path / name} is the keyring of {ring.agent}: rename or remove it"
        )
    return ring


def _load_or_none(folder: Folder, agent: AgentName) -> Keyring | None:
    try:
        return _load(folder, agent)
    except FileNotFoundError:
        return None


def _build_index(folder: Folder, agents: Iterable[AgentName]) -> KeyIndex:
    owners: dict[str, tuple[AgentName, Key]] = {}
    rings: dict[AgentName, Keyring] = {}
    problems: list[str] = []
    for agent in agents:
        try:
            rings[agent] = _load(folder, agent)
        except FileNotFoundError:
            continue
        except (AgentBusError, OSError) as error:
            problems.append(str(error))
            continue
        for key in rings[agent].keys:
            if key.kid in owners:
                problems.append(f"key {key.kid} stands in two keyrings: {agent} and another")
            owners.setdefault(key.kid, (agent, key))
    known = set(agents)
    try:
        known = rotations.known(known, rotations.history(folder)) - {GATEWAY}
    except OSError as error:
        problems.append(str(error))
    return KeyIndex(owners, tuple(problems), rings, frozenset(known))


def _ended(key: Key, state: State, now: str) -> Key:
    """A key that signs no more: of a sealed one nobody needs the private half again."""
    if key.state != "active":
        return key
    return replace(key, state=state, retired_at=now, box=None)
