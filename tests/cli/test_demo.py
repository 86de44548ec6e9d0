"""`demo`: it plays all of it, says what is played, and leaves nothing behind."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from program import Cli, Result

ROOT = Path(__file__).resolve().parents[2]
IDENT = r"[0-9a-hjkmnp-tv-z]{26}"


def play(cli: Cli, folder: Path, **more: str) -> Result:
    """Run it with a folder of its own for what is temporary, which must be empty afterwards."""
    folder.mkdir()
    # Its servers get no PYTHONPATH: they find the package as it is installed, or in their folder.
    done = replace(cli, folder=ROOT)("demo", TMPDIR=str(folder), **more)
    assert (done.code, done.err) == (0, ""), done.err
    assert list(folder.iterdir()) == []
    for secret in ("evx1_", "Bearer"):
        assert secret not in done.out
    return done


@pytest.mark.skipif(os.name != "posix", reason="the gateway is for POSIX systems")
def test_it_plays_the_main_job_and_a_child(cli: Cli, tmp_path: Path) -> None:
    out = play(cli, tmp_path / "temporary").out

    assert re.search(rf"{IDENT}  backend  note  API done", out)
    assert "outcome ok, from backend: Tests are green" in out
    assert re.search(rf"{IDENT}  bad-signature", out)
    # The child: said to be played, heard by conductor under the one name that may wake it.
    assert "is PLAYED in this process" in out
    assert re.search(r"child [0-9a-f-]{36}, task writer-604: delivered", out)
    assert re.search(rf"{IDENT}  openhands  result  writer-604 \(writer\): result", out)
    assert "the child finds it in its conversation: by content" in out
    wakes = re.findall(rf"({IDENT})  openhands  wake  writer-604 \(writer\) (\w+)", out)
    assert [status for _, status in wakes] == ["finished", "error"]
    assert len({ident for ident, _ in wakes}) == 2
    assert "outcome ok, from openhands: The retry is idempotent now." in out
    assert "LLMRateLimitError: the model's quota is used up" in out


def test_without_git_the_child_is_left_out_and_the_rest_goes_on(cli: Cli, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    out = play(cli, tmp_path / "temporary", PATH=str(nothing)).out

    assert "no git is on the PATH here" in out
    assert "writer-604" not in out
    assert re.search(rf"{IDENT}  backend  note  API done", out)
    assert re.search(rf"{IDENT}  bad-signature", out)
