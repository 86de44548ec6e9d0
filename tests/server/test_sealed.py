"""A server of a sealed name: it reads and waits, and signs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_bus.keys import Keys
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.server import app
from agent_bus.testing import TemporaryBus

pytestmark = pytest.mark.anyio

Ok = Callable[[Any], dict[str, Any]]
Failed = Callable[[Any], str]


@pytest.fixture
def sealed(bus: TemporaryBus) -> TemporaryBus:
    """The bus, with `user` sealed."""
    Keys(bus.settings.keys, bus.clock).seal(AgentName("user"), "correct horse battery", 2**14)
    return bus


async def test_it_reads_and_cannot_sign(
    sealed: TemporaryBus, connect: Any, mode: str, ok: Ok, failed: Failed
) -> None:
    alice = sealed.as_agent("alice")
    ident = alice.request_approval("May I?", to="user").id
    async with connect("user", mode) as client:
        alice.send_one("user", Draft(body="x"))
        assert len(ok(await client.call_tool("bus_wait", {"timeout": 5}))["messages"]) == 1
        assert ok(await client.call_tool("bus_pending_approval", {}))["pending"]
        for tool, arguments in (
            ("bus_send", {"to": "alice", "body": "x"}),
            ("bus_decide", {"id": ident, "decision": "approve"}),
            ("bus_request_approval", {"question": "x?"}),
        ):
            line = failed(await client.call_tool(tool, arguments))
            assert line.startswith("not-permitted: user is sealed: decide in agent-bus approvals")
        there = [tool.input_schema for tool in (await client.list_tools()).tools]
    assert "passphrase" not in str(there)
    assert alice.approvals.decision(alice.approvals.request(ident)) is None


async def test_a_request_can_need_it(
    sealed: TemporaryBus, connect: Any, ok: Ok, failed: Failed
) -> None:
    async with connect("alice") as client:
        asked = {"question": "x?", "needs": "user"}
        ident = ok(await client.call_tool("bus_request_approval", asked))["id"]
        line = failed(
            await client.call_tool("bus_request_approval", {"question": "x?", "needs": "bob"})
        )
        assert line.startswith("usage: bob is no admin with a sealed key")
    async with connect("conductor") as client:
        (request,) = ok(await client.call_tool("bus_pending_approval", {}))["pending"]
        assert (request["id"], request["needs"], request["to"]) == (ident, "user", "user")
        line = failed(await client.call_tool("bus_decide", {"id": ident, "decision": "approve"}))
        assert line.startswith("not-permitted")


def test_the_model_is_told_that_it_signs_nothing(sealed: TemporaryBus) -> None:
    told = app.instructions(sealed.as_agent("user"))
    assert "Your name is sealed" in told
    assert "bus_decide" not in told
    assert len(told.encode()) < 2000
