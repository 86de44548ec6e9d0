"""A pulse changes with what pages show, and with nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus


def _send(bus: TemporaryBus) -> None:
    bus.as_agent("alice").send_one("bob", Draft(body="x"))


def _read(bus: TemporaryBus) -> None:
    bob = bus.as_agent("bob")
    bob.read(bob.inbox().messages[0].place.id)


def _archive(bus: TemporaryBus) -> None:
    bob = bus.as_agent("bob")
    bob.archive(bob.inbox().messages[0].place.id)


def _new_box(bus: TemporaryBus) -> None:
    bus.add_agent("carol")


@pytest.mark.parametrize("act", [_send, _read, _archive, _new_box])
def test_messages_change_with_what_stands_in_the_boxes(
    bus: TemporaryBus, act: Callable[[TemporaryBus], None]
) -> None:
    _send(bus)
    seen = bus.as_agent("user")
    before = seen.pulse()
    act(bus)
    after = seen.pulse()
    assert after.messages != before.messages
    assert (after.approvals, after.agents) == (before.approvals, before.agents)


def test_approvals_change_with_requests_and_decisions(bus: TemporaryBus) -> None:
    user = bus.as_agent("user")
    pulses = [user.pulse()]
    ident = bus.as_agent("alice").request_approval("May I?").id
    pulses.append(user.pulse())
    user.decide(ident, "approve")
    pulses.append(user.pulse())
    assert len({pulse.approvals for pulse in pulses}) == 3


def test_agents_change_when_somebody_comes_or_goes(bus: TemporaryBus) -> None:
    user = bus.as_agent("user")
    before = user.pulse()
    with user.presence.attach(AgentName("alice"), "mcp"):
        during = user.pulse()
    after = user.pulse()
    assert len(during.agents) == 1
    assert before.agents == after.agents == frozenset()


def test_looking_changes_nothing(bus: TemporaryBus) -> None:
    _send(bus)
    user = bus.as_agent("user")
    before = user.pulse()
    user.log()
    user.status()
    bus.as_agent("bob").inbox()
    assert user.pulse() == before


def test_a_box_without_its_folders_is_looked_at_all_the_same(bus: TemporaryBus) -> None:
    shutil.rmtree(bus.path / "messages" / "bob" / "cur")
    assert None in bus.as_agent("user").pulse().messages
