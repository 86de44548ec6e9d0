"""The shell's test before the program: what it lets through, and what it costs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_bus.clock import SystemClock
from agent_bus.hosts import guard
from agent_bus.hosts.memory import Mark

SHELLS = [shell for shell in ("dash", "bash", "zsh", "ksh", "mksh") if shutil.which(shell)]
WORDS = {
    "claude": ("SessionStart", "PostToolUse", "Stop"),
    "codex": ("SessionStart", "PostToolUse", "Stop"),
    "gemini": ("SessionStart", "AfterTool", "AfterAgent"),
}


def _quiet(host: Any, *events: str) -> None:
    """Come to where nothing is new and the box has not just changed."""
    host.settle()
    for event in events:
        host(event)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("name", WORDS)
def test_the_usual_answer_starts_no_program(host: Any, name: str, tmp_path: Path) -> None:
    """Told by the kernel: the shell is all that is executed, and it makes no process."""
    # -D: the shell stays the child of this process, as it is that of a host.
    trace = tmp_path / "trace"
    calls = "execve,execveat,fork,vfork,clone,clone3"
    wrap = ("strace", "-D", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}")
    probe = subprocess.run([*wrap, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode()[:200]}")
    host.name = name
    start, tool, stop = WORDS[name]
    _quiet(host, start, tool, stop)
    for event in (tool, stop):
        host(event, wrap=wrap).silent()
        tried = trace.read_text().splitlines()
        seen = [line for line in tried if not line.endswith("(No such file or directory)")]
        shells = [line for line in seen if "execve(" in line]
        assert len(shells) == (2 if name == "codex" else 1), seen
        assert all('/sh"' in line for line in shells), seen
        assert seen == shells
    host.send()
    host(tool, wrap=wrap)
    assert "python" in trace.read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_agree(host: Any, shell: str) -> None:
    host(WORDS["claude"][0])
    _quiet(host, "PostToolUse", "Stop")
    host("PostToolUse", shell=shell).silent()
    ident = host.send(priority="urgent")
    assert ident in host("PostToolUse", shell=shell).note
    assert ident in host("Stop", shell=shell).out
    shutil.rmtree(host.marks)
    assert host("PostToolUse", shell=shell).code == 0
    assert list(host.marks.glob("*.shown"))


def test_a_message_in_the_same_moment_as_the_look_is_told(host: Any) -> None:
    """Clocks of files are coarse: a mark of a box that has just changed is set back."""
    host("SessionStart")
    first = host.send()
    changed = host.box.stat().st_mtime_ns
    assert first in host("PostToolUse").note
    second = host.send()
    os.utime(host.box, ns=(changed, changed))
    assert second in host("PostToolUse").note


def test_a_mark_is_as_old_as_the_box_was_before_it_was_listed(host: Any) -> None:
    host.settle()
    before = host.box.stat().st_mtime_ns
    host("SessionStart")
    (mark,) = host.marks.glob("*.shown")
    assert mark.stat().st_mtime_ns == before
    assert mark.read_text() == f"{host.box}\n"


def test_a_session_of_nobody_costs_one_start(host: Any) -> None:
    nobody = {"AGENT_MSG_AS": None}
    host("PostToolUse", variables=nobody).silent()
    assert sorted(path.suffix for path in host.marks.iterdir()) == [".shown", ".stop"]
    # The program is not there any more; whoever reaches for it fails.
    for event in ("PostToolUse", "Stop"):
        script = guard.command(
            guard.Program(["/no/program"], {}, shlex.quote(str(host.marks))), "claude", event
        )
        done = subprocess.run(
            ["sh", "-c", script], env=host.variables(**nobody), timeout=60, check=False
        )
        assert done.returncode == 0


@pytest.mark.parametrize("key", ["", "..", ".hidden", "a/b", "a" * 81, "a b", "a\nb", "é"])
def test_a_key_that_is_no_file_name_leaves_no_mark(tmp_path: Path, key: str) -> None:
    Mark(tmp_path, key, SystemClock()).set("shown", "/box", 1)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("host_name", WORDS)
def test_paths_may_hold_anything_that_a_path_may(tmp_path: Path, host_name: str) -> None:
    folder = tmp_path / 'it\'s "a" $(touch pwned) `x` ö'
    folder.mkdir()
    program = folder / "agent-bus"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$AGENT_MSG_BUS" "$@"\n')
    program.chmod(0o755)
    bus = str(folder / "bus")
    made = guard.Program([str(program)], {"AGENT_MSG_BUS": bus}, shlex.quote(str(folder)))
    for groups in guard.groups(made, host_name).values():
        command = groups[0]["hooks"][0]["command"]  # type: ignore[index]
        done = subprocess.run(
            ["sh", "-c", str(command)], cwd=tmp_path, capture_output=True, timeout=60, check=True
        )
        lines = done.stdout.decode().splitlines()
        assert lines[:3] == [bus, "hook", host_name]
        assert lines[4].startswith(f"{host_name}.")
    assert not (tmp_path / "pwned").exists()


def test_a_host_tells_its_own_session_or_is_known_by_its_process(host: Any) -> None:
    script = guard.command(guard.Program(["echo"], {}, "/nowhere"), "claude", "SessionStart")
    for session, key in (("abc", "claude.abc"), (None, f"claude.{os.getpid()}")):
        done = subprocess.run(
            ["sh", "-c", script],
            env=host.variables(CLAUDE_CODE_SESSION_ID=session),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split()[-1] == key


def test_a_shell_that_is_none_of_these_gets_one_that_is() -> None:
    """Codex runs the user's own shell; fish has no such tests."""
    script = guard.command(guard.Program(["echo", "a'b"], {}, "/nowhere"), "codex", "SessionStart")
    words = shlex.split(guard.portable(script))
    assert words == ["exec", "sh", "-c", script]
    done = subprocess.run(
        ["sh", "-c", guard.portable(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"a'b hook codex SessionStart codex.{os.getpid()}\n"


def test_old_marks_and_memories_are_swept(host: Any) -> None:
    """What has not been touched for two weeks; a change of the inode is what counts."""
    host("SessionStart")
    made = {path.name for path in host.marks.iterdir()}
    code = (
        "import sys\nfrom pathlib import Path\nfrom agent_bus import testing\n"
        "from agent_bus.hosts.memory import sweep\nfrom agent_bus.settings import load\n"
        "from agent_bus.bus import Bus\nfrom agent_bus.clock import SystemClock\n"
        "clock = testing.ManualClock(SystemClock().now() + int(sys.argv[1]) * 86400_000)\n"
        "chosen = load()\nsweep(Bus.open(chosen).store, chosen.data, clock)\n"
    )
    for days, left in ((13, made), (15, set())):
        subprocess.run(
            [sys.executable, "-c", code, str(days)],
            env=host.variables(**host.bus.environment),
            timeout=60,
            check=True,
        )
        assert {path.name for path in host.marks.iterdir()} == left
