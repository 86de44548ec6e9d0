"""`openhands doctor`: what the gateway needs, and what it has left, as findings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent_server import Desk, git

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the gateway is for POSIX systems")


def findings(desk: Desk, **more: Any) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by code."""
    done = desk("doctor", "--json", **more)
    record = done.record
    assert record["ok"] == (done.code == 0)
    return done.code, {found["code"]: found for found in record["findings"]}


def test_a_gateway_that_can_work_has_no_error(desk: Desk) -> None:
    code, found = findings(desk)
    assert code == 0, found
    assert set(found) == {"server", "no-gateway-keys", "no-key", "nobody-serves"}
    assert "1.58.2" in found["server"]["message"]
    desk.create()
    done = desk("doctor")
    assert (done.code, done.err.splitlines()[-1]) == (0, "agent-bus: the gateway can work")
    assert {line.split("\t")[1] for line in done.lines} == {"server", "nobody-serves"}


def test_it_changes_nothing(desk: Desk) -> None:
    def state() -> set[tuple[str, int]]:
        roots = (desk.cli.bus.path, desk.cli.bus.settings.keys, desk.workspace)
        return {(str(p), p.stat().st_mtime_ns) for root in roots for p in root.rglob("*")}

    for _ in range(2):
        before = state()
        findings(desk)
        assert state() == before
        desk.create()


@pytest.mark.parametrize("name", ["OPENHANDS_URL", "OPENHANDS_API_KEY"])
def test_without_settings_it_says_which_and_goes_on(desk: Desk, name: str) -> None:
    (desk.cli.bus.settings.keys / "gateway.json").write_text("{")
    code, found = findings(desk, **{name: None})
    assert code == 65
    assert name in found["settings"]["message"]
    assert "gateway-keys" in found


def test_a_server_that_is_away_alone_ends_with_69(desk: Desk) -> None:
    code, found = findings(desk, OPENHANDS_URL="http://127.0.0.1:9")
    assert code == 69
    assert "OPENHANDS_URL" in found["unreachable"]["message"]
    (desk.cli.bus.settings.keys / "gateway.json").write_text("{")
    assert findings(desk, OPENHANDS_URL="http://127.0.0.1:9")[0] == 65


def test_what_is_no_agent_server_is_told(desk: Desk, tmp_path: Path) -> None:
    code, found = findings(desk, OPENHANDS_URL=f"{desk.server.url}/elsewhere")
    assert code == 69, found
    assert "unreachable" in found or "bad-key" in found


def test_a_wrong_key_an_open_server_and_an_old_one(desk: Desk) -> None:
    code, found = findings(desk, OPENHANDS_API_KEY="another")
    assert (code, found["bad-key"]["severity"]) == (65, "error")
    assert "unsecured" not in found
    desk.server.keyed, desk.server.capabilities = False, []
    code, found = findings(desk, OPENHANDS_API_KEY="another")
    assert code == 0
    assert {"unsecured", "old-server"} <= set(found)


def test_plain_http_to_another_machine_is_told(desk: Desk) -> None:
    _, found = findings(desk, OPENHANDS_URL="http://host.invalid:8000")
    assert "plain-http" in found


def test_a_workspace_that_is_missing_or_open_to_others(desk: Desk) -> None:
    code, found = findings(desk, AGENT_BUS_OPENHANDS_WORKSPACE=str(desk.workspace / "none"))
    assert (code, "no-workspace" in found) == (65, True)
    desk.create()
    token = desk.workspace / ".agent-bus" / str(desk.child("alice", "writer-604"))
    token.chmod(0o755)
    code, found = findings(desk)
    assert code == 65
    assert f"chmod 700 {token}" in found["loose-mode"]["message"]
    token.chmod(0o700)
    (desk.workspace / "delivery").chmod(0o777)
    assert "delivery" in findings(desk)[1]["loose-mode"]["path"]


def test_a_link_in_the_place_of_a_folder(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (desk.workspace / "delivery").symlink_to(tmp_path / "there")
    code, found = findings(desk)
    assert (code, found["link"]["severity"]) == (65, "error")


def test_mirrors_are_judged(desk: Desk) -> None:
    path = desk.workspace / "mirrors" / "acme--tool.git"
    git(path, "config", "remote.origin.fetch", "+refs/*:refs/*")
    code, found = findings(desk)
    assert code == 65
    assert found["bad-mirror"]["path"] == str(path)
    other = desk.workspace / "empty"
    other.mkdir()
    assert "no-mirror" in findings(desk, AGENT_BUS_OPENHANDS_WORKSPACE=str(other))[1]


def test_an_agent_file_is_read_and_must_be_ones_own(desk: Desk) -> None:
    file = desk.cli.folder / "agent.json"
    file.write_text(json.dumps({"agent_settings": {"llm": {"api_key": "sk-secret"}}}))
    file.chmod(0o644)
    env = {"AGENT_BUS_OPENHANDS_AGENT": str(file)}
    code, found = findings(desk, **env)
    assert code == 65
    assert f"chmod 600 {file}" in found["agent-file"]["message"]
    file.chmod(0o600)
    assert findings(desk, **env)[0] == 0
    file.write_text("{}")
    assert "agent-file" in findings(desk, **env)[1]
    assert "runtime-file" in findings(desk, AGENT_BUS_OPENHANDS_RUNTIME="/none/runtime.json")[1]


def test_keys_that_cannot_be_used_are_errors(desk: Desk) -> None:
    desk.create()
    for name, code in (("gateway.json", "gateway-keys"), ("openhands.json", "bad-keyring")):
        file = desk.cli.bus.settings.keys / name
        file.chmod(0o644)
        ended, found = findings(desk)
        assert (ended, found[code]["severity"]) == (65, "error")
        file.chmod(0o600)
    assert findings(desk)[0] == 0


def test_records_and_worktrees_are_held_against_each_other(desk: Desk) -> None:
    desk.create()
    child = desk.child("alice", "writer-604")
    worktree = desk.workspace / "delivery" / f"child-{child}"
    (worktree.parent / "child-of-nobody\x1b").mkdir()
    worktree.rename(worktree.parent / "set-aside")
    code, found = findings(desk)
    assert code == 0
    assert found["worktree-missing"]["path"] == str(worktree)
    assert found["worktree-without-child"]["severity"] == "note"
    record = desk.cli.bus.path / "openhands" / "gateway" / "children" / f"{child}.json"
    record.write_text(record.read_text()[:-10])
    code, found = findings(desk)
    assert (code, found["bad-record"]["severity"]) == (65, "error")
    assert found["bad-record"]["path"] == str(record.parent)
    assert "doctor" not in found["bad-record"]["message"]
    # Whose it is cannot be told now.
    assert "worktree-without-child" not in found


def test_children_that_do_not_go_on_are_told(desk: Desk) -> None:
    desk.create("one")
    desk.server.obeys = False
    desk.create("two", words=["--wait", "0"])
    folder = desk.cli.bus.path / "openhands" / "gateway" / "children"
    past = "2020-01-01T00:00:00.000Z"
    for task, field in (("one", "run_since"), ("two", "created_at")):
        file = folder / f"{desk.child('alice', task)}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {field: past}))
    code, found = findings(desk)
    assert code == 0
    assert "6h" in found["overdue"]["message"]
    assert found["not-started"]["path"] == str(desk.child("alice", "two"))


def test_signs_that_nobody_heeds_are_told(desk: Desk) -> None:
    desk.create()
    intents = desk.cli.bus.path / "openhands" / "gateway" / "intents"
    (intents / f"{desk.child('alice', 'writer-604')}.x").write_text("hook\n")
    _, found = findings(desk)
    assert "reconcile" in found["signs-wait"]["message"]
