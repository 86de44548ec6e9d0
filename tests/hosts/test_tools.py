"""Every host has the tools of the bus, and what the model does with them arrives."""

from __future__ import annotations

from desk import Desk
from hosts import Host
from model_api import Call, ModelApi

from agent_bus.reading import Stored
from agent_bus.sending import Draft


def _text(stored: Stored) -> tuple[str, str]:
    message = stored.judged.message
    assert message is not None
    return message.sender, message.body


def test_the_host_is_the_version_that_is_named(host: Host, desk: Desk) -> None:
    assert host.version in desk.run(host.name, "--version")


def test_all_tools_are_in_the_first_request(host: Host, desk: Desk, model: ModelApi) -> None:
    """With their schemas, or at least by name where the host shows tools when asked."""
    desk.agent_bus("connect", host.name, "--as", "alice", "--write")

    # Claude Code on a busy machine does not wait for the tools of a server.
    desk.run(*host.ask("go"), MCP_CONNECTION_NONBLOCKING="0")

    tools = [tool["name"] for tool in desk.wire.answer("tools/list")["tools"]]
    assert "bus_wait" in tools
    first = model.first
    assert [
        tool for tool in tools if not first.offers(tool) and f"__{tool}\n" not in first.text
    ] == []


def test_the_model_sends_and_is_woken(host: Host, desk: Desk, model: ModelApi) -> None:
    """One turn: the tools are there, bus_send delivers, bus_wait returns what Bob sends then."""
    model.then(
        Call("bus_send", {"to": "bob", "subject": "over here", "body": "hello"}),
        Call("bus_wait", {"timeout": 120}),
    )
    desk.agent_bus("connect", host.name, "--as", "alice", "--write")
    turn = desk.start(*host.ask("greet bob"))

    desk.wait_for_call("bus_wait", turn)
    sent = desk.bus("bob").send_one("alice", Draft(subject="an answer", body="hello yourself"))
    out = desk.finish(turn)

    assert turn.returncode == 0, out
    assert model.left == [], out
    assert desk.wire.era == host.era
    assert model.first.knows("bus_send")
    assert "You are `alice` here" in model.last.everything
    (arrived,) = desk.bus("bob").inbox().messages
    assert (arrived.judged.outcome, _text(arrived)) == ("ok", ("alice", "hello"))
    answered = model.last.results[-1]
    assert sent.id in answered
    assert "an answer" in answered
    assert "hello yourself" not in answered, "a body stands in no list"
    assert model.outside == [] or not host.is_quiet
    desk.wait_until(lambda: not desk.processes, "all processes end")
