"""A bus that is harmed, seen from outside: how an act on it ended, and what stands there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_bus import doctor
from agent_bus.bus import Bus
from agent_bus.clock import SystemClock
from agent_bus.errors import AgentBusError
from agent_bus.names import AgentName, MessageId
from agent_bus.reading import Stored
from agent_bus.settings import Settings

ALICE, BOB, CAROL = AgentName("alice"), AgentName("bob"), AgentName("carol")
BODY = "So that a torn one shows. " * 200
"""Longer than a page."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: `ok`, `died`, `raw` (an exception that is none of ours), or an error's code."""

    code: str
    ident: str = ""
    key: str | None = None
    text: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether it says that nothing was done."""
        return self.code not in ("ok", "died", "raw", "delivery-uncertain")


Ready = Callable[[], str]


def settings(root: Path) -> Settings:
    """The settings of the bus in a folder."""
    return Settings(data=root / "data", keys=root / "keys", bus=root / "bus", project=root)


def bus(root: Path, identity: str | None = None) -> Bus:
    """Open the bus in a folder."""
    return Bus.open(settings(root), identity=identity, clock=SystemClock())


def attempt(act: Ready) -> Outcome:
    """Perform, and say how it ended."""
    try:
        return Outcome("ok", act())
    except AgentBusError as error:
        return Outcome(error.code, "", getattr(error, "key", None), str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Outcome("raw", text=_in_one_line(error))


def _in_one_line(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.name}" for f in frames if "agent_bus" in f.filename]
    return f"{error!r} in {' > '.join(ours)}"


def everything(root: Path) -> list[Stored]:
    """Every message file of the bus."""
    return list(bus(root).verify())


def unfit(root: Path) -> Iterator[str]:
    """The files that are no valid messages: there must never be one."""
    for stored in everything(root):
        if not stored.judged.ok:
            yield f"{stored.place} is {stored.judged.outcome}: {stored.judged.detail}"


def ailments(root: Path) -> list[str]:
    """What the doctor calls an error, but for a bus on which nobody has a key yet."""
    errors = (f for f in doctor.examine(bus(root)) if f.severity == "error")
    return [f"{f.code} {f.path}: {f.message}" for f in errors if f.code != "no-keys"]


def with_body(root: Path) -> list[MessageId]:
    """The ids of the messages that say BODY."""
    return [
        stored.place.id
        for stored in everything(root)
        if stored.judged.message is not None and stored.judged.message.body == BODY
    ]


def notices(root: Path, box: AgentName = ALICE) -> list[Stored]:
    """The decisions that a requester was told of."""
    found = (stored for stored in bus(root).verify(box=box))
    return [s for s in found if s.judged.message and s.judged.message.kind == "approval_decision"]


def without_flushing_folders() -> None:
    """Patch the flush of folders out of this process: the tests that rely on it must fail."""
    from agent_bus.files import Folder

    Folder.sync = lambda self: None  # type: ignore[method-assign]
