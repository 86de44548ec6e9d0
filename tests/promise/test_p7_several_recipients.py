"""P7: sending to several recipients is several sends.

All names are checked before the first write; the receipt lists each outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_bus.errors import AgentBusError, Conflict, InvalidName, NotDelivered, UnknownRecipient
from agent_bus.sending import Draft, Receipt, Refusal
from agent_bus.testing import TemporaryBus

Tree = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["bob", "user", "bobb"], UnknownRecipient),
        (["bob", "Bob"], InvalidName),
        (["bob", "../../x"], InvalidName),
        (["bob", ""], InvalidName),
    ],
)
def test_all_names_are_checked_before_the_first_write(
    bus: TemporaryBus, tree: Tree, tmp_path: Path, names: list[str], error: type[AgentBusError]
) -> None:
    before = tree(tmp_path)
    for order in (names, names[::-1]):
        with pytest.raises(error):
            bus.as_agent("alice").send(order, Draft(body="x"), key="k")
    assert tree(tmp_path) == before


def test_each_recipient_gets_a_message_of_its_own_that_names_all(bus: TemporaryBus) -> None:
    outcomes = bus.as_agent("alice").send(["user", "bob"], Draft(body="x"))

    assert [outcome.to for outcome in outcomes] == ["user", "bob"]
    for outcome in outcomes:
        assert isinstance(outcome, Receipt)
        message = bus.as_agent(outcome.to).read(outcome.id).judged.message
        assert message is not None
        assert (message.to, message.recipients) == (outcome.to, ("user", "bob"))


def test_the_outcome_of_one_says_nothing_about_the_others(bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    alice.send_one("conductor", Draft(body="other"), key="k")
    new = bus.path / "messages" / "bob" / "new"
    new.rmdir()
    new.write_bytes(b"")

    broken, fine, taken = alice.send(["bob", "user", "conductor"], Draft(body="x"), key="k")

    assert isinstance(broken, Refusal)
    assert isinstance(broken.error, NotDelivered)
    assert isinstance(fine, Receipt)
    assert isinstance(taken, Refusal)
    assert isinstance(taken.error, Conflict)
    assert [stored.place.id for stored in bus.as_agent("user").inbox().messages] == [fine.id]


def test_a_retry_of_all_sends_only_what_is_missing(bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    new = bus.path / "messages" / "bob" / "new"
    new.rmdir()
    new.write_bytes(b"")
    first = alice.send(["bob", "user"], Draft(body="x"), key="k")
    assert [isinstance(outcome, Receipt) for outcome in first] == [False, True]
    new.unlink()

    again = alice.send(["bob", "user"], Draft(body="x"), key="k")

    assert [outcome.duplicate for outcome in again if isinstance(outcome, Receipt)] == [False, True]
    assert bus.as_agent("bob").inbox().total == 1
    assert bus.as_agent("user").inbox().total == 1


def test_a_name_that_is_given_twice_gets_one_message(bus: TemporaryBus) -> None:
    assert len(bus.as_agent("alice").send(["bob", "bob"], Draft(body="x"))) == 1
    assert bus.as_agent("bob").inbox().total == 1
