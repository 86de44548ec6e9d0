"""The keyrings and their history. Nothing here is repaired: keys are their owner's to mend."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace

from agent_bus.doctor.examination import LEFTOVER_AGE, Examination
from agent_bus.doctor.trust import Trust
from agent_bus.errors import AgentBusError
from agent_bus.files import Folder
from agent_bus.keyring import Keyring
from agent_bus.keys import ROTATIONS, Rotation
from agent_bus.names import AgentName, is_agent_name

_ROTATIONS_LIMIT = 64 << 20


def examine(ex: Examination) -> None:
    """Look at every keyring, and take over the keys by which messages are judged."""
    path = ex.bus.keys.folder
    try:
        folder = Folder.open(path, private=True)
    except FileNotFoundError:
        text = "there is no folder of keyrings, so nothing can be verified: agent-bus init"
        ex.note("no-keys", "error", path, text)
        return
    except (OSError, AgentBusError) as error:
        ex.note("unsafe-keys", "error", path, f"the keys cannot be used: {error}")
        return
    with folder, ex.guard(path):
        _entries(ex, folder)
        history = _history(ex, folder)
        rings = _rings(ex)
        _duplicates(ex, rings)
        index = ex.bus.store.judge().keys
        if history is None:
            index = replace(index, problems=(*index.problems, f"{ROTATIONS} cannot be read"))
        # What goes wrong above leaves the signatures unlooked at, not refused.
        ex.trust(
            Trust(
                index,
                recorded={line.kid: line.agent for line in history or () if line.kid},
                has_keyrings=_serves(ex, rings),
                known=frozenset(ex.bus.keys.known()),
            )
        )
        if history is not None:
            _compare(ex, rings, history, complete=not index.problems)


def _entries(ex: Examination, folder: Folder) -> None:
    for name, status in ex.entries(folder):
        path = folder.path / name
        if name == ROTATIONS or name.endswith(".lock"):
            continue
        if name.startswith("."):
            if ex.now / 1000 - status.st_mtime > LEFTOVER_AGE:
                text = "was left by a crash and may hold keys: remove it"
                ex.note("leftover", "warning", path, text)
        elif not is_agent_name(name.removesuffix(".json")) or not name.endswith(".json"):
            ex.note("unknown-entry", "warning", path, "is no keyring: keep it somewhere else")


def _rings(ex: Examination) -> list[Keyring]:
    rings = []
    for agent in ex.bus.keys.agents():
        path = ex.bus.keys.folder / f"{agent}.json"
        try:
            rings.append(ex.bus.keys.load(agent))
        except (OSError, AgentBusError) as error:
            ex.note("bad-keyring", "error", path, f"verifies nothing as it is: {error}")
    return rings


def _duplicates(ex: Examination, rings: Sequence[Keyring]) -> None:
    owners: dict[str, AgentName] = {}
    for ring in rings:
        for key in ring.keys:
            other = owners.setdefault(key.kid, ring.agent)
            if other != ring.agent:
                text = f"key {key.kid} is also one of {other}: rotate it, and revoke it in one"
                path = ex.bus.keys.folder / f"{ring.agent}.json"
                ex.note("duplicate-key", "error", path, text)


def _serves(ex: Examination, rings: Sequence[Keyring]) -> bool:
    boxes = {str(admin) for admin in ex.bus.file.admins}
    with contextlib.suppress(OSError), ex.root.child("messages", shared=True) as messages:
        boxes.update(messages.names())
    return any(ring.agent in boxes for ring in rings)


def _history(ex: Examination, folder: Folder) -> list[Rotation] | None:
    status = folder.status(ROTATIONS)
    if status is None:
        return []
    path = folder.path / ROTATIONS
    data = ex.content(folder, ROTATIONS, _ROTATIONS_LIMIT)
    if data is None:
        return None
    lines = ex.bus.keys.rotations()
    *whole, tail = data.split(b"\n")
    foreign = len([line for line in (*whole, tail) if line]) - len(lines)
    if tail and not _is_json(tail):
        foreign -= 1
        ex.note("torn-line", "note", path, "ends in half a line, which is passed over")
    if foreign > 0:
        text = f"{foreign} lines of it cannot be read and are passed over: restore a backup"
        ex.note("foreign-lines", "warning", path, text)
    return lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _compare(
    ex: Examination, rings: Sequence[Keyring], history: Sequence[Rotation], *, complete: bool
) -> None:
    """What the keyrings and their history say of each other."""
    retired: set[AgentName] = set()
    for line in history:
        if line.event == "agent_retired":
            retired.add(line.agent)
        elif line.event == "added":
            retired.discard(line.agent)
    for ring in rings:
        _ring(ex, ring, history, is_retired=ring.agent in retired)
    held = {key.kid for ring in rings for key in ring.keys}
    lost = {line.kid: line.agent for line in history if line.kid and line.kid not in held}
    for kid, agent in lost.items() if complete else ():
        text = f"key {kid} is in no keyring, what it signed is not verified: restore a backup"
        ex.note("key-missing", "warning", ex.bus.keys.folder / f"{agent}.json", text)
    for admin in sorted(set(ex.bus.file.admins) - {ring.agent for ring in rings}):
        text = f"{admin} is an admin without a key and can decide nothing: agent-bus keygen {admin}"
        ex.note("admin-without-key", "note", ex.bus.keys.folder, text)


def _ring(ex: Examination, ring: Keyring, history: Sequence[Rotation], *, is_retired: bool) -> None:
    path = ex.bus.keys.folder / f"{ring.agent}.json"
    if not is_retired and not any(key.state == "active" for key in ring.keys):
        text = f"has no active key, so {ring.agent} cannot send: agent-bus keys rotate {ring.agent}"
        ex.note("no-active-key", "warning", path, text)
    own = [line for line in history if line.agent == ring.agent]
    told = {(line.event, line.kid) for line in own} | _retired_with(own)
    for key in ring.keys:
        wanted = {"added"} | ({key.state} - {"active"})
        missing = sorted(event for event in wanted if (event, key.kid) not in told)
        if "retired" in missing and is_retired:
            missing.remove("retired")
        if missing:
            text = f"{ROTATIONS} does not say that key {key.kid} was {' and '.join(missing)}"
            ex.note("rotation-missing", "warning", path, f"{text}: its history is incomplete")


def _retired_with(own: Sequence[Rotation]) -> set[tuple[str, str | None]]:
    """The keys that were retired with their agent, which may be back with another since."""
    found: set[tuple[str, str | None]] = set()
    for number, line in enumerate(own):
        if line.event == "agent_retired":
            found |= {("retired", earlier.kid) for earlier in own[:number]}
    return found
