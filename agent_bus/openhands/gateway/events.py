"""What the events of a conversation say of a run.

An event is a JSON object of the agent server: `id`, `kind` (the name of its class), `source`
(agent, user, environment, hook) and what its kind adds. Kinds and fields that are not known
here, or that are not of the expected form, are passed over: newer servers have more of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_bus.openhands.gateway.provider import RunEnd

Event = Mapping[str, Any]

QUIET_TOOLS = ("finish", "think")
"""Tools that touch nothing: a turn that calls no others is free of tools."""
_ERRORS = ("ConversationErrorEvent", "ServerErrorEvent")
_CUT_OFF = "AgentErrorEvent"
"""A call that failed. As the last thing of a run it says why: the server was killed in it."""
_ACTS = (
    *("ActionEvent", "ObservationEvent", "ACPToolCallEvent", "MessageEvent"),
    # Somebody has stopped it, and the call failed of that.
    *("InterruptEvent", "PauseEvent"),
)


def identity(event: Event) -> str:
    """Its id; "" if it has none."""
    return _string(event.get("id"))


def is_user_message(event: Event) -> bool:
    """Whether somebody wrote to the agent. What a hook tells it has another source."""
    return (
        event.get("kind") == "MessageEvent"
        and event.get("source") == "user"
        and _object(event.get("llm_message")).get("role") == "user"
    )


def message_text(event: Event) -> str:
    """The texts of a message, a line feed between them."""
    content = _object(event.get("llm_message")).get("content")
    parts = content if isinstance(content, list) else []
    return "\n".join(_string(_object(part).get("text")) for part in parts)


def run_end(newest_first: Iterable[Event], run: str | None) -> RunEnd:
    """What stands after the message `run`, or after the newest user message for None.

    The answer is the newest message of a finish, else the newest text of the agent. An error
    counts if nothing finished after it, and that of a call if the agent did nothing after it.
    Where the message is not there, nothing is known of its run: no answer, and tools count as
    used.
    """
    finished, said, error, used = "", "", None, False
    acted = False
    for event in newest_first:
        if identity(event) == run if run else is_user_message(event):
            return RunEnd(
                answer=_sound(finished or said),
                error_code=_sound(error[0]) if error else None,
                error_text=_sound(error[1]) if error else None,
                used_tools=used,
            )
        if error is None and not finished and event.get("kind") in _ERRORS:
            error = _string(event.get("code")), _string(event.get("detail"))
        if error is None and not acted and event.get("kind") == _CUT_OFF:
            error = _CUT_OFF, _string(event.get("error"))
        acted = acted or event.get("kind") in _ACTS
        finished = finished or _finish(event)
        said = said or _said(event)
        used = used or _uses_tool(event)
    return RunEnd(used_tools=True)


def _finish(event: Event) -> str:
    action = _object(event.get("action"))
    if event.get("kind") != "ActionEvent" or action.get("kind") != "FinishAction":
        return ""
    return _filled(_string(action.get("message")))


def _said(event: Event) -> str:
    if event.get("kind") != "MessageEvent" or event.get("source") != "agent":
        return ""
    return _filled(message_text(event))


def _uses_tool(event: Event) -> bool:
    if event.get("kind") == "ACPToolCallEvent":
        return True
    return event.get("kind") == "ActionEvent" and event.get("tool_name") not in QUIET_TOOLS


def _filled(text: str) -> str:
    return text if text.strip() else ""


def _sound(text: str) -> str:
    """JSON can hold half a surrogate pair, which no file and no other JSON would take."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
