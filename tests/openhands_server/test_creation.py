"""create_child on a real agent server: admission, gate, mission, and all of it once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import GUARD, Desk
from model import API_KEY
from player import Fillers
from scene import git

from agent_bus.errors import AdmissionFailed, CheckoutRefused

PLUGIN = {
    ".plugin/plugin.json": {"name": "helper", "version": "1.0.0", "description": "helps"},
    ".mcp.json": {"mcpServers": {"helper": {"url": "http://127.0.0.1:9/mcp"}}},
}


@pytest.fixture
def fillers(desk: Desk) -> Iterator[Fillers]:
    made = Fillers(desk.real, desk.model)
    yield made
    made.clear()


def write_plugin(folder: Path) -> None:
    """A plugin that brings an MCP server of its own."""
    for name, content in PLUGIN.items():
        path = folder / "helper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def test_a_child_begins_without_tools_and_then_gets_its_mission(desk: Desk) -> None:
    """The gate that is shut in the admission turn is open in the mission's."""
    gateway = desk.gateway()
    child = desk.start(gateway, "[[tool:echo working > made.txt]] [[finish:all done]]")
    desk.wait_for(child, "finished")

    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION"]
    assert (gateway.parts.checkouts.worktree(child) / "made.txt").read_text() == "working\n"
    (wake,) = desk.woken(gateway)
    assert (wake["status"], wake["answer"]["text"]) == ("finished", "all done")


def test_a_tool_in_the_admission_turn_is_blocked_and_the_child_refused(desk: Desk) -> None:
    """The next attempt, which keeps to what it is told, gets the mission."""
    gateway = desk.gateway()
    child = desk.child(gateway)
    desk.model.admissions[child] = "[[tool:touch leaked]] [[finish:PROVIDER_READY]]"
    with pytest.raises(AdmissionFailed, match="used a tool"):
        desk.start(gateway)

    assert not (gateway.parts.checkouts.worktree(child) / "leaked").exists()
    (rejection,) = (e for e in desk.events(child) if e["kind"] == "UserRejectObservation")
    assert rejection["rejection_source"] == "hook"
    (wake,) = desk.woken(gateway)
    assert (wake["status"], wake["error"]["code"]) == ("error", "AdmissionFailed")
    assert desk.said(child) == ["PROVIDER_ADMISSION"]

    desk.model.admissions.clear()
    assert desk.start(gateway) == child
    assert desk.said(child) == ["PROVIDER_ADMISSION", "PROVIDER_ADMISSION", "MISSION"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("[[401]]", "LLMAuthenticationError"),
        ("[[say:Sure, what shall I do?]]", "did not answer PROVIDER_READY"),
        ("[[loop]]", "ended as stuck"),
    ],
)
def test_an_admission_turn_that_goes_wrong_refuses(desk: Desk, script: str, why: str) -> None:
    gateway = desk.gateway()
    child = desk.child(gateway)
    desk.model.admissions[child] = script
    with pytest.raises(AdmissionFailed, match=why):
        desk.start(gateway)
    assert desk.said(child) == ["PROVIDER_ADMISSION"]
    assert len(desk.woken(gateway)) == 1


def test_a_model_that_answers_in_text_alone_may_begin(desk: Desk) -> None:
    gateway = desk.gateway()
    desk.model.admissions[desk.child(gateway)] = "[[say:PROVIDER_READY]]"
    child = desk.start(gateway, "[[say:only text]]")
    desk.wait_for(child, "finished")
    (wake,) = desk.woken(gateway)
    assert wake["answer"]["text"] == "only text"


def test_made_twice_it_is_one_conversation_with_one_mission(desk: Desk) -> None:
    """Also after it has changed its worktree and finished."""
    gateway = desk.gateway()
    script = "[[tool:echo x > x.txt]] [[finish:done]]"
    child = desk.start(gateway, script)
    desk.wait_for(child, "finished")
    desk.woken(gateway)

    again = desk.gateway().create_child(
        desk.owner(gateway), task_key="writer-1", role="writer", mission=desk.order(script)
    )
    assert (again.child, again.created, again.state) == (child, False, "ended")
    desk.woken(gateway)
    assert desk.said(child) == ["PROVIDER_ADMISSION", "MISSION"]


def test_processes_that_make_it_at_once_make_one(desk: Desk) -> None:
    mission = desk.folder / "mission.json"
    mission.write_text(json.dumps(desk.order("[[finish:done]]")))
    command = (
        *(sys.executable, "-m", "agent_bus", "openhands", "create", "writer-1", "--json"),
        *("--role", "writer", "--mission", str(mission), "--wait", f"{GUARD:.0f}s"),
    )
    processes = [
        subprocess.Popen(
            command,
            env=desk.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    ends = [process.communicate(timeout=GUARD) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ends
    told = [json.loads(out) for out, _ in ends]
    (child,) = {entry["child"] for entry in told}
    assert {entry["state"] for entry in told} <= {"delivered", "ended"}
    assert sum(entry["created"] for entry in told) == 1

    gateway = desk.gateway()
    assert child == str(desk.child(gateway))
    desk.wait_for(desk.child(gateway), "finished")
    assert desk.said(desk.child(gateway)) == ["PROVIDER_ADMISSION", "MISSION"]
    desk.woken(gateway)


def test_a_server_that_is_killed_in_the_admission_turn_costs_an_attempt(desk: Desk) -> None:
    gateway = desk.gateway()
    made = desk.held_in_admission(gateway, "[[finish:done]]")
    desk.real.restart()
    (wake,) = desk.woken(gateway)
    assert (wake["status"], wake["error"]["code"]) == ("error", "AdmissionFailed")

    desk.model.release()
    assert desk.start(gateway) == made.child
    desk.wait_for(made.child, "finished")
    _, wake = desk.woken(gateway, 2)
    assert wake["status"] == "finished"
    assert desk.said(made.child) == ["PROVIDER_ADMISSION", "PROVIDER_ADMISSION", "MISSION"]


def test_without_an_agent_file_a_child_is_what_the_server_has_stored(desk: Desk) -> None:
    """With the key of its model, which the gateway cannot read, and none of its MCP servers."""
    stored = desk.model.agent()["agent"]["llm"]
    servers = {"stored": {"url": "http://127.0.0.1:9/mcp"}}
    settings = {"agent_settings_diff": {"llm": stored, "mcp_config": servers}}
    assert desk.real.call("PATCH", "/api/settings", settings).status_code == 200
    desk.settings = replace(desk.settings, agent=None)
    desk.serve()
    gateway = desk.gateway()
    try:
        report = '[[mcp:send_to_parent {"result":{"by":"the stored agent"}}]]'
        child = desk.start(gateway, f"{report} [[finish:stored]]")
    finally:
        settings = {"agent_settings_diff": {"mcp_config": {"stored": None}}}
        assert desk.real.call("PATCH", "/api/settings", settings).status_code == 200
    (wake,) = desk.woken(gateway)
    assert (wake["answer"]["text"], wake["reported"]) == ("stored", True)
    assert desk.model.keys == {f"Bearer {API_KEY}"}
    found = gateway.parts.provider.conversation(child)
    assert found
    assert list(found.servers) == ["agent_bus"]


def test_without_room_nothing_is_made_and_it_begins_later(desk: Desk, fillers: Fillers) -> None:
    gateway = desk.gateway()
    fillers.fill()
    made = gateway.create_child(
        desk.owner(gateway),
        task_key="writer-1",
        role="writer",
        mission=desk.order("[[finish:done]]"),
        wait=0,
    )
    assert made.state == "begun"
    assert made.problem
    assert "no room" in made.problem
    assert desk.status(made.child) == ""

    fillers.clear()
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "finished"
    assert desk.said(made.child) == ["PROVIDER_ADMISSION", "MISSION"]


def test_a_mission_for_which_there_is_no_room_is_not_sent_twice(
    desk: Desk, fillers: Fillers
) -> None:
    """The server saves it; its run begins when there is room again."""
    gateway = desk.gateway()
    made = desk.held_in_admission(gateway, "[[finish:done]]")
    desk.model.release()
    desk.wait_for(made.child, "finished")
    fillers.fill()
    gateway.reconcile()
    gateway.reconcile()
    assert (gateway.journal.load(made.child).state, desk.wakes()) == ("delivered", [])
    assert desk.status(made.child) == "idle"

    fillers.clear()
    (wake,) = desk.woken(gateway)
    assert wake["status"] == "finished"
    assert desk.said(made.child) == ["PROVIDER_ADMISSION", "MISSION"]


def test_a_plugin_in_the_repository_is_refused_before_anything_starts(desk: Desk) -> None:
    """The server would connect to its MCP servers and run its hooks."""
    source = desk.settings.workspace / "source"
    write_plugin(source / ".agents" / "plugins")
    git("add", ".", folder=source)
    git("commit", "-q", "-m", "a plugin", folder=source)
    mirror = desk.settings.mirrors / "acme--widgets.git"
    git("fetch", "-q", str(source), "main:refs/remotes/origin/main", folder=mirror)
    desk.head = git("rev-parse", "HEAD", folder=source)

    gateway = desk.gateway()
    with pytest.raises(CheckoutRefused, match="plugin"):
        desk.start(gateway)
    assert desk.status(desk.child(gateway)) == ""


def test_a_plugin_of_the_server_s_user_is_found_in_the_admission_turn(desk: Desk) -> None:
    plugins = desk.real.folder / "home" / ".agents" / "plugins"
    write_plugin(plugins)
    gateway = desk.gateway()
    try:
        with pytest.raises(AdmissionFailed, match="other MCP servers"):
            desk.start(gateway)
    finally:
        for path in sorted(plugins.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert desk.said(desk.child(gateway)) == ["PROVIDER_ADMISSION"]
