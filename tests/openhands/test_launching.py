"""The request that makes a conversation; its commands run in a real shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fake_server import FakeServer

from agent_bus.errors import ConfigurationError
from agent_bus.openhands.gateway import launching
from agent_bus.openhands.gateway.provider import McpEntry, Order, StopHook

CHILD = UUID("ac0e4948-30e3-593d-8169-c06a02eee9f4")
TOKEN = "evx1_dG9rZW4"
NASTY = """a "b' $(touch canary) `touch canary` ;touch canary
c"""


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(
        child=CHILD,
        folder=tmp_path / "child",
        title="writer-604",
        tags={"task": "writer-604"},
        instructions="You are a writer.",
        servers=(
            McpEntry("agent_bus", "http://127.0.0.1:3101/mcp", TOKEN),
            McpEntry("r", "http://r"),
        ),
        gate=tmp_path / "gate",
        hook=StopHook("http://127.0.0.1:3101/completion-hook", tmp_path / "header"),
        agent={"agent": {"kind": "Agent", "mcp_config": {"own": {"url": "http://own"}}}},
    )


def test_all_of_an_order_is_in_the_request(order: Order) -> None:
    made = launching.creation(order, None)
    assert made.pop("hook_config").keys() == {"pre_tool_use", "stop"}
    assert made == {
        "conversation_id": str(CHILD),
        "workspace": {"kind": "LocalWorkspace", "working_dir": str(order.folder)},
        "autotitle": False,
        "max_iterations": 300,
        "tags": {"task": "writer-604"},
        "agent_launch_additions": {"system_message_suffix_append": "You are a writer."},
        "agent": {
            "kind": "Agent",
            "mcp_config": {
                "agent_bus": {
                    "url": "http://127.0.0.1:3101/mcp",
                    "auth": {"strategy": "bearer", "value": TOKEN},
                },
                "r": {"url": "http://r"},
            },
        },
    }


def test_the_agent_file_says_how_long_a_run_is_and_what_needs_consent(order: Order) -> None:
    policy = {"kind": "AlwaysConfirm"}
    agent = {"agent_settings": {}, "max_iterations": 7, "confirmation_policy": policy}
    made = launching.creation(replace(order, agent=agent, servers=()), None)
    assert made["agent_settings"] == {"mcp_config": {}}
    assert (made["max_iterations"], made["confirmation_policy"]) == (7, policy)


def test_without_an_agent_file_the_stored_settings_serve(order: Order) -> None:
    """Its own servers are replaced, its encrypted secrets go back as they came."""
    settings = {"llm": {"api_key": "gAAAAAsecret"}, "mcp_config": {"own": {"url": "http://own"}}}
    made = launching.creation(replace(order, agent=None), settings)
    assert made["agent_settings"]["llm"] == settings["llm"]
    assert made["agent_settings"]["mcp_config"].keys() == {"agent_bus", "r"}
    assert made["secrets_encrypted"] is True


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (None, "AGENT_BUS_OPENHANDS_AGENT"),
        ({}, "names no agent"),
        ({"agent": {}, "agent_settings": {}}, "names no agent"),
        ({"agent": "Agent"}, "names no agent"),
        ({"agent_profile_id": "x"}, "MCP servers of its own"),
        ({"agent": {}, "hook_config": {}}, "'hook_config'"),
        ({"agent": {}, "initial_message": {}}, "'initial_message'"),
    ],
)
def test_an_agent_that_cannot_have_exactly_these_servers_is_refused(
    order: Order, agent: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        launching.creation(replace(order, agent=agent), None)


def test_the_token_stands_in_one_place(order: Order) -> None:
    made = launching.creation(order, None)
    assert json.dumps(made).count(TOKEN) == 1
    assert TOKEN not in json.dumps(made["hook_config"])


def test_without_a_hook_there_is_the_gate_alone(order: Order) -> None:
    assert launching.hooks(replace(order, hook=None)).keys() == {"pre_tool_use"}


def test_the_stop_hook_is_waited_for_by_nobody_and_the_gate_is(order: Order) -> None:
    made = launching.hooks(order)
    assert made["stop"][0]["hooks"][0]["async"] is True
    assert "async" not in made["pre_tool_use"][0]["hooks"][0]
    assert {made[name][0]["matcher"] for name in made} == {"*"}


def shell(command: str, cwd: Path, tool: str = "terminal", event: bytes = b"{}") -> int:
    return subprocess.run(
        command,
        shell=True,
        cwd=cwd,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "OPENHANDS_TOOL_NAME": tool},
        input=event,
        capture_output=True,
        timeout=60,
        check=False,
    ).returncode


@pytest.mark.parametrize("name", ["gate", NASTY, "-n"])
def test_the_gate_blocks_until_its_file_is_there(order: Order, tmp_path: Path, name: str) -> None:
    command = launching.gate_command(replace(order, gate=tmp_path / name))
    assert [shell(command, tmp_path, tool) for tool in ("terminal", "", "finished")] == [2, 2, 2]
    assert [shell(command, tmp_path, tool) for tool in ("finish", "think")] == [0, 0]
    (tmp_path / name).write_text("open")
    assert shell(command, tmp_path) == 0
    assert not (tmp_path / "canary").exists()


def test_a_folder_is_no_open_gate(order: Order, tmp_path: Path) -> None:
    order.gate.mkdir()
    assert shell(launching.gate_command(order), tmp_path) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("name", ["header", NASTY.replace("\n", " ")])
def test_the_stop_hook_posts_the_event_with_the_header_of_its_file(
    order: Order, tmp_path: Path, name: str
) -> None:
    header = tmp_path / name
    header.write_text("Authorization: Bearer evx1_hook")
    event = json.dumps({"event_type": "Stop", "session_id": str(CHILD)}).encode()
    with FakeServer() as fake:
        hook = StopHook(fake.url + "/completion-hook?a=[b]&c='$(touch${IFS}canary)'", header)
        command = launching.stop_command(hook)
        assert "evx1_" not in command
        assert shell(command, tmp_path, event=event) == 0
        (asked,) = fake.asked("POST", "/completion-hook")
    assert asked.headers["authorization"] == "Bearer evx1_hook"
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == json.loads(event)
    assert not (tmp_path / "canary").exists()
