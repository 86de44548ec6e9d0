"""The doctor: every sentence of the promise as a check, on any bus, without changing it.

    findings = doctor.examine(bus)
    doctor.is_content(findings)

A repair only ever moves things aside, into `messages/<agent>/bad`, `approvals/bad` or `bad`
under a name with a suffix of its own; it also closes modes that are open to others, and makes
a folder of the bus that is missing. It deletes nothing, and touches nothing that verifies but
for one thing: where a move was cut short, the name that no longer counts goes aside. A second
repair finds nothing more to do.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_bus.bus import Bus
from agent_bus.doctor import agents, approvals, boxes, keys, layout, pins, sent
from agent_bus.doctor.examination import Examination
from agent_bus.doctor.finding import Finding, Severity, is_content
from agent_bus.doctor.ping import Ping, ping
from agent_bus.errors import StorageError
from agent_bus.files import Folder
from agent_bus.pins import PINS
from agent_bus.reading import reason

__all__ = ["Finding", "Ping", "Severity", "examine", "is_content", "ping"]


def examine(
    bus: Bus, *, repair: bool = False, progress: Callable[[int], None] = lambda _: None
) -> list[Finding]:
    """Examine a whole bus, in use or not, and repair it if asked.

    `progress` is called with how many entries were looked at since its last call. Whatever
    stands in the bus becomes a finding; raises StorageError only if the bus folder itself
    cannot be opened.
    """
    try:
        root = Folder.open(bus.address.path, shared=True)
    except OSError as error:
        raise StorageError(f"the bus cannot be examined: {reason(error)}") from error
    with root:
        ex = Examination(bus, root, repair=repair, progress=progress)
        looks = {
            "messages": boxes.examine,
            "sent": sent.examine,
            "approvals": approvals.examine,
            "agents": agents.examine,
        }
        with ex.guard(root.path):
            layout.examine(ex)
        with ex.guard(bus.keys.folder):
            keys.examine(ex)
        with ex.guard(root.path / PINS):
            pins.examine(ex)
        for name, look in looks.items():
            layout.within(ex, name, look)
    return ex.findings
