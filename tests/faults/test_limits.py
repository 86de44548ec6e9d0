"""Limits of the process: open files, and the size of a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from disks import copy_tree
from operations import OPERATIONS
from tracing import Task, run

pytestmark = pytest.mark.timeout(900)


def wrong_with(operation: str, folder: Path, limit: str, value: int, ident: str) -> list[str]:
    """Run an operation under a limit, and judge it."""
    root = folder / "bus"
    copy_tree(folder / "origin", root)
    task = dataclasses.replace(Task(operation, root, ident), limits={limit: value})
    outcome = run(task)
    return [f"{limit}={value} ({outcome.code}): {what}" for what in task.judged(outcome)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_too_few_open_files(operation: str, tmp_path: Path) -> None:
    ident = OPERATIONS[operation].prepare(tmp_path / "origin")
    wrong = []
    for more in range(9):
        wrong += wrong_with(operation, tmp_path, "NOFILE", 3 + more, ident)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_limit_on_the_size_of_a_file(operation: str, tmp_path: Path) -> None:
    ident = OPERATIONS[operation].prepare(tmp_path / "origin")
    wrong = []
    for size in (0, 1, 100, 1000, 4096, 5000):
        wrong += wrong_with(operation, tmp_path, "FSIZE", size, ident)
    assert not wrong, "\n".join(wrong)
