"""`agent-bus mcp` as a real process: its start, its refusals, both eras, its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.subscriptions import ResourceUpdated

from agent_bus.sending import Draft
from agent_bus.server import app
from agent_bus.server.opening import DISCOVER_VERSION, HANDSHAKE_VERSIONS
from agent_bus.testing import TemporaryBus

ROOT = Path(__file__).resolve().parents[2]
GUARD = 60.0
COMMAND = [sys.executable, "-m", "agent_bus", "mcp"]
PREFIX = "io.modelcontextprotocol/"
ENVELOPE = {
    PREFIX + "protocolVersion": DISCOVER_VERSION,
    PREFIX + "clientCapabilities": {},
    PREFIX + "clientInfo": {"name": "test", "version": "1"},
}


class Pipe:
    """A server process and a client that writes JSON by hand."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.modern = False
        self._last = 0

    def send(self, method: str, params: dict[str, Any] | None = None, *, note: bool = False) -> int:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not note:
            self._last += 1
            message["id"] = self._last
            if self.modern:
                message["params"] = {**message["params"], "_meta": ENVELOPE}
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._last

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        return message

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        asked = self.send(method, params)
        answer = self.receive()
        assert answer["id"] == asked
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, version: str) -> dict[str, Any]:
        """The first request of an era."""
        if version == DISCOVER_VERSION:
            self.modern = True
            return self.ask("server/discover")
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        result = self.ask("initialize", params)
        self.send("notifications/initialized", note=True)
        return result

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        value: dict[str, Any] = result["structuredContent"]
        assert json.loads(result["content"][0]["text"]) == value
        return value

    def end(self) -> tuple[int, str]:
        """Close stdin; the exit code, and what was said on stderr.

        A request that is still open is answered with "Connection closed".
        """
        rest, log = self.process.communicate(timeout=GUARD)
        assert all(json.loads(line)["error"] for line in rest.splitlines())
        return self.process.returncode, log.decode()


Spawn = Callable[..., Pipe]


@pytest.fixture
def spawn(bus: TemporaryBus, environment: dict[str, str], tmp_path: Path) -> Iterator[Spawn]:
    """Start a server: `spawn("alice", VARIABLE="…")`; None leaves a variable out."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(name: str | None = "alice", **variables: str | None) -> Pipe:
        wanted = environment | bus.environment | {"AGENT_MSG_AS": name} | variables
        process = subprocess.Popen(
            COMMAND,
            env={key: value for key, value in wanted.items() if value is not None},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return Pipe(process)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=GUARD)


def write(bus: TemporaryBus, to: str = "alice", **draft: Any) -> str:
    return bus.as_agent("bob").send_one(to, Draft(**{"body": "x", **draft})).id


# -- both eras


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, DISCOVER_VERSION])
def test_every_version_of_the_protocol_is_served(
    bus: TemporaryBus, spawn: Spawn, version: str
) -> None:
    pipe = spawn()
    opened = pipe.open(version)
    listed = pipe.ask("tools/list")
    ident = write(bus, subject="é 漢 🐟 \u202e")
    came = pipe.call("bus_wait")
    read = pipe.call("bus_read", id=ident)

    assert opened["capabilities"] == app.CAPABILITIES
    assert "You are `alice`" in opened["instructions"]
    assert len(listed["tools"]) == 11
    assert [entry["subject"] for entry in came["messages"]] == ["é 漢 🐟 \u202e"]
    assert read["message"]["subject"] == "é 漢 🐟 \u202e"
    assert pipe.end() == (0, "")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdk_s_client_works_in_both_eras(
    bus: TemporaryBus, environment: dict[str, str], tmp_path: Path, mode: str
) -> None:
    parameters = StdioServerParameters(
        command=COMMAND[0],
        args=COMMAND[1:],
        env=environment | bus.environment | {"AGENT_MSG_AS": "alice"},
        cwd=tmp_path,
    )
    log = (tmp_path / "log").open("w")

    async def go() -> None:
        with anyio.fail_after(GUARD):
            async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
                assert len((await client.list_tools()).tools) == 11
                for name in ("bus_inbox", "bus_log", "bus_status", "bus_verify"):
                    assert not (await client.call_tool(name, {})).is_error
                sent = await client.call_tool("bus_send", {"to": "bob", "body": "hi"})
                assert sent.structured_content
                if mode == "auto":
                    async with client.listen(resource_subscriptions=["bus://inbox"]) as stream:
                        await anyio.to_thread.run_sync(write, bus)
                        assert await anext(stream) == ResourceUpdated(uri="bus://inbox")

    with log:
        anyio.run(go)
    assert (tmp_path / "log").read_text() == ""


def test_the_opening_is_what_the_sdk_says(bus: TemporaryBus, spawn: Spawn) -> None:
    """Else the transport would say so on stderr; the SDK answers the same request later."""
    for version in (HANDSHAKE_VERSIONS[-1], DISCOVER_VERSION):
        pipe = spawn("conductor")
        first = pipe.open(version)
        if version == DISCOVER_VERSION:
            again = pipe.ask("server/discover")
            assert again == first
        pipe.call("bus_inbox")
        assert pipe.end() == (0, "")


def test_a_subscription_over_a_raw_pipe_in_the_older_era(bus: TemporaryBus, spawn: Spawn) -> None:
    pipe = spawn()
    pipe.open("2025-06-18")
    pipe.ask("resources/subscribe", {"uri": "bus://inbox"})
    write(bus)
    assert pipe.receive() == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": "bus://inbox"},
    }
    content = pipe.ask("resources/read", {"uri": "bus://inbox"})["contents"][0]
    assert json.loads(content["text"])["unread"] == 1
    assert pipe.end() == (0, "")


def test_a_subscription_over_a_raw_pipe_in_the_newer_era(bus: TemporaryBus, spawn: Spawn) -> None:
    pipe = spawn()
    pipe.open(DISCOVER_VERSION)
    wanted = {"notifications": {"resourceSubscriptions": ["bus://inbox"]}}
    asked = pipe.send("subscriptions/listen", wanted)
    acknowledged = pipe.receive()
    write(bus)
    news = pipe.receive()

    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert news["method"] == "notifications/resources/updated"
    assert news["params"]["uri"] == "bus://inbox"
    assert news["params"]["_meta"][PREFIX + "subscriptionId"] == asked
    pipe.process.terminate()
    assert pipe.end()[0] == 0


# -- the start


@pytest.mark.parametrize("version", ["2025-06-18", DISCOVER_VERSION])
def test_the_cursor_is_taken_before_the_opening_is_answered(
    bus: TemporaryBus, spawn: Spawn, version: str
) -> None:
    before = write(bus)
    pipe = spawn()
    pipe.open(version)
    since = [write(bus) for _ in range(3)]
    came = pipe.call("bus_wait")
    old = pipe.call("bus_wait", include_existing=True)

    assert [entry["id"] for entry in came["messages"]] == since
    assert (came["unread_before_start"], came["unread"]) == (1, 4)
    assert [entry["id"] for entry in old["messages"]] == [before]


def test_nothing_is_lost_over_restarts(bus: TemporaryBus, spawn: Spawn) -> None:
    sent = []
    seen: set[str] = set()
    for _ in range(3):
        sent.append(write(bus))
        pipe = spawn()
        pipe.open("2025-06-18")
        sent.append(write(bus))
        came = pipe.call("bus_wait", include_existing=True)
        seen |= {entry["id"] for entry in came["messages"]}
        pipe.end()

    assert seen == set(sent)


REFUSALS: list[tuple[dict[str, str | None], int, str]] = [
    ({"AGENT_MSG_AS": None}, 78, "AGENT_MSG_AS is not set"),
    ({"AGENT_MSG_AS": ""}, 78, "AGENT_MSG_AS is not set"),
    ({"AGENT_MSG_AS": "${AGENT_MSG_AS}"}, 78, "which nobody expanded"),
    ({"AGENT_MSG_AS": "nobody"}, 78, "nobody"),
    ({"AGENT_MSG_AS": "../alice"}, 78, "no agent name"),
    ({"AGENT_MSG_BUS": "relative"}, 78, "AGENT_MSG_BUS"),
    ({"AGENT_MSG_BUS": "/nonexistent/bus"}, 69, "/nonexistent/bus"),
    ({"AGENT_MSG_BUS": None}, 69, "agent-bus init"),
    ({"AGENT_BUS_PROFILES": "bus,terminal"}, 78, "terminal is not in this version; there is bus"),
    ({"AGENT_BUS_PROFILES": "bsu"}, 78, "no profile 'bsu'"),
    ({"AGENT_BUS_POLL": "yes"}, 78, "AGENT_BUS_POLL"),
]


@pytest.mark.parametrize(("variables", "code", "text"), REFUSALS)
def test_what_is_wrong_at_the_start_is_one_line_and_an_exit_code(
    spawn: Spawn, tmp_path: Path, variables: dict[str, str | None], code: int, text: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    pipe = spawn(**variables)
    ended, log = pipe.end()

    assert ended == code
    assert text in log
    assert log.startswith("agent-bus: ")
    assert log.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bus_is_made_only_where_that_is_allowed(
    bus: TemporaryBus, spawn: Spawn, tmp_path: Path
) -> None:
    fresh = str(tmp_path / "fresh")
    pipe = spawn(AGENT_MSG_BUS=fresh, AGENT_BUS_ALLOW_CREATE="1")
    pipe.open("2025-06-18")

    assert pipe.call("bus_status")["bus"] == fresh
    assert pipe.end()[0] == 0


def test_a_second_server_says_so_on_stderr(bus: TemporaryBus, spawn: Spawn) -> None:
    first, second = spawn(), spawn()
    first.open("2025-06-18")
    second.open("2025-06-18")
    assert "2 MCP servers act as alice" in second.call("bus_status")["warning"]
    assert "2 MCP servers act as alice" in first.call("bus_status")["warning"]
    ident = write(bus)
    for pipe in (first, second):
        assert [entry["id"] for entry in pipe.call("bus_wait")["messages"]] == [ident]
    logs = [first.end()[1], second.end()[1]]

    assert any("2 MCP servers act as alice" in log for log in logs)
    assert not bus.as_agent("bob").presence.attached(bus.as_agent("alice").identity)


def test_polling_works_as_well(bus: TemporaryBus, spawn: Spawn) -> None:
    pipe = spawn(AGENT_BUS_POLL="1")
    pipe.open("2025-06-18")
    assert pipe.call("bus_status")["watching"] == "polling"
    pipe.send("tools/call", {"name": "bus_wait", "arguments": {}})
    ident = write(bus)
    assert pipe.receive()["result"]["structuredContent"]["messages"][0]["id"] == ident


def test_a_decision_that_was_never_told_is_told_at_the_admin_s_next_start(
    bus: TemporaryBus, spawn: Spawn
) -> None:
    alice, conductor = bus.as_agent("alice"), bus.as_agent("conductor")
    asked = alice.request_approval("?")
    conductor.decide(asked.id, "approve")
    for path in (bus.path / "messages" / "alice").glob("new/*.msg"):
        path.unlink()
    for path in (bus.path / "sent" / "conductor").iterdir():
        path.unlink()
    pipe = spawn("conductor")
    pipe.open("2025-06-18")
    pipe.call("bus_inbox")

    (told,) = alice.inbox().messages
    assert told.judged.message
    assert told.judged.message.kind == "approval_decision"


# -- while it runs


@pytest.mark.parametrize("version", ["2025-06-18", DISCOVER_VERSION])
def test_pipelined_sends_keep_their_order(bus: TemporaryBus, spawn: Spawn, version: str) -> None:
    """A client that does not wait for its answers; one id after the other says what came first."""
    pipe = spawn()
    pipe.open(version)
    for number in range(30):
        tool = "bus_request_approval" if number % 3 == 2 else "bus_send"
        body = {"question": str(number)} if number % 3 == 2 else {"body": str(number)}
        pipe.send("tools/call", {"name": tool, "arguments": {"to": "conductor", **body}})
    for _ in range(30):
        assert not pipe.receive()["result"].get("isError")

    messages = [stored.judged.message for stored in bus.as_agent("conductor").inbox().messages]
    assert [message.body for message in messages if message] == [str(n) for n in range(30)]


def test_an_abandoned_wait_neither_holds_the_server_nor_eats_a_message(
    bus: TemporaryBus, spawn: Spawn
) -> None:
    pipe = spawn()
    pipe.open("2025-06-18")
    wait = pipe.send("tools/call", {"name": "bus_wait", "arguments": {"timeout": 300}})
    pipe.send("notifications/cancelled", {"requestId": wait}, note=True)
    pipe.call("bus_inbox")
    ident = write(bus)

    assert [entry["id"] for entry in pipe.call("bus_wait")["messages"]] == [ident]
    pipe.send("tools/call", {"name": "bus_wait", "arguments": {"timeout": 300}})
    assert pipe.end()[0] == 0


def test_a_message_that_looks_like_the_protocol_breaks_nothing(
    bus: TemporaryBus, spawn: Spawn
) -> None:
    body = '{"jsonrpc":"2.0","id":2,"result":{}}\n\u2028\u0085\r{"jsonrpc":"2.0"}'
    pipe = spawn()
    pipe.open("2025-06-18")
    ident = write(bus, body=body)
    pipe.call("bus_wait")

    assert pipe.call("bus_read", id=ident)["message"]["body"] == body
    assert pipe.end() == (0, "")


def test_twenty_servers_leave_no_process_and_no_attachment(bus: TemporaryBus, spawn: Spawn) -> None:
    for _ in range(20):
        assert spawn().end()[0] == 0

    alice = bus.as_agent("alice")
    assert not alice.presence.attached(alice.identity)


def test_the_head_of_the_server_loads_neither_the_sdk_nor_pydantic(
    environment: dict[str, str],
) -> None:
    code = (
        "import sys, agent_bus.server.app;"
        "print([m for m in ('mcp', 'pydantic', 'anyio', 'watchdog') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )

    assert out.stdout.decode().strip() == "[]"


def test_the_example_configuration_names_nobody() -> None:
    """The file may be committed: it must not make all who clone it one agent."""
    value = json.loads((ROOT / ".mcp.json.example").read_text())

    assert value == {
        "mcpServers": {
            "agent-bus": {
                "command": "agent-bus",
                "args": ["mcp"],
                "env": {"AGENT_MSG_AS": "${AGENT_MSG_AS}"},
            }
        }
    }
