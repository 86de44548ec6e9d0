"""Several processes at once: deciders, rotations, makers of one bus; and a decider that dies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from disks import copy_tree
from looking import ALICE, attempt, bus, notices
from operations import OPERATIONS
from processes import Processes, agent
from tracing import Task, deaths, record, strike

from agent_bus.names import message_id
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a bus."""
    root = tmp_path / "root"
    root.mkdir()
    TemporaryBus("alice", "bob", folder=root)
    return root


def ready(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Wait until a worker reads its standard input."""
    assert hear(process) == "ready"
    return process


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    """A line to a worker."""
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> str:
    """A line from a worker."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_of_two_deciders_at_once_one_wins(
    root: Path, processes: Processes, exhaustive: bool
) -> None:
    decisions = {"conductor": "approve", "user": "deny"}
    deciders = {
        name: ready(
            processes.start(agent("decide", root, name, decision=decision), stdin=subprocess.PIPE)
        )
        for name, decision in decisions.items()
    }
    alice = bus(root, "alice")
    won = []
    for number in range(500 if exhaustive else 100):
        ident = alice.request_approval(f"May I, the {number}. time?").id
        for decider in list(deciders.values())[:: 1 if number % 2 else -1]:
            tell(decider, ident)
        outcomes = {name: hear(decider).partition(" ")[2] for name, decider in deciders.items()}
        assert sorted(outcomes.values()) == ["conflict", "ok"], (ident, outcomes)
        winner = next(name for name, outcome in outcomes.items() if outcome == "ok")
        decision = alice.approvals.decision(alice.approvals.request(message_id(ident)))
        assert decision is not None
        assert (decision.by, decision.decision) == (winner, decisions[winner])
        won.append((ident, winner))
    told = [
        (s.judged.message.reply_to, s.judged.message.sender)
        for s in notices(root)
        if s.judged.message
    ]
    assert sorted(told) == sorted(won)


@pytest.mark.needs("ptrace")
def test_a_decider_that_dies_before_the_notice_is_completed_at_its_next_start(
    tmp_path: Path, exhaustive: bool
) -> None:
    origin, root = tmp_path / "origin", tmp_path / "bus"
    ident = OPERATIONS["decide"].prepare(origin)
    task = Task("decide", root, ident)
    copy_tree(origin, root)
    points = record(task, tmp_path / "log")
    decided = 0
    for point in deaths(points, exhaustive=exhaustive, sample=12):
        copy_tree(origin, root)
        strike(task, point, "signal=KILL", tmp_path / "log")
        approvals = bus(root).approvals
        stands = approvals.decision(approvals.request(message_id(ident))) is not None
        before = len(notices(root))
        bus(root, "user").attend()
        assert len(notices(root)) == before, "another admin cannot tell it"
        bus(root, "conductor").attend()
        bus(root, "conductor").attend()
        assert len(notices(root)) == stands, point
        assert not list(approvals.undelivered())
        decided += stands and not before
    assert decided, "no death fell between decision and notice"


def test_rotations_at_once_leave_one_active_key(
    root: Path, processes: Processes, exhaustive: bool
) -> None:
    sent = bus(root, "alice").send_one("bob", Draft(body="signed with the first key")).id
    workers = [
        ready(processes.start(agent("rotate", root, "alice"), stdin=subprocess.PIPE))
        for _ in range(2)
    ]
    made = []
    for _ in range(50 if exhaustive else 10):
        for worker in workers:
            tell(worker, "now")
        for worker in workers:
            code, _, kid = hear(worker).partition(" ")
            assert code == "ok", kid
            made.append(kid)
    keys = bus(root).keys.load(ALICE).keys
    assert [key.kid for key in keys if key.state == "active"] == [keys[-1].kid]
    assert {key.kid for key in keys[1:]} == set(made)
    assert len(keys) == len(made) + 1
    recorded = [
        (line.event, line.kid) for line in bus(root).keys.rotations() if line.agent == ALICE
    ]
    assert sorted(recorded) == sorted(
        [("added", key.kid) for key in keys] + [("retired", key.kid) for key in keys[:-1]]
    )
    assert bus(root, "bob").read(sent).judged.ok
    assert (
        attempt(lambda: bus(root, "alice").send_one("bob", Draft(body="and last")).id).code == "ok"
    )


@pytest.mark.needs("git")
def test_a_hundred_inits_at_once_make_one_bus(tmp_path: Path, processes: Processes) -> None:
    project = tmp_path / "project"
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    said = tmp_path / "said"
    makers = processes.start(agent("init", tmp_path, "", count=100), output=said)
    assert makers.wait(120) == 0, processes.complaints()
    lines = [line.split() for line in said.read_text().splitlines()]
    assert len(lines) == 100
    assert {words[0] for words in lines} == {"made"}, lines
    assert len({words[1] for words in lines}) == 1
    assert [words[2] for words in lines].count("True") == 1
    assert {words[3] for words in lines} == {"0"}
    assert len(list((tmp_path / "data" / "buses").iterdir())) == 1
    assert (project / ".git" / "agent-bus").read_text().strip() == lines[0][1]
