"""Pins: which key a sealed name has on this bus, whatever its keyring says later.

    pins/<agent>.json   {"agent","fingerprints","pinned_at"}: written at first sight, for good;
                        it grows by keys that a pinned one has endorsed, and by no others
         <agent>.kept   signed by a sealed key of the name: the hashes of the files that its
                        older keys had signed on this bus before it was sealed

On a bus where a name is pinned, a key of it counts only if it is pinned, or endorsed in a chain
that begins with a pinned one. What another key signed (the one without a passphrase that the
name had before, and that every program of this user can still read) counts only if its bytes
stand in `kept`. A time could not tell old from new: whoever has the old key writes the time.

A process remembers the pins that it has seen, and takes no others for them later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent_bus.clock import Clock, from_text, to_text
from agent_bus.envelope import kid_of, open_signed, sign_payload
from agent_bus.files import Folder, UnfitFile
from agent_bus.keyring import Keyring, json_object
from agent_bus.keys import KeyIndex, Pinned
from agent_bus.locks import locked
from agent_bus.names import AgentName, MessageId, is_agent_name
from agent_bus.sealing import Opened, is_endorsed

PINS = "pins"
PIN, KEPT, LOCK = ".json", ".kept", ".lock"
KEPT_TYPE = b"application/vnd.agent-bus.kept+json"

PIN_LIMIT = 64 * 1024
KEPT_LIMIT = 32 << 20
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pin:
    """The keys of a name that count on a bus, by their fingerprints."""

    agent: AgentName
    fingerprints: tuple[str, ...]
    pinned_at: str


class Pins:
    """The pins of one bus. `root` is the bus folder."""

    def __init__(self, root: Path, bus: MessageId, clock: Clock) -> None:
        self._root = root
        self._bus = bus
        self._clock = clock
        self._seen: dict[AgentName, Pin] = {}
        self._kept: dict[AgentName, tuple[object, frozenset[str]]] = {}

    def narrow(self, keys: KeyIndex) -> KeyIndex:
        """The keys, with what the pins of this bus say of them. Raises OSError."""
        pins = self.load()
        if not pins:
            return keys
        return replace(keys, pinned={name: self._pinned(pin, keys) for name, pin in pins.items()})

    def load(self) -> dict[AgentName, Pin]:
        """The pins that this process goes by: as it saw each first. Raises OSError.

        A file that is no pin counts as one that holds no key: nobody may take a name's pin
        away by spoiling it.
        """
        spoilt = {}
        for agent, pin in self._on_disk(skip=self._seen):
            if pin is None:
                spoilt[agent] = Pin(agent, (), "")
            else:
                self._seen.setdefault(agent, pin)
        return self._seen | spoilt

    def stored(self) -> dict[AgentName, Pin | None]:
        """The pins as they stand on disk now; None for one that is spoilt. Raises OSError."""
        return dict(self._on_disk(skip=()))

    def ensure(self, keys: KeyIndex) -> None:
        """Pin every sealed name that has no pin yet, and add what a pinned key has endorsed.

        Durable on return. Raises OSError and Busy.
        """
        stored = self.stored()
        for agent, ring in keys.rings.items():
            pin = stored.get(agent)
            if agent not in stored:
                if roots := _roots(ring):
                    self._write(Pin(agent, roots, to_text(self._clock.now())), grows=False)
            elif pin is not None and (more := _endorsed(ring, pin)):
                self._write(replace(pin, fingerprints=pin.fingerprints + more), grows=True)

    def trusted(self, agent: AgentName, keys: KeyIndex) -> frozenset[str]:
        """The kids of the keys of a name that count here; none if it has no pin."""
        pin = self.load().get(agent)
        return frozenset() if pin is None else self._pinned(pin, keys).kids

    def keep(self, agent: AgentName, files: Collection[str], signer: Opened) -> None:
        """Say which files of a name's older keys count. Durable on return. Raises OSError."""
        payload = {
            "bus": self._bus,
            "agent": agent,
            "at": to_text(self._clock.now()),
            "files": sorted(files),
        }
        data = sign_payload(payload, KEPT_TYPE, signer)
        with self._made() as folder:
            folder.replace(agent + KEPT, data)

    def is_list_good(self, agent: AgentName, keys: KeyIndex) -> bool:
        """Whether the list of older files is signed as it should, or there is none."""
        try:
            with self._open() as folder:
                if folder.status(agent + KEPT) is None:
                    return True
                return self._read_kept(folder, agent, keys) is not None
        except FileNotFoundError:
            return True

    def kept(self, agent: AgentName, keys: KeyIndex) -> frozenset[str]:
        """The hashes of the older files that count; none where their list is not signed."""
        try:
            with self._open() as folder:
                status = folder.status(agent + KEPT)
                stamp = status and (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
                known = self._kept.get(agent)
                if known is None or known[0] != (stamp, keys.rings.get(agent)):
                    found = self._read_kept(folder, agent, keys) or frozenset()
                    known = self._kept[agent] = (stamp, keys.rings.get(agent)), found
                return known[1]
        except OSError:
            return frozenset()

    def _read_kept(self, folder: Folder, agent: AgentName, keys: KeyIndex) -> frozenset[str] | None:
        try:
            data = folder.read(agent + KEPT, KEPT_LIMIT)
            owner, payload = open_signed(data, KEPT_TYPE, replace(keys, pinned={}))
            value = json_object(json.loads(payload))
        except (FileNotFoundError, UnfitFile, ValueError, RecursionError):
            return None
        files = value.get("files")
        is_ours = (owner, value.get("agent"), value.get("bus")) == (agent, agent, self._bus)
        if not is_ours or kid_of(data) not in self.trusted(agent, keys):
            return None
        return frozenset(map(str, files)) if isinstance(files, list) else None

    def _pinned(self, pin: Pin, keys: KeyIndex) -> Pinned:
        ring = keys.rings.get(pin.agent)
        kids: frozenset[str] = frozenset()
        if ring is not None:
            if pin.fingerprints and (more := _endorsed(ring, pin)):
                # Remembered, since the key that has endorsed it may be revoked later.
                pin = replace(pin, fingerprints=pin.fingerprints + more)
                self._seen[pin.agent] = pin
            kids = chain(ring, pin.fingerprints)
        return Pinned(
            kids, lambda data: hashlib.sha256(data).hexdigest() in self.kept(pin.agent, keys)
        )

    def _on_disk(self, skip: Collection[AgentName]) -> Iterator[tuple[AgentName, Pin | None]]:
        with contextlib.suppress(FileNotFoundError), self._open() as folder:
            for name in folder.names():
                agent = name.removesuffix(PIN)
                if agent != name and is_agent_name(agent) and agent not in skip:
                    with contextlib.suppress(FileNotFoundError):
                        yield AgentName(agent), _read(folder, AgentName(agent))

    def _write(self, pin: Pin, *, grows: bool) -> None:
        with self._made() as folder:
            if grows:
                with locked(folder.path / LOCK):
                    folder.replace(pin.agent + PIN, _dump(pin))
            else:
                with contextlib.suppress(FileExistsError):
                    folder.put_new(pin.agent + PIN, _dump(pin))
                folder.sync()

    def _open(self) -> Folder:
        with Folder.open(self._root) as root:
            return root.child(PINS)

    def _made(self) -> Folder:
        with Folder.open(self._root) as root:
            return root.make(PINS)


def chain(ring: Keyring, fingerprints: Iterable[str]) -> frozenset[str]:
    """The kids of the sealed keys that are among these, or were endorsed by one that is.

    A revoked key endorses nothing, since nobody can tell what its thief has endorsed.
    """
    known = set(fingerprints)
    by_kid = {key.kid: key for key in ring.keys}
    found: set[str] = set()
    # An endorsement names a key that stands before it: once through the ring is enough.
    for key in ring.keys:
        before = by_kid.get(key.endorsed_by or "")
        if key.is_sealed and (
            key.fingerprint in known
            or (
                before is not None
                and before.kid in found
                and before.state != "revoked"
                and is_endorsed(ring.agent, key, before)
            )
        ):
            found.add(key.kid)
    return frozenset(found)


def _endorsed(ring: Keyring, pin: Pin) -> tuple[str, ...]:
    """The fingerprints that a pin should hold as well."""
    kids = chain(ring, pin.fingerprints)
    prints = (key.fingerprint for key in ring.keys if key.kid in kids)
    return tuple(one for one in prints if one not in pin.fingerprints)


def _roots(ring: Keyring) -> tuple[str, ...]:
    """What is pinned of a name at first sight: its sealed keys that are not revoked."""
    if not ring.is_sealed:
        return ()
    return tuple(key.fingerprint for key in ring.keys if key.is_sealed and key.state != "revoked")


def _read(folder: Folder, agent: AgentName) -> Pin | None:
    """A pin; None if the file is none. Raises OSError."""
    try:
        return _parse(agent, folder.read(agent + PIN, PIN_LIMIT))
    except (UnfitFile, ValueError, RecursionError):
        return None


def _parse(agent: AgentName, data: bytes) -> Pin:
    value = json_object(json.loads(data))
    prints, at = value.get("fingerprints"), str(value.get("pinned_at"))
    from_text(at)
    if value.get("agent") != agent or not isinstance(prints, list) or not prints:
        raise ValueError("no pin of this agent")
    if not all(isinstance(one, str) and _HASH.fullmatch(one) for one in prints):
        raise ValueError("a fingerprint has 64 hex digits")
    return Pin(agent, tuple(map(str, prints)), at)


def _dump(pin: Pin) -> bytes:
    value = {"agent": pin.agent, "fingerprints": pin.fingerprints, "pinned_at": pin.pinned_at}
    return json.dumps(value).encode() + b"\n"
