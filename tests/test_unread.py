"""Which of a sender's messages nobody has read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent_bus import unread
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus


def _send(bus: TemporaryBus, sender: str, to: str, **fields: object) -> str:
    draft = Draft(body="x", **fields)  # type: ignore[arg-type]
    return bus.as_agent(sender).send_one(to, draft).id


def test_only_what_is_old_enough_and_unread_and_mine(
    held: TemporaryBus, clock: ManualClock
) -> None:
    read, archived, mine = (_send(held, "alice", "bob") for _ in range(3))
    _send(held, "bob", "alice")
    _send(held, "user", "bob")
    held.as_agent("bob").read(read)
    held.as_agent("bob").archive(archived)
    clock.advance(599)
    assert held.as_agent("alice").unread_by_others() == unread.Neglect((), complete=True)
    clock.advance(1)
    late = _send(held, "alice", "bob")
    found = held.as_agent("alice").unread_by_others()
    assert [one.id for one in found.messages] == [mine]
    assert late not in {one.id for one in found.messages}
    (one,) = found.messages
    assert (one.to, one.attached, one.last_seen) == ("bob", False, None)


def test_whether_somebody_is_there(held: TemporaryBus, clock: ManualClock) -> None:
    _send(held, "alice", "bob")
    clock.advance(600)
    with held.as_agent("bob").presence.attach(AgentName("bob"), "mcp"):
        (one,) = held.as_agent("alice").unread_by_others().messages
        assert one.attached
    (one,) = held.as_agent("alice").unread_by_others().messages
    assert not one.attached
    assert one.last_seen is not None


def test_what_expired_or_does_not_verify_is_nobodys_any_more(
    held: TemporaryBus, clock: ManualClock
) -> None:
    _send(held, "alice", "bob", expires_in=60)
    forged = _send(held, "alice", "bob", subject="one")
    path: Path = held.path / f"messages/bob/new/{forged}.msg"
    path.write_bytes(path.read_bytes().replace(b'"one"', b'"two"'))
    clock.advance(7200)
    assert held.as_agent("alice").unread_by_others().messages == ()


def test_the_cost_is_bounded_and_the_answer_says_so(held: TemporaryBus, clock: ManualClock) -> None:
    first = _send(held, "alice", "bob")
    for _ in range(110):
        _send(held, "user", "bob")
    last = _send(held, "alice", "bob")
    clock.advance(600)
    found = held.as_agent("alice").unread_by_others()
    assert [one.id for one in found.messages] == [last]
    assert first not in {one.id for one in found.messages}
    assert not found.complete


def test_the_time_is_the_settings(held: TemporaryBus, clock: ManualClock) -> None:
    ident = _send(held, "alice", "bob")
    bus = held.as_agent("alice")
    bus.settings = replace(bus.settings, unread_after=5)
    clock.advance(5)
    assert [one.id for one in bus.unread_by_others().messages] == [ident]
