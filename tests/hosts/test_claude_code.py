"""Claude Code with what `connect claude --hooks --write` puts into its files."""

from __future__ import annotations

import json
import subprocess
from functools import partial

import pytest
from desk import Desk
from letters import Letters
from model_api import Call, ModelApi, Say
from screen import Screen

pytestmark = pytest.mark.hosts("claude")

STREAM = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]


@pytest.fixture
def connected(desk: Desk) -> Desk:
    """A machine with Claude Code on the bus, hooks and all."""
    desk.agent_bus("connect", "claude", "--as", "alice", "--hooks", "--write")
    return desk


def test_each_hook_brings_its_note(connected: Desk, model: ModelApi) -> None:
    """A session of two prompts. Something comes before each moment that has a hook."""
    letters = Letters(connected.bus("bob"))
    model.then(
        Call("bus_status", before=lambda: letters.send("tool")),
        Say(before=lambda: letters.send("stop", is_urgent=True)),
        Say("I looked."),
        Say("Good."),
    )
    letters.send("start")
    session = connected.start("claude", "-p", *STREAM, talks=True)

    _prompt(session, "one")
    letters.send("prompt")
    _prompt(session, "two")
    connected.finish(session)

    first, last = model.first, model.last
    before_stop, after_stop = model.asked[-3:-1]
    assert "SessionStart hook additional context: agent-bus: in this session you are alice" in (
        first.text
    )
    assert "1 unread message in your box" in first.text
    assert letters.named_in(first) == set()
    assert letters.named_in(before_stop) == {"tool"}
    assert "hook additional context: agent-bus: 1 new message for alice" in before_stop.text
    assert letters.named_in(after_stop) == {"tool", "stop"}
    assert "Stop hook feedback:\nagent-bus: before you stop, look at 1 unread" in after_stop.text
    assert letters.named_in(last) == {"tool", "stop", "prompt"}
    assert "UserPromptSubmit hook additional context: agent-bus: 1 new" in last.text
    assert model.left == []


def test_the_hooks_say_nothing_twice(connected: Desk, model: ModelApi) -> None:
    """A message that was shown once is not shown at the next tool call."""
    letters = Letters(connected.bus("bob"))
    model.then(Call("bus_status", before=lambda: letters.send("tool")), *[Call("bus_status")] * 2)

    connected.run("claude", "-p", "go")

    assert model.last.text.count(letters.ids["tool"]) == 1


def test_an_idle_session_is_woken(connected: Desk, model: ModelApi) -> None:
    """Nobody has typed anything: a message alone starts a turn, and so does the next one."""
    letters = Letters(connected.bus("bob"))
    with Screen(connected, "claude") as screen:
        screen.wait_for("❯")
        screen.wait_until(lambda: bool(connected.waiting_hooks), "the hook waits")
        assert model.asked == []

        for moment in ("first wake", "second wake"):
            letters.send(moment)
            screen.wait_until(partial(_is_told, letters, moment, model), moment)
            assert "NOT USER INPUT" in model.last.text
            screen.wait_until(lambda: bool(connected.waiting_hooks), "the hook waits again")


def test_nothing_is_left_of_a_session_that_is_closed(connected: Desk) -> None:
    """The server and the hook that waits in a process group of its own end with Claude Code."""
    with Screen(connected, "claude") as screen:
        screen.wait_for("❯")
        screen.wait_until(lambda: bool(connected.waiting_hooks), "the hook waits")
        screen.wait_until(lambda: bool(connected.wires), "the server is there")

    connected.wait_until(lambda: not connected.processes, "all processes end")


def test_without_a_screen_no_hook_waits(connected: Desk) -> None:
    """`claude -p` runs a background hook in the foreground and would not end before it."""
    assert "All done." in connected.run("claude", "-p", "go")
    assert connected.waiting_hooks == []


def _prompt(session: subprocess.Popen[str], text: str) -> None:
    """Say something, and read until the turn is over."""
    assert session.stdin is not None
    assert session.stdout is not None
    said = {"type": "user", "message": {"role": "user", "content": text}}
    session.stdin.write(json.dumps(said) + "\n")
    session.stdin.flush()
    for line in session.stdout:
        if json.loads(line)["type"] == "result":
            return
    raise AssertionError("the session ended")


def _is_told(letters: Letters, moment: str, model: ModelApi) -> bool:
    return any(moment in letters.named_in(asked) for asked in model.asked)
