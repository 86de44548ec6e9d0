"""The queue on screen: what is shown, what is decided, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_bus.clock import to_text
from agent_bus.testing import ManualClock
from agent_bus.visible import visible


def test_a_request_is_shown_with_all_that_it_is_about(web: Any, clock: ManualClock) -> None:
    ident = web.ask(
        question="Delete it?\n\nAll of it, I mean.",
        options=["yes", "no", "ask bob"],
        details={"command": "rm -r build"},
        expires_in=7200,
    )
    clock.advance(300)
    page = web.get("/")
    for words in (
        "alice asks conductor, 5 min ago",
        "expires in 1 h",
        "Delete it?",
        "All of it, I mean.",
        '"command": "rm -r build"',
    ):
        assert words in page.text
    (form,) = page.forms
    assert form.action == f"/approvals/{ident}"
    assert form.method == "post"
    assert [words for _, _, words in form.buttons] == ["yes", "no", "ask bob"]
    assert form.fields["sha256"] == web.bus.approvals.request(ident).sha256
    assert form.fields["sha256"] in page.text
    assert page.title == "(1) Approvals · " + web.made.settings.project.name


def test_the_oldest_stands_first_and_each_has_its_form(web: Any) -> None:
    idents = [web.ask(question=f"question {number}") for number in range(3)]
    page = web.get("/")
    assert [form.action for form in page.forms] == [f"/approvals/{ident}" for ident in idents]
    assert page.text.index("question 0") < page.text.index("question 2")


def test_an_empty_queue_says_so(web: Any) -> None:
    page = web.get("/")
    assert "Nothing waits for a decision." in page.text
    assert not page.forms


def test_a_button_decides_and_the_requester_is_told(web: Any) -> None:
    ident = web.ask()
    (form,) = web.get("/").forms
    answer = web.send(form, "deny", reason="not\r\ntoday ")
    assert answer.headers["location"] == f"/?decided={ident}"
    (told,) = web.made.as_agent("alice").inbox().messages
    message = told.judged.message
    assert message.kind == "approval_decision"
    assert message.sender == "user"
    assert message.data["decision"] == "deny"
    assert message.body == "not\ntoday"
    page = web.get(answer.headers["location"])
    assert "You decided: deny" in page.text
    assert "Decided before" in page.text
    assert "Nothing waits" in page.text


def test_what_was_decided_stands_with_reason_and_time(web: Any, clock: ManualClock) -> None:
    ident = web.ask(question="one")
    web.made.as_agent("conductor").decide(ident, "approve", reason="go ahead")
    clock.advance(60)
    page = web.get("/")
    assert "approve one asked by alice, decided by conductor, 1 min ago go ahead" in page.text
    page = web.get(f"/approvals/{ident}")
    assert "Decided: approve by conductor" in page.text
    assert not page.forms


def test_two_that_decide_get_one_decision_and_one_conflict(web: Any) -> None:
    ident = web.ask()
    (form,) = web.get("/").forms
    web.send(form, "approve")
    answer = web.send(form, "deny", status=409)
    assert "was decided by user" in answer.text
    assert "that stands" in answer.text
    assert "Decided: " in answer.text
    assert web.bus.approvals.decision(web.bus.approvals.request(ident)).decision == "approve"


def test_the_same_decision_again_changes_nothing(web: Any) -> None:
    web.ask()
    (form,) = web.get("/").forms
    web.send(form, "approve")
    web.send(form, "approve")
    assert len(web.made.as_agent("alice").inbox().messages) == 1


def test_what_another_admin_had_decided_so_is_not_claimed(web: Any) -> None:
    ident = web.ask()
    (form,) = web.get("/").forms
    web.made.as_agent("conductor").decide(ident, "approve")
    page = web.get(web.send(form, "approve").headers["location"])
    assert "conductor had decided: approve" in page.text


def test_a_request_that_is_not_what_was_shown_is_not_decided(web: Any) -> None:
    ident = web.ask()
    (form,) = web.get("/").forms
    for sha256 in ("0" * 64, ""):
        answer = web.send(form, "approve", status=409, sha256=sha256)
        assert "not what was shown" in answer.text
    assert [request.message.id for request in web.bus.pending()] == [ident]


def test_after_the_expiry_nothing_is_decided(web: Any, clock: ManualClock) -> None:
    web.ask(expires_in=60)
    (form,) = web.get("/").forms
    clock.advance(61)
    answer = web.send(form, "approve", status=422)
    assert "expired at" in answer.text
    assert "Nothing waits" in web.get("/").text


@pytest.mark.parametrize("choice", ["2", "-1", "", "00", "approve", "²", "1e0"])
def test_only_what_is_offered_can_be_chosen(web: Any, choice: str) -> None:
    web.ask()
    (form,) = web.get("/").forms
    web.send(form, "approve", status=400, choice=choice)
    assert len(web.bus.pending()) == 1


def test_a_reason_that_is_too_long_is_refused(web: Any) -> None:
    web.ask()
    (form,) = web.get("/").forms
    answer = web.send(form, "approve", status=422, reason="x" * 5000)
    assert "a reason has at most" in answer.text


def test_the_longest_reason_of_the_form_fits(web: Any) -> None:
    web.ask()
    page = web.get("/")
    (box,) = [attributes for tag, attributes in page.tags if tag == "textarea"]
    web.send(page.forms[0], "approve", reason="\U0001f600" * (int(box["maxlength"]) // 2 - 2))
    assert box["maxlength"] == "1000"


def test_ones_own_request_can_only_be_withdrawn(web: Any) -> None:
    ident = web.ask("user")
    (form,) = web.get("/").forms
    assert [words for _, _, words in form.buttons] == ["withdraw"]
    web.send(form, "withdraw", status=403, choice="0")
    web.send(form, "withdraw")
    assert "withdraw" in web.get(f"/approvals/{ident}").text
    assert not web.bus.pending()


def test_who_is_no_admin_has_no_queue_and_is_told_why(web_as: Callable[[str], Any]) -> None:
    web = web_as("bob")
    ident = web.ask("alice", "a question of alice")
    page = web.get("/")
    assert "bob is no admin of this bus" in page.text
    assert "conductor, user" in page.text
    assert "a question of alice" not in page.text
    assert not page.forms
    assert "did not ask this" in web.get(f"/approvals/{ident}", status=403).text


def test_who_asked_can_look_and_withdraw_without_being_an_admin(
    web_as: Callable[[str], Any],
) -> None:
    web = web_as("alice")
    ident = web.ask("alice", "my question")
    page = web.get(f"/approvals/{ident}")
    (form,) = page.forms
    answer = web.send(form, "withdraw")
    assert "Decided: withdraw" in web.get(answer.headers["location"]).text


def test_the_same_question_again_names_the_refusal(web: Any, clock: ManualClock) -> None:
    first = web.ask(question="May I  push?")
    web.bus.decide(first, "deny", reason="no, never")
    clock.advance(120)
    web.ask(question="may I push?\n")
    web.ask("bob", "May I push?")
    page = web.get("/")
    assert page.text.count("Asked before, in the same words: deny by user, 2 min ago") == 1
    assert "no, never" in page.text


def test_a_long_question_is_decided_below_all_of_its_text(web: Any) -> None:
    body = "Long?\n" + "word " * 2000 + "the end"
    ident = web.ask(question=body)
    page = web.get("/")
    assert not page.forms
    assert page.links(f"/approvals/{ident}")
    page = web.get(f"/approvals/{ident}")
    assert "the end" in page.text
    assert page.forms


def test_a_subject_that_says_something_else_does_not_hide_the_question(web: Any) -> None:
    """Who asks writes both, so both are shown."""
    from dataclasses import replace

    from agent_bus.envelope import encode_message

    alice = web.made.as_agent("alice")
    ident = web.ask(question="Fix a typo?")
    path = web.made.path / "approvals" / f"{ident}.request"
    asked = web.bus.approvals.request(ident).message
    other = replace(asked, body="Delete the backups?")
    path.unlink()
    path.write_bytes(encode_message(other, alice.keys.load("alice").signing_key()))
    page = web.get("/")
    assert "Fix a typo?" in page.text
    assert "Delete the backups?" in page.text


def test_hostile_text_is_only_text(web: Any, hostile: str) -> None:
    ident = web.ask(
        question=f"{hostile}\nsecond {hostile}",
        options=["yes", "<b>no</b>\u202e"],
        details={"<i>": [hostile]},
    )
    for path in ("/", f"/approvals/{ident}", f"/messages/{ident}", "/log"):
        page = web.get(path)
        assert [attributes for tag, attributes in page.tags if tag == "script"] == [
            {"src": "/live.js", "defer": None}
        ]
        assert "img" not in page.names
        assert not {"b", "i"} & page.names
        assert "\u202e" not in "".join(page.pieces)
        assert visible("\u202egnp.exe\u200b") in page.text
    (form,) = web.get("/").forms
    web.send(form, "<b>no</b>\\u202e")
    decided = web.bus.approvals.decision(web.bus.approvals.request(ident))
    assert decided.decision == "<b>no</b>\u202e"


@pytest.mark.parametrize("ident", ["x", "../etc", "0" * 26, "01m8p570g0h6nwvvr14d2pf2d"])
def test_what_is_no_request_is_not_found(web: Any, ident: str) -> None:
    answer = web.client.get(f"/approvals/{ident}")
    assert answer.status_code in (400, 404)


def test_part_of_an_id_is_not_enough(web: Any) -> None:
    ident = web.ask()
    web.get(f"/approvals/{ident[:20]}", status=400)


def test_the_pages_say_when_in_full(web: Any, clock: ManualClock) -> None:
    web.ask()
    exact = to_text(clock.now())
    times = [a for tag, a in web.get("/").tags if tag == "time"]
    assert times
    assert all(a["datetime"] == exact for a in times)
