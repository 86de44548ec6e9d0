"""From what a caller wants to say to messages in boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_bus.bus import Bus
from agent_bus.clock import from_text
from agent_bus.errors import (
    Conflict,
    InvalidMessage,
    InvalidName,
    NotDelivered,
    UnknownRecipient,
    UsageError,
)
from agent_bus.payload import BODY_LIMIT, Message
from agent_bus.sending import Draft, Receipt, Refusal
from agent_bus.testing import ManualClock, TemporaryBus


def tree(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder, with modes and times."""
    return {
        str(entry.relative_to(path)): (
            entry.lstat().st_mode,
            entry.lstat().st_mtime_ns,
            entry.read_bytes() if entry.is_file() else b"",
        )
        for entry in sorted(path.rglob("*"))
    }


def message_of(reader: Bus, ident: str) -> Message:
    found = reader.read(ident).judged.message
    assert found is not None
    return found


def test_a_receipt_tells_what_happened(alice: Bus, bob: Bus) -> None:
    receipt = alice.send_one("bob", Draft(body="hello", subject="hi", priority="high"))

    assert receipt.to == "bob"
    assert receipt.durability in ("disk", "process")
    assert (receipt.duplicate, receipt.attached) == (False, False)
    message = message_of(bob, receipt.id)
    assert (message.sender, message.body, message.subject) == ("alice", "hello", "hi")
    assert message.priority == "high"
    assert message.thread is None


REFUSED: list[tuple[list[str], Draft, dict[str, Any], type[Exception]]] = [
    ([], Draft(body="x"), {}, UsageError),
    (["Bob"], Draft(body="x"), {}, InvalidName),
    (["../bob"], Draft(body="x"), {"force": True}, InvalidName),
    (["bobb"], Draft(body="x"), {}, UnknownRecipient),
    (["bob", "nobody"], Draft(body="x"), {}, UnknownRecipient),
    ([f"a{n}" for n in range(65)], Draft(body="x"), {"force": True}, UsageError),
    (["openhands"], Draft(body="x"), {}, UnknownRecipient),
    (["bob"], Draft(), {}, InvalidMessage),
    (["bob"], Draft(body="x" * (BODY_LIMIT + 1)), {}, InvalidMessage),
    (["bob"], Draft(subject="a\nb"), {}, InvalidMessage),
    (["bob"], Draft(subject="x" * 201), {}, InvalidMessage),
    (["bob"], Draft(body="x", kind="Note"), {}, InvalidName),
    (["bob"], Draft(body="x", kind="wake"), {}, InvalidMessage),
    (["bob"], Draft(body="x", kind="approval_request"), {}, InvalidMessage),
    (["bob"], Draft(body="x", kind="approval_decision"), {}, InvalidMessage),
    (["bob"], Draft(body="x", reply_to="x"), {}, InvalidName),
    (["bob"], Draft(body="x", thread="x"), {}, InvalidName),
    (["bob"], Draft(body="x", priority="asap"), {}, UsageError),
    (["bob"], Draft(body="x", expires_in=0), {}, InvalidMessage),
    (["bob"], Draft(body="x", expires_in=-5), {}, InvalidMessage),
    (["bob"], Draft(body="x", expires_in=10**12), {}, InvalidMessage),
    (["bob"], Draft(body="x"), {"key": ""}, UsageError),
    (["bob"], Draft(body="x"), {"key": "a\nb"}, UsageError),
    (["bob"], Draft(body="x"), {"key": "x" * 513}, UsageError),
]


@pytest.mark.parametrize(("to", "draft", "options", "error"), REFUSED)
def test_a_refused_send_writes_nothing(
    alice: Bus,
    tmp_path: Path,
    to: list[str],
    draft: Draft,
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    before = tree(tmp_path)
    with pytest.raises(error) as caught:
        alice.send(to, draft, **options)

    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "draft",
    [
        Draft(body="\ud800"),
        Draft(subject="\ud800"),
        Draft(body="x", data={"a": float("inf")}),
        Draft(body="x", data={"a": object()}),
        Draft(body="x", data={"a": "x" * 20_000}),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_written(
    alice: Bus, tmp_path: Path, draft: Draft
) -> None:
    before = tree(tmp_path)
    with pytest.raises(InvalidMessage) as caught:
        alice.send_one("bob", draft)

    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


def test_an_unknown_name_is_refused_with_the_nearest_known_one(alice: Bus) -> None:
    with pytest.raises(UnknownRecipient, match="did you mean bob"):
        alice.send_one("bobb", Draft(body="x"))
    with pytest.raises(UnknownRecipient, match="known: alice, bob, conductor, user"):
        alice.send_one("zzzzzzzz", Draft(body="x"))


def test_force_sends_to_a_name_that_nobody_has_yet(alice: Bus, held: TemporaryBus) -> None:
    receipt = alice.send_one("carol", Draft(body="x"), force=True)

    held.add_agent("carol")
    assert message_of(held.as_agent("carol"), receipt.id).to == "carol"


def test_several_recipients_are_several_sends(alice: Bus, held: TemporaryBus) -> None:
    outcomes = alice.send(["bob", "user", "bob"], Draft(body="x"))

    assert [outcome.to for outcome in outcomes] == ["bob", "user"]
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Receipt)]
    assert len(set(ids)) == 2
    for name, ident in zip(("bob", "user"), ids, strict=True):
        assert message_of(held.as_agent(name), ident).recipients == ("bob", "user")


def test_what_happens_to_one_recipient_is_its_own_outcome(alice: Bus, held: TemporaryBus) -> None:
    (held.path / "messages" / "bob" / "new").rmdir()
    (held.path / "messages" / "bob" / "new").write_text("in the way")

    outcomes = alice.send(["bob", "user"], Draft(body="x"))

    assert isinstance(outcomes[0], Refusal)
    assert isinstance(outcomes[0].error, NotDelivered)
    assert isinstance(outcomes[1], Receipt)


def test_the_one_of_several_that_failed_can_be_tried_again_alone(
    alice: Bus, bob: Bus, held: TemporaryBus
) -> None:
    together = alice.send(["user", "bob"], Draft(body="x"), key="k")
    alone = alice.send_one("bob", Draft(body="x"), key="k")
    assert isinstance(together[1], Receipt)

    assert (alone.id, alone.duplicate) == (together[1].id, True)
    unkeyed = alice.send(["user", "bob"], Draft(body="y"))
    assert isinstance(unkeyed[1], Receipt)
    again = alice.send_one("bob", Draft(body="y"), key=unkeyed[1].id)
    assert (again.id, again.duplicate) == (unkeyed[1].id, True)
    assert bob.inbox().total == 2


def test_the_key_of_a_send_without_one_is_its_id(alice: Bus, bob: Bus) -> None:
    first = alice.send_one("bob", Draft(body="x"))
    again = alice.send_one("bob", Draft(body="x"), key=first.id)

    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(Conflict):
        alice.send_one("bob", Draft(body="other"), key=first.id)
    assert bob.inbox().total == 1


def test_a_retry_whose_first_try_left_nothing_takes_its_id(alice: Bus, clock: ManualClock) -> None:
    ident = clock.new_id()

    first = alice.send_one("bob", Draft(body="x"), key=ident)
    again = alice.send_one("bob", Draft(body="x"), key=ident)

    assert (first.id, first.duplicate) == (ident, False)
    assert (again.id, again.duplicate) == (ident, True)


def test_a_first_message_has_no_thread_and_an_answer_has_that_of_what_it_answers(
    alice: Bus, bob: Bus
) -> None:
    first = alice.send_one("bob", Draft(body="one")).id
    second = bob.send_one("alice", Draft(body="two", reply_to=first)).id
    third = alice.send_one("bob", Draft(body="three", reply_to=second)).id
    other = alice.send_one("bob", Draft(body="four", reply_to=second, thread=third)).id

    assert message_of(bob, first).thread is None
    assert message_of(alice, second).thread == first
    assert message_of(bob, third).thread == first
    assert message_of(bob, other).thread == third
    assert message_of(bob, third).reply_to == second


def test_an_answer_to_what_nobody_has_begins_a_thread_there(alice: Bus, bob: Bus) -> None:
    gone = "01kbb000000000000000000001"
    answer = alice.send_one("bob", Draft(body="x", reply_to=gone)).id

    assert message_of(bob, answer).thread == gone


def test_expiry_counts_from_the_sending(alice: Bus, bob: Bus, clock: ManualClock) -> None:
    ident = alice.send_one("bob", Draft(body="x", expires_in=90)).id
    message = message_of(bob, ident)

    assert message.expires_at is not None
    assert (
        from_text(message.expires_at)
        == clock.now() + 90_000
        == from_text(message.sent_at) + (90_000)
    )


def test_a_sender_whose_key_was_taken_away_sends_nothing_more(
    alice: Bus, bob: Bus, held: TemporaryBus
) -> None:
    alice.keys.retire_agent(alice.identity)

    outcomes = alice.send(["bob"], Draft(body="x"))

    assert isinstance(outcomes[0], Refusal)
    assert outcomes[0].error.code == "identity"
    assert bob.inbox().total == 0


def bodies(page: Iterator[Any]) -> list[str]:
    return [stored.judged.message.body for stored in page]


def test_messages_of_one_process_keep_their_order_though_the_clock_steps_back(
    alice: Bus, bob: Bus, clock: ManualClock
) -> None:
    for number in range(20):
        alice.send_one("bob", Draft(body=str(number)))
        clock.jump(-3600 if number % 2 else 60)

    assert bodies(iter(bob.inbox().messages)) == [str(number) for number in range(20)]
