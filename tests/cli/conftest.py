"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_bus.testing import TemporaryBus

if TYPE_CHECKING:
    from agent_server import Desk

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    # The module beside this one; tests are no package.
    sys.path.insert(0, str(HERE))

from program import GUARD, Cli, Lines  # noqa: E402


@pytest.fixture
def cli(bus: TemporaryBus, environment: dict[str, str], tmp_path: Path) -> Iterator[Cli]:
    """The command line on a bus with alice, bob, conductor and user."""
    folder = tmp_path / "work"
    folder.mkdir()
    made = Cli(bus, environment, folder)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=GUARD)


@pytest.fixture
def desk(cli: Cli, tmp_path: Path) -> Iterator[Desk]:
    """The command line with an agent server, and a mirror of one repository."""
    from agent_server import Desk, ObedientServer, make_mirror, make_source

    workspace = tmp_path / "workspace"
    workspace.mkdir()
    head = make_source(tmp_path / "source")
    make_mirror(workspace, tmp_path / "source")
    with ObedientServer() as server:
        yield Desk(cli, server, workspace, tmp_path / "source", head)


@pytest.fixture
def lines(cli: Cli) -> Lines:
    """What running processes print, and whether they are attached."""
    return Lines(cli)
