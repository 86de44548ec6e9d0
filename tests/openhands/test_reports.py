"""What a child says becomes messages of `openhands` in its owner's box, each once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scene import Scene

from agent_bus.errors import Conflict, InvalidMission, NoSuchChild, NotPermitted
from agent_bus.openhands.gateway import capability
from agent_bus.openhands.gateway.caller import Caller


def test_a_result_reaches_the_owner_signed_by_the_gateway(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    accepted = gateway.send_to_parent(
        stage.child_caller(gateway), result={"outcome": "mended"}, message_key="r-1"
    )

    (message,) = stage.messages("result")
    assert message.id == accepted.id
    assert message.sender == "openhands"
    assert json.loads(message.body) == {"outcome": "mended"}
    assert dict(message.data) == {
        "kind": "RESULT",
        "messageKey": "r-1",
        "owningMainId": str(stage.owner(gateway).subject),
        "childId": str(child),
        "taskKey": "writer-1",
        "role": "writer",
    }


def test_the_same_result_again_is_a_repeat_and_another_a_conflict(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    child = stage.child_caller(gateway)
    first = gateway.send_to_parent(child, result={"a": 1}, message_key="r-1")
    again = stage.gateway().send_to_parent(child, result={"a": 1}, message_key="r-1")
    assert (first.replayed, again.replayed, again.id) == (False, True, first.id)

    with pytest.raises(Conflict):
        gateway.send_to_parent(child, result={"a": 2}, message_key="r-1")
    assert len(stage.messages("result")) == 1


def test_without_a_key_equal_results_are_one(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    child = stage.child_caller(gateway)
    keys = {gateway.send_to_parent(child, result={"a": 1}).message_key for _ in range(2)}
    keys.add(gateway.send_to_parent(child, result={"a": 2}).message_key)

    assert len(keys) == 2
    assert len(stage.messages("result")) == 2


def test_what_it_needs_is_a_question_on_the_bus(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    gateway.send_to_parent(
        stage.child_caller(gateway), result={"need": "a key"}, kind="NEEDS_INPUT", message_key="n"
    )
    assert [dict(message.data)["kind"] for message in stage.messages("question")] == ["NEEDS_INPUT"]


def test_links_are_published_once(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    child = stage.child_caller(gateway)
    for _ in range(2):
        gateway.publish_navigation_links(child, links={"pr": "https://github.com/a/b/pull/1"})
    (message,) = stage.messages("links")
    assert json.loads(message.body) == {"links": {"pr": "https://github.com/a/b/pull/1"}}


def test_a_report_says_in_the_wake_that_it_was_made(stage: Scene) -> None:
    """A result of this run; one of an earlier run does not count for a later one."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    gateway.send_to_parent(stage.child_caller(gateway), result={"a": 1})
    stage.server.finish(child, "done")
    gateway.reconcile()
    gateway.resume_mission(
        stage.owner(gateway),
        target=str(child),
        task_key="writer-1",
        message_key="again",
        context={"note": "once more"},
    )
    stage.server.finish(child, "done again")
    gateway.reconcile()

    assert [wake["reported"] for wake in stage.wakes()] == [True, False]


def test_a_main_reports_to_nobody(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    for act in (
        lambda who: gateway.send_to_parent(who, result={"a": 1}),
        lambda who: gateway.request_user_decision(who, question="?", options=["a", "b"]),
        lambda who: gateway.publish_navigation_links(who, links={"pr": "https://e.org/"}),
    ):
        with pytest.raises(NotPermitted):
            act(stage.owner(gateway))


def test_a_hook_s_token_reports_nothing(stage: Scene) -> None:
    """It says that a run has ended, and no more."""
    gateway = stage.gateway()
    stage.create(gateway)
    token = capability.completion_token(
        gateway.parts.signing.newest(),
        stage.owner(gateway).subject,
        "writer-1",
        "writer",
        issued_at=stage.clock.now() // 1000,
    )
    with pytest.raises(NotPermitted):
        gateway.send_to_parent(gateway.caller(token), result={"a": 1})


def test_a_capability_for_a_child_that_was_never_made_reaches_nobody(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.create(gateway)
    with pytest.raises(NoSuchChild):
        gateway.send_to_parent(stage.child_caller(gateway, "other"), result={"a": 1})


def test_another_main_s_name_in_a_capability_reaches_nobody(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    other = gateway.identity_caller(stage.as_agent("alice").identity).subject
    forged = Caller(child, other, "writer-1", "writer", capability.CHILD_ACTIONS)
    with pytest.raises(NotPermitted):
        gateway.send_to_parent(forged, result={"a": 1})


def test_a_child_of_a_deputy_reports_to_the_deputy(stage: Scene) -> None:
    """The owner is whoever created it, not the Main above."""
    gateway = stage.gateway()
    deputy_child = stage.create(gateway)
    top = stage.owner(gateway).subject
    deputy = Caller(
        deputy_child, top, "writer-1", "deputy", frozenset({"create_child", "send_message"})
    )
    made = gateway.create_child(
        deputy, task_key="sub-1", role="writer", mission=stage.mission(branch="fix/sub")
    )
    record = gateway.journal.load(made.child)
    assert record.owner == deputy_child
    assert record.owner_box == f"openhands-{deputy_child}"


def wrong(act: Any) -> None:
    with pytest.raises(InvalidMission):
        act()


def test_wrong_arguments_are_refused_before_anything_is_noted(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    caller = stage.child_caller(gateway)
    wrong(lambda: gateway.send_to_parent(caller, result="text"))
    wrong(lambda: gateway.send_to_parent(caller, result={"a": 1}, message_key="k" * 201))
    wrong(lambda: gateway.send_to_parent(caller, result={"a": 1}, kind="RESULTS"))
    wrong(lambda: gateway.request_user_decision(caller, question=" ", options=["a", "b"]))
    wrong(lambda: gateway.publish_navigation_links(caller, links={"pr": "javascript:alert(1)"}))
    assert gateway.journal.load(child).notes == {}
