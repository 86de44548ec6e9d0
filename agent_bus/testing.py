"""A bus in a temporary folder, and a clock in hand: for the tests of programs that use one.

    with TemporaryBus("alice", "bob") as bus:
        bus.as_agent("alice").send_one("bob", Draft(body="hello"))
        assert bus.as_agent("bob").inbox().total == 1

Everything is real: files, keys, signatures. Only the clock can be held. With AGENT_BUS_POLL=1
in the environment it is a bus without file events, so that a suite can be run both ways.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

from agent_bus import create
from agent_bus.bus import Bus
from agent_bus.clock import Clock, IdSource, SystemClock
from agent_bus.names import agent_name
from agent_bus.settings import DEFAULT_ADMINS, Settings, polls

START = 1_796_000_000_000
"""Where a `ManualClock` begins: a day in November 2026, in milliseconds since 1970."""


class ManualClock:
    """A clock that moves only when it is told to. Its ids still grow."""

    def __init__(self, now: int = START) -> None:
        self.milliseconds = now
        self._elapsed = 0.0
        self._ids = IdSource()

    def now(self) -> int:
        """Milliseconds since 1970."""
        return self.milliseconds

    def monotonic(self) -> float:
        """Seconds since this clock was made, as `advance` counted them."""
        return self._elapsed

    def new_id(self) -> str:
        """A ULID of the present moment."""
        return self._ids.next(self.milliseconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._elapsed += seconds
        self.milliseconds += int(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back; no time passes."""
        self.milliseconds += int(seconds * 1000)


class TemporaryBus:
    """A bus with these agents and the default admins; it goes away at the end of the `with`.

    `path` is the bus folder, `environment` what a process needs to find it (without an
    identity).
    """

    def __init__(
        self, *agents: str, folder: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="agent-bus-")
        root = folder or Path(self._temporary.name if self._temporary else "")
        self.clock = clock or SystemClock()
        self.settings = Settings(
            data=root / "data",
            keys=root / "keys",
            bus=root / "bus",
            project=root,
            poll=polls(),
        )
        self.path = root / "bus"
        create.create(self.settings, self.clock)
        for name in dict.fromkeys((*agents, *DEFAULT_ADMINS)):
            self.add_agent(name)

    def add_agent(self, name: str) -> None:
        """Make a key and a box."""
        anonymous = Bus.open(self.settings, clock=self.clock)
        anonymous.keys.generate(agent_name(name))
        anonymous.store.make_box(agent_name(name)).close()

    def as_agent(self, name: str) -> Bus:
        """The bus, opened as one identity."""
        return Bus.open(self.settings, identity=name, clock=self.clock)

    def as_gateway(self) -> Bus:
        """The bus, opened as the gateway of OpenHands children."""
        return Bus.open_gateway(self.settings, clock=self.clock)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead another process to this bus; add AGENT_MSG_AS."""
        where = {"AGENT_MSG_BUS": str(self.path), "AGENT_MSG_KEYS": str(self.settings.keys)}
        return where | ({"AGENT_BUS_POLL": "1"} if self.settings.poll else {})

    def close(self) -> None:
        """Remove the folder, if it was made here."""
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
