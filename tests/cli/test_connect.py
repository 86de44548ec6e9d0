"""`connect`: the forms that the hosts document, with this bus and this program in them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from program import Cli


def test_claude_gets_the_name_of_the_server_before_the_variables(cli: Cli) -> None:
    done = cli("connect", "claude", "--as", "alice")
    assert done.code == 0
    assert "export AGENT_MSG_AS=alice" in done.lines
    (line,) = [line for line in done.lines if line.startswith("claude mcp add")]
    words = shlex.split(line)
    assert words[3:6] == ["--scope", "local", "agent-bus"]
    assert words[6:12] == [
        "--env", "AGENT_MSG_AS=${AGENT_MSG_AS}",
        "--env", f"AGENT_MSG_BUS={cli.bus.path}",
        "--env", f"AGENT_MSG_KEYS={cli.bus.settings.keys}",
    ]  # fmt: skip
    assert words[12:] == ["--", sys.executable, "-m", "agent_bus", "mcp"]


def _block(text: str) -> str:
    """The TOML in what is printed for Codex: all but sentences."""
    printed = text.partition("config.toml")[2].partition("\n")[2]
    return re.sub(r"^[A-Z].*$", "", printed, flags=re.MULTILINE)


def test_codex_gets_a_block_of_toml_that_holds_no_name(cli: Cli) -> None:
    done = cli("connect", "codex", me="alice")
    assert "export AGENT_MSG_AS=alice" in done.lines
    config = tomllib.loads(_block(done.out))
    server = config["mcp_servers"]["agent-bus"]
    assert [server["command"], *server["args"]] == [sys.executable, "-m", "agent_bus", "mcp"]
    assert server["env_vars"] == ["AGENT_MSG_AS"]
    assert server["required"] is True
    assert server["tool_timeout_sec"] > 300
    assert server["env"] == {
        "AGENT_MSG_BUS": str(cli.bus.path),
        "AGENT_MSG_KEYS": str(cli.bus.settings.keys),
    }
    assert config["sandbox_workspace_write"]["writable_roots"] == [str(cli.bus.path)]
    assert "alice" not in json.dumps(config)


CHILDREN = {
    "AGENT_BUS_PROFILES": "bus,openhands",
    "OPENHANDS_URL": "http://127.0.0.1:8000",
    "AGENT_BUS_OPENHANDS_WORKSPACE": "/srv/openhands",
    "OPENHANDS_API_KEY": "a-session-key",
}
"""What a conductor has exported that is to hand missions to children."""


def test_the_tools_for_children_come_with_what_they_need_but_the_credential(cli: Cli) -> None:
    """The key of the agent server stands in no file of a host and in no command."""
    done = cli("connect", "claude", "--as", "alice", **CHILDREN)
    (line,) = [line for line in done.lines if line.startswith("claude mcp add")]
    words = shlex.split(line)
    assert "AGENT_BUS_PROFILES=bus,openhands" in words
    assert "OPENHANDS_URL=http://127.0.0.1:8000" in words
    assert "AGENT_BUS_OPENHANDS_WORKSPACE=/srv/openhands" in words
    assert "a-session-key" not in done.out + done.err


def test_codex_hands_on_the_credential_or_the_file_that_it_stands_in(cli: Cli) -> None:
    done = cli("connect", "codex", me="alice", **CHILDREN)
    server = tomllib.loads(_block(done.out))["mcp_servers"]["agent-bus"]
    assert server["env_vars"] == ["AGENT_MSG_AS", "OPENHANDS_API_KEY"]
    assert server["env"]["OPENHANDS_URL"] == "http://127.0.0.1:8000"
    assert "a-session-key" not in done.out
    # The agent's own shell needs none of it.
    assert "OPENHANDS" not in done.out.partition("shell_environment_policy")[2]

    filed = {**CHILDREN, "OPENHANDS_API_KEY": None, "OPENHANDS_API_KEY_FILE": "/srv/key"}
    done = cli("connect", "codex", me="alice", **filed)
    server = tomllib.loads(_block(done.out))["mcp_servers"]["agent-bus"]
    assert server["env_vars"] == ["AGENT_MSG_AS"]
    assert server["env"]["OPENHANDS_API_KEY_FILE"] == "/srv/key"


def test_a_bus_of_a_project_is_found_by_the_project(cli: Cli, tmp_path: Path) -> None:
    project = tmp_path / 'pro"j ect'
    project.mkdir()
    home = {"AGENT_MSG_BUS": None, "AGENT_MSG_KEYS": None}
    cli("init", "--project", project, "--agents", "alice", **home)
    done = cli("connect", "claude", "--as", "alice", "--project", project, "--json", **home)
    assert done.record["environment"] == {
        "AGENT_MSG_AS": "alice",
        "AGENT_BUS_PROJECT_DIR": str(project),
    }
    codex = cli("connect", "codex", "--as", "alice", "--project", project, **home)
    config = tomllib.loads(_block(codex.out))
    assert config["mcp_servers"]["agent-bus"]["env"]["AGENT_BUS_PROJECT_DIR"] == str(project)
    assert config["sandbox_workspace_write"]["writable_roots"] == done.record["writable_roots"]


def test_codex_is_told_where_data_lies_since_it_hands_on_little(cli: Cli, tmp_path: Path) -> None:
    home = {"AGENT_MSG_BUS": None, "AGENT_MSG_KEYS": None, "XDG_DATA_HOME": str(tmp_path / "xdg")}
    made = cli("init", "--agents", "alice", "--json", **home).record
    config = tomllib.loads(_block(cli("connect", "codex", "--as", "alice", **home).out))
    server = config["mcp_servers"]["agent-bus"]["env"]
    filtered = dict.fromkeys(home) | server
    assert cli("whoami", "--json", **filtered).record["bus"] == made["bus"]


def test_the_program_is_named_by_its_absolute_path(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "agent-bus"
    program.write_text(f"#!{sys.executable}\nfrom agent_bus.cli import main\nmain()\n")
    program.chmod(0o755)
    for start, folder in ((["agent-bus"], "/"), (["./agent-bus"], str(tmp_path))):
        done = subprocess.run(
            [*start, "connect", "claude", "--as", "alice", "--json"],
            env=cli.variables(None, PATH=f"{tmp_path}:{cli.environment['PATH']}"),
            cwd=folder,
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert json.loads(done.stdout)["command"] == [str(program), "mcp"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["claude", "--as", "nobody"], 78),
        (["claude"], 78),
        (["vim", "--as", "alice"], 64),
        (["cursor", "--as", "alice", "--hooks"], 64),
        ([], 64),
    ],
)
def test_what_cannot_be_connected_is_refused(cli: Cli, words: list[str], code: int) -> None:
    cli("connect", *words).refused(code)
