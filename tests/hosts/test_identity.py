"""A wrong identity is no server, and the host shows why."""

from __future__ import annotations

import pytest
from desk import Desk
from hosts import Host
from model_api import ModelApi

CASES = {
    "nobody": (None, "AGENT_MSG_AS is "),
    "a placeholder that nobody expanded": ("${AGENT_MSG_AS}", "AGENT_MSG_AS is "),
    "a name without a key": ("carol", "has no key in"),
}


@pytest.mark.hosts("claude", "codex", "opencode")
@pytest.mark.parametrize(("name", "reason"), CASES.values(), ids=CASES)
def test_the_host_shows_what_is_wrong(
    host: Host, desk: Desk, model: ModelApi, name: str | None, reason: str
) -> None:
    desk.agent_bus("connect", host.name, "--as", "alice", "--write")

    assert reason in desk.run(*host.look, name=name)
    assert all(not asked.knows("bus_send") for asked in model.asked)


@pytest.mark.hosts("gemini")
@pytest.mark.parametrize(("name", "reason"), CASES.values(), ids=CASES)
def test_gemini_shows_that_something_is_wrong(
    host: Host, desk: Desk, model: ModelApi, name: str | None, reason: str
) -> None:
    """The reason itself it keeps for its debugging output."""
    desk.agent_bus("connect", host.name, "--as", "alice", "--write")

    assert "Disconnected" in desk.run(*host.look, name=name)
    assert reason in desk.run(*host.ask("go"), "--debug", name=name)
    assert not model.first.knows("bus_send")


@pytest.mark.hosts("claude")
def test_claude_code_tells_the_model_as_well(host: Host, desk: Desk, model: ModelApi) -> None:
    desk.agent_bus("connect", host.name, "--as", "alice", "--write")

    desk.run(*host.ask("go"), name="carol")

    assert "has no key in" in model.first.text
