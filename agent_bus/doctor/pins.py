"""The pins of sealed names, and the keyrings that must agree with them. Nothing is repaired.

Whoever could have a pin moved aside could have a name's key replaced.
"""

from __future__ import annotations

from agent_bus.doctor.examination import LEFTOVER_AGE, ROOT_BAD, Examination
from agent_bus.files import Folder
from agent_bus.keyring import Keyring
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, is_agent_name
from agent_bus.pins import KEPT, LOCK, PIN, PINS, Pin, chain


def examine(ex: Examination) -> None:
    """Look at the pins folder, if there is one, and at every sealed name."""
    folder = ex.folder(ex.root, PINS, ROOT_BAD)
    if folder is not None:
        with folder:
            _entries(ex, folder)
    if ex.judge is None:
        return  # The keys cannot be used, which was reported.
    keys = ex.bus.keys.index()
    stored = ex.bus.store.pins.stored()
    for agent, pin in stored.items():
        _pin(ex, agent, pin, keys)
    for agent, ring in keys.rings.items():
        if ring.is_sealed and agent not in stored:
            text = f"{agent} is sealed, and not pinned on this bus yet: agent-bus keys pin {agent}"
            ex.note("not-pinned", "note", ex.root.path / PINS, text)
        _ring(ex, ring)


def _entries(ex: Examination, folder: Folder) -> None:
    for name, status in ex.entries(folder):
        path = folder.path / name
        stem = name.removesuffix(PIN).removesuffix(KEPT)
        if name == LOCK:
            continue
        if name.startswith("."):
            if ex.now / 1000 - status.st_mtime > LEFTOVER_AGE:
                ex.aside("leftover", "warning", folder, name, "was left by a crash", ROOT_BAD)
        elif stem == name or not is_agent_name(stem):
            ex.note("unknown-entry", "warning", path, "is no pin: move it somewhere else")
        else:
            ex.mode(folder, name)


def _pin(ex: Examination, agent: AgentName, pin: Pin | None, keys: KeyIndex) -> None:
    path = ex.root.path / PINS / f"{agent}{PIN}"
    ring = keys.rings.get(agent)
    mend = "restore the keyring, or, if you have replaced the key yourself, remove this pin"
    if pin is None:
        text = f"is no pin, so nothing counts that {agent} signs: restore it from an export"
        ex.note("bad-pin", "error", path, text)
    elif ring is None:
        text = f"pins a key of {agent}, whose keyring is gone or unusable: {mend}"
        ex.note("pinned-key-missing", "error", path, text)
    elif not any(key.kid in _counts(ring, pin) for key in ring.keys if key.state == "active"):
        text = f"knows another key of {agent} than its keyring has, and none counts: {mend}"
        ex.note("key-changed", "error", path, text)
    elif ex.root.status(PINS) and not ex.bus.store.pins.is_list_good(agent, keys):
        text = (
            f"lists what older keys of {agent} have signed, and is not signed by a key that "
            f"counts: agent-bus keys pin {agent}"
        )
        ex.note("bad-kept", "error", path.with_name(f"{agent}{KEPT}"), text)


def _ring(ex: Examination, ring: Keyring) -> None:
    plain = [key.kid for key in ring.keys if key.state == "active" and not key.is_sealed]
    if ring.is_sealed and plain:
        path = ex.bus.keys.folder / f"{ring.agent}.json"
        text = (
            f"{ring.agent} is sealed and has key {plain[0]} without a seal, which somebody has "
            f"added: agent-bus keys revoke {ring.agent} {plain[0]}"
        )
        ex.note("unsealed-key", "error", path, text)


def _counts(ring: Keyring, pin: Pin) -> frozenset[str]:
    return chain(ring, pin.fingerprints)
