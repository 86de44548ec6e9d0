"""What verifies and is not to be believed: wakes of anybody but the gateway, untrue decisions."""

from __future__ import annotations

from typing import Any

import pytest

from agent_bus import doubts
from agent_bus.bus import Bus
from agent_bus.payload import Message
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus


def message_in(bus: Bus, ident: str) -> Message:
    found = bus.read(ident).judged.message
    assert found is not None
    return found


def test_a_wake_of_anybody_but_the_gateway_is_doubted(held: TemporaryBus, false_wake: Any) -> None:
    held.add_agent("openhands-gateway")
    bob = held.as_agent("bob")
    for sender in ("alice", "user", "openhands-gateway"):
        found = message_in(bob, false_wake(held, "bob", sender))
        assert doubts.of_wake(found) == bob.doubt(found) == doubts.NO_WAKE


def test_a_wake_of_the_gateway_and_other_messages_are_not(held: TemporaryBus) -> None:
    bob = held.as_agent("bob")
    real = held.as_gateway().wake("bob", Draft(body="x"), key="k").id
    other = held.as_agent("alice").send_one("bob", Draft(body="wake", subject="wake")).id
    for ident in (real, other):
        found = message_in(bob, ident)
        assert doubts.of_wake(found) is None
        assert bob.doubt(found) is None
    assert doubts.of_wake(None) is None


@pytest.mark.parametrize("data", [None, {}, {"request": "../x"}, {"request": 1}])
def test_a_message_that_tells_of_no_decision_is_doubted(
    held: TemporaryBus, false_wake: Any, data: dict[str, Any] | None
) -> None:
    bob = held.as_agent("bob")
    found = message_in(bob, false_wake(held, "bob", kind="approval_decision", data=data))
    assert doubts.of_wake(found) is None
    assert bob.doubt(found) == doubts.NO_DECISION
