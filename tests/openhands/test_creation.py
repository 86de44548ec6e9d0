"""create_child: from a mission to a conversation that works on it, once."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from scene import Scene, git, scene

from agent_bus.errors import (
    AdmissionFailed,
    CheckoutRefused,
    ConfigurationError,
    Conflict,
    InvalidMission,
    NotPermitted,
)
from agent_bus.openhands.gateway.testing import PlayedServer


def operations(server: PlayedServer) -> list[str]:
    return [call.operation for call in server.calls]


def missions(stage: Scene, child: Any) -> list[str]:
    return [text for text in stage.server.messages(child) if text.startswith("MISSION\n")]


def test_a_mission_reaches_its_child_after_the_admission_turn(stage: Scene) -> None:
    """Created idle, asked to begin without tools, revalidated, then told its mission."""
    gateway = stage.gateway()
    told: list[str] = []
    made = gateway.create_child(
        stage.owner(gateway),
        task_key="writer-1",
        role="writer",
        mission=stage.mission(),
        progress=told.append,
    )

    assert (made.created, made.state) == (True, "delivered")
    assert made.conversation_url == f"http://openhands.test/conversations/{made.child}"
    admission, mission = stage.server.messages(made.child)
    assert admission.startswith("PROVIDER_ADMISSION\n")
    bound = json.loads(mission.removeprefix("MISSION\n"))
    assert bound["childId"] == str(made.child)
    assert bound["taskKey"] == "writer-1"
    posts = [name for name in operations(stage.server) if name in ("create", "post")]
    assert posts == ["create", "post", "post"]
    assert told[0] == "checking the checkout"


def test_the_gate_is_shut_until_the_checkout_was_right_once_more(stage: Scene) -> None:
    """While the admission turn runs no tool is open; when the mission is there, all are."""
    gateway = stage.gateway()
    open_during: list[bool] = []

    def play(server: PlayedServer, child: Any, message: str) -> None:
        open_during.append(gateway.parts.gates.is_open(child))
        if message.startswith("PROVIDER_ADMISSION"):
            server.finish(child, "PROVIDER_READY")

    stage.server.play = play
    child = stage.create(gateway)

    assert open_during == [False, True]
    assert stage.server.orders[child].gate == gateway.parts.gates.gate(child)


def test_the_same_mission_again_is_the_same_child(stage: Scene) -> None:
    """Also when its worktree has progressed and is dirty, and it has many events."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    worktree = gateway.parts.checkouts.worktree(child)
    (worktree / "src.py").write_text("work\n")
    git("add", ".", folder=worktree)
    git("commit", "-q", "-m", "work", folder=worktree)
    (worktree / "dirt").write_text("more\n")
    for number in range(300):
        stage.server.say(child, f"line {number}")
    before = len(stage.server.calls)

    again = stage.gateway().create_child(
        stage.owner(gateway),
        task_key="writer-1",
        role="writer",
        mission=stage.mission(branch="fix/writer-1"),
    )

    assert (again.child, again.created, again.state) == (child, False, "delivered")
    assert len(stage.server.calls) == before
    assert gateway.parts.gates.is_open(child)


def test_another_mission_under_the_same_key_is_a_conflict_before_any_effect(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    before = len(stage.server.calls)

    with pytest.raises(Conflict, match="another mission"):
        gateway.create_child(
            stage.owner(gateway),
            task_key="writer-1",
            role="writer",
            mission=stage.mission(branch="fix/writer-1", prohibitions=["other"]),
        )

    assert len(stage.server.calls) == before
    assert len(missions(stage, child)) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stage: stage.settings.mirrors.rename(stage.settings.workspace / "gone"),
        lambda stage: (stage.settings.worktrees).mkdir() or None,
    ],
    ids=["no mirror", "head elsewhere"],
)
def test_a_checkout_that_is_not_right_costs_no_call(stage: Scene, spoil: Any) -> None:
    """Zero HTTP calls, no record: the mission can be given again once it is mended."""
    spoil(stage)
    gateway = stage.gateway()
    mission = stage.mission()
    mission["checkout"]["headSha"] = "0" * 40

    with pytest.raises(CheckoutRefused):
        gateway.create_child(
            stage.owner(gateway), task_key="writer-1", role="writer", mission=mission
        )

    assert stage.server.calls == []
    assert gateway.children() == []


def test_a_wrong_mission_is_refused_before_git_is_asked(stage: Scene) -> None:
    gateway = stage.gateway()

    with pytest.raises(InvalidMission):
        gateway.create_child(
            stage.owner(gateway),
            task_key="writer-1",
            role="writer",
            mission=stage.mission(immediateTask="mend it"),
        )

    assert not stage.settings.worktrees.exists()
    assert stage.server.calls == []


def test_a_child_creates_none(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)

    with pytest.raises(NotPermitted):
        gateway.create_child(
            stage.child_caller(gateway),
            task_key="writer-2",
            role="writer",
            mission=stage.mission(),
        )


def fails(server: PlayedServer, child: Any, message: str) -> None:
    server.fail(child, "LLMAuthenticationError", "no key")


def sticks(server: PlayedServer, child: Any, message: str) -> None:
    server.stick(child)


def uses_a_tool(server: PlayedServer, child: Any, message: str) -> None:
    server.use_tool(child)
    server.finish(child, "PROVIDER_READY")


def says_something_else(server: PlayedServer, child: Any, message: str) -> None:
    server.finish(child, "I am ready, what is the mission?")


@pytest.mark.parametrize(
    ("play", "why"),
    [
        (fails, "LLMAuthenticationError"),
        (sticks, "stuck"),
        (uses_a_tool, "used a tool"),
        (says_something_else, "PROVIDER_READY"),
    ],
)
def test_an_admission_that_fails_delivers_nothing_and_can_be_tried_again(
    stage: Scene, play: Any, why: str
) -> None:
    """A clear error, one wake, no mission, a gate that stays shut; then it works."""
    gateway, stage.server.play = stage.gateway(), play
    arguments: dict[str, Any] = {
        "task_key": "writer-1",
        "role": "writer",
        "mission": stage.mission(),
    }

    with pytest.raises(AdmissionFailed, match=why):
        gateway.create_child(stage.owner(gateway), **arguments)
    child = stage.child(gateway)
    assert missions(stage, child) == []
    assert not gateway.parts.gates.is_open(child)
    gateway.reconcile()
    assert [wake["status"] for wake in stage.wakes()] == ["error"]

    stage.server.play = lambda server, child, message: (
        server.finish(child, "PROVIDER_READY") if "PROVIDER_ADMISSION" in message else None
    )
    again = gateway.create_child(stage.owner(gateway), **arguments)
    assert again.state == "delivered"
    assert len(missions(stage, child)) == 1


def test_an_admission_turn_that_never_ends_is_refused_in_the_end(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.server.play = lambda *_: None
    made = gateway.create_child(
        stage.owner(gateway), task_key="writer-1", role="writer", mission=stage.mission(), wait=0.0
    )
    assert made.state == "admitting"

    stage.clock.advance(601)
    gateway.reconcile()

    record = gateway.child("writer-1")
    assert record.state == "refused"
    assert "did not end" in (record.problem or "")
    assert [wake["status"] for wake in stage.wakes()] == ["error"]


@pytest.mark.parametrize("lost", ["create", "post", "conversation", "find_message", "run_end"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_reply_that_is_lost_ends_with_one_mission(stage: Scene, lost: str, times: int) -> None:
    """Each call of the provider takes effect and its reply is lost; a retry converges."""
    gateway = stage.gateway()
    stage.server.lose_reply(lost, times)

    child = stage.create(gateway)

    assert len(missions(stage, child)) == 1
    admissions = [text for text in stage.server.messages(child) if "PROVIDER_ADMISSION" in text]
    assert len(admissions) == 1
    assert operations(stage.server).count("create") <= 1 + times


def test_a_gateway_that_died_at_any_call_is_continued_by_another(stage: Scene) -> None:
    """Killed in each call in turn, before or after its effect: one mission in the end."""

    class Killed(BaseException):
        pass

    for number in range(14):
        for after in (False, True):
            task = f"task-{number}-{after}"

            class Dying:
                def __init__(self) -> None:
                    self.left = number  # noqa: B023 - used within this turn of the loop

                def __getattr__(self, name: str) -> Any:
                    method = getattr(stage.server, name)

                    def call(*args: Any, **options: Any) -> Any:
                        self.left -= 1
                        if self.left < 0 and not after:  # noqa: B023
                            raise Killed
                        value = method(*args, **options)
                        if self.left < 0:
                            raise Killed
                        return value

                    return call

            dying = stage.gateway(Dying())  # type: ignore[arg-type]
            with contextlib.suppress(Killed):
                stage.create(dying, task)
            child = stage.create(stage.gateway(), task)
            assert len(missions(stage, child)) == 1, (number, after)
            admissions = [t for t in stage.server.messages(child) if "PROVIDER_ADMISSION" in t]
            assert len(admissions) == 1, (number, after)


def test_creations_at_once_make_one_child(stage: Scene) -> None:
    """Several processes' worth of gateways: one worktree, one conversation, one mission."""
    made: list[Any] = []

    def create() -> None:
        gateway = stage.gateway()
        made.append(
            gateway.create_child(
                stage.owner(gateway), task_key="writer-1", role="writer", mission=stage.mission()
            )
        )

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({one.child for one in made}) == 1
    assert [one.created for one in made].count(True) == 1
    assert {one.state for one in made} == {"delivered"}
    assert len(missions(stage, made[0].child)) == 1


def test_a_full_server_is_waited_for(stage: Scene) -> None:
    """Nothing is lost: the mission goes out as soon as there is room, by reconciliation."""
    gateway = stage.gateway()
    stage.server.full()
    made = gateway.create_child(
        stage.owner(gateway), task_key="writer-1", role="writer", mission=stage.mission(), wait=0.05
    )
    assert (made.state, made.problem) == (
        "begun",
        "the agent server has no room for a run now",
    )

    stage.server.full(False)
    assert gateway.reconcile().begun == [made.child]
    assert len(missions(stage, made.child)) == 1


def test_a_message_that_was_saved_without_a_run_is_not_posted_again(stage: Scene) -> None:
    """429 on a message means: saved. Only the run is asked for again."""

    def fill(server: PlayedServer, child: Any, message: str) -> None:
        if message.startswith("PROVIDER_ADMISSION"):
            server.full()
            server.finish(child, "PROVIDER_READY")

    gateway, stage.server.play = stage.gateway(), fill
    child = stage.create(gateway)
    conversation = stage.server.conversation(child)
    assert conversation is not None
    assert conversation.status == "idle"

    gateway.reconcile()
    stage.server.full(False)
    gateway.reconcile()

    conversation = stage.server.conversation(child)
    assert conversation is not None
    assert conversation.status == "running"
    assert len(missions(stage, child)) == 1
    assert stage.wakes() == []


def test_a_plugin_that_brings_a_server_is_noticed_before_the_mission(stage: Scene) -> None:
    """A child has the MCP servers that it was given, and no others."""

    def plug_in(server: PlayedServer, child: Any, message: str) -> None:
        server.plug_in(child, "theirs", "http://example.org/mcp")
        server.finish(child, "PROVIDER_READY")

    gateway, stage.server.play = stage.gateway(), plug_in

    with pytest.raises(AdmissionFailed, match="other MCP servers"):
        stage.create(gateway)

    assert missions(stage, stage.child(gateway)) == []


def test_somebody_elses_conversation_of_that_id_is_not_taken_over(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.child(gateway)
    stage.server.add_conversation(child, tags={"project": "other"})

    with pytest.raises(AdmissionFailed, match="another conversation"):
        stage.create(gateway)

    assert stage.server.messages(child) == []


def test_a_runtime_that_is_not_set_up_is_said_before_anything_begins(stage: Scene) -> None:
    gateway = stage.gateway()
    with pytest.raises(ConfigurationError, match="AGENT_BUS_OPENHANDS_RUNTIME is not set"):
        gateway.create_child(
            stage.owner(gateway),
            task_key="qa-1",
            role="qa",
            mission=stage.mission(allowedMutations=[]),
            capabilities=["runtime_environment"],
            wait=5,
        )
    assert list(gateway.journal.ids()) == []
    assert not stage.settings.worktrees.exists()


def test_no_capability_stands_in_any_message_or_record(tmp_path: Path) -> None:
    """With a gateway that children can reach: the token is in the order's MCP entry alone."""
    with scene(tmp_path, gateway_url="http://127.0.0.1:3101") as stage:
        gateway = stage.gateway()
        child = stage.create(gateway)
        order = stage.server.orders[child]

        (entry,) = order.servers
        assert entry.url == "http://127.0.0.1:3101/mcp"
        assert gateway.caller(entry.bearer).subject == child
        assert order.hook is not None
        header = order.hook.header.read_text()
        assert order.hook.header.stat().st_mode & 0o777 == 0o600
        assert gateway.caller(header.split()[-1]).actions == {"complete"}
        told = [*stage.server.messages(child), order.instructions, repr(order), repr(order.servers)]
        assert not any("evx1_" in text for text in told)
        records = gateway.parts.folder.path.rglob("*.json")
        assert not any("evx1_" in path.read_text() for path in records)
