"""The process is killed before every system call of an operation.

A receipt that was printed is kept; without one there is the whole message or none, and a
repetition leaves exactly one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from disks import copy_tree
from operations import OPERATIONS
from tracing import Task, deaths, record, strike

pytestmark = [pytest.mark.needs("ptrace"), pytest.mark.timeout(1800)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_death_at_any_call_leaves_all_or_nothing(
    operation: str, tmp_path: Path, exhaustive: bool
) -> None:
    origin, root = tmp_path / "origin", tmp_path / "bus"
    ident = OPERATIONS[operation].prepare(origin)
    task = Task(operation, root, ident)
    copy_tree(origin, root)
    points = record(task, tmp_path / "log")
    wrong = []
    for point in deaths(points, exhaustive=exhaustive, sample=16):
        copy_tree(origin, root)
        outcome = strike(task, point, "signal=KILL", tmp_path / "log")
        assert outcome.code == "died", (point, outcome)
        wrong += [f"{point}: {what}" for what in task.judged(outcome)]
    assert not wrong, "\n".join(wrong)
