"""Codex with what `connect codex --hooks --write` puts into its files."""

from __future__ import annotations

import pytest
from desk import Desk
from letters import Letters
from model_api import Call, ModelApi, Say
from screen import Screen

pytestmark = pytest.mark.hosts("codex")

WINDOW = ("codex", "--no-daemon")
"""Without the option all windows share the environment, and so the name, of the first one."""
CURRENT = "gpt-5.5"
"""A model for which Codex keeps the tools of servers back until they are searched for."""
UNTRUSTED = "Continue without trusting"
"""What to choose where the hooks are not what is tested."""


@pytest.fixture
def connected(desk: Desk) -> Desk:
    """A machine with Codex on the bus, hooks and all."""
    desk.agent_bus("connect", "codex", "--as", "alice", "--hooks", "--write")
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
    with Screen(connected, *WINDOW, "one") as screen:
        screen.choose("Trust all and continue")
        screen.wait_for("I looked.")
        letters.send("prompt")
        screen.type("two")
        screen.wait_for("Good.")

    started, before_stop, after_stop, prompted = model.asked
    assert "agent-bus: in this session you are alice" in started.text
    assert "1 unread message in your box" in started.text
    assert letters.named_in(started) == set()
    assert letters.named_in(before_stop) == {"tool"}
    assert letters.named_in(after_stop) == {"tool", "stop"}
    assert "before you stop, look at 1 unread message" in after_stop.text
    assert letters.named_in(prompted) == {"tool", "stop", "prompt"}
    assert model.left == []


def test_hooks_run_without_a_screen_once_they_are_trusted(connected: Desk, model: ModelApi) -> None:
    """Before that, `codex exec` leaves them out and says nothing of it."""
    note = "agent-bus: in this session you are alice"
    exec_ = ("codex", "exec", "go")

    connected.run(*exec_)
    assert note not in model.last.text

    with Screen(connected, *WINDOW, "go") as screen:
        screen.choose("Trust all and continue")
        screen.wait_for("All done.")
    connected.run(*exec_)
    assert note in model.last.text


def test_each_window_has_its_own_name(connected: Desk, model: ModelApi) -> None:
    with Screen(connected, *WINDOW, "one", name="alice") as screen:
        screen.choose(UNTRUSTED)
        screen.wait_for("All done.")
        with Screen(connected, *WINDOW, "two", name="bob") as other:
            other.choose(UNTRUSTED)
            other.wait_for("All done.")

    alice, bob = model.asked
    assert "You are `alice` here" in alice.everything
    assert "You are `bob` here" in bob.everything
    assert "`alice`" not in bob.everything
    connected.wait_until(lambda: not connected.processes, "all processes end")


def test_without_that_option_a_second_window_has_the_name_of_the_first(
    connected: Desk, model: ModelApi
) -> None:
    """Why it is to be given: servers, hooks and shells run in a background process of Codex."""
    try:
        with Screen(connected, "codex", "one", name="alice") as screen:
            screen.choose(UNTRUSTED)
            screen.wait_for("All done.")
            with Screen(connected, "codex", "two", name="bob") as other:
                other.choose(UNTRUSTED)
                other.wait_for("All done.")
    finally:
        _stop_the_background_process(connected)

    assert "You are `alice` here" in model.last.everything


def test_a_model_that_searches_for_tools_is_told_of_the_bus(
    connected: Desk, model: ModelApi
) -> None:
    """It reads the first paragraph of the instructions at once, and the tools when it asks."""
    model.then(Call("bus_send", {"to": "bob", "body": "hello"}))

    connected.run("codex", "exec", "--model", CURRENT, "go")

    assert model.first.offers("bus_send") is None
    assert "mcp__agent_bus: agent-bus carries messages between the coding agents" in (
        model.first.text
    )
    assert "You are `alice` here" in model.first.text
    assert connected.bus("bob").inbox().total == 1


def _stop_the_background_process(desk: Desk) -> None:
    # Codex leaves these behind, in a folder that is not the desk's.
    sockets = [path.resolve() for path in (desk.home / ".codex").glob("*/*.sock")]
    desk.run("codex", "app-server", "daemon", "stop")
    desk.end_processes()
    for path in sockets:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
