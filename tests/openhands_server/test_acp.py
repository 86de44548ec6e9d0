"""Children that are ACP agents: whose tools no gate holds back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from desk import Desk
from secrets_of import secrets_of, shown_by_rest

from agent_bus.errors import AdmissionFailed

PROGRAM = Path(__file__).resolve().parent / "acp_agent.py"


def use_acp(desk: Desk, *options: str) -> Path:
    """Make children ACP agents; the file in which the agent says what it was given."""
    record = desk.folder / "given.json"
    command = [sys.executable, str(PROGRAM), str(record), *options]
    desk.write_agent({"agent": {"kind": "ACPAgent", "acp_command": command}})
    return record


def test_an_acp_agent_works_and_its_owner_is_woken(desk: Desk) -> None:
    """It gets the capability of the child; who reads the conversation does not."""
    record = use_acp(desk)
    desk.serve()
    gateway = desk.gateway()
    child = desk.start(gateway, "[[tool:look]] [[finish:done by ACP]]")
    (wake,) = desk.woken(gateway)
    assert (wake["status"], wake["answer"]["text"].strip()) == ("finished", "done by ACP")
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION"]

    secrets = secrets_of(desk, gateway, child)
    (entry,) = json.loads(record.read_text())
    assert entry["headers"] == [
        {"name": "Authorization", "value": f"Bearer {secrets['capability']}"}
    ]
    for where, text in shown_by_rest(desk, child):
        assert not [name for name, secret in secrets.items() if secret in text], where


def test_a_tool_of_an_acp_agent_in_its_admission_turn_is_found(desk: Desk) -> None:
    """The hook that is the gate is not asked about it."""
    use_acp(desk, "--eager")
    gateway = desk.gateway()
    with pytest.raises(AdmissionFailed, match="used a tool"):
        desk.start(gateway, "[[finish:never]]")
    child = desk.child(gateway)
    assert desk.said(child) == ["PROVIDER_ADMISSION"]
    assert any(event["kind"] == "ACPToolCallEvent" for event in desk.events(child))
    (wake,) = desk.woken(gateway)
    assert wake["error"]["code"] == "AdmissionFailed"
