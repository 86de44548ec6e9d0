"""cancel_mission stops a child without asking its model; resume_mission goes on with it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from scene import Scene, git

from agent_bus.errors import (
    Busy,
    CheckoutRefused,
    Conflict,
    InvalidMission,
    NotPermitted,
    Unavailable,
)
from agent_bus.names import AgentName


def cancel(stage: Scene, gateway: Any, child: UUID, task: str = "writer-1") -> Any:
    return gateway.cancel_mission(stage.owner(gateway), target=str(child), task_key=task)


def resume(stage: Scene, gateway: Any, child: UUID, key: str = "again", **context: Any) -> Any:
    return gateway.resume_mission(
        stage.owner(gateway),
        target=str(child),
        task_key="writer-1",
        message_key=key,
        context=context or {"note": "go on"},
    )


def test_cancel_shuts_the_gate_stops_the_run_and_starts_none(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    before = len(stage.server.calls)

    steered = cancel(stage, gateway, child)

    assert steered.outcome == "cancelled"
    assert not gateway.parts.gates.is_open(child)
    names = [call.operation for call in stage.server.calls[before:]]
    assert names.index("interrupt") < names.index("post")
    conversation = stage.server.conversation(child)
    assert conversation is not None
    assert conversation.status != "running"
    assert gateway.child("writer-1").seen == conversation.status
    assert [wake["status"] for wake in stage.wakes()] == ["cancelled"]


def test_cancel_again_does_nothing_more(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    cancel(stage, gateway, child)
    before = len(stage.server.calls)
    assert cancel(stage, stage.gateway(), child).outcome == "replayed"
    gateway.reconcile()

    assert [call.operation for call in stage.server.calls[before:]] == []
    assert len(stage.wakes()) == 1
    texts = stage.server.messages(child)
    assert sum(text.startswith("CANCEL_MISSION") for text in texts) == 1


def test_a_child_that_was_quicker_has_finished(stage: Scene) -> None:
    """One outcome: what it ended as, with no message and one wake."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "done")
    assert cancel(stage, gateway, child).outcome == "finished"
    gateway.reconcile()

    assert [wake["status"] for wake in stage.wakes()] == ["finished"]
    assert not any("CANCEL_MISSION" in text for text in stage.server.messages(child))


def test_a_child_that_ends_while_it_is_interrupted_has_one_outcome(stage: Scene) -> None:
    """It was seen at work, and is done when the interrupt arrives."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    interrupt = stage.server.interrupt

    def late(ident: UUID) -> None:
        stage.server.finish(ident, "done")
        gateway.signal(ident, "hook")
        interrupt(ident)

    stage.server.interrupt = late  # type: ignore[method-assign]
    assert cancel(stage, gateway, child).outcome == "finished"
    gateway.reconcile()

    assert [wake["status"] for wake in stage.wakes()] == ["finished"]
    assert not any("CANCEL_MISSION" in text for text in stage.server.messages(child))


def test_a_run_that_does_not_stop_is_an_error_with_the_tools_shut(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.interrupt = lambda _: None  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="still runs"):
        cancel(stage, gateway, child)
    assert not gateway.parts.gates.is_open(child)
    assert stage.wakes() == []


def test_what_waits_for_a_confirmation_is_refused_by_cancelling(stage: Scene) -> None:
    """And not approved by the message that it leaves: that comes after the refusal."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.wait_for_confirmation(child)
    before = len(stage.server.calls)
    assert cancel(stage, gateway, child).outcome == "cancelled"
    conversation = stage.server.conversation(child)
    assert conversation is not None
    assert conversation.status == "idle"
    names = [call.operation for call in stage.server.calls[before:]]
    assert names.index("reject") < names.index("post")


def test_a_child_that_has_not_begun_can_be_cancelled(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.server.full()
    made = gateway.create_child(
        stage.owner(gateway), task_key="writer-1", role="writer", mission=stage.mission(), wait=0
    )
    assert cancel(stage, gateway, made.child).outcome == "cancelled"
    stage.server.full(False)
    gateway.reconcile()
    assert "create" not in [call.operation for call in stage.server.calls[3:]]


def just_cancel(gateway: Any, caller: Any, **which: str) -> None:
    gateway.cancel_mission(caller, **which)


def just_resume(gateway: Any, caller: Any, **which: str) -> None:
    gateway.resume_mission(caller, message_key="k", context={"a": 1}, **which)


@pytest.mark.parametrize("act", [just_cancel, just_resume])
def test_a_child_of_somebody_else_is_refused_without_a_call(stage: Scene, act: Any) -> None:
    """Another Main's child, any UUID, one's own under a wrong task key: zero HTTP calls."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    before = len(stage.server.calls)
    alice = gateway.identity_caller(AgentName("alice"))
    for caller, target, task in (
        (alice, child, "writer-1"),
        (stage.owner(gateway), uuid4(), "writer-1"),
        (stage.owner(gateway), child, "writer-2"),
        (stage.child_caller(gateway), child, "writer-1"),
    ):
        with pytest.raises(NotPermitted):
            act(gateway, caller, target=str(target), task_key=task)
    assert len(stage.server.calls) == before


def test_resume_gives_the_facts_once(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "need a fact")
    gateway.reconcile()
    assert resume(stage, gateway, child, fact="blue").outcome == "resumed"
    assert resume(stage, stage.gateway(), child, fact="blue").outcome == "replayed"
    with pytest.raises(Conflict):
        resume(stage, gateway, child, fact="red")

    texts = [text for text in stage.server.messages(child) if text.startswith("RESUME_MISSION")]
    assert len(texts) == 1
    assert '"context":{"fact":"blue"}' in texts[0]


def test_a_resume_whose_reply_was_lost_ends_with_one_message(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "x")
    gateway.reconcile()
    stage.server.lose_reply("post")
    with pytest.raises(Unavailable):
        resume(stage, gateway, child)
    assert resume(stage, gateway, child).outcome == "resumed"
    texts = [text for text in stage.server.messages(child) if text.startswith("RESUME_MISSION")]
    assert len(texts) == 1


def test_a_child_at_work_is_not_resumed(stage: Scene) -> None:
    """Its run would be thrown away, or what it waits for approved."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    with pytest.raises(Busy):
        resume(stage, gateway, child)
    stage.server.wait_for_confirmation(child)
    with pytest.raises(Busy):
        resume(stage, gateway, child)


def test_a_cancelled_child_goes_on_when_its_owner_says_so(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    cancel(stage, gateway, child)
    resume(stage, gateway, child)
    assert gateway.parts.gates.is_open(child)
    stage.server.finish(child, "done after all")
    gateway.reconcile()
    assert [wake["status"] for wake in stage.wakes()] == ["cancelled", "finished"]


def test_resume_wants_the_child_in_its_own_worktree(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "x")
    gateway.reconcile()
    git("checkout", "-q", "-b", "elsewhere", folder=gateway.parts.checkouts.worktree(child))
    with pytest.raises(CheckoutRefused):
        resume(stage, gateway, child)


def test_facts_cannot_widen_what_it_may_do(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "x")
    for context in ({}, {"deep": [{"Head-SHA": "x"}]}, {"allowed_mutations": ["**"]}):
        with pytest.raises(InvalidMission):
            gateway.resume_mission(
                stage.owner(gateway),
                target=str(child),
                task_key="writer-1",
                message_key="k",
                context=context,
            )


def test_an_admin_may_steer_for_the_owner_and_others_may_not(stage: Scene) -> None:
    gateway = stage.gateway()
    alice = gateway.identity_caller(AgentName("alice"))
    made = gateway.create_child(alice, task_key="t", role="writer", mission=stage.mission())
    record = gateway.journal.load(made.child)
    caller = gateway.steering_caller(record, AgentName("conductor"))
    assert caller.subject == alice.subject

    child = stage.create(gateway)
    with pytest.raises(NotPermitted):
        gateway.steering_caller(gateway.journal.load(child), AgentName("alice"))
