"""P4: sending again with the same idempotency key never makes a second message.

Nor does it ever replace the first; different content under the same key is a Conflict. The key
of a send without one is its id, so that every retry can be made safe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_bus.clock import SystemClock
from agent_bus.errors import Conflict
from agent_bus.names import AgentName, MessageId, message_file, sent_file
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

BOB = AgentName("bob")
Begin = Callable[..., Any]
Send = Callable[..., dict[str, Any]]
Strace = Callable[..., tuple[str, ...]]


def bodies(bus: TemporaryBus) -> list[str]:
    found = [stored.judged.message for stored in bus.as_agent("bob").verify(box="bob")]
    assert None not in found
    return [message.body for message in found if message]


def race(begin: Begin, texts: list[str], key: str) -> list[dict[str, Any]]:
    """Processes that send at one moment, as far as that goes."""
    sendings = [begin("bob", text, key=key) for text in texts]
    assert all(sending.is_ready() for sending in sendings)
    for sending in sendings:
        sending.go()
    return [sending.answer() for sending in sendings]


def test_twenty_processes_with_one_key_make_exactly_one_message(
    bus: TemporaryBus, begin: Begin
) -> None:
    answers = race(begin, ["same"] * 20, "k")

    assert bodies(bus) == ["same"]
    assert len({answer["id"] for answer in answers}) == 1
    # The one whose file it is says so; all others know that theirs is a repeat.
    assert sorted(answer["duplicate"] for answer in answers) == [False] + [True] * 19


def test_twenty_processes_with_one_key_and_two_texts_make_one_message_and_conflicts(
    bus: TemporaryBus, begin: Begin
) -> None:
    answers = race(begin, ["this", "that"] * 10, "k")

    [won] = bodies(bus)
    for text, answer in zip(["this", "that"] * 10, answers, strict=True):
        assert ("id" in answer) == (text == won)
        assert answer.get("error") == (None if text == won else "conflict")


def test_twenty_processes_that_retry_one_id_make_exactly_one_message(
    bus: TemporaryBus, begin: Begin
) -> None:
    ident = SystemClock().new_id()
    answers = race(begin, ["same"] * 20, ident)

    assert bodies(bus) == ["same"]
    assert {answer["id"] for answer in answers} == {ident}


def test_a_retry_after_death_between_memory_and_box_sends_the_first_one(
    bus: TemporaryBus, send: Send, strace: Strace
) -> None:
    """kill -9 at the second link: it stands in sent/ and not in new."""
    inject = ("-e", "trace=linkat", "-e", "inject=linkat:signal=KILL:when=2")
    assert send("bob", "x", key="k", wrap=strace(*inject)) == {}
    remembered = bus.path / "sent" / "alice" / sent_file(BOB, "k")
    assert remembered.stat().st_nlink == 2
    assert bodies(bus) == []
    first = json.loads(remembered.read_bytes().partition(b"\n")[2])["id"]

    answer = send("bob", "x", key="k")

    assert (answer["id"], answer["duplicate"]) == (first, True)
    assert bodies(bus) == ["x"]
    assert send("bob", "other", key="k")["error"] == "conflict"


@pytest.mark.parametrize("call", ["write", "fsync", "linkat", "unlinkat"])
def test_a_retry_after_death_at_any_step_ends_with_exactly_one(
    bus: TemporaryBus, send: Send, strace: Strace, call: str
) -> None:
    """kill -9 before the n-th call of its kind; then the same key again."""
    for number in range(1, 5):
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        send("bob", f"{number}", key=f"k{number}", wrap=strace(*inject))
        answer = send("bob", f"{number}", key=f"k{number}")

        assert "id" in answer
        assert bodies(bus).count(f"{number}") == 1


def test_a_retry_after_a_simulated_death_between_memory_and_box(bus: TemporaryBus) -> None:
    """The same without strace: the name in new is taken away by hand."""
    alice = bus.as_agent("alice")
    first = alice.send_one("bob", Draft(body="x"), key="k")
    (bus.path / "messages" / "bob" / "new" / message_file(first.id)).unlink()

    again = alice.send_one("bob", Draft(body="x"), key="k")

    assert (again.id, again.duplicate) == (first.id, True)
    assert bodies(bus) == ["x"]


def test_the_first_message_is_never_replaced(bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    first = alice.send_one("bob", Draft(body="x"), key="k")
    path = bus.path / "messages" / "bob" / "new" / message_file(first.id)
    before = (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)

    for draft in (Draft(body="x"), Draft(body="y"), Draft(body="x", subject="s")):
        for key in ("k", first.id):
            try:
                alice.send_one("bob", draft, key=key)
            except Conflict:
                assert draft != Draft(body="x")
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before
    assert bodies(bus) == ["x"]


def test_times_do_not_make_another_message(held: TemporaryBus, clock: ManualClock) -> None:
    alice = held.as_agent("alice")
    first = alice.send_one("bob", Draft(body="x", expires_in=600), key="k")
    clock.advance(60)

    again = alice.send_one("bob", Draft(body="x", expires_in=600), key="k")

    assert (again.id, again.duplicate) == (first.id, True)


def test_a_key_belongs_to_one_sender_and_one_recipient(
    held: TemporaryBus, clock: ManualClock
) -> None:
    """Also after pruning: another's key of the same name is another key."""
    alice, user = held.as_agent("alice"), held.as_agent("user")
    first = alice.send_one("bob", Draft(body="x"), key="k")
    assert not user.send_one("bob", Draft(body="y"), key="k").duplicate
    assert not alice.send_one("user", Draft(body="z"), key="k").duplicate
    held.as_agent("bob").archive(first.id)
    clock.advance(60)
    held.as_agent("bob").prune(archived=0)

    conductor = held.as_agent("conductor")
    assert not conductor.send_one("bob", Draft(body="w"), key="k").duplicate
    assert alice.send_one("bob", Draft(body="x"), key="k").id == first.id


def test_a_key_is_remembered_after_its_message_was_pruned(
    held: TemporaryBus, clock: ManualClock
) -> None:
    alice, bob = held.as_agent("alice"), held.as_agent("bob")
    first = alice.send_one("bob", Draft(body="x"), key="k")
    bob.archive(first.id)
    clock.advance(400 * 24 * 3600)
    assert bob.prune(archived=0).removed == 1

    again = alice.send_one("bob", Draft(body="x"), key="k")

    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(Conflict):
        alice.send_one("bob", Draft(body="y"), key="k")
    assert bodies(held) == []


def test_without_a_key_the_id_is_the_key_wherever_the_message_stands(
    held: TemporaryBus, clock: ManualClock
) -> None:
    alice, bob = held.as_agent("alice"), held.as_agent("bob")
    ident = alice.send_one("bob", Draft(body="x")).id

    def retried() -> MessageId:
        receipt = alice.send_one("bob", Draft(body="x"), key=ident)
        assert receipt.duplicate
        return receipt.id

    assert retried() == ident
    bob.read(ident)
    assert retried() == ident
    bob.archive(ident)
    assert retried() == ident
    clock.advance(60)
    bob.prune(archived=0)
    assert retried() == ident
    assert bodies(held) == []


def test_a_retry_with_an_id_by_another_process_meets_the_first(
    bus: TemporaryBus, send: Send
) -> None:
    ident = send("bob", "x")["id"]

    assert send("bob", "x", key=ident) == {"id": ident, "duplicate": True} | {
        "durability": send("bob", "x", key=ident)["durability"]
    }
    assert bodies(bus) == ["x"]


def test_a_copied_bus_keeps_its_keys(bus: TemporaryBus, send: Send, tmp_path: Path) -> None:
    """A backup that was made without hard links, and put back."""
    first = send("bob", "x", key="k")
    shutil.copytree(bus.path, tmp_path / "copy")
    os.rename(bus.path, tmp_path / "old")
    os.rename(tmp_path / "copy", bus.path)

    again = send("bob", "x", key="k")

    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert bodies(bus) == ["x"]


def test_a_keyed_request_for_approval_is_asked_once(bus: TemporaryBus, begin: Begin) -> None:
    sendings = [begin("", "Drop it?", key="k", verb="ask") for _ in range(8)]
    assert all(sending.is_ready() for sending in sendings)
    for sending in sendings:
        sending.go()
    ids = {sending.answer()["id"] for sending in sendings}

    chief = bus.as_agent("conductor")
    assert {request.message.id for request in chief.pending()} == ids
    assert len(ids) == 1
    assert chief.inbox().total == 1
