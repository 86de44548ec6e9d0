"""What events say of a run: small cases, and the frames that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_bus.openhands.gateway import events
from agent_bus.openhands.gateway.provider import RunEnd

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "openhands"


def user(ident: str, *texts: str, source: str = "user") -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    message = {"role": "user", "content": content}
    return {"id": ident, "kind": "MessageEvent", "source": source, "llm_message": message}


def said(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {"id": "s", "kind": "MessageEvent", "source": "agent", "llm_message": message}


def finish(text: object) -> dict[str, Any]:
    action = {"kind": "FinishAction", "message": text}
    return {"id": "f", "kind": "ActionEvent", "tool_name": "finish", "action": action}


def tool(name: object) -> dict[str, Any]:
    return {"id": "t", "kind": "ActionEvent", "tool_name": name}


def error(code: str, detail: str) -> dict[str, Any]:
    return {"id": "e", "kind": "ConversationErrorEvent", "code": code, "detail": detail}


def end(*oldest_first: dict[str, Any], run: str | None = None) -> RunEnd:
    return events.run_end(reversed(oldest_first), run)


def test_the_answer_is_the_finish_and_else_the_last_text() -> None:
    assert end(user("1", "go"), said("a"), finish("b"), said("c")).answer == "b"
    assert end(user("1", "go"), said("a"), said("b")).answer == "b"
    assert end(user("1", "go"), said("a"), finish(" \n")).answer == "a"
    assert end(user("1", "go")).answer == ""


def test_nothing_from_before_the_run_counts() -> None:
    before = (user("1", "first"), tool("terminal"), error("X", "y"), finish("READY"))
    assert end(*before, user("2", "second")) == RunEnd()
    assert end(*before, user("2", "second"), run="2") == RunEnd()


def test_the_run_is_the_message_that_is_asked_for() -> None:
    log = (user("1", "first"), finish("one"), user("2", "second"), finish("two"))
    assert end(*log, run="1").answer == "two"
    assert end(*log, run="3") == RunEnd(used_tools=True)


def test_what_a_hook_tells_the_agent_begins_no_run() -> None:
    feedback = user("2", "[Stop hook feedback] go on", source="environment")
    assert not events.is_user_message(feedback)
    assert end(user("1", "go"), finish("done"), feedback).answer == "done"


def test_an_error_counts_until_something_finishes_after_it() -> None:
    failed = end(user("1", "go"), error("A", "a"), error("B", "b"))
    assert (failed.error_code, failed.error_text) == ("B", "b")
    assert end(user("1", "go"), error("A", "a"), finish("done")).error_code is None
    later = end(user("1", "go"), finish("done"), error("A", "a"))
    assert (later.answer, later.error_code) == ("done", "A")


def test_a_call_that_the_server_was_killed_in_is_the_error() -> None:
    failed = {"id": "a", "kind": "AgentErrorEvent", "error": "A restart occurred"}
    cut = end(user("1", "go"), tool("terminal"), failed)
    assert (cut.error_code, cut.error_text) == ("AgentErrorEvent", "A restart occurred")
    for later in (said("so"), tool("terminal"), {"id": "i", "kind": "InterruptEvent"}):
        assert end(user("1", "go"), tool("terminal"), failed, later).error_text is None


@pytest.mark.parametrize(
    ("event", "used"),
    [
        (tool("finish"), False),
        (tool("think"), False),
        (tool("terminal"), True),
        (tool("nosuchtool"), True),
        (tool(None), True),
        ({"id": "t", "kind": "ACPToolCallEvent", "title": "ls"}, True),
        ({"id": "t", "kind": "ObservationEvent", "tool_name": "think"}, False),
    ],
)
def test_which_events_are_tools(event: dict[str, Any], used: bool) -> None:
    assert end(user("1", "go"), event).used_tools is used


def test_strange_events_are_passed_over() -> None:
    strange: list[Any] = [
        {},
        {"kind": 7},
        {"kind": "ActionEvent", "tool_name": "finish", "action": "FinishAction"},
        finish(None),
        finish(["x"]),
        {"kind": "MessageEvent", "source": "agent", "llm_message": None},
        {"kind": "MessageEvent", "source": "agent", "llm_message": {"content": "text"}},
        {"kind": "MessageEvent", "source": "agent", "llm_message": {"content": [1, {"text": 2}]}},
        {"kind": "NewerEvent", "source": "agent", "code": 3, "detail": []},
    ]
    assert end(user("1", "go"), *strange) == RunEnd()


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert end(user("1", "go"), finish("a\ud800b")).answer == "a?b"


def recorded(name: str) -> list[dict[str, Any]]:
    path = RECORDED / name
    if not path.is_file():
        pytest.skip(f"recorded frames are not here: {name}")
    frames = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [frame.get("event", frame) for frame in frames]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("events_basic.jsonl", RunEnd("final text answer", used_tools=True)),
        ("events_condense.jsonl", RunEnd("f", used_tools=True)),
        ("events_confirm_approve.jsonl", RunEnd("f", used_tools=True)),
        ("events_hooks.jsonl", RunEnd("f", used_tools=True)),
    ],
)
def test_recorded_runs(name: str, expected: RunEnd) -> None:
    assert end(*recorded(name)) == expected


def test_a_recorded_run_that_failed() -> None:
    found = end(*recorded("session_conv_error.jsonl"))
    assert found.error_code == "LLMServiceUnavailableError"
    assert found.error_text
    assert found.error_text.startswith("litellm.InternalServerError")
    assert (found.answer, found.used_tools) == ("", False)


def test_a_recorded_run_that_was_stuck_has_no_answer() -> None:
    assert end(*recorded("events_stuck.jsonl")).answer == ""
