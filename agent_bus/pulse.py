"""How a bus looks from outside, for pages that show it: a hint that something has changed.

It costs a look at a few folders, however many messages there are. Nothing is delivered or
decided because of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from agent_bus.presence import Presence
from agent_bus.reading import STATE_FOLDERS
from agent_bus.store import Store
from agent_bus.verdicts import Stamp, stamp_of


@dataclass(frozen=True, slots=True)
class Pulse:
    """Two that differ mean that something has changed meanwhile."""

    approvals: Stamp | None
    """Requests and decisions."""
    messages: tuple[Stamp | None, ...]
    """What stands in the boxes, and what of it is read."""
    agents: frozenset[str]
    """The living processes."""


def pulse(store: Store, presence: Presence) -> Pulse:
    """Look. Raises OSError and NoBus."""
    boxes = store.boxes()
    folders = (("messages", box, name) for box in boxes for name in STATE_FOLDERS.values())
    return Pulse(
        approvals=_stamp(store, "approvals"),
        messages=tuple(_stamp(store, *folder) for folder in folders),
        agents=frozenset(
            process.id for box in boxes for process in presence.processes(box) if process.alive
        ),
    )


def _stamp(store: Store, *names: str) -> Stamp | None:
    with contextlib.suppress(FileNotFoundError), store.open(*names) as folder:
        return stamp_of(folder.own_status())
    return None
