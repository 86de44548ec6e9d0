"""P3: a message stays offered until its recipient archives it or it expires.

Expiry goes by the reader's clock, with five minutes of tolerance. An archive step may be
forgotten in a crash, a message may not; ids are stable, so that a repeat can be recognised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from agent_bus.bus import Bus
from agent_bus.names import AgentName, message_file, month_of
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

BOB = AgentName("bob")


def offered(bus: Bus) -> list[str]:
    return [stored.place.id for stored in bus.inbox().messages if stored.judged.ok]


def test_a_message_stays_offered_until_it_is_archived(bus: TemporaryBus) -> None:
    ident = bus.as_agent("alice").send_one("bob", Draft(body="x")).id
    for _ in range(3):
        # Each time a process of its own, as it were: nothing is remembered elsewhere.
        assert offered(bus.as_agent("bob")) == [ident]
        bus.as_agent("bob").read(ident)
    bus.as_agent("bob").archive(ident)

    assert offered(bus.as_agent("bob")) == []
    assert bus.as_agent("bob").read(ident).place.state == "archived"


def test_looking_and_pruning_take_nothing_that_was_not_archived(
    held: TemporaryBus, clock: ManualClock
) -> None:
    ident = held.as_agent("alice").send_one("bob", Draft(body="x")).id
    clock.advance(3650 * 24 * 3600)
    held.as_agent("bob").prune(archived=0, read=0)

    assert offered(held.as_agent("bob")) == [ident]


def test_a_message_expires_by_the_readers_clock_after_five_minutes_of_tolerance(
    held: TemporaryBus, clock: ManualClock
) -> None:
    ident = held.as_agent("alice").send_one("bob", Draft(body="x", expires_in=60)).id
    bob = held.as_agent("bob")
    clock.advance(60 + 300)
    assert offered(bob) == [ident]
    clock.jump(0.001)
    assert offered(bob) == []
    # It is still there, named as what it is, and can be read.
    assert [stored.judged.outcome for stored in bob.inbox().messages] == ["expired"]
    assert bob.read(ident).judged.message is not None
    clock.jump(-60)
    assert offered(bob) == [ident]


def test_a_crash_between_two_steps_of_archiving_forgets_the_step_or_nothing(
    bus: TemporaryBus,
) -> None:
    """Whatever subset of a move's links a crash leaves, the message is in one place, whole."""
    box = bus.path / "messages" / "bob"
    alice = bus.as_agent("alice")
    for parts in (("new",), ("new", "cur"), ("cur",), ("cur", "archive"), ("new", "archive")):
        ident = alice.send_one("bob", Draft(body="x")).id
        archive = box / "archive" / month_of(ident)
        archive.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in parts:
            if part != "new":
                folder = archive if part == "archive" else box / part
                os.link(box / "new" / message_file(ident), folder / message_file(ident))
        if "new" not in parts:
            (box / "new" / message_file(ident)).unlink()

        stored = bus.as_agent("bob").store.load(BOB, ident)
        assert stored.judged.ok
        assert stored.place.state == (
            "archived" if "archive" in parts else "read" if "cur" in parts else "new"
        )
        assert (ident in offered(bus.as_agent("bob"))) == ("archive" not in parts)
        bus.as_agent("bob").archive(ident)
        assert offered(bus.as_agent("bob")) == []


def test_a_reader_that_is_killed_in_a_move_loses_nothing(
    bus: TemporaryBus,
    run: Callable[..., Any],
    strace: Callable[..., tuple[str, ...]],
) -> None:
    """Killed at its n-th system call of each kind that moves: the message is still there."""
    code = """
import sys
from agent_bus.bus import Bus
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
print("ready", flush=True)
bus.archive(sys.argv[1])
"""
    for call in ("linkat", "fsync", "unlinkat"):
        ident = bus.as_agent("alice").send_one("bob", Draft(body="x")).id
        words = strace("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when=1")
        done = run(code, ident, wrap=words, AGENT_MSG_AS="bob", **bus.environment)

        assert done.returncode != 0
        assert bus.as_agent("bob").store.load(BOB, ident).judged.ok
        bus.as_agent("bob").archive(ident)
        assert offered(bus.as_agent("bob")) == []


def test_a_repeat_has_the_same_id(bus: TemporaryBus) -> None:
    """An archive step that a power cut forgot offers the same message once more."""
    ident = bus.as_agent("alice").send_one("bob", Draft(body="x")).id
    bob = bus.as_agent("bob")
    bob.archive(ident)
    box = bus.path / "messages" / "bob"
    (box / "archive" / month_of(ident) / message_file(ident)).rename(
        box / "new" / message_file(ident)
    )

    assert offered(bob) == [ident]
