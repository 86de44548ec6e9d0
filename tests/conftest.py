"""What all tests share: a bus, a way to start processes, and a look at what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from agent_bus.bus import Bus
from agent_bus.clock import to_text
from agent_bus.delivery import Delivery
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Message
from agent_bus.testing import ManualClock, TemporaryBus

ROOT = Path(__file__).resolve().parent.parent
GUARD = 120.0
"""Seconds after which a process counts as hanging."""

hypothesis.settings.register_profile("house", deadline=None, database=None)
hypothesis.settings.load_profile("house")

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Keep Hypothesis' files out of the working directory."""
    folder = tempfile.TemporaryDirectory(prefix="agent-bus-hypothesis-")
    config.add_cleanup(folder.cleanup)
    set_hypothesis_home_dir(folder.name)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TemporaryBus]:
    """A bus with alice, bob and the two admins."""
    with TemporaryBus("alice", "bob", folder=tmp_path) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def held(tmp_path: Path, clock: ManualClock) -> Iterator[TemporaryBus]:
    """The same bus, with its clock in the test's hand."""
    with TemporaryBus("alice", "bob", folder=tmp_path, clock=clock) as made:
        yield made


FalseWake = Callable[..., MessageId]


@pytest.fixture
def false_wake() -> FalseWake:
    """Put a wake that no gateway has signed into a box: `(bus, to, sender="alice")`; its id."""

    def put(bus: TemporaryBus, to: str, sender: str = "alice", **fields: Any) -> MessageId:
        opened = bus.as_agent(sender)
        message = Message(
            id=MessageId(bus.clock.new_id()),
            bus=opened.file.bus,
            sender=opened.identity,
            to=AgentName(to),
            sent_at=to_text(bus.clock.now()),
            **{"kind": "wake", "subject": "Child ended", "body": "hello"} | fields,
        )
        signer = opened.keys.signer(opened.identity)
        return Delivery(opened.store, bus.clock).deliver(message, signer).id

    return put


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A clean environment for a process: nothing of this one's but what Python needs."""
    kept = {name: os.environ[name] for name in os.environ if name.startswith("COVERAGE")}
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    return kept | {
        "HOME": str(home),
        "LC_ALL": "C",
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Start Python code in a process of its own: `start(code, *arguments, **variables)`.

    What still runs at the end of the test is killed.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(
        code: str, *arguments: object, wrap: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*wrap, sys.executable, "-c", code, *map(str, arguments)],
            env=environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=GUARD)


@pytest.fixture
def run(start: Start) -> Run:
    """Run Python code in a process of its own to its end: `run(code, *arguments, **variables)`."""

    def go(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        process = start(code, *arguments, **options)
        out, err = process.communicate(timeout=GUARD)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return go


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """A test ends the processes that it started."""
    before = _children()
    yield
    until = time.monotonic() + 10
    while (left := _children() - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"processes left behind: {sorted(left)}"


def _children() -> set[int]:
    """The living children of this process; empty where the system does not tell."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found |= {int(word) for word in listing.read_text().split()}
        except OSError:  # the thread has ended
            continue
    return {child for child in found if _is_alive(child)}


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def alice(held: TemporaryBus) -> Bus:
    """An agent of the bus whose clock is held."""
    return held.as_agent("alice")


@pytest.fixture
def bob(held: TemporaryBus) -> Bus:
    """Another one."""
    return held.as_agent("bob")
