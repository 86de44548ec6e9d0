"""Who is attached: a lock that only a living process holds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import agent_bus
from agent_bus.clock import SystemClock
from agent_bus.names import AgentName
from agent_bus.presence import Presence

BOB = AgentName("bob")
EVE = AgentName("eve")

HOLDER = """
import os, subprocess, sys, time
from pathlib import Path
from agent_bus.clock import SystemClock
from agent_bus.presence import Presence

attachment = Presence(Path(sys.argv[1]), SystemClock(), "1.2.3").attach(
    "bob", "mcp", mode="polling", session="s-1"
)
child = 0
if sys.argv[2] == "spawn":
    child = subprocess.Popen(["sleep", "300"], close_fds=False).pid
if sys.argv[2] == "fork":
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"up")
        time.sleep(300)
        os._exit(0)
    os.read(reader, 2)
print(os.getpid(), child, flush=True)
sys.stdin.read()
attachment.close()
"""


class HeldClock(SystemClock):
    """A clock whose monotonic side is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed


@pytest.fixture
def presence(tmp_path: Path) -> Presence:
    return Presence(tmp_path, SystemClock(), "0.9")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int]]]:
    """Starts processes that attach as bob, and ends them and their children."""
    started: list[subprocess.Popen[str]] = []
    children: list[int] = []

    def start(how: str = "alone") -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(agent_bus.__file__).parents[1])},
        )
        started.append(process)
        assert process.stdout
        child = int(process.stdout.readline().split()[1])
        if child:
            children.append(child)
        return process, child

    yield start
    for process in started:
        end(process)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # closes the pipes and waits
        pass


def files(root: Path, agent: str = "bob") -> list[Path]:
    return sorted((root / "agents" / agent).iterdir())


def test_nobody_is_attached_to_a_bus_that_never_saw_anybody(presence: Presence) -> None:
    assert presence.processes(BOB) == []
    assert not presence.attached(BOB)
    assert presence.last_seen(BOB) is None
    assert presence.session_agent("s") is None


def test_an_attached_process_says_who_it_is(presence: Presence) -> None:
    before = time.time_ns() // 1_000_000
    with presence.attach(BOB, "watch", mode="polling", session="s-7") as attachment:
        (process,) = presence.processes(BOB)

    assert not attachment.problem
    assert process.alive
    assert (process.pid, process.role, process.mode) == (os.getpid(), "watch", "polling")
    assert (process.session, process.version) == ("s-7", "0.9")
    assert process.host
    assert process.started_at.endswith("Z")
    # The times of files are coarser than the clock.
    assert process.seen_at >= before - 50


def test_the_file_is_json_for_everybody(presence: Presence, tmp_path: Path) -> None:
    with presence.attach(BOB, "mcp"):
        (file,) = files(tmp_path)
        value = json.loads(file.read_text())

    assert set(value) == {"pid", "role", "started_at", "host", "version", "mode"}
    assert file.stat().st_mode & 0o777 == 0o600


def test_closing_ends_it_and_keeps_when_it_was_seen(presence: Presence) -> None:
    attachment = presence.attach(BOB, "wait")
    attachment.close()
    attachment.close()

    assert not presence.attached(BOB)
    assert presence.last_seen(BOB) is not None
    assert [process.alive for process in presence.processes(BOB)] == [False]


def test_another_process_is_seen_alive_until_it_is_killed(
    presence: Presence, holder: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    process, _ = holder("alone")
    (found,) = presence.processes(BOB)
    assert found.alive
    assert found.pid == process.pid
    assert presence.session_agent("s-1") == BOB

    process.kill()
    process.wait()

    assert not presence.attached(BOB)
    assert presence.session_agent("s-1") is None
    assert presence.last_seen(BOB) == found.seen_at


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_no_child_keeps_a_dead_process_alive(
    presence: Presence, holder: Callable[[str], tuple[subprocess.Popen[str], int]], how: str
) -> None:
    """Neither one that runs another program nor one that was only forked."""
    process, child = holder(how)
    assert presence.attached(BOB)

    process.kill()
    process.wait()

    # A child that has only just been forked may still be closing what it must not keep.
    while presence.attached(BOB):
        os.kill(child, 0)  # it still runs
        time.sleep(0.01)
    os.kill(child, 0)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_the_end_of_a_child_does_not_detach_its_parent(
    presence: Presence, holder: Callable[[str], tuple[subprocess.Popen[str], int]], how: str
) -> None:
    process, child = holder(how)
    os.kill(child, signal.SIGTERM)
    status = Path(f"/proc/{child}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)

    assert process.poll() is None
    assert presence.attached(BOB)


def test_the_living_come_first_and_the_newest_among_them(presence: Presence) -> None:
    dead = presence.attach(BOB, "wait")
    dead.close()
    with presence.attach(BOB, "mcp"), presence.attach(BOB, "watch"):
        found = presence.processes(BOB)

    assert [(process.role, process.alive) for process in found] == [
        ("watch", True),
        ("mcp", True),
        ("wait", False),
    ]


def test_attaching_removes_own_dead_files_but_the_last(presence: Presence, tmp_path: Path) -> None:
    with presence.attach(EVE, "mcp"):
        pass
    for _ in range(4):
        with presence.attach(BOB, "mcp"):
            assert len(files(tmp_path)) <= 2

    with presence.attach(BOB, "mcp") as attachment:
        assert not attachment.problem
        assert [process.alive for process in presence.processes(BOB)] == [True, False]
    assert len(files(tmp_path, "eve")) == 1


def test_living_files_of_the_same_agent_are_never_removed(
    presence: Presence, holder: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    processes = [holder("alone")[0].pid for _ in range(3)]
    with presence.attach(BOB, "wait"):
        found = presence.processes(BOB)

    assert {process.pid for process in found} == {*processes, os.getpid()}


def test_many_that_attach_at_once_all_see_each_other(presence: Presence, tmp_path: Path) -> None:
    """Those that look while another one is attaching neither disturb it nor take it for dead."""
    script = """
import sys
from pathlib import Path
from agent_bus.clock import SystemClock
from agent_bus.presence import Presence
presence = Presence(Path(sys.argv[1]), SystemClock(), "1")
print(flush=True)
sys.stdin.readline()
held = []
for _ in range(20):
    held.append(presence.attach("bob", "mcp"))
    alive = sum(process.alive for process in presence.processes("bob"))
    assert alive >= len(held), (alive, len(held))
assert not any(one.problem for one in held), [one.problem for one in held]
print("done", flush=True)
sys.stdin.readline()
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(agent_bus.__file__).parents[1])},
        )
        for _ in range(3)
    ]
    try:
        for step in ("", "done"):
            for process in processes:
                assert process.stdout
                assert process.stdout.readline().strip() == step
            for process in processes if not step else []:
                assert process.stdin
                process.stdin.write("\n")
                process.stdin.flush()
        assert sum(process.alive for process in presence.processes(BOB)) == 60
    finally:
        for process in processes:
            end(process)


def test_being_busy_is_noted_at_most_every_thirty_seconds(tmp_path: Path) -> None:
    clock = HeldClock()
    with Presence(tmp_path, clock, "1").attach(BOB, "mcp") as attachment:
        (file,) = files(tmp_path)
        os.utime(file, (1000, 1000))
        clock.elapsed = 29
        attachment.seen()
        assert file.stat().st_mtime == 1000

        clock.elapsed = 31
        attachment.seen()
        assert file.stat().st_mtime > 1000

        os.utime(file, (1000, 1000))
        clock.elapsed = 60
        attachment.seen()
        assert file.stat().st_mtime == 1000


def test_a_removed_file_comes_back_when_the_process_is_busy_again(tmp_path: Path) -> None:
    clock = HeldClock()
    presence = Presence(tmp_path, clock, "1")
    with presence.attach(BOB, "mcp") as attachment:
        (file,) = files(tmp_path)
        file.unlink()
        file.parent.rmdir()
        file.parent.parent.rmdir()
        clock.elapsed = 31
        attachment.seen()

        assert presence.attached(BOB)
    assert not presence.attached(BOB)


def test_a_session_of_two_agents_names_neither(presence: Presence) -> None:
    with presence.attach(BOB, "mcp", session="one"):
        with presence.attach(BOB, "watch", session="one"):
            assert presence.session_agent("one") == BOB
        with presence.attach(EVE, "mcp", session="one"):
            assert presence.session_agent("one") is None
        assert presence.session_agent("other") is None


def test_what_is_no_presence_file_is_passed_over(presence: Presence, tmp_path: Path) -> None:
    """Torn, foreign, huge, a FIFO (which would hold its reader), links, folders."""
    with presence.attach(BOB, "mcp"):
        (good,) = files(tmp_path)
        text, folder = good.read_text(), good.parent
        names = iter(f"01arz3ndektsv4rrffq69g{n:04}.json" for n in range(100))

        def put(data: str | bytes) -> None:
            data = data if isinstance(data, bytes) else data.encode()
            (folder / next(names)).write_bytes(data)

        for data in (
            "",
            text[:-20],
            "[]",
            "null",
            "[" * 100_000,
            b"\xff\xfe",
            text.replace('"mcp"', '"boss"'),
            text.replace('"events"', '"magic"'),
            text.replace(str(os.getpid()), '"1"'),
            text.replace(str(os.getpid()), "true"),
            text.replace('"version"', '"verzion"'),
            text.replace('"started_at": "2', '"started_at": "x'),
            text.replace('"0.9"', f'"{"9" * 300}"'),
            text + " " * 20_000,
        ):
            put(data)
        os.mkfifo(folder / next(names))
        (folder / next(names)).symlink_to(good)
        (folder / next(names)).symlink_to("nowhere")
        (folder / next(names)).mkdir()
        with (folder / next(names)).open("wb") as huge:
            huge.truncate(1 << 30)
        (folder / "notes.txt").write_text(text)
        (folder / "..json").write_text(text)

        assert [process.id for process in presence.processes(BOB)] == [good.stem]
        with presence.attach(BOB, "wait") as second:
            assert not second.problem
            assert len(presence.processes(BOB)) == 2


def test_a_link_in_place_of_the_folder_is_not_followed(presence: Presence, tmp_path: Path) -> None:
    with presence.attach(EVE, "mcp"):
        (tmp_path / "agents" / "bob").symlink_to("eve")

        assert presence.processes(BOB) == []
        assert presence.attach(BOB, "mcp").problem


@pytest.mark.parametrize("lacking", ["agents", "bus"])
def test_where_it_cannot_write_it_warns_and_holds_nothing(tmp_path: Path, lacking: str) -> None:
    warnings: list[str] = []
    root = tmp_path / "bus"
    if lacking == "agents":
        root.mkdir(mode=0o700)
        (root / "agents").write_text("in the way")
    presence = Presence(root, SystemClock(), "1", warn=warnings.append)

    with presence.attach(BOB, "mcp") as attachment:
        attachment.seen()

    assert attachment.problem
    assert len(warnings) == 1
    assert attachment.problem in warnings[0]
    assert "\n" not in warnings[0]
    assert not presence.attached(BOB)


def test_leftovers_of_a_crash_go_after_a_day(presence: Presence, tmp_path: Path) -> None:
    with presence.attach(BOB, "mcp"):
        folder = tmp_path / "agents" / "bob"
        old, young = folder / ".x.json.0badcafe", folder / ".y.json.0badcafe"
        for file in (old, young):
            file.write_text("{")
        os.utime(old, (1000, 1000))
    with presence.attach(BOB, "mcp"):
        assert not old.exists()
        assert young.exists()
