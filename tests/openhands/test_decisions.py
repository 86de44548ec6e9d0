"""A child's question stands in the queue of approvals; the decision reaches it and its owner."""

from __future__ import annotations

from typing import Any

from scene import Scene

from agent_bus.names import AgentName


def told(stage: Scene, child: Any) -> list[str]:
    return [text for text in stage.server.messages(child) if text.startswith("USER_DECISION")]


def ask(stage: Scene, gateway: Any, task: str = "writer-1") -> str:
    accepted = gateway.request_user_decision(
        stage.child_caller(gateway, task), question="Which one?", options=["left", "right"]
    )
    return str(accepted.id)


def test_the_admin_decides_and_the_child_is_told(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    request = ask(stage, gateway)
    conductor = stage.as_agent()
    (pending,) = conductor.pending()
    assert (pending.message.id, pending.message.sender) == (request, "openhands")
    assert pending.message.subject == "writer-1 (writer): Which one?"
    assert pending.options == ("left", "right")
    assert pending.details["child"] == str(child)

    stage.server.finish(child, "waiting for the decision")
    conductor.decide(request, "left", reason="it is nearer")
    for _ in range(3):
        gateway.reconcile()

    (text,) = told(stage, child)
    assert '"decision":"left"' in text
    assert '"reason":"it is nearer"' in text
    conversation = stage.server.conversation(child)
    assert conversation is not None
    assert conversation.status == "running"
    assert stage.bus.as_gateway().inbox().total == 0


def test_the_same_question_again_is_the_same_request(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    assert ask(stage, gateway) == ask(stage, stage.gateway())
    assert len(stage.as_agent().pending()) == 1


def test_an_owner_that_does_not_decide_sees_both(stage: Scene) -> None:
    """The owner is alice, the admin decides: she gets the question and the answer."""
    gateway = stage.gateway()
    alice = gateway.identity_caller(AgentName("alice"))
    made = gateway.create_child(alice, task_key="writer-1", role="writer", mission=stage.mission())
    from agent_bus.openhands.gateway import capability

    token = capability.child_capability_token(
        gateway.parts.signing.newest(),
        alice.subject,
        "writer-1",
        "writer",
        issued_at=stage.clock.now() // 1000,
    )
    asked = gateway.request_user_decision(
        gateway.caller(token), question="Which one?", options=["left", "right"]
    )
    (question,) = stage.messages("question", "alice")
    assert '"approval":"' + asked.id in question.body

    stage.as_agent().decide(asked.id, "right")
    gateway.reconcile()
    gateway.reconcile()
    (answer,) = stage.messages("answer", "alice")
    assert '"decision":"right"' in answer.body
    stage.server.finish(made.child, "x")
    gateway.reconcile()
    assert len(told(stage, made.child)) == 1


def test_a_child_that_waits_for_a_confirmation_is_told_later(stage: Scene) -> None:
    """A message to it now would approve what it waits for."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    request = ask(stage, gateway)
    stage.server.wait_for_confirmation(child)
    stage.as_agent().decide(request, "left")
    gateway.reconcile()
    assert told(stage, child) == []

    stage.server._conversations[child].status = "running"
    gateway.reconcile()
    assert len(told(stage, child)) == 1


def test_a_decision_is_carried_by_whoever_comes_after_a_crash(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    request = ask(stage, gateway)
    stage.as_agent().decide(request, "left")
    stage.server.lose_reply("post")
    gateway.reconcile()
    stage.gateway().reconcile()
    assert len(told(stage, child)) == 1


def test_what_a_cancelled_child_has_asked_is_taken_back(stage: Scene) -> None:
    """Nobody decides for a child that is not there any more; and it is told nothing."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    request = ask(stage, gateway)
    gateway.cancel_mission(stage.owner(gateway), target=str(child), task_key="writer-1")

    assert stage.as_agent().pending() == []
    assert gateway.child("writer-1").questions[0].decision == "withdraw"
    for _ in range(2):
        gateway.reconcile()
    assert told(stage, child) == []
    assert stage.messages("answer") == []
    (notice,) = stage.messages("approval_decision")
    assert dict(notice.data)["request"] == request
    assert notice.body == "its mission was cancelled"
