"""How the program starts and ends: what it loads, and what becomes of a lost output."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import Cli, Program

HEAVY = (
    "mcp", "pydantic", "httpx2", "httpcore2", "starlette", "rich", "watchdog", "filelock",
    "anyio", "cryptography",
)  # fmt: skip

PROBE = """
import sys
sys.argv[0] = "agent-bus"
from agent_bus.cli import main
try:
    main()
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["send", "--to", "bob", "--body", "x"],
        ["inbox"],
        ["read", "ID"],
        ["log", "--json"],
        ["whoami"],
        ["--help"],
    ],
    ids=lambda words: words[0],
)
def test_light_verbs_load_nothing_heavy(cli: Cli, run: Program, words: list[str]) -> None:
    ident = cli.send("alice", "bob")
    words = [ident if word == "ID" else word for word in words]
    done = run(PROBE.format(heavy=HEAVY), *words, **cli.bus.environment, AGENT_MSG_AS="bob")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("[]\n")


def test_mcp_is_dispatched_before_typer_and_its_output_is_left_alone(run: Program) -> None:
    code = """
import sys
from agent_bus.cli import main
try:
    main(["mcp"])
finally:
    print("typer" in sys.modules, file=sys.stderr)
"""
    done = run(code)
    assert done.returncode == 78
    assert done.stdout == ""
    said, loaded = done.stderr.splitlines()
    assert "AGENT_MSG_AS is not set" in said
    assert loaded == "False"


def test_what_is_made_is_private_whatever_the_umask(cli: Cli) -> None:
    before = os.umask(0)
    try:
        cli("export", "out.tar.gz")
    finally:
        os.umask(before)
    assert (cli.folder / "out.tar.gz").stat().st_mode & 0o077 == 0


def test_a_reader_that_goes_away_ends_it_quietly(cli: Cli) -> None:
    for _ in range(40):
        cli.send("alice", "bob", subject="s" * 200)
    for words in (["log", "--limit", "1000"], ["log", "--limit", "1000", "--json"]):
        process = cli.start(*words)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_an_error(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        process = cli.start("log", "--json", stdout=full.fileno())
        # Nothing to write, nothing lost.
        assert process.wait(timeout=60) == 0
        cli.send("alice", "bob")
        process = cli.start("log", "--json", stdout=full.fileno())
        _, err = process.communicate(timeout=60)
    assert process.returncode == 74
    assert err.decode() == f"agent-bus: input or output failed: {os.strerror(errno.ENOSPC)}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_do_no_harm(cli: Cli, closed: str) -> None:
    for words in (["send", "--to", "bob", "--body", "x"], ["inbox"], ["verify"]):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *cli.command, *words],
            env=cli.variables("alice"),
            cwd=cli.folder,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
    assert len(cli("inbox", "--json", me="bob").records) == 1
    assert cli("verify").code == 0


def test_an_unexpected_fault_is_one_line(run: Program, cli: Cli) -> None:
    code = """
import sys
from agent_bus.cli import app, messages
def broken(*_, **__):
    raise RuntimeError("two\\nlines \\x1b[2J")
messages.open_anonymous = broken
sys.exit(app.run(["log"]))
"""
    done = run(code, **cli.bus.environment)
    assert done.returncode == 70
    assert done.stderr == (
        "agent-bus: unexpected, please report it: RuntimeError: two\\x0alines \\x1b[2J\n"
    )


def test_the_module_and_the_entry_point_are_the_same(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from agent_bus.cli import main; main(['--version'])"],
        env=cli.variables(None),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode() == cli("--version").out
