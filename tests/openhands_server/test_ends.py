"""Each end of a run on a real agent server becomes one wake in its owner's box."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from desk import Desk, until
from door import open_door
from server import free_port

from agent_bus.openhands.gateway.caller import MAIN_ACTIONS, Caller
from agent_bus.openhands.gateway.identifiers import conversation_box


def assert_clean(wake: dict[str, Any], child: UUID) -> None:
    """It is about this child, and says nothing of the admission turn."""
    assert wake["child"] == str(child)
    assert "PROVIDER_READY" not in str(wake)


@pytest.mark.parametrize(
    ("script", "status", "answer", "code", "hooked"),
    [
        ("[[401]]", "error", "", "LLMAuthenticationError", False),
        ("[[500]]", "error", "", "LLMServiceUnavailableError", False),
        ("[[endless]]", "error", "", "MaxIterationsReached", False),
        ("[[think:a]] [[think:b]] [[finish:at last]]", "finished", "at last", "", False),
        ("[[say:in plain text]]", "finished", "in plain text", "", True),
    ],
    ids=["no key", "server error", "too many steps", "the last step", "text"],
)
def test_a_run_of_few_steps(
    desk: Desk, script: str, status: str, answer: str, code: str, hooked: bool
) -> None:
    """Most of them end without a Stop hook."""
    desk.agent(max_iterations=3)
    desk.settings = replace(desk.settings, gateway_url=f"http://127.0.0.1:{free_port()}")
    gateway = desk.gateway()
    child = desk.start(gateway, script)
    desk.wait_for(child, status)

    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert (wake["status"], wake["answer"]["text"]) == (status, answer)
    assert wake.get("error", {}).get("code", "") == code
    assert wake["conversation_url"].endswith(f"/conversations/{child}")
    (message,) = desk.messages("wake")
    assert message.sender == "openhands"
    assert desk.as_agent().doubt(message) is None
    # The first is that of the admission turn.
    assert len(desk.hooks(child)) == 1 + hooked


def test_a_run_that_goes_round_in_circles_is_stuck(desk: Desk) -> None:
    """The server says it by no event at all."""
    gateway = desk.gateway()
    child = desk.start(gateway, "[[loop]]")
    desk.wait_for(child, "stuck")
    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert (wake["status"], wake["answer"]["text"]) == ("stuck", "")
    assert "error" not in wake


def test_a_server_that_is_killed_loses_no_end(desk: Desk) -> None:
    """While a tool ran, while the model was asked, and after a run that nobody had seen end.

    The children go on afterwards: with their tools, their key for them, and their hook.
    """
    serve = desk.serve()
    serve.end()
    desk.settings = replace(desk.settings, gateway_url=serve.url)
    gateway = desk.gateway()
    tool = desk.start(gateway, "[[tool:sleep 100]]", "tool")
    asked = desk.start(gateway, "[[hold]] [[finish:never]]", "asked")
    ended = desk.start(gateway, "[[finish:unseen]]", "ended")
    desk.wait_for(ended, "finished")
    until("a tool runs", lambda: desk.uses_terminal(tool))

    desk.real.kill()
    done = gateway.reconcile()
    assert done.problems
    assert (done.ended, desk.wakes()) == ([], [])
    desk.real.start()

    wakes = {wake["child"]: wake for wake in desk.woken(gateway, 3)}
    for child, status, answer in (
        (tool, "error", ""),
        (asked, "error", ""),
        (ended, "finished", "unseen"),
    ):
        wake = wakes[str(child)]
        assert_clean(wake, child)
        assert (wake["status"], wake["answer"]["text"]) == (status, answer)

    port = serve.url.rpartition(":")[2]
    desk.serve("--port", port)
    gateway.resume_mission(
        desk.owner(gateway),
        target=str(tool),
        task_key="tool",
        message_key="again",
        context={"script": '[[mcp:send_to_parent {"result":{"back":true}}]] [[finish:back]]'},
    )
    wakes = {wake["run"]: wake for wake in desk.woken(gateway, 4)}
    (wake,) = (wake for wake in wakes.values() if wake["answer"]["text"] == "back")
    assert (wake["status"], wake["reported"]) == ("finished", True)
    assert len(desk.hooks(tool)) == 2


def test_a_gateway_that_was_down_during_the_end_wakes_when_it_comes(desk: Desk) -> None:
    gateway = desk.gateway()
    child = desk.start(gateway, "[[hold]] [[finish:meanwhile]]")
    gateway.reconcile()
    desk.gateways.remove(gateway)
    gateway.close()
    desk.model.release()
    desk.wait_for(child, "finished")
    assert desk.wakes() == []

    (wake,) = desk.woken(desk.gateway())
    assert_clean(wake, child)
    assert wake["answer"]["text"] == "meanwhile"
    desk.woken(desk.gateway())


def test_a_hook_that_reaches_nobody_is_made_up_for(desk: Desk) -> None:
    """And one that comes later than that is no second wake."""
    desk.settings = replace(desk.settings, gateway_url=f"http://127.0.0.1:{free_port()}")
    gateway = desk.gateway()
    child = desk.start(gateway, "[[finish:heard by nobody]]")
    desk.wait_for(child, "finished")
    until("the hooks ran", lambda: len(desk.hooks(child)) == 2)

    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert wake["answer"]["text"] == "heard by nobody"
    gateway.signal(child, "late")
    desk.woken(gateway)


def test_the_hook_wakes_the_owner_through_serve(
    desk: Desk, record_property: Callable[[str, object], None]
) -> None:
    desk.serve()
    gateway = desk.gateway()
    child = desk.start(gateway, "[[hold]] [[finish:quick]]")
    until("the model was asked", lambda: desk.model.count("MISSION\n"))
    began = time.monotonic()
    desk.model.release()
    until("a wake", desk.wakes)
    took = time.monotonic() - began
    record_property("measured", f"{took * 1000:.0f} ms from the model's answer to the wake")

    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert (wake["status"], wake["answer"]["text"]) == ("finished", "quick")
    assert len(desk.hooks(child)) == 2


def test_hook_and_webhook_are_two_signals_of_one_end(desk: Desk, webhook_port: int) -> None:
    """Both are on disk, and the owner is woken once."""
    with open_door(desk, webhook_port):
        desk.settings = replace(desk.settings, gateway_url=f"http://127.0.0.1:{webhook_port}")
        gateway = desk.gateway()
        child = desk.start(gateway, "[[hold]] [[finish:done]]")
        gateway._intents.remove(signs(desk, child))
        desk.model.release()
        until("both signals", lambda: {"hook", "webhook"} <= set(sources(desk, child)))
    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert sources(desk, child) == []


@pytest.mark.parametrize(("script", "status"), [("[[401]]", "error"), ("[[loop]]", "stuck")])
def test_a_webhook_tells_what_no_hook_does(
    desk: Desk, webhook_port: int, script: str, status: str
) -> None:
    gateway = desk.gateway()
    with open_door(desk, webhook_port):
        child = desk.start(gateway, f"[[hold]] {script}")
        gateway._intents.remove(signs(desk, child))
        desk.model.release()
        until("a signal", lambda: "webhook" in sources(desk, child))
    desk.wait_for(child, status)
    (wake,) = desk.woken(gateway)
    assert wake["status"] == status


def test_a_conversation_that_was_deleted_is_lost(desk: Desk) -> None:
    gateway = desk.gateway()
    child = desk.start(gateway, "[[hold]]")
    gateway.reconcile()
    assert desk.real.call("DELETE", f"/api/conversations/{child}").status_code == 200
    (wake,) = desk.woken(gateway)
    assert_clean(wake, child)
    assert wake["status"] == "lost"


def test_a_pause_of_a_person_is_a_wake_and_the_real_end_another(desk: Desk) -> None:
    gateway = desk.gateway()
    child = desk.start(gateway, "[[hold]] [[think:on]] [[finish:after the pause]]")
    until("the model was asked", lambda: desk.model.count("MISSION\n"))
    assert desk.real.call("POST", f"/api/conversations/{child}/interrupt").status_code == 200
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "paused"

    desk.model.release()
    assert desk.real.call("POST", f"/api/conversations/{child}/run").status_code == 200
    desk.wait_for(child, "finished")
    _, wake = desk.woken(gateway, 2)
    assert_clean(wake, child)
    assert (wake["status"], wake["answer"]["text"]) == ("finished", "after the pause")


def test_an_owner_that_is_a_conversation_is_told_there_as_well(desk: Desk, tmp_path: Path) -> None:
    """Once, and when its own turn is over."""
    main = uuid4()
    body = {
        "conversation_id": str(main),
        "workspace": {"kind": "LocalWorkspace", "working_dir": str(tmp_path)},
        "autotitle": False,
        **desk.model.agent(),
    }
    assert desk.real.call("POST", "/api/conversations", body).status_code == 201
    gateway = desk.gateway()
    owner = Caller(main, main, "root", "main", MAIN_ACTIONS)
    made = gateway.create_child(
        owner, task_key="writer-1", role="writer", mission=desk.order("[[finish:told]]")
    )
    desk.wait_for(made.child, "finished")
    until("it is told", lambda: gateway.reconcile() and "RECOVERY_WAKE" in desk.said(main))
    gateway.reconcile()
    assert desk.said(main) == ["RECOVERY_WAKE"]
    log = desk.bus.as_gateway().log(limit=100).messages
    assert [stored.place.box for stored in log] == [conversation_box(main)]
    desk.real.call("DELETE", f"/api/conversations/{main}")


def signs(desk: Desk, child: UUID) -> list[str]:
    """The signals of a child that wait on disk."""
    folder = desk.bus.path / "openhands" / "gateway" / "intents"
    return [path.name for path in folder.glob(f"{child}.*")]


def sources(desk: Desk, child: UUID) -> list[str]:
    """Where they came from."""
    folder = desk.bus.path / "openhands" / "gateway" / "intents"
    return [(folder / name).read_text().strip() for name in signs(desk, child)]
