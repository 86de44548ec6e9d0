"""File events that fail, overflow or come late: they cost time and never a message."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import capabilities
import pytest
from acks import begun, said_after
from looking import bus, settings
from processes import Processes, agent, environment, stop, wait_until
from tracing import MARKS

from agent_bus.clock import SystemClock, to_text
from agent_bus.envelope import encode_message
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.payload import Message
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

pytestmark = pytest.mark.timeout(900)

QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a bus."""
    root = tmp_path / "root"
    root.mkdir()
    TemporaryBus("alice", "bob", folder=root)
    return root


@pytest.mark.needs("userns")
@pytest.mark.parametrize("used_up", ["max_inotify_instances", "max_inotify_watches"])
def test_where_inotify_is_used_up_it_polls_and_says_so(
    used_up: str, root: Path, tmp_path: Path, processes: Processes
) -> None:
    output = tmp_path / "watched"
    words = [*capabilities.in_user_namespace(f"{used_up}=0"), *agent("watch", root, "bob")]
    watcher = processes.start(words, output=output)
    wait_until(lambda: begun(output) or watcher.poll() is not None, "the watcher begins")
    sent = [bus(root, "alice").send_one("bob", Draft(body="here")).id for _ in range(3)]
    wait_until(lambda: sorted(said_after(output, "shown")) == sorted(sent), "they are shown")
    assert said_after(output, "mode") == ["polling"]
    warned = said_after(output, "warned")
    assert len(warned) == 1
    assert "fs.inotify" in warned[0]


def test_an_overflow_of_the_queue_of_events_loses_nothing(
    root: Path, tmp_path: Path, processes: Processes
) -> None:
    if not QUEUE.exists():
        pytest.skip("no inotify here")
    count = int(QUEUE.read_text()) + 3616
    output = tmp_path / "watched"
    watcher = processes.start(agent("watch", root, "bob"), output=output)
    wait_until(lambda: begun(output), "the watcher begins")
    assert said_after(output, "mode") == ["events"]
    stop(watcher)
    sent = arrive(root, count)
    os.kill(watcher.pid, signal.SIGCONT)
    wait_until(lambda: len(said_after(output, "shown")) >= count, "all are shown")
    sent |= arrive(root, 1)
    wait_until(lambda: len(said_after(output, "shown")) > count, "events still come")
    shown = said_after(output, "shown")
    assert len(shown) == len(set(shown)) == count + 1
    assert set(shown) == sent


def arrive(root: Path, count: int) -> set[str]:
    """Put messages into bob's box by its protocol, but unflushed and past the limit of a box."""
    opened, clock = bus(root, "alice"), SystemClock()
    signer = opened.keys.load(opened.identity).signing_key()
    box = settings(root).bus
    assert box is not None
    tmp, new = box / "messages" / "bob" / "tmp", box / "messages" / "bob" / "new"
    sent: set[str] = set()
    for _ in range(count):
        ident = MessageId(clock.new_id())
        message = Message(
            id=ident,
            bus=opened.file.bus,
            sender=AgentName("alice"),
            to=AgentName("bob"),
            sent_at=to_text(clock.now()),
            body="one of many",
        )
        path = tmp / message_file(ident)
        path.write_bytes(encode_message(message, signer))
        os.link(path, new / path.name)
        path.unlink()
        sent.add(ident)
    return sent


@pytest.mark.needs("ptrace")
def test_a_message_whose_link_is_slow_is_delivered_after_a_younger_one(
    root: Path, tmp_path: Path, processes: Processes
) -> None:
    output, acks, log = tmp_path / "watched", tmp_path / "slow.acks", tmp_path / "log"
    processes.start(agent("watch", root, "bob"), output=output)
    wait_until(lambda: begun(output), "the watcher begins")
    slow = ["strace", "-f", "-o", str(log), "-e", f"trace=linkat,{MARKS}"]
    # The first link of a keyed send goes to sent/, the second into the box.
    delayed = [*slow, "-e", "inject=linkat:delay_enter=3000000:when=2"]
    words = agent("send", root, "alice", to=["bob"], acks=str(acks))
    sender = processes.start([*delayed, *words], env=environment())
    box = root / "bus" / "messages" / "bob"
    wait_until(lambda: any((box / "tmp").iterdir()), "the slow one is under way")
    young = bus(root, "conductor").send_one("bob", Draft(body="quick")).id
    wait_until(lambda: acks.exists() and b"\n" in acks.read_bytes(), "the slow one arrives")
    late = acks.read_text().split("\n")[0].partition(" ")[2]
    wait_until(lambda: late in said_after(output, "shown"), "the slow one is shown")
    shown = said_after(output, "shown")
    assert late < young
    assert shown.index(young) < shown.index(late)
    assert sender.poll() is None
