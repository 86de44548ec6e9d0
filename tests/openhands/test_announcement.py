"""How a gateway on stdio finds a living server of the same bus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_bus.files import Folder, make_folders
from agent_bus.openhands.gateway.announcement import announce, find
from agent_bus.testing import ManualClock


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with make_folders(tmp_path / "gateway") as made:
        yield made


def test_a_server_is_found_while_it_lives(folder: Folder, clock: ManualClock) -> None:
    assert find(folder) is None
    with announce(folder, "http://one.test:1", clock):
        assert find(folder) == "http://one.test:1"
        with announce(folder, "http://two.test:2", clock):
            assert find(folder) == "http://two.test:2"
        assert find(folder) == "http://one.test:1"
    assert find(folder) is None
    assert list((folder.path / "serve").iterdir()) == []


def test_what_a_dead_server_left_is_passed_over_and_swept(
    folder: Folder, clock: ManualClock
) -> None:
    (folder.path / "serve").mkdir(mode=0o700)
    left = folder.path / "serve" / f"{clock.new_id()}.json"
    left.write_text(json.dumps({"url": "http://dead.test"}))
    assert find(folder) is None

    clock.advance(1)
    with announce(folder, "http://live.test", clock):
        assert find(folder) == "http://live.test"
        assert not left.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 7}', '{"url": "file:///x"}'])
def test_an_announcement_that_says_nothing_is_passed_over(
    folder: Folder, clock: ManualClock, text: str
) -> None:
    with announce(folder, "http://older.test", clock):
        clock.advance(1)
        with folder.make("serve") as serve:
            held = serve.hold(f"{clock.new_id()}.json", text.encode())
            with open(held, "rb"):
                assert find(folder) == "http://older.test"


def test_other_files_there_are_not_touched(folder: Folder, clock: ManualClock) -> None:
    with announce(folder, "http://one.test", clock):
        (folder.path / "serve" / "notes.txt").write_text("mine")
    with announce(folder, "http://two.test", clock):
        assert find(folder) == "http://two.test"
    assert (folder.path / "serve" / "notes.txt").exists()
