"""The power is cut at every system call of an operation, on ext4, xfs and btrfs.

The process is killed before the call, the image is copied while it is mounted, and the copy
is judged like a bus after a death: nothing that the kernel had only in memory is on it. That
the test can tell is shown by two controls: without flushes, and without the flush of
folders, it must find messages lost.
"""

from __future__ import annotations

from pathlib import Path

import capabilities
import pytest
from disks import Disk
from looking import Outcome
from operations import OPERATIONS
from tracing import Point, Task, deaths, record, run, strike

pytestmark = pytest.mark.timeout(3600)

KINDS = [
    pytest.param(kind, marks=pytest.mark.needs(kind, "mount")) for kind in ("ext4", "xfs", "btrfs")
]
SAMPLED = ("keyed", "archive", "decide", "rotate")
"""In a sample the others are cut after their receipt alone."""


class Scene:
    """One prepared disk, of which every cut gets a fresh copy."""

    def __init__(self, kind: str, operation: str, folder: Path) -> None:
        self.operation = operation
        self.log = folder / "log"
        self.prepared = Disk.make(kind, folder)
        with self.prepared.mounted() as root:
            self.ident = OPERATIONS[operation].prepare(root)
            self.root = root

    def task(self, *defects: str, env: dict[str, str] | None = None) -> Task:
        return Task(self.operation, self.root, self.ident, defects, env or {})

    def points(self) -> list[Point]:
        with self.prepared.copy("recorded").mounted():
            return record(self.task(), self.log)

    def cut(self, task: Task, point: Point | None) -> tuple[Outcome, list[str]]:
        """Cut the power before a call, or right after a receipt. What is wrong then."""
        disk = self.prepared.copy("running")
        with disk.mounted():
            outcome = strike(task, point, "signal=KILL", self.log) if point else run(task)
            left = disk.copy("left")
        with left.mounted():
            return outcome, task.judged(outcome)


@pytest.mark.needs("ptrace")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_power_cut_at_any_call_leaves_all_or_nothing(
    kind: str, operation: str, tmp_path: Path, exhaustive: bool
) -> None:
    scene = Scene(kind, operation, tmp_path)
    wrong = []
    chosen = []
    if exhaustive or operation in SAMPLED:
        chosen = deaths(scene.points(), exhaustive=exhaustive, sample=8)
    for point in (*chosen, None):
        outcome, found = scene.cut(scene.task(), point)
        assert (outcome.code == "ok") == (point is None), (point, outcome)
        wrong += [f"{point or 'after the receipt'}: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("eatmydata")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["send", "keyed", "decide"])
def test_control_without_any_flush_it_is_lost(kind: str, operation: str, tmp_path: Path) -> None:
    library = str(capabilities.library("libeatmydata.so"))
    scene = Scene(kind, operation, tmp_path)
    outcome, found = scene.cut(scene.task(env={"LD_PRELOAD": library}), None)
    assert outcome.code == "ok"
    assert any("a receipt was given" in what or "decided, and" in what for what in found), found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["send", "keyed", "archive", "decide"])
def test_control_without_the_flush_of_folders_it_is_lost(
    kind: str, operation: str, tmp_path: Path
) -> None:
    scene = Scene(kind, operation, tmp_path)
    outcome, found = scene.cut(scene.task("folder-flush"), None)
    assert outcome.code == "ok"
    assert found, "the test cannot tell whether folders are flushed"
