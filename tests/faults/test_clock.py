"""Clocks that jump: nothing is lost or shown twice, and order within a process stays."""

from __future__ import annotations

from pathlib import Path

import capabilities
import pytest
from acks import acknowledged, begun, said_after
from looking import bus
from operations import OPERATIONS
from processes import Processes, agent, environment, wait_until
from tracing import Task, run

from agent_bus.clock import id_time
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("faketime")]

DAY = 24 * 3600


class Clock:
    """The wall clock of other processes. Their monotonic clock and file times stay true."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set("+0")

    def set(self, offset: str) -> None:
        """Move it: `+2h`, `-1d`. In one step, so that nobody reads half of it."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(offset + "\n")
        fresh.replace(self._path)

    @property
    def env(self) -> dict[str, str]:
        """What leads a process to it."""
        return {
            "LD_PRELOAD": str(capabilities.library("libfaketime.so.1")),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """A clock in hand."""
    return Clock(tmp_path / "clock")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a bus."""
    root = tmp_path / "root"
    root.mkdir()
    TemporaryBus("alice", "bob", folder=root)
    return root


def send(root: Path, *, expires_in: int | None = None) -> str:
    """A message by the true clock."""
    return bus(root, "alice").send_one("bob", Draft(body="here", expires_in=expires_in)).id


def test_a_waiting_process_whose_clock_jumps_is_shown_each_message_once(
    root: Path, tmp_path: Path, processes: Processes, clock: Clock
) -> None:
    output = tmp_path / "watched"
    processes.start(agent("watch", root, "bob"), output=output, env=environment(**clock.env))
    wait_until(lambda: begun(output), "the watcher begins")
    sent = []
    for offset in ("+0", "+1d", "-1d", "+400d", "-10y", "+0"):
        clock.set(offset)
        sent.append(send(root))
        wait_until(lambda: len(said_after(output, "shown")) >= len(sent), f"shown at {offset}")
    assert said_after(output, "shown") == sent


def test_what_expired_only_by_a_wrong_clock_is_offered_when_it_is_set_right(
    root: Path, tmp_path: Path, processes: Processes, clock: Clock
) -> None:
    output = tmp_path / "watched"
    processes.start(agent("watch", root, "bob"), output=output, env=environment(**clock.env))
    wait_until(lambda: begun(output), "the watcher begins")
    clock.set("+2h")
    expiring = send(root, expires_in=3600)
    second = send(root)
    wait_until(lambda: second in said_after(output, "shown"), "the look at +2h")
    assert expiring not in said_after(output, "shown")
    clock.set("+0")
    third = send(root)
    wait_until(lambda: {expiring, third} <= set(said_after(output, "shown")), "the look at +0")
    assert len(said_after(output, "shown")) == 3
    stored = bus(root, "bob").read(expiring)
    assert stored.judged.ok


@pytest.mark.parametrize("offset", ["-400d", "+400d"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_of_a_process_with_a_wrong_clock_counts(
    operation: str, offset: str, tmp_path: Path, clock: Clock
) -> None:
    root = tmp_path / "bus"
    ident = OPERATIONS[operation].prepare(root)
    clock.set(offset)
    task = Task(operation, root, ident, env=clock.env)
    outcome = run(task)
    assert outcome.code == "ok", outcome
    assert not task.judged(outcome)


def test_messages_of_one_process_keep_their_order_when_its_clock_steps_back(
    root: Path, tmp_path: Path, processes: Processes, clock: Clock
) -> None:
    words = agent("send", root, "alice", to=["bob"], acks=str(tmp_path / "alice.acks"))
    processes.start(words, env=environment(**clock.env))
    for offset in ("+0", "+1h", "-1h", "-400d", "+0"):
        clock.set(offset)
        count = len(acknowledged(tmp_path))
        wait_until(lambda: len(acknowledged(tmp_path)) > count + 3, f"sent at {offset}")  # noqa: B023
    sent = list(acknowledged(tmp_path).values())
    assert sent == sorted(set(sent))


def test_prune_removes_by_its_own_clock_and_never_what_is_unread(
    root: Path, tmp_path: Path, clock: Clock
) -> None:
    archived, unread = send(root), send(root)
    bus(root, "bob").read(archived, archive=True)
    for offset, gone in (("-400d", False), ("+0", False), ("+400d", True)):
        clock.set(offset)
        run(Task("prune", root, "", env=clock.env))
        assert (bus(root).store.find_all(archived) == []) == gone  # type: ignore[arg-type]
        assert bus(root, "bob").inbox().total == 1
    assert bus(root, "bob").read(unread).judged.ok


def test_a_message_from_the_future_is_delivered_and_kept(
    root: Path, tmp_path: Path, processes: Processes, clock: Clock
) -> None:
    clock.set("+400d")
    words = agent("send", root, "alice", to=["bob"], acks=str(tmp_path / "alice.acks"))
    sender = processes.start(words, env=environment(**clock.env))
    wait_until(lambda: len(acknowledged(tmp_path)) > 1, "sent from the future")
    processes.end()
    assert sender.returncode is not None
    bob = bus(root, "bob")
    first = min(acknowledged(tmp_path).values())
    assert id_time(first) > bob.clock.now() + 300 * DAY * 1000
    assert bob.read(first, archive=True).judged.ok
    assert bob.prune(archived=0).removed == 0
    young = send(root)
    assert {young, first} <= {s.place.id for s in bob.log(limit=1000).messages}
