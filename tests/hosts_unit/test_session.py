"""Which session a server belongs to, and what a sender is told of what nobody has read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agent_bus.names import AgentName
from agent_bus.sending import Draft

ALICE = AgentName("alice")


class Server:
    """`agent-bus mcp`, spoken to in lines."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent_bus", "mcp"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        opening = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        self.ask("initialize", opening)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def call(self, tool: str, **meta: Any) -> dict[str, Any]:
        answer = self.ask("tools/call", {"name": tool, "arguments": {}, "_meta": meta})
        found = answer["result"]["structuredContent"]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def server(host: Any) -> Iterator[Any]:
    made: list[Server] = []

    def begin(**variables: str | None) -> Server:
        given = host.variables(**variables) | host.bus.environment
        made.append(Server(given))
        return made[-1]

    yield begin
    for one in made:
        one.process.communicate(timeout=60)


def _agent(host: Any, session: str) -> str | None:
    return host.bus.as_agent("user").presence.session_agent(session)  # type: ignore[no-any-return]


def test_the_session_of_claude_code_stands_in_the_environment(host: Any, server: Any) -> None:
    server(CLAUDE_CODE_SESSION_ID="claude-1")
    assert _agent(host, "claude-1") == "alice"


def test_the_session_of_codex_stands_in_its_calls(host: Any, server: Any) -> None:
    codex = server(CLAUDE_CODE_SESSION_ID=None)
    for thread in ("codex-1", "codex-1", "codex-2"):
        codex.call("bus_status", threadId=thread)
        assert _agent(host, thread) == "alice"
    assert _agent(host, "codex-1") is None
    for wrong in (5, "", "x" * 300, None):
        codex.call("bus_status", threadId=wrong)
    assert _agent(host, "codex-2") == "alice"
    (process,) = host.bus.as_agent("user").presence.processes(ALICE)
    assert process.alive


def test_a_second_name_takes_the_place_of_the_first(host: Any) -> None:
    presence = host.bus.as_agent("alice").presence
    with presence.attach(ALICE, "mcp", session="one") as attachment:
        attachment.name_session("two")
        (process,) = presence.processes(ALICE)
        assert (process.session, process.alive) == ("two", True)
    assert not presence.attached(ALICE)
    attachment.name_session("three")
    assert presence.session_agent("three") is None


# -- nobody is left unread


def _verb(host: Any, *words: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_bus", *words],
        env=host.variables(**variables) | host.bus.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_status_tells_a_sender(host: Any) -> None:
    sent = host.bus.as_agent("alice").send_one("bob", Draft(body="x", subject="an\u200bswer"))
    now: dict[str, str | None] = {"AGENT_BUS_UNREAD_AFTER": "0s"}
    shown = _verb(host, "status", **now)
    assert "1 of your messages have been unread for more than 0s" in shown.stderr
    assert f"{sent.id} to bob (not attached, last seen never): an\\u200bswer" in shown.stderr
    lines = _verb(host, "status", "--json", **now).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    mine = {record["agent"]: record["unread_from_you"] for record in records}
    assert [one["id"] for one in mine["bob"]] == [sent.id]
    assert mine["alice"] == []
    assert "unread for more" not in _verb(host, "status").stderr
    nobody: dict[str, str | None] = {"AGENT_MSG_AS": None}
    assert "unread for more" not in _verb(host, "status", **now, **nobody).stderr


def test_status_answers_also_where_the_name_is_wrong(host: Any) -> None:
    assert "alice" in _verb(host, "status", AGENT_MSG_AS="nobody-here").stdout


def test_bus_status_tells_a_sender(host: Any, server: Any) -> None:
    sent = host.bus.as_agent("alice").send_one("bob", Draft(body="x", subject="there?"))
    told = server(AGENT_BUS_UNREAD_AFTER="0s").call("bus_status")
    (one,) = told["unread_by_others"]
    assert (one["id"], one["to"]) == (sent.id, "bob")
    assert one["recipient"] == "not attached, last seen never"
    assert "1 of your messages" in told["hint"]
    assert "unread_by_others" not in server().call("bus_status")
