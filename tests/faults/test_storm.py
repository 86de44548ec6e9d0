"""A storm of kill -9: eight senders, two readers that archive, one watcher.

Of the acknowledged messages none is lost, none torn, none there twice under one key, and
the watcher was shown each of its box once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from acks import acknowledged, begun, lies, said_after
from looking import ailments, everything
from processes import Processes, agent, kill, wait_until

from agent_bus.testing import TemporaryBus

pytestmark = pytest.mark.timeout(900)

SENDERS = [f"sender-{number}" for number in range(8)]


def test_nothing_acknowledged_is_lost_in_a_storm_of_kills(
    tmp_path: Path, processes: Processes, exhaustive: bool
) -> None:
    root, kills = tmp_path / "root", 400 if exhaustive else 60
    root.mkdir()
    TemporaryBus(*SENDERS, "bob", "carol", folder=root)
    watched, said = tmp_path / "watched", tmp_path / "said"
    words = {
        name: agent("send", root, name, to=["bob", "carol"], acks=str(tmp_path / f"{name}.acks"))
        for name in SENDERS
    } | {f"reader-{number}": agent("archive", root, "bob") for number in range(2)}
    watcher = processes.start(agent("watch", root, "carol"), output=watched)
    wait_until(lambda: begun(watched), "the watcher begins")
    running = {name: processes.start(w, output=said) for name, w in words.items()}
    wait_until(lambda: len(acknowledged(tmp_path)) > len(SENDERS), "the first receipts")
    for _ in range(kills):
        time.sleep(random.uniform(0.02, 0.15))
        name = random.choice(sorted(running))
        kill(running[name])
        running[name] = processes.start(words[name], output=said)
    for process in running.values():
        kill(process)
    receipts = acknowledged(tmp_path)
    assert len(receipts) > kills, processes.complaints()
    assert not [*lies(root, receipts), *ailments(root)]
    of_carol = {stored.place.id for stored in everything(root) if stored.place.box == "carol"}
    wait_until(lambda: of_carol <= set(said_after(watched, "shown")), "the watcher is shown all")
    assert not [
        ident for ident, count in Counter(said_after(watched, "shown")).items() if count > 1
    ]
    assert watcher.poll() is None, processes.complaints()
    assert b"failed" not in said.read_bytes()
