"""P6: delivery does not depend on clocks or on any order between senders.

A late message is still delivered. Messages of one sending process keep their order.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

YEAR = 365 * 24 * 3600


def at_time(made: TemporaryBus, name: str, seconds: float) -> Bus:
    """An agent on a machine whose clock is wrong by so much."""
    clock = ManualClock(made.clock.now() + int(seconds * 1000))
    return Bus.open(made.settings, identity=name, clock=clock)


def bodies(bus: Bus) -> list[str]:
    found = [stored.judged.message for stored in bus.inbox().messages]
    return [message.body if message else "?" for message in found]


def test_a_sender_whose_clock_is_wrong_by_years_is_delivered_all_the_same(
    held: TemporaryBus,
) -> None:
    for years in (-30, 30):
        receipt = at_time(held, "alice", years * YEAR).send_one("bob", Draft(body=f"{years}"))
        assert held.as_agent("bob").read(receipt.id).judged.ok
    assert sorted(bodies(held.as_agent("bob"))) == ["-30", "30"]


def test_a_message_that_lands_late_is_offered_though_newer_ones_were_read(
    held: TemporaryBus,
) -> None:
    """Its id sorts before all that was seen: no reader may go by "the last id"."""
    bob = held.as_agent("bob")
    new = held.as_agent("alice").send_one("bob", Draft(body="new")).id
    bob.read(new)
    late = at_time(held, "user", -3600).send_one("bob", Draft(body="late")).id

    assert late < new
    assert [stored.place.id for stored in bob.inbox(unread=True).messages] == [late]


def test_a_send_that_hangs_before_its_last_step_is_delivered_when_it_goes_on(
    bus: TemporaryBus, begin: Callable[..., Any], strace: Callable[..., tuple[str, ...]]
) -> None:
    """The slow one took its id first; the quick one is seen and read long before."""
    delay = ("-e", "trace=linkat", "-e", "inject=linkat:delay_enter=1500ms")
    slow = begin("bob", "slow", wrap=strace(*delay))
    assert slow.is_ready()
    slow.go()
    tmp = bus.path / "messages" / "bob" / "tmp"
    while not list(tmp.iterdir()):
        assert slow.process.poll() is None
    quick = bus.as_agent("user").send_one("bob", Draft(body="quick")).id
    bob = bus.as_agent("bob")
    bob.archive(quick)

    late = slow.answer()["id"]

    assert late < quick
    assert bodies(bob) == ["slow"]


def test_messages_of_one_process_keep_their_order(
    bus: TemporaryBus, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = """
from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
for number in range(50):
    bus.send_one("bob", Draft(body=str(number)))
"""
    run(code, AGENT_MSG_AS="alice", **bus.environment)

    assert bodies(bus.as_agent("bob")) == [str(number) for number in range(50)]


def test_their_order_holds_though_the_clock_steps_back_and_forth(
    held: TemporaryBus, clock: ManualClock
) -> None:
    alice = held.as_agent("alice")
    for number in range(30):
        alice.send_one("bob", Draft(body=str(number)))
        clock.jump((-7200, 3600, 0.001)[number % 3])

    assert bodies(held.as_agent("bob")) == [str(number) for number in range(30)]


def test_one_slow_sender_holds_up_nobody(bus: TemporaryBus, begin: Callable[..., Any]) -> None:
    """There is no lock on the way: a sender that stopped in the middle blocks no other."""
    stopped = begin("bob", "x")
    assert stopped.is_ready()
    for _ in range(5):
        bus.as_agent("user").send_one("bob", Draft(body="y"))
    stopped.go()

    assert "id" in stopped.answer()
    assert bodies(bus.as_agent("bob")).count("y") == 5
