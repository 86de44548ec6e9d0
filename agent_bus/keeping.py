"""What a sealed name has signed on a bus before it was sealed, and what of it still counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from agent_bus.envelope import FILE_LIMIT, kid_of, open_decision
from agent_bus.errors import ConfigurationError
from agent_bus.files import UnfitFile
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, is_message_id
from agent_bus.pins import PIN, PINS
from agent_bus.reading import Judge, Reader, State, storage_errors
from agent_bus.sealing import Opened
from agent_bus.store import Store

_DECISION = ".decision"
_EVERY: tuple[State, ...] = ("new", "read", "archived")


@storage_errors()
def pin(store: Store, agent: AgentName, signer: Opened, *, again: bool = False) -> int:
    """Pin a sealed name, and sign the list of the older files that count.

    Where the name was pinned before, these are the ones that counted until now: what has come
    since may be anybody's. `again` looks for them all the same, for a person who knows better.
    Returns how many there are. Durable on return. Raises ConfigurationError where the pin
    knows another key, and StorageError.
    """
    keys = store.keys.index()
    is_first = agent not in store.pins.load()
    store.pins.ensure(keys)
    if signer.kid not in store.pins.trusted(agent, keys):
        raise ConfigurationError(
            f"{agent} is pinned with another key on the bus at {store.root}: agent-bus doctor "
            f"says more; if you have replaced the key yourself, remove {PINS}/{agent}{PIN} there"
        )
    looked = set(older_files(store, agent, keys)) if is_first or again else frozenset()
    older = looked | store.pins.kept(agent, keys)
    store.pins.keep(agent, older, signer)
    return len(older)


def older_files(store: Store, agent: AgentName, keys: KeyIndex) -> Iterator[str]:
    """The hashes of what a key without a seal has signed as this name and still verifies."""
    plain = {kid for kid, (_, key) in keys.owners.items() if not key.is_sealed}
    for part in (_messages(store, agent, keys), _decisions(store, agent, keys)):
        for data in part:
            if kid_of(data) in plain:
                yield hashlib.sha256(data).hexdigest()


def _messages(store: Store, agent: AgentName, keys: KeyIndex) -> Iterator[bytes]:
    # Not by the judge of the store, which goes by the pin that is being made.
    judge = Judge(keys, store.bus, store.judge().now)
    for box in store.boxes():
        places = store.places(box, _EVERY)
        with Reader(store.box(box), judge) as reader:
            for stored in reader.load_all(places):
                message = stored.judged.message
                if message is not None and message.sender == agent:
                    yield stored.judged.raw


def _decisions(store: Store, agent: AgentName, keys: KeyIndex) -> Iterator[bytes]:
    with store.open("approvals") as folder:
        for name in folder.names():
            if is_message_id(name.removesuffix(_DECISION)) and name.endswith(_DECISION):
                try:
                    data = folder.read(name, FILE_LIMIT)
                    owner, _ = open_decision(data, keys)
                except (FileNotFoundError, UnfitFile, ValueError):
                    continue
                if owner == agent:
                    yield data
