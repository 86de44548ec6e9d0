"""What a child says over /mcp, with the capability that the server keeps for it."""

from __future__ import annotations

import json

from desk import Desk, until

RESULT = '[[mcp:send_to_parent {"result":{"summary":"mended"},"messageKey":"first"}]]'
LINKS = '[[mcp:publish_navigation_links {"links":{"pr":"https://example.org/pr/1"}}]]'
QUESTION = (
    '[[mcp:request_user_decision {"question":"Which one?","options":["left","right"]}]] '
    "[[finish:waiting for the decision]]"
)


def test_a_child_reports_and_links(desk: Desk) -> None:
    """The same result again is no second message, and the wake says that it reported."""
    desk.serve()
    gateway = desk.gateway()
    child = desk.start(gateway, f"{RESULT} {RESULT} {LINKS} [[finish:reported]]")
    (wake,) = desk.woken(gateway)

    (result,) = desk.messages("result")
    assert json.loads(result.body) == {"summary": "mended"}
    assert result.sender == "openhands"
    assert result.data["childId"] == str(child)
    (links,) = desk.messages("links")
    assert json.loads(links.body) == {"links": {"pr": "https://example.org/pr/1"}}
    assert (wake["status"], wake["reported"]) == ("finished", True)


def test_a_child_asks_and_goes_on_with_the_decision(desk: Desk) -> None:
    """serve hears of it: nobody goes round the children here."""
    desk.serve()
    gateway = desk.gateway()
    child = desk.start(gateway, QUESTION)
    desk.wait_for(child, "finished")
    conductor = desk.as_agent()
    (pending,) = conductor.pending()
    assert (pending.options, pending.details["child"]) == (("left", "right"), str(child))
    until("the first wake", desk.wakes)

    conductor.decide(pending.message.id, "left")
    until("the second wake", lambda: len(desk.wakes()) == 2)
    first, second = desk.woken(gateway, 2)
    assert first["answer"]["text"] == "waiting for the decision"
    assert second["answer"]["text"] == "decided: left"
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION", "USER_DECISION"]


def test_a_child_has_no_children_and_hears_why(desk: Desk) -> None:
    desk.serve()
    gateway = desk.gateway()
    arguments = {"targetId": str(desk.child(gateway)), "taskKey": "writer-1"}
    child = desk.start(
        gateway, f"[[mcp:cancel_mission {json.dumps(arguments)}]] [[finish:refused]]"
    )
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "finished"
    (answer,) = (
        event
        for event in desk.events(child)
        if event["kind"] == "ObservationEvent" and event["tool_name"] == "cancel_mission"
    )
    assert "it lacks cancel_mission" in json.dumps(answer["observation"])
