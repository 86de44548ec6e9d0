"""Approvals: one queue, one decision for each request."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_bus.approvals import earlier
from agent_bus.bus import Bus
from agent_bus.clock import to_text
from agent_bus.envelope import encode_decision
from agent_bus.errors import (
    ConfigurationError,
    Conflict,
    DeliveryUncertain,
    InvalidDecision,
    InvalidMessage,
    InvalidName,
    NoSuchMessage,
    NotPermitted,
    UsageError,
    VerificationError,
)
from agent_bus.names import AgentName, MessageId
from agent_bus.payload import Decision
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus


@pytest.fixture
def chief(held: TemporaryBus) -> Bus:
    return held.as_agent("conductor")


@pytest.fixture
def user(held: TemporaryBus) -> Bus:
    return held.as_agent("user")


@pytest.fixture
def asked(alice: Bus) -> MessageId:
    return alice.request_approval("Drop the table?\nIt is empty.", details={"table": "t"}).id


def pending(bus: Bus) -> list[str]:
    return [request.message.id for request in bus.pending()]


def answers(bus: Bus) -> list[tuple[str, str]]:
    found = [stored.judged.message for stored in bus.inbox().messages]
    return [
        (message.subject, (message.data or {})["decision"])
        for message in found
        if message and message.kind == "approval_decision"
    ]


def file_of(held: TemporaryBus, ident: str, kind: str = "decision") -> Path:
    return held.path / "approvals" / f"{ident}.{kind}"


def test_a_request_that_does_not_verify_is_named_until_it_is_decided(
    alice: Bus, chief: Bus, asked: MessageId, held: TemporaryBus
) -> None:
    """The keys of what was decided may have been revoked since, which is nobody's concern."""
    decided = alice.request_approval("Else?").id
    chief.decide(decided, "approve")
    assert chief.approvals.unusable() == []
    alice.keys.revoke(AgentName("alice"), alice.keys.load(AgentName("alice")).keys[0].kid)

    assert chief.approvals.unusable() == [(asked, "revoked-key")]
    assert pending(chief) == []


def test_a_request_stands_in_every_admins_queue(
    chief: Bus, user: Bus, asked: MessageId, held: TemporaryBus
) -> None:
    for admin in (chief, user):
        [request] = admin.pending()
        assert request.message.id == asked
        assert request.options == ("approve", "deny")
        assert request.details == {"table": "t"}
        assert request.message.subject == "Drop the table?"
        assert request.message.body == "Drop the table?\nIt is empty."
    with pytest.raises(NotPermitted):
        held.as_agent("bob").pending()


def test_a_request_goes_to_the_first_admin_who_is_not_the_asker(
    chief: Bus, user: Bus, alice: Bus
) -> None:
    assert alice.request_approval("a?").to == "conductor"
    assert chief.request_approval("b?").to == "user"
    assert alice.request_approval("c?", to="user").to == "user"
    with pytest.raises(UsageError, match="is no admin"):
        alice.request_approval("d?", to="bob")


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("", ["a"]),
        (" \n ", ["a"]),
        ("x?", []),
        ("x?", ["a", "a"]),
        ("x?", [" "]),
        ("x?", ["a\nb"]),
        ("x?", ["a" * 65]),
        ("x?", ["withdraw"]),
        ("x?", [f"o{n}" for n in range(17)]),
    ],
)
def test_a_request_of_no_sense_is_refused(
    alice: Bus, held: TemporaryBus, question: str, options: list[str]
) -> None:
    with pytest.raises(InvalidMessage):
        alice.request_approval(question, options=options)
    assert list((held.path / "approvals").iterdir()) == []


def test_an_odd_first_line_becomes_a_subject(alice: Bus, chief: Bus) -> None:
    alice.request_approval("\n\t a\x1b[31m" + "b" * 300 + "\nrest")

    [request] = chief.pending()
    assert request.message.subject.startswith("a [31mbbb")
    assert len(request.message.subject) == 200


def test_a_decision_counts_once_and_reaches_the_asker(
    chief: Bus, user: Bus, alice: Bus, asked: MessageId
) -> None:
    decided = chief.decide(asked, "approve", reason="it is empty")

    assert (decided.decision.by, decided.repeated) == ("conductor", False)
    assert pending(chief) == pending(user) == []
    assert answers(alice) == [("approve: Drop the table?", "approve")]
    [stored] = alice.inbox().messages
    assert stored.judged.message is not None
    assert stored.judged.message.body == "it is empty"
    assert stored.judged.message.reply_to == stored.judged.message.thread == asked


def test_the_same_decision_again_names_the_first_and_another_is_a_conflict(
    chief: Bus, user: Bus, alice: Bus, asked: MessageId
) -> None:
    first = chief.decide(asked, "deny").decision

    for admin in (chief, user):
        again = admin.decide(asked, "deny")
        assert (again.repeated, again.decision) == (True, first)
        with pytest.raises(Conflict, match="decided by conductor"):
            admin.decide(asked, "approve")
    assert answers(alice) == [("deny: Drop the table?", "deny")]


def test_who_may_decide_what(alice: Bus, chief: Bus, asked: MessageId, held: TemporaryBus) -> None:
    with pytest.raises(NotPermitted, match="is no admin"):
        held.as_agent("bob").decide(asked, "approve")
    with pytest.raises(NotPermitted, match="may only withdraw"):
        alice.decide(asked, "approve")
    with pytest.raises(InvalidDecision, match='choose "approve", "deny"'):
        chief.decide(asked, "withdraw")
    own = chief.request_approval("mine?").id
    with pytest.raises(NotPermitted):
        chief.decide(own, "approve")
    with pytest.raises(NoSuchMessage):
        chief.decide("01kbb000000000000000000001", "approve")
    with pytest.raises(InvalidName):
        chief.decide(asked[-8:], "approve")
    assert not file_of(held, asked).exists()


def test_the_environment_narrows_the_admins_and_never_widens_them(
    held: TemporaryBus, asked: MessageId
) -> None:
    narrow = replace(held.settings, admins=(AgentName("user"), AgentName("bob")))

    assert not Bus.open(narrow, identity="conductor", clock=held.clock).is_admin
    assert not Bus.open(narrow, identity="bob", clock=held.clock).is_admin
    with pytest.raises(NotPermitted):
        Bus.open(narrow, identity="conductor", clock=held.clock).decide(asked, "approve")
    assert Bus.open(narrow, identity="user", clock=held.clock).decide(asked, "approve")


def test_the_asker_may_withdraw_and_the_one_who_was_asked_is_told(
    alice: Bus, chief: Bus, asked: MessageId
) -> None:
    alice.decide(asked, "withdraw")

    assert pending(chief) == []
    assert answers(chief) == [("withdraw: Drop the table?", "withdraw")]
    with pytest.raises(Conflict, match="decided by alice"):
        chief.decide(asked, "approve")


def test_after_its_time_a_request_is_over(
    alice: Bus, chief: Bus, clock: ManualClock, held: TemporaryBus
) -> None:
    ident = alice.request_approval("now?", expires_in=60).id
    clock.advance(61)

    assert pending(chief) == []
    with pytest.raises(InvalidDecision, match="ask again"):
        chief.decide(ident, "approve")
    assert not file_of(held, ident).exists()


def test_a_decision_in_time_can_be_repeated_afterwards(
    alice: Bus, chief: Bus, clock: ManualClock
) -> None:
    ident = alice.request_approval("now?", expires_in=60).id
    chief.decide(ident, "approve")
    clock.advance(600)

    assert chief.decide(ident, "approve").repeated


def test_what_was_shown_is_what_is_decided(chief: Bus, asked: MessageId) -> None:
    [request] = chief.pending()
    with pytest.raises(Conflict, match="not what was shown"):
        chief.decide(asked, "approve", sha256="0" * 64)
    assert chief.decide(asked, "approve", sha256=request.sha256)


def test_a_request_that_was_altered_cannot_be_decided(
    chief: Bus, user: Bus, alice: Bus, asked: MessageId, held: TemporaryBus
) -> None:
    other = alice.request_approval("fine?").id
    path = file_of(held, asked, "request")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"Drop", b"Keep", 1))

    assert pending(chief) == [other]
    with pytest.raises(VerificationError, match="bad-signature"):
        chief.decide(asked, "approve")


def test_a_note_in_the_queue_is_no_request(chief: Bus, alice: Bus, held: TemporaryBus) -> None:
    ident = alice.send_one("conductor", Draft(body="x")).id
    [path] = (held.path / "messages").rglob(f"{ident}.msg")
    os.link(path, file_of(held, ident, "request"))

    assert pending(chief) == []
    with pytest.raises(VerificationError, match="of another kind"):
        chief.decide(ident, "approve")


def forged(held: TemporaryBus, ident: MessageId, signer: str, **changes: Any) -> bytes:
    chief = held.as_agent("conductor")
    request = chief.approvals.request(ident)
    decision = Decision(
        request=ident,
        request_sha256=request.sha256,
        bus=chief.store.bus,
        decision="approve",
        by=AgentName("conductor"),
        decided_at=to_text(held.clock.now()),
    )
    key = chief.keys.load(AgentName(signer)).signing_key()
    return encode_decision(replace(decision, **changes), key)


FORGERIES: list[tuple[str, dict[str, Any]]] = [
    ("bob", {}),
    ("bob", {"by": "bob"}),
    ("alice", {"by": "alice"}),
    ("conductor", {"request_sha256": "0" * 64}),
    ("conductor", {"bus": "01kbb000000000000000000001"}),
    ("conductor", {"request": "01kbb000000000000000000001"}),
    ("conductor", {"decision": "explode"}),
    ("conductor", {"decision": "withdraw"}),
]


@pytest.mark.parametrize(("signer", "changes"), FORGERIES)
def test_a_decision_that_does_not_count_blocks_nobody_and_is_set_aside(
    held: TemporaryBus, chief: Bus, asked: MessageId, signer: str, changes: dict[str, Any]
) -> None:
    path = file_of(held, asked)
    path.write_bytes(forged(held, asked, signer, **changes))
    assert pending(chief) == [asked]

    decided = chief.decide(asked, "deny")

    assert (decided.decision.decision, decided.repeated) == ("deny", False)
    assert len(list((held.path / "approvals" / "bad").iterdir())) == 1
    assert pending(chief) == []


@pytest.mark.parametrize("what", ["empty", "folder", "link", "garbage"])
def test_whatever_stands_at_a_decisions_place_blocks_nobody(
    held: TemporaryBus, chief: Bus, asked: MessageId, what: str
) -> None:
    path = file_of(held, asked)
    if what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"" if what == "empty" else b"\xff")

    assert not chief.decide(asked, "deny").repeated


def test_a_decision_dated_after_the_requests_end_is_void(
    held: TemporaryBus, alice: Bus, chief: Bus, clock: ManualClock
) -> None:
    ident = alice.request_approval("now?", expires_in=60).id
    late = to_text(clock.now() + 61_000)
    file_of(held, ident).write_bytes(forged(held, ident, "conductor", decided_at=late))

    assert pending(chief) == [ident]
    assert not chief.decide(ident, "deny").repeated


def test_a_decision_whose_key_cannot_be_read_just_now_is_not_set_aside(
    held: TemporaryBus, chief: Bus, user: Bus, asked: MessageId
) -> None:
    chief.decide(asked, "approve")
    ring = held.settings.keys / "conductor.json"
    ring.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        user.decide(asked, "deny")
    ring.chmod(0o600)

    with pytest.raises(Conflict, match="decided by conductor"):
        user.decide(asked, "deny")


def test_a_decision_outlives_a_rotation_but_not_a_revocation(
    held: TemporaryBus, chief: Bus, user: Bus, asked: MessageId
) -> None:
    chief.decide(asked, "approve")
    first = chief.keys.load(chief.identity).signing_key()
    chief.keys.rotate(chief.identity)
    assert pending(user) == []
    chief.keys.revoke(chief.identity, first.kid)
    assert pending(user) == [asked]


@pytest.mark.parametrize("reason", ["x" * 4001, "\x01" * 1000])
def test_a_reason_that_no_notice_could_carry_is_refused_before_the_decision(
    held: TemporaryBus, chief: Bus, asked: MessageId, reason: str
) -> None:
    with pytest.raises(InvalidDecision):
        chief.decide(asked, "approve", reason=reason)
    assert pending(chief) == [asked]


def test_a_reason_as_long_as_it_may_be_arrives(chief: Bus, alice: Bus, asked: MessageId) -> None:
    chief.decide(asked, "approve", reason="ы" * 1990)

    assert answers(alice) == [("approve: Drop the table?", "approve")]


def break_box(held: TemporaryBus) -> Path:
    new = held.path / "messages" / "alice" / "new"
    new.rename(new.with_name("aside"))
    new.write_text("in the way")
    return new


def mend_box(new: Path) -> None:
    new.unlink()
    new.with_name("aside").rename(new)


def test_a_crash_between_decision_and_notice_is_completed_by_the_next_decide(
    held: TemporaryBus, chief: Bus, user: Bus, alice: Bus, asked: MessageId
) -> None:
    new = break_box(held)
    with pytest.raises(DeliveryUncertain, match="alice was not told") as caught:
        chief.decide(asked, "approve")
    assert caught.value.key == f"decision:{asked}"
    mend_box(new)
    assert pending(user) == []
    assert answers(alice) == []

    assert user.decide(asked, "approve").repeated
    assert answers(alice) == []
    assert chief.decide(asked, "approve").repeated
    assert answers(alice) == [("approve: Drop the table?", "approve")]


def test_a_crash_between_decision_and_notice_is_completed_at_the_admins_next_start(
    held: TemporaryBus, chief: Bus, user: Bus, alice: Bus, asked: MessageId
) -> None:
    new = break_box(held)
    with pytest.raises(DeliveryUncertain):
        chief.decide(asked, "approve")
    chief.attend()
    mend_box(new)
    [(request, decision)] = chief.approvals.undelivered()
    assert (request.message.id, decision.by) == (asked, "conductor")

    user.attend()
    assert answers(alice) == []
    chief.attend()
    chief.attend()
    assert answers(alice) == [("approve: Drop the table?", "approve")]
    assert list(chief.approvals.undelivered()) == []


def test_two_deciders_at_once_make_one_decision(held: TemporaryBus, alice: Bus) -> None:
    """Fifty rounds; the other gets a conflict, and the asker exactly one answer."""
    chief, user = held.as_agent("conductor"), held.as_agent("user")
    for number in range(50):
        ident = alice.request_approval(f"{number}?").id
        barrier = threading.Barrier(2)
        outcomes: list[str] = []

        def decide(
            bus: Bus,
            decision: str,
            ident: str = ident,
            barrier: threading.Barrier = barrier,
            outcomes: list[str] = outcomes,
        ) -> None:
            barrier.wait(timeout=60)
            try:
                bus.decide(ident, decision)
                outcomes.append(decision)
            except Conflict:
                outcomes.append("conflict")

        threads = [
            threading.Thread(target=decide, args=arguments)
            for arguments in ((chief, "approve"), (user, "deny"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) in (["approve", "conflict"], ["conflict", "deny"])
    assert len(answers(alice)) == 50
    assert chief.pending() == []


def test_a_keyed_request_is_made_once(alice: Bus, chief: Bus) -> None:
    first = alice.request_approval("once?", key="k")
    again = alice.request_approval("once?", key="k")

    assert (again.id, again.duplicate) == (first.id, True)
    assert pending(chief) == [first.id]
    with pytest.raises(Conflict):
        alice.request_approval("twice?", key="k")


def test_details_are_any_json(alice: Bus, chief: Bus) -> None:
    for details in ([1, None], "text", {"a": {"b": 1}}, 0, False):
        alice.request_approval("x?", details=details)

    found = [request.details for request in chief.pending()]
    assert json.dumps(found) == json.dumps([[1, None], "text", {"a": {"b": 1}}, 0, False])


def test_what_was_decided_is_listed_newest_first(bus: TemporaryBus) -> None:
    alice, user = bus.as_agent("alice"), bus.as_agent("user")
    idents = [alice.request_approval(f"question {number}").id for number in range(4)]
    for ident in idents[:3]:
        user.decide(ident, "approve")
    listed = user.approvals.decided(2)
    assert [request.message.id for request, _ in listed] == [idents[2], idents[1]]
    assert {decision.decision for _, decision in listed} == {"approve"}


def test_an_earlier_answer_is_found_by_asker_and_words(bus: TemporaryBus) -> None:
    alice, user = bus.as_agent("alice"), bus.as_agent("user")
    for asker, words in ((alice, "May I  push?"), (bus.as_agent("bob"), "May I push?")):
        user.decide(asker.request_approval(words).id, "deny")
    user.decide(alice.request_approval("May I pull?").id, "approve")
    again = user.approvals.request(alice.request_approval("may i push?\n").id)
    found = earlier(again, user.approvals.decided(50))
    assert [(r.message.sender, d.decision) for r, d in found] == [("alice", "deny")]


def test_the_children_for_which_the_gateway_asks_are_not_taken_for_one(bus: TemporaryBus) -> None:
    gateway, user = Bus.open_gateway(bus.settings, clock=bus.clock), bus.as_agent("user")

    def ask(child: str, key: str) -> str:
        return gateway.request_approval("Go on?", details={"child": child}, key=key).id

    user.decide(ask("one", "1"), "deny")
    decided = user.approvals.decided(50)
    assert earlier(user.approvals.request(ask("two", "2")), decided) == []
    again = earlier(user.approvals.request(ask("one", "3")), decided)
    assert [decision.decision for _, decision in again] == ["deny"]
