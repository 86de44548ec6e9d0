"""The bus in a temporary folder that users' tests get as well."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from agent_bus.sending import Draft
from agent_bus.testing import START, ManualClock, TemporaryBus


def test_the_example_of_its_documentation() -> None:
    with TemporaryBus("alice", "bob") as bus:
        bus.as_agent("alice").send_one("bob", Draft(body="hello"))

        assert bus.as_agent("bob").inbox().total == 1
        path = bus.path
    assert not path.parent.exists()


def test_a_folder_that_was_given_stays(tmp_path: Path) -> None:
    with TemporaryBus("alice", folder=tmp_path):
        pass
    assert (tmp_path / "bus" / "bus.json").exists()


def test_another_process_finds_the_bus_by_its_environment(
    bus: TemporaryBus, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = """
from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
print(Bus.open(settings, identity=settings.identity).send_one("bob", Draft(body="hi")).id)
"""
    done = run(code, AGENT_MSG_AS="alice", **bus.environment)

    assert done.stderr == ""
    assert bus.as_agent("bob").read(done.stdout.strip()).judged.ok


def test_a_manual_clock_moves_when_it_is_told_to() -> None:
    clock = ManualClock()
    first = clock.new_id()
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (START + 1500, 1.5)
    clock.jump(-60)
    assert (clock.now(), clock.monotonic()) == (START - 58_500, 1.5)
    assert clock.new_id() > first
