"""P1: when `send` returns a receipt, the exact signed bytes are on stable storage.

They stand in the recipient's box and survive the death of any process, a kernel crash and a
power cut, as far as kernel and drive tell the truth. (Power cuts have tests of their own.)
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_bus.envelope import encode_message
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

BOB = AgentName("bob")

STREAM = """
import sys
from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
for number in range(int(sys.argv[2])):
    receipt = bus.send_one(sys.argv[1], Draft(body=f"{sys.argv[3]} {number}"), force=True)
    print(receipt.id, flush=True)
"""


def test_a_receipt_means_that_the_exact_signed_bytes_stand_in_the_box(bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    receipt = alice.send_one("bob", Draft(body="exactly this"))

    path = bus.path / "messages" / "bob" / "new" / message_file(receipt.id)
    judged = bus.as_agent("bob").store.load(BOB, receipt.id).judged
    assert judged.message is not None
    key = alice.keys.load(AgentName("alice")).signing_key()
    assert path.read_bytes() == encode_message(judged.message, key)


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after_that(
    bus: TemporaryBus,
    send: Callable[..., dict[str, Any]],
    strace: Callable[..., tuple[str, ...]],
    tmp_path: Path,
) -> None:
    """The order of the system calls is the promise; here it is read off."""
    trace = tmp_path / "trace"
    calls = "trace=openat,fsync,close,linkat,unlinkat,write"
    done = send("bob", "x", key="k", wrap=strace("-y", "-s", "200", "-e", calls, output=trace))

    ident, lines = done["id"], trace.read_text(errors="replace").splitlines()
    box, sent = f"{bus.path}/messages/bob", f"{bus.path}/sent/alice"

    def first(pattern: str, start: int = 0) -> int:
        for number in range(start, len(lines)):
            if re.search(pattern, lines[number]):
                return number
        raise AssertionError(pattern)

    created = first(rf"openat\(.*{ident}\.[0-9a-f]{{8}}.*O_EXCL")
    flushed = first(rf"fsync\(\d+<{box}/tmp/{ident}\.[0-9a-f]{{8}}>", created)
    closed = first(rf"close\(\d+<{box}/tmp/{ident}\.[0-9a-f]{{8}}>", flushed)
    remembered = first(rf"linkat\(.*{sent}>", closed)
    memory_flushed = first(rf"fsync\(\d+<{sent}>", remembered)
    visible = first(rf"linkat\(.*{ident}\.msg", memory_flushed)
    folder_flushed = first(rf"fsync\(\d+<{box}/new>", visible)
    removed = first(rf"unlinkat\(.*{ident}\.[0-9a-f]{{8}}", folder_flushed)
    said = first(rf"write\(1<.*{ident}", removed)
    assert said > created


def test_a_new_box_is_flushed_with_its_parents_before_the_receipt(
    bus: TemporaryBus,
    start: Callable[..., subprocess.Popen[str]],
    strace: Callable[..., tuple[str, ...]],
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    words = strace("-y", "-e", "trace=fsync,linkat", output=trace)
    sender = start(STREAM, "carol", 1, "x", wrap=words, AGENT_MSG_AS="alice", **bus.environment)
    sender.communicate(timeout=120)

    before = trace.read_text(errors="replace").partition(".msg")[0]
    for part in ("messages", "messages/carol", "messages/carol/tmp", "messages/carol/new"):
        assert f"<{bus.path}/{part}>" in before, part


def test_what_was_acknowledged_survives_kill_9_at_any_moment(
    bus: TemporaryBus, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Senders are killed at random; each receipt that was printed names a whole message."""
    chance = random.Random(1)
    acknowledged: list[str] = []
    for round_ in range(6):
        senders = [
            start(STREAM, "bob", 1000, f"{round_}{n}", AGENT_MSG_AS="alice", **bus.environment)
            for n in range(2)
        ]
        for sender in senders:
            assert sender.stdout is not None
            acknowledged.append(sender.stdout.readline().strip())
        time.sleep(chance.random() / 4)
        for sender in senders:
            sender.send_signal(signal.SIGKILL)
        for sender in senders:
            # Not `communicate`, which forgets what `readline` has taken already.
            assert sender.stdout is not None
            acknowledged += [line for line in sender.stdout.read().split() if len(line) == 26]

    store = bus.as_agent("bob").store
    present = {stored.place.id: stored.judged for stored in bus.as_agent("bob").verify(box="bob")}
    assert set(acknowledged) <= set(present)
    assert all(judged.ok for judged in present.values())
    # At most one message of each sender can be there without its receipt.
    assert len(present) - len(set(acknowledged)) <= 12
    assert all(store.load(BOB, MessageId(ident)).judged.ok for ident in acknowledged)


@pytest.mark.timeout(400)
def test_two_processes_that_send_a_thousand_each_to_a_new_box_lose_nothing(
    bus: TemporaryBus, start: Callable[..., subprocess.Popen[str]]
) -> None:
    senders = [
        start(STREAM, "carol", 1000, name, AGENT_MSG_AS=name, **bus.environment)
        for name in ("alice", "bob")
    ]
    receipts: list[str] = []
    for sender in senders:
        out, err = sender.communicate(timeout=300)
        assert err == ""
        receipts += out.split()

    assert len(set(receipts)) == 2000
    bus.add_agent("carol")
    found = {"alice": [], "bob": []}  # type: dict[str, list[str]]
    for stored in bus.as_agent("carol").verify(box="carol"):
        message = stored.judged.message
        assert message is not None
        found[message.sender].append(message.body)
    for name, bodies in found.items():
        assert bodies == [f"{name} {number}" for number in range(1000)]


def test_a_receipt_does_not_claim_more_than_the_file_system_gives(
    small_disk: Path, send: Callable[..., dict[str, Any]]
) -> None:
    """Memory survives the death of a process and nothing more."""
    with TemporaryBus("alice", "bob", folder=small_disk) as made:
        assert send("bob", "x", at=made)["durability"] == "process"
