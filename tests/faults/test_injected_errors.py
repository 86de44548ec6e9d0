"""Every system call of an operation fails once, with every error that it may give.

What a receipt was printed for is there; what was refused is not; a repetition in peace
leaves exactly one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from disks import copy_tree
from operations import OPERATIONS
from tracing import ERRORS, Point, Task, record, strike

pytestmark = [pytest.mark.needs("ptrace"), pytest.mark.timeout(1800)]

SAMPLE = 30
"""Faults of each operation in a sample run: every changing call once, and some others."""
_FIRST = (
    "fsync",
    "linkat",
    "write",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
)


def faults(points: list[Point], *, exhaustive: bool) -> list[tuple[Point, str]]:
    """Which errors to try where."""
    every = [(point, error) for point in points for error in ERRORS.get(point.name, ())]
    if exhaustive:
        return every
    chooser = random.Random(len(every))
    # One error at each call that changes something, and then at random.
    first = dict(chooser.sample(every, len(every)))
    chosen = [(point, error) for point, error in first.items() if point.name in _FIRST]
    rest = [fault for fault in every if fault not in chosen]
    return chosen + chooser.sample(rest, min(len(rest), max(5, SAMPLE - len(chosen))))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_at_any_call_is_told_and_harms_nothing(
    operation: str, tmp_path: Path, exhaustive: bool
) -> None:
    origin, root = tmp_path / "origin", tmp_path / "bus"
    ident = OPERATIONS[operation].prepare(origin)
    task = Task(operation, root, ident)
    copy_tree(origin, root)
    points = record(task, tmp_path / "log")
    wrong = []
    for point, error in faults(points, exhaustive=exhaustive):
        copy_tree(origin, root)
        outcome = strike(task, point, f"error={error}", tmp_path / "log")
        wrong += [f"{error} at {point}: {what}" for what in task.judged(outcome)]
    assert not wrong, "\n".join(wrong)
