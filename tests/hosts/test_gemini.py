"""Gemini CLI with what `connect gemini --hooks --write` puts into its file."""

from __future__ import annotations

import pytest
from desk import Desk
from hosts import Host
from letters import Letters
from model_api import Call, ModelApi, Say

pytestmark = pytest.mark.hosts("gemini")


def test_each_hook_brings_its_note(host: Host, desk: Desk, model: ModelApi) -> None:
    """A session of one prompt. Something comes before each moment that has a hook."""
    desk.agent_bus("connect", "gemini", "--as", "alice", "--hooks", "--write")
    letters = Letters(desk.bus("bob"))
    model.then(
        Call("bus_status", before=lambda: letters.send("tool")),
        Say(before=lambda: letters.send("stop", is_urgent=True)),
        Say("I looked."),
    )
    letters.send("start")

    out = desk.run(*host.ask("one"))

    started, before_stop, after_stop = model.asked
    assert "agent-bus: in this session you are alice" in started.text, out
    assert "1 unread message in your box" in started.text
    assert letters.named_in(started) == set()
    assert letters.named_in(before_stop) == {"tool"}
    assert letters.named_in(after_stop) == {"tool", "stop"}
    assert "before you stop, look at 1 unread message" in after_stop.text
