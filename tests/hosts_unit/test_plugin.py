"""The plugin for Claude Code: its parts are whole, and its hooks are those of `connect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import agent_bus
from agent_bus.hosts import guard
from agent_bus.server.tools import TOOLS

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "integrations/claude-code"


def test_the_hooks_are_those_that_connect_writes() -> None:
    marks = '"${XDG_DATA_HOME:-$HOME/.local/share}/agent-bus/hooks"'
    made = guard.groups(guard.Program(["agent-bus"], {}, marks), "claude")
    assert json.loads((PLUGIN / "hooks/hooks.json").read_text())["hooks"] == made


def test_no_name_stands_in_it() -> None:
    server = json.loads((PLUGIN / ".mcp.json").read_text())["mcpServers"]["agent-bus"]
    assert server["env"] == {"AGENT_MSG_AS": "${AGENT_MSG_AS}"}


def test_the_market_leads_to_the_plugin() -> None:
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
    (plugin,) = market["plugins"]
    manifest = json.loads((ROOT / plugin["source"] / ".claude-plugin/plugin.json").read_text())
    assert manifest["name"] == plugin["name"] == "agent-bus"
    assert manifest["version"] == agent_bus.__version__


def test_every_page_has_its_head_and_names_real_tools() -> None:
    tools = {tool.name for tool in TOOLS}
    pages = [*PLUGIN.glob("commands/*.md"), *PLUGIN.glob("skills/*/SKILL.md")]
    assert len(pages) == 4
    for page in pages:
        text = page.read_text(encoding="utf-8")
        head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
        assert head, page
        assert "description: " in head[1]
        assert set(re.findall(r"\bbus_[a-z_]*[a-z]", text)) <= tools, page
