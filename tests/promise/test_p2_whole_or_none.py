"""P2: a reader sees a whole message or none."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_bus.bus import Bus
from agent_bus.payload import BODY_LIMIT
from agent_bus.reading import Stored
from agent_bus.testing import TemporaryBus

LARGE = """
from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
print("ready", flush=True)
for number in range(100_000):
    bus.send_one("bob", Draft(body=str(number).rjust(65536, "x")))
"""


def whole(stored: Stored) -> bool:
    message = stored.judged.message
    return message is not None and len(message.body) == BODY_LIMIT


def look(reader: Bus) -> int:
    """Judge all that can be seen now; how much that is."""
    seen = list(reader.verify(box="bob"))
    assert all(whole(stored) for stored in seen), [stored.judged.outcome for stored in seen]
    return len(seen)


def test_a_reader_beside_a_sender_never_sees_part_of_a_message(
    bus: TemporaryBus, start: Callable[..., subprocess.Popen[str]]
) -> None:
    sender = start(LARGE, AGENT_MSG_AS="alice", **bus.environment)
    reader = bus.as_agent("bob")
    while look(reader) < 60:
        assert sender.poll() is None
    sender.kill()


def test_a_sender_that_dies_leaves_no_part_of_a_message_where_readers_look(
    bus: TemporaryBus, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for _ in range(8):
        sender = start(LARGE, AGENT_MSG_AS="alice", **bus.environment)
        assert sender.stdout is not None
        assert sender.stdout.readline() == "ready\n"
        while look(bus.as_agent("bob")) == 0:
            assert sender.poll() is None
        sender.send_signal(signal.SIGKILL)
        sender.wait(timeout=60)
        look(bus.as_agent("bob"))


def test_a_sender_that_dies_while_it_writes_leaves_its_part_in_tmp_alone(
    bus: TemporaryBus, send: Callable[..., dict[str, Any]], strace: Callable[..., tuple[str, ...]]
) -> None:
    """Killed at the flush: the bytes are written, the message is not sent."""
    box = bus.path / "messages" / "bob"
    died = send(
        "bob", "x" * 1000, wrap=strace("-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=1")
    )

    assert died == {}
    assert len(list((box / "tmp").iterdir())) == 1
    assert list((box / "new").iterdir()) == []
    assert bus.as_agent("bob").inbox().total == 0


def test_names_in_tmp_are_nobodys_message(bus: TemporaryBus) -> None:
    tmp: Path = bus.path / "messages" / "bob" / "tmp"
    (tmp / "01kbb000000000000000000001.msg").write_bytes(b"agent-bus/1 half a mess")

    reader = bus.as_agent("bob")
    assert reader.inbox().total == 0
    assert list(reader.verify()) == []
