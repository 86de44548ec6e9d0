"""What a program called git prints: an answer, or one of four errors in words."""

# ruff: noqa: PT017 - most inputs raise nothing

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_bus import git
from agent_bus.errors import NoBus

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
question = git._QUESTION[1].encode() + b"\n"


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A folder that looks like a repository."""
    (tmp_path / ".git").mkdir()
    return tmp_path


@one_folder
@given(
    st.binary(max_size=200)
    | st.sampled_from([b".git\n", b"../\n", b"\n", b"/\n", b"\0\n", b"a\0b\n"]),
    st.booleans(),
)
def test_any_output_is_a_folder_or_an_error(start: Path, output: bytes, old: bool) -> None:
    try:
        found = git._repository(start, (question if old else b"") + output)
    except NoBus as error:
        assert str(error).isprintable()
        return
    assert found.common.is_dir()
    assert found.common.is_absolute()
    assert found.project.is_absolute()


@one_folder
@given(st.sampled_from([b".git", b".git/", b"./.git", b".git/../.git"]))
def test_the_relative_answer_of_an_old_git_is_understood(start: Path, answer: bytes) -> None:
    found = git._repository(start, question + answer + b"\n")
    assert found.common == Path(os.path.realpath(start / ".git"))
    assert found.project == Path(os.path.realpath(start))


@given(st.binary(max_size=300))
def test_a_complaint_is_one_printable_line(complaint: bytes) -> None:
    assert git._one_line(complaint).isprintable()
    assert len(git._one_line(complaint)) <= 5000


@given(st.binary(min_size=1, max_size=60).filter(lambda name: b"\0" not in name))
def test_any_path_can_be_shown_quoted_and_recorded(name: bytes) -> None:
    path = Path(os.fsdecode(b"/" + name))
    assert git.shown(path).isprintable()
    assert git.quoted(path).isprintable()
    git.recorded(path).encode()
