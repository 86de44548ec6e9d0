"""The power is cut at random moments, while senders and a reader are at work."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import capabilities
import pytest
from acks import acknowledged, lies
from disks import Disk
from looking import ailments
from processes import Processes, agent, environment, kill, stop, wait_until

from agent_bus.testing import TemporaryBus

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs("mount")]

KINDS = [pytest.param(kind, marks=pytest.mark.needs(kind)) for kind in ("ext4", "xfs", "btrfs")]
SENDERS = ("alice", "dora")


def prepared(kind: str, folder: Path) -> Disk:
    """A disk with a bus on it."""
    disk = Disk.make(kind, folder)
    with disk.mounted() as root:
        root.mkdir()
        TemporaryBus(*SENDERS, "bob", folder=root)
    return disk


def cut_while_busy(
    disk: Disk, folder: Path, processes: Processes, pause: float, env: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Let agents work for a while, cut the power: what was acknowledged, what is wrong."""
    for old in folder.glob("*.acks"):
        old.unlink()
    running = disk.copy("running")
    with running.mounted() as root, contextlib.ExitStack() as stack:
        words = [
            agent("send", root, name, to=["bob"], acks=str(folder / f"{name}.acks"))
            for name in SENDERS
        ]
        words.append(agent("archive", root, "bob"))
        agents = [processes.start(w, output=folder / "said", env=environment(**env)) for w in words]
        for process in agents:
            stack.callback(kill, process)
        wait_until(lambda: len(acknowledged(folder)) > 2, "the first receipts")
        time.sleep(pause)
        for process in agents:
            stop(process)
        receipts = acknowledged(folder)
        left = running.copy("left")
    with left.mounted() as root:
        return receipts, [*lies(root, receipts), *ailments(root)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_at_a_random_moment_loses_nothing_acknowledged(
    kind: str, tmp_path: Path, processes: Processes, exhaustive: bool
) -> None:
    disk = prepared(kind, tmp_path)
    acknowledged_in_all = 0
    for _ in range(40 if exhaustive else 4):
        pause = random.uniform(0, 0.5)
        receipts, wrong = cut_while_busy(disk, tmp_path, processes, pause, {})
        acknowledged_in_all += len(receipts)
        assert not wrong, f"after {pause:.3f} s and {len(receipts)} receipts:\n" + "\n".join(wrong)
    assert acknowledged_in_all > 20, processes.complaints()


@pytest.mark.needs("eatmydata")
@pytest.mark.parametrize("kind", KINDS)
def test_control_without_any_flush_messages_are_lost(
    kind: str, tmp_path: Path, processes: Processes
) -> None:
    disk = prepared(kind, tmp_path)
    env = {"LD_PRELOAD": str(capabilities.library("libeatmydata.so"))}
    receipts, wrong = cut_while_busy(disk, tmp_path, processes, 0.1, env)
    assert receipts
    assert any("was acknowledged" in what for what in wrong), "the test cannot tell"
