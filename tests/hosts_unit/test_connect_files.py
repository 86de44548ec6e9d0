"""`connect --write` and `disconnect` on files as people have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_bus.hosts import guard
from agent_bus.hosts.outside import BACKUP
from agent_bus.testing import TemporaryBus

Ran = subprocess.CompletedProcess[str]
Connect = Callable[..., Ran]

CLAUDE = """{
  "numStartups": 42,
  "oauthAccount": {"accountUuid": "x", "emailAddress": "me@example.org"},
  "projects": {
    "/elsewhere": {"mcpServers": {"agent-bus": {"command": "other"}}},
    "PROJECT": {
      "allowedTools": [],
      "mcpServers": {"db": {"type": "stdio", "command": "db", "args": [], "env": {}}},
      "lastCost": 0.10000000000000001,
      "history": ["caf\\u00e9 \u2014 \ud83d\ude00"]
    }
  },
  "tipsHistory": {"b": 1, "a": 2}
}"""
LOCAL = """{
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "PostToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "fmt"}]}]
    }
}
"""
CODEX = """# my settings
model = "gpt-5"   # the good one

[mcp_servers.db]
command = 'db'

[[hooks.Stop]]
[[hooks.Stop.hooks]]
type = "command"
command = "say done"
"""
PLACES = {
    "gemini": (".gemini/settings.json", "mcpServers"),
    "opencode": ("opencode.json", "mcp"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.fixture
def home(environment: dict[str, str]) -> Path:
    return Path(environment["HOME"])


@pytest.fixture
def run_verb(bus: TemporaryBus, environment: dict[str, str], project: Path) -> Connect:
    def run(*words: str, code: int = 0, **more: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "agent_bus", *words],
            env=environment | bus.environment | more,
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def connect(run_verb: Connect) -> Connect:
    def run(host: str, *words: str, **options: Any) -> Ran:
        return run_verb("connect", host, "--as", "alice", "--write", *words, **options)

    return run


def _put(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    path.chmod(mode)
    return path


def test_claude_keeps_what_is_there(
    connect: Connect, run_verb: Connect, home: Path, project: Path
) -> None:
    text = json.dumps(json.loads(CLAUDE.replace("PROJECT", str(project))), indent=2)
    main = _put(home / ".claude.json", text)
    local = _put(project / ".claude/settings.local.json", LOCAL, 0o644)
    before = json.loads(text), json.loads(LOCAL)
    connect("claude", "--hooks")
    after = json.loads(main.read_text()), json.loads(local.read_text())
    server = after[0]["projects"][str(project)]["mcpServers"].pop("agent-bus")
    assert after[0] == before[0]
    assert json.dumps(after[0]) == json.dumps(before[0])
    assert server["env"]["AGENT_MSG_AS"] == "${AGENT_MSG_AS}"
    assert server["args"][-1] == "mcp"
    assert list(after[1]) == ["permissions", "hooks"]
    assert after[1]["hooks"]["Stop"][0] == before[1]["hooks"]["Stop"][0]
    ours = [
        hook
        for groups in after[1]["hooks"].values()
        for group in groups
        for hook in group["hooks"]
        if guard.SIGN in hook["command"]
    ]
    assert len(ours) == 6
    assert sum(hook.get("asyncRewake", False) for hook in ours) == 2
    assert local.read_text().startswith('{\n    "permissions"')
    assert main.stat().st_mode & 0o777 == 0o600
    assert local.stat().st_mode & 0o777 == 0o644
    assert main.with_name(main.name + BACKUP).read_text() == text
    assert main.with_name(main.name + BACKUP).stat().st_mode & 0o777 == 0o600
    run_verb("disconnect", "claude")
    assert main.read_text() == text
    assert json.loads(local.read_text()) == before[1]


def test_codex_keeps_every_byte(connect: Connect, run_verb: Connect, home: Path) -> None:
    config = _put(home / ".codex/config.toml", CODEX)
    hooks = _put(home / ".codex/hooks.json", '{"hooks":{}}')
    connect("codex", "--hooks")
    text = config.read_text()
    assert text.startswith(CODEX)
    value = tomllib.loads(text)
    assert value["mcp_servers"]["agent-bus"]["env_vars"] == ["AGENT_MSG_AS"]
    assert value["mcp_servers"]["db"] == {"command": "db"}
    assert "alice" not in text
    assert set(json.loads(hooks.read_text())["hooks"]) == {
        "SessionStart", "UserPromptSubmit", "PostToolUse", "Stop",
    }  # fmt: skip
    run_verb("disconnect", "codex")
    assert config.read_text() == CODEX


def test_codex_home_is_where_codex_says(connect: Connect, tmp_path: Path) -> None:
    connect("codex", CODEX_HOME=str(tmp_path / "other"))
    assert (tmp_path / "other/config.toml").exists()


def test_a_table_that_is_there_is_not_doubled(connect: Connect, home: Path) -> None:
    text = '[sandbox_workspace_write]\nwritable_roots = ["/x"]\n'
    config = _put(home / ".codex/config.toml", text)
    done = connect("codex")
    value = tomllib.loads(config.read_text())
    assert value["sandbox_workspace_write"] == {"writable_roots": ["/x"]}
    assert "writable_roots, so that" in done.stdout


@pytest.mark.parametrize("host", PLACES)
def test_the_files_of_a_project(
    connect: Connect, run_verb: Connect, project: Path, host: str
) -> None:
    name, servers = PLACES[host]
    text = '{"other": [1, 2.5], "' + servers + '": {"db": {}}}\n'
    path = _put(project / name, text, 0o644)
    hooks = ("--hooks",) if host == "gemini" else ()
    connect(host, *hooks)
    value = json.loads(path.read_text())
    assert list(value)[:2] == ["other", servers]
    assert list(value[servers]) == ["db", "agent-bus"]
    assert "AGENT_MSG_AS" in json.dumps(value)
    assert "alice" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    run_verb("disconnect", host)
    assert path.read_text() == text


@pytest.mark.parametrize("host", ["claude", "codex", *PLACES])
def test_where_nothing_was_nothing_remains(
    connect: Connect, run_verb: Connect, home: Path, project: Path, host: str
) -> None:
    def files() -> set[Path]:
        found = [*home.rglob("*"), *(p for p in project.rglob("*") if ".git/" not in str(p))]
        return {path for path in found if path.is_file()}

    before = files()
    connect(host)
    made = files() - before
    assert made
    assert all(path.stat().st_mode & 0o077 == 0 for path in made)
    if host in ("claude", "codex", "gemini"):
        connect(host, "--hooks")
    run_verb("disconnect", host)
    left = {path.name for path in files() - before}
    assert left <= {".claude.json", f".claude.json{BACKUP}"}
    run_verb("disconnect", host)


@pytest.mark.parametrize("host", ["claude", "codex", *PLACES])
def test_twice_is_once(connect: Connect, home: Path, project: Path, host: str) -> None:
    connect(host)

    def state() -> dict[str, bytes]:
        found = [*home.rglob("*"), *project.rglob("*")]
        return {str(p): p.read_bytes() for p in found if p.is_file() and ".git/" not in str(p)}

    once = state()
    assert "unchanged" in connect(host).stdout
    assert state() == once


# -- what is refused, and then left as it is


REFUSED = {
    "comments": ('{\n  // mine\n  "mcp": {}\n}\n', "no plain JSON"),
    "double": ('{"a": 1, "a": 2}', "twice"),
    "list": ("[1]", "no JSON object"),
    "torn": ('{"mcp": {', "no plain JSON"),
    "server": ('{"mcp": 5}', "no object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_not_written(connect: Connect, project: Path, case: str) -> None:
    text, words = REFUSED[case]
    path = _put(project / "opencode.json", text)
    done = connect("opencode", code=78)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert path.read_text() == text
    assert os.listdir(project) in (["opencode.json", ".git"], [".git", "opencode.json"])


def test_a_file_with_comments_is_found(connect: Connect, project: Path) -> None:
    path = _put(project / "opencode.jsonc", "{ /* mine */ }")
    connect("opencode", code=78)
    assert path.read_text() == "{ /* mine */ }"
    assert not (project / "opencode.json").exists()


def test_codex_with_a_server_of_that_name(connect: Connect, home: Path) -> None:
    text = '[mcp_servers.agent-bus]\ncommand = "mine"\n'
    config = _put(home / ".codex/config.toml", text)
    assert "of its own" in connect("codex", code=78).stderr
    assert config.read_text() == text


@pytest.mark.parametrize("text", ["model = ", "mcp_servers = 5\n"])
def test_codex_with_no_toml(connect: Connect, home: Path, text: str) -> None:
    config = _put(home / ".codex/config.toml", text)
    connect("codex", code=78)
    assert config.read_text() == text


@pytest.mark.parametrize("host", ["claude", *PLACES])
def test_what_git_tracks_is_not_written(connect: Connect, project: Path, host: str) -> None:
    name = ".claude/settings.local.json" if host == "claude" else PLACES[host][0]
    path = _put(project / name, "{}\n")
    subprocess.run(["git", "-C", project, "add", "-f", name], check=True)
    words = ("--hooks",) if host == "claude" else ()
    assert "tracked by git" in connect(host, *words, code=77).stderr
    assert path.read_text() == "{}\n"


def test_a_file_behind_a_link_stays_behind_it(connect: Connect, home: Path, tmp_path: Path) -> None:
    """People keep such files elsewhere and link to them."""
    real = _put(tmp_path / "dotfiles/codex.toml", CODEX)
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").symlink_to(real)
    connect("codex")
    assert (home / ".codex/config.toml").is_symlink()
    assert "agent-bus" in real.read_text()


def test_another_agents_entry_is_left_where_a_name_is_given(
    run_verb: Connect, home: Path, project: Path
) -> None:
    entry = {"command": "agent-bus", "env": {"AGENT_MSG_AS": "bob"}}
    value = {"projects": {str(project): {"mcpServers": {"agent-bus": entry}}}}
    path = _put(home / ".claude.json", json.dumps(value))
    assert "connects 'bob'" in run_verb("disconnect", "claude", "--as", "alice", code=76).stderr
    assert json.loads(path.read_text()) == value
    run_verb("disconnect", "claude", "--as", "bob")
    assert "agent-bus" not in path.read_text()


def test_disconnect_needs_no_bus(run_verb: Connect, connect: Connect, project: Path) -> None:
    connect("cursor")
    run_verb("disconnect", "cursor", AGENT_MSG_BUS="/nowhere")
    assert not (project / ".cursor/mcp.json").exists()


def test_a_worktree_is_connected_with_its_repository(
    connect: Connect, run_verb: Connect, home: Path, project: Path, tmp_path: Path
) -> None:
    """Claude Code keeps what is local to a project under the main checkout."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(
        ["git", "-C", project, *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    tree = tmp_path / "tree"
    subprocess.run(["git", "-C", project, "worktree", "add", "-q", tree], check=True)
    connect("claude", "--hooks", "--project", str(tree), AGENT_MSG_BUS="", code=69)
    run_verb("init", "--agents", "alice", AGENT_MSG_BUS="")
    connect("claude", "--hooks", "--project", str(tree), AGENT_MSG_BUS="")
    assert list(json.loads((home / ".claude.json").read_text())["projects"]) == [str(project)]
    assert (project / ".claude/settings.local.json").exists()
    assert not (tree / ".claude").exists()


def test_what_is_written_is_what_is_printed(
    connect: Connect, run_verb: Connect, project: Path
) -> None:
    shown = run_verb("connect", "gemini", "--as", "alice", "--hooks").stdout
    assert not (project / ".gemini").exists()
    connect("gemini", "--hooks")
    (_, _, text) = shown.partition("settings.json: ")
    assert json.loads(text.partition("\n")[2]) == json.loads(
        (project / ".gemini/settings.json").read_text()
    )
