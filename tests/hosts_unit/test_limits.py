"""A hook ends by itself, soon, and never with 2, whatever is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_bus.hosts import guard, hook
from agent_bus.hosts.events import EVENTS as EVENTS_OF

EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop")


@pytest.mark.parametrize("event", EVENTS)
def test_without_a_bus(host: Any, event: str) -> None:
    shutil.rmtree(host.bus.path)
    ran = host(event)
    assert ran.code == 0
    assert ran.err.count("\n") == 1
    assert bool(ran.out) == (event == "SessionStart")
    assert not host.bus.path.exists()


def test_no_bus_is_made_by_the_way(host: Any) -> None:
    shutil.rmtree(host.bus.path)
    host("SessionStart", variables={"AGENT_BUS_ALLOW_CREATE": "1"})
    assert not host.bus.path.exists()


@pytest.mark.parametrize("event", EVENTS)
def test_an_input_that_never_ends(host: Any, event: str) -> None:
    """A pipe whose other end stays open: the answer comes all the same."""
    host.send(priority="urgent")
    reader, writer = os.pipe()
    try:
        ran = host(event, stdin=reader)
    finally:
        os.close(reader)
        os.close(writer)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


def test_a_closed_input(host: Any) -> None:
    ident = host.send()
    command = f"exec <&-; {host.command('UserPromptSubmit')}"
    done = subprocess.run(
        ["sh", "-c", command], env=host.variables(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert ident.encode() in done.stdout


def test_what_hangs_is_given_up(host: Any, tmp_path: Path) -> None:
    """A git that does not answer stands for a disk that does not."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\nexec sleep 8\n")
    (folder / "git").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "agent_bus", "hook", "claude", "UserPromptSubmit", "k"],
        env=host.variables(PATH=f"{folder}:{os.environ['PATH']}"),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"no answer within" in done.stderr
    # The host waits no longer than two seconds, of which the interpreter needs some.
    assert hook._SECONDS <= 1.5


def test_a_bus_of_fifos(host: Any) -> None:
    """Nothing waits for somebody to write."""
    for path in (host.bus.path / "bus.json", host.box / ("0" * 26 + ".msg")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    for event in EVENTS:
        assert host(event).code == 0


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("broken", ["/no/such/program", sys.executable + " /no/such.py"])
def test_a_broken_program_is_a_failure_and_no_block(host: Any, event: str, broken: str) -> None:
    """Python ends with 2 where its script is missing."""
    program = guard.Program(broken.split(" "), {}, "/nowhere")
    for name in EVENTS_OF:
        if event not in EVENTS_OF[name]:
            continue
        done = subprocess.run(
            ["sh", "-c", guard.command(program, name, event)],
            env=host.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(
    "words", [[], ["claude"], ["vim", "Stop"], ["claude", "Stop", "k", "more"], ["--wrong"]]
)
def test_wrong_words_are_one_line_and_no_failure(host: Any, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_bus", "hook", *words],
        env=host.variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.count(b"\n") == 1


def test_the_hook_loads_neither_parser_nor_protocol(host: Any) -> None:
    code = (
        "import sys, atexit, os\n"
        "from agent_bus.hosts import hook\n"
        "hook._end = lambda code: print(sorted({'typer','mcp','rich','pydantic','watchdog'}"
        " & set(sys.modules)), file=sys.stderr)\n"
        "hook.main(['claude', 'UserPromptSubmit', 'k'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=host.variables(**host.bus.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == b"[]\n"
