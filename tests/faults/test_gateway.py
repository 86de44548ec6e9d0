"""The gateway is killed, fails and finds no room, with an agent server that goes on.

Whatever happens to it, one worktree, one conversation, one admission, one mission, one wake and
one copy of it are there in the end, and its doctor is content.
"""

from __future__ import annotations

import json
import os
import random
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import missions
import pytest
from disks import copy_tree, small
from looking import Outcome, attempt, settings
from missions import CHILD, MAIN, MISSIONS
from processes import SOURCE, Processes, environment, wait_until
from test_full_disk import no_more_than
from tracing import CHANGES, ERRORS, Point, Task, record, run, strike

from agent_bus.clock import SystemClock
from agent_bus.openhands.gateway.capability import completion_token
from agent_bus.openhands.gateway.signing import SigningKeys

if TYPE_CHECKING:
    from wired import PlayingServer

pytestmark = [pytest.mark.needs("git"), pytest.mark.timeout(7200)]

OUTSIDE = {"sendto", "recvfrom", "vfork", "connect"}
"""Calls before or after which something happens elsewhere: a request, a git."""
QUIET = {"close", "openat", "newfstatat", "fstat", "read", "getdents64", "lseek"}
"""Calls that mostly look, and are many: some of them are tried, each with one error."""
MORE: Mapping[str, Sequence[str]] = {
    **ERRORS,
    "recvfrom": ("ECONNRESET", "ETIMEDOUT"),
    "connect": ("ECONNREFUSED", "ENETUNREACH"),
    "vfork": ("EAGAIN", "ENOMEM"),
    "pipe2": ("EMFILE", "ENFILE"),
    "clone3": ("EAGAIN",),
}
"""Not `sendto`: whoever cannot send waits for an answer all the same, and the peer is well."""


@pytest.fixture(autouse=True)
def server() -> Iterator[PlayingServer]:
    """The agent server, in this process."""
    folder = str(Path(__file__).resolve().parents[1] / "openhands")
    if folder not in sys.path:
        sys.path.append(folder)
    from wired import PlayingServer

    with PlayingServer() as made:
        made.play = missions.play
        missions.World.server = made
        missions.reset()
        yield made
        missions.World.server = None


class Rig:
    """An operation that can be done again and again from its beginning."""

    def __init__(self, operation: str, folder: Path) -> None:
        MISSIONS[operation].prepare(folder / "origin")
        self._origin, self._log = folder / "origin", folder / "log"
        self.task = Task(operation, folder / "bus", "", alone=True)

    def points(self) -> list[Point]:
        """Its system calls, in order."""
        self._begin()
        # So that all modules are compiled, and counts stay the same.
        run(self.task)
        self._begin()
        return record(self.task, self._log)

    def strike(self, point: Point, fault: str) -> Outcome:
        """Do it with one fault."""
        self._begin()
        return strike(self.task, point, fault, self._log)

    def _begin(self) -> None:
        copy_tree(self._origin, self.task.root)
        missions.reset()


def deaths(points: Sequence[Point], *, exhaustive: bool, sample: int) -> list[Point]:
    """Before which calls to die."""
    names = (CHANGES | OUTSIDE) - {"close", "exit_group"}
    wanted = [point for point in points if point.name in names]
    if exhaustive:
        return wanted
    rare = [point for point in wanted if point.name not in QUIET]
    return rare[:: -(-len(rare) // sample)]


def faults(points: Sequence[Point], *, exhaustive: bool, sample: int) -> list[tuple[Point, str]]:
    """Which errors to try where."""
    chooser = random.Random(len(points))
    every = [
        (point, error)
        for point in points
        if (errors := MORE.get(point.name))
        for error in ([chooser.choice(errors)] if point.name in QUIET else errors)
    ]
    rare = [fault for fault in every if fault[0].name not in QUIET]
    quiet = [fault for fault in every if fault[0].name in QUIET]
    if exhaustive:
        return rare + chooser.sample(quiet, len(quiet) // 3)
    return chooser.sample(rare, min(sample, len(rare))) + chooser.sample(quiet, sample // 3)


@pytest.mark.needs("ptrace")
@pytest.mark.parametrize(("operation", "sample"), [("mission", 13), ("wake", 8)])
def test_a_death_at_any_call_leaves_one_of_each(
    operation: str, sample: int, tmp_path: Path, exhaustive: bool
) -> None:
    """Killed, and begun again by whoever comes next: also no second attempt was needed."""
    rig = Rig(operation, tmp_path)
    wrong = []
    for point in deaths(rig.points(), exhaustive=exhaustive, sample=sample):
        outcome = rig.strike(point, "signal=KILL")
        assert outcome.code == "died", (point, outcome)
        wrong += [f"{point}: {what}" for what in rig.task.judged(outcome)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("ptrace")
@pytest.mark.parametrize(("operation", "sample"), [("mission", 8), ("wake", 5)])
def test_an_error_at_any_call_is_one_line_and_harms_nothing(
    operation: str, sample: int, tmp_path: Path, exhaustive: bool
) -> None:
    rig = Rig(operation, tmp_path)
    wrong = []
    for point, error in faults(rig.points(), exhaustive=exhaustive, sample=sample):
        outcome = rig.strike(point, f"error={error}")
        found = rig.task.judged(outcome)
        wrong += [f"{error} at {point} ({outcome.code}): {what}" for what in found]
    assert not wrong, "\n".join(wrong)


def test_what_is_there_twice_is_found(server: PlayingServer, tmp_path: Path) -> None:
    """That these tests can tell: a second mission, a second copy, a second conversation."""
    root = tmp_path / "bus"
    operation = MISSIONS["wake"]
    operation.prepare(root)
    outcome = attempt(operation.ready(root, "", None))
    assert list(operation.check(root, "", outcome)) == []

    server.play = lambda *_: None
    for to, text in ((CHILD, "MISSION\n{}"), (MAIN, 'RECOVERY_WAKE\n{"status":"finished"}')):
        with missions.opened(root) as gateway:
            gateway.parts.provider.post(to, text)
    server.chats["another"] = server.chats[str(MAIN)]
    found = list(operation.check(root, "", outcome))
    assert found == ["conversation: there are 2", "mission: there are 2", "copy: there are 2"]


@pytest.mark.needs("mount")
def test_a_hook_on_a_full_disk_is_refused_and_loses_nothing(
    server: PlayingServer, processes: Processes, tmp_path: Path
) -> None:
    """The real door: 503 and nothing noted while there is no room, 202 and one wake after it."""
    from wired import admit

    server.play = admit
    with small(tmp_path / "small", "size=8m") as disk:
        root = disk / "root"
        MISSIONS["wake"].prepare(root)
        output = tmp_path / "output"
        served = processes.start(
            [sys.executable, "-m", "agent_bus", "openhands", "serve", "--port", "0", "--json"],
            output=output,
            env=variables(root),
        )
        wait_until(lambda: output.exists() and output.read_bytes().endswith(b"\n"), "it serves")
        url = json.loads(output.read_text())["url"]
        with missions.opened(root) as gateway:
            missions.created(gateway, missions.mission(root))
        with no_more_than(0, root):
            server.finish(CHILD, missions.ANSWER)
            assert {tell(url, root) for _ in range(3)} == {503}
            assert list((root / "bus/openhands/gateway/intents").iterdir()) == []
            assert missions.wakes(root) == {}
        assert tell(url, root) == 202
        wait_until(lambda: bool(missions.wakes(root)), "a wake comes")
        with missions.opened(root) as gateway:
            assert gateway.reconcile().problems == []
        assert missions.wakes(root) == {"finished": 1}
        served.terminate()
        assert served.wait(60) == 0
        assert "evx1_" not in processes.complaints()
        assert server.key not in processes.complaints()


def variables(root: Path) -> dict[str, str]:
    """The environment of a process that serves."""
    found = missions.gateway_settings(root)
    return environment(
        PYTHONPATH=os.environ[SOURCE],
        AGENT_MSG_BUS=str(root / "bus"),
        AGENT_MSG_KEYS=str(root / "keys"),
        OPENHANDS_URL=found.url,
        OPENHANDS_API_KEY=found.api_key,
        AGENT_BUS_OPENHANDS_WORKSPACE=str(found.workspace),
    )


def tell(url: str, root: Path) -> int:
    """Call the hook as the child's Stop hook does; the status of the answer."""
    clock = SystemClock()
    signing = SigningKeys(settings(root).keys, clock, None)
    token = completion_token(
        signing.newest(), MAIN, "task-1", "writer", issued_at=clock.now() // 1000
    )
    asked = urllib.request.Request(
        f"{url}/completion-hook",
        json.dumps({"session_id": str(CHILD)}).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
