"""Cancel and resume on a real agent server."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from desk import Desk, until

from agent_bus.errors import Busy
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.steering import Steered


def cancel(desk: Desk, gateway: Gateway, child: UUID) -> Steered:
    return gateway.cancel_mission(desk.owner(gateway), target=str(child), task_key="writer-1")


def resume(desk: Desk, gateway: Gateway, child: UUID, **context: Any) -> Steered:
    return gateway.resume_mission(
        desk.owner(gateway),
        target=str(child),
        task_key="writer-1",
        message_key="again",
        context=context,
    )


def test_a_child_is_cancelled_while_a_tool_runs_and_goes_on_later(desk: Desk) -> None:
    """The model is not asked again, and the message that is left behind starts nothing."""
    gateway = desk.gateway()
    child = desk.start(gateway, "[[tool:touch begun; sleep 2; touch late]] [[finish:never]]")
    worktree = gateway.parts.checkouts.worktree(child)
    until("a tool runs", (worktree / "begun").exists)
    asked = len(desk.model.asked)

    assert cancel(desk, gateway, child).outcome == "cancelled"
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION", "CANCEL_MISSION"]
    time.sleep(1)
    assert len(desk.model.asked) == asked
    assert not gateway.parts.gates.is_open(child)
    (wake,) = desk.woken(gateway)
    assert (wake["status"], wake["answer"]["text"]) == ("cancelled", "")
    assert cancel(desk, gateway, child).outcome == "replayed"
    assert desk.status(child) == "paused"

    script = "[[tool:echo again > again.txt]] [[finish:went on]]"
    assert resume(desk, gateway, child, script=script).outcome == "resumed"
    desk.wait_for(child, "finished")
    assert (worktree / "again.txt").read_text() == "again\n"
    assert not (worktree / "late").exists()
    _, wake = desk.woken(gateway, 2)
    assert (wake["status"], wake["answer"]["text"]) == ("finished", "went on")
    assert resume(desk, gateway, child, script=script).outcome == "replayed"
    desk.woken(gateway, 2)


def test_a_child_is_cancelled_while_its_model_is_asked(desk: Desk) -> None:
    """What the model answers then is thrown away."""
    gateway = desk.gateway()
    child = desk.start(gateway, "[[hold]] [[tool:touch late]] [[finish:never]]")
    until("the model was asked", lambda: desk.model.count("MISSION\n"))
    assert cancel(desk, gateway, child).outcome == "cancelled"
    desk.model.release()
    time.sleep(1)
    assert not (gateway.parts.checkouts.worktree(child) / "late").exists()
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "cancelled"


def test_a_child_that_has_finished_is_not_cancelled(desk: Desk) -> None:
    gateway = desk.gateway()
    child = desk.start(gateway)
    desk.wait_for(child, "finished")
    assert cancel(desk, gateway, child).outcome == "finished"
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION"]
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "finished"


def test_a_child_is_cancelled_in_its_admission_turn(desk: Desk) -> None:
    """It never gets a mission."""
    gateway = desk.gateway()
    made = desk.held_in_admission(gateway, "[[finish:never]]")
    assert cancel(desk, gateway, made.child).outcome == "cancelled"
    desk.model.release()
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "cancelled"
    assert desk.said(made.child) == ["PROVIDER_ADMISSION", "CANCEL_MISSION"]


def test_what_waits_for_a_confirmation_is_never_approved_by_the_gateway(desk: Desk) -> None:
    """A cancel refuses it: nobody can allow it afterwards."""
    desk.write_agent(desk.model.agent() | {"confirmation_policy": {"kind": "AlwaysConfirm"}})
    gateway = desk.gateway()
    child = desk.start(gateway, "[[tool:touch asked]] [[finish:done]]")
    desk.wait_for(child, "waiting_for_confirmation")
    worktree = gateway.parts.checkouts.worktree(child)
    with pytest.raises(Busy, match="waiting for confirmation"):
        resume(desk, gateway, child, note="go on")
    gateway.reconcile()
    assert desk.wakes() == []

    assert cancel(desk, gateway, child).outcome == "cancelled"
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "cancelled"
    assert desk.status(child) == "idle"
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION", "CANCEL_MISSION"]
    assert not (worktree / "asked").exists()
