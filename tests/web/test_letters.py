"""Boxes, messages with their signature, conversations, the log, the agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_bus.sending import Draft
from agent_bus.testing import ManualClock
from agent_bus.web.layout import distance_text


def _state(web: Any, name: str, ident: str) -> str:
    found = web.made.as_agent(name).inbox(limit=100).messages
    return str(next(stored.place.state for stored in found if stored.place.id == ident))


def test_the_inbox_lists_oldest_first_and_moves_nothing(web: Any) -> None:
    first = web.tell("alice", "user", subject="first", priority="urgent")
    second = web.tell("bob", "user", body="only text\nmore")
    page = web.get("/inbox")
    assert page.links("/messages/") == [f"/messages/{first}", f"/messages/{second}"]
    assert "2 not archived" in page.text
    assert "urgent" in page.text
    assert "(only text)" in page.text
    assert _state(web, "user", first) == "new"


def test_the_inbox_can_be_narrowed_to_what_is_unread(web: Any) -> None:
    first = web.tell("alice", "user", subject="first")
    second = web.tell("alice", "user", subject="second")
    web.bus.read(first)
    assert web.get("/inbox?unread=1").links("/messages/") == [f"/messages/{second}"]


def test_an_empty_inbox_says_so(web: Any) -> None:
    assert "Nothing lies here." in web.get("/inbox").text


def test_long_lists_come_in_pages(web: Any) -> None:
    for number in range(51):
        web.tell("alice", "user", subject=f"n{number}")
    first = web.get("/inbox")
    assert len(first.links("/messages/")) == 50
    (link,) = first.links("/inbox?page")
    assert "n50" in web.get(link).text
    (link,) = web.get("/log").links("/log?page")
    assert len(web.get(link).links("/messages/")) == 1


@pytest.mark.parametrize("number", ["0", "-1", "x", "²", "9999999", ""])
def test_a_page_that_is_none_is_refused(web: Any, number: str) -> None:
    web.get(f"/inbox?page={number}", status=400)


def test_a_message_says_who_wrote_it_and_counts_as_read(web: Any) -> None:
    ident = web.tell("alice", "user", subject="API", body="line\n  two", data={"a": [1]})
    page = web.get(f"/messages/{ident}")
    for words in ("The signature holds: alice wrote this.", "API", "line two", '"a":', ident):
        assert words in page.text
    assert "line\n  two" in "".join(page.pieces)
    assert page.links(f"/threads/{ident}")
    assert _state(web, "user", ident) == "read"


def test_the_button_archives_a_message(web: Any) -> None:
    ident = web.tell("alice", "user")
    (form,) = web.get(f"/messages/{ident}").forms
    assert web.send(form, "Archive: this is done").headers["location"] == "/inbox"
    assert not web.bus.inbox().messages
    assert not web.get(f"/messages/{ident}").forms


def test_a_message_that_does_not_verify_warns_first(web: Any) -> None:
    ident = web.tell("alice", "user", subject="sub", body="hello <b>")
    web.forge("user", ident)
    page = web.get(f"/messages/{ident}")
    assert page.text.index("Warning: this does not verify (bad-signature)") < page.text.index(
        "hellp <b>"
    )
    assert "Nobody vouches for it" in page.text
    assert "b" not in page.names
    assert {"role": "alert"}.items() <= dict(
        next(a for tag, a in page.tags if a.get("class") == "notice bad")
    ).items()
    assert not page.forms
    assert _state(web, "user", ident) == "new"
    for path in ("/inbox", "/log"):
        listed = web.get(path)
        assert "bad-signature" in listed.text
        assert "sub" not in listed.text


def test_an_expired_message_can_be_read_and_says_so(web: Any, clock: ManualClock) -> None:
    ident = web.tell("alice", "user", expires_in=60)
    clock.advance(1000)
    page = web.get(f"/messages/{ident}")
    assert "The signature holds" in page.text
    assert "expired at" in page.text


def test_hostile_text_of_a_message_is_only_text(web: Any, hostile: str) -> None:
    subject = "".join(char for char in hostile if char.isprintable())
    ident = web.tell("alice", "user", subject=subject, body=hostile, data={"k": hostile})
    for path in (f"/messages/{ident}", f"/threads/{ident}", "/inbox", "/log", "/agents/alice"):
        page = web.get(path)
        assert [a for tag, a in page.tags if tag == "script"] == [
            {"src": "/live.js", "defer": None}
        ]
        assert "img" not in page.names
        assert "document.title='x'" in page.text
        shown = "".join(page.pieces)
        assert not any(char in shown for char in "\x1b\x07\x9b\u202e\u200b\u2066\ufeff\u2028")


def test_only_who_may_see_a_message_can_open_it(web_as: Callable[[str], Any]) -> None:
    web = web_as("bob")
    ident = web.tell("alice", "user", body="between us", subject="of alice")
    assert not web.get("/log").links("/messages/")
    assert "of alice" in web.get("/log").text
    assert "between us" not in web.get(f"/messages/{ident}", status=404).text
    thread = web.get(f"/threads/{ident}")
    assert "between us" not in thread.text
    assert "Only sender, recipient and admins" in thread.text


def test_who_sent_it_sees_what_became_of_it(web_as: Callable[[str], Any]) -> None:
    web = web_as("alice")
    ident = web.tell("alice", "bob")
    assert "read not yet" in web.get(f"/messages/{ident}").text
    web.made.as_agent("bob").read(ident)
    page = web.get(f"/messages/{ident}")
    assert "read not yet" not in page.text
    assert "archived not yet" in page.text
    assert "not attached now" in page.text


def test_a_thread_is_a_conversation_in_order(web: Any) -> None:
    first = web.tell("alice", "user", subject="Question", body="one")
    second = web.tell("user", "alice", body="two", reply_to=first)
    web.tell("alice", "user", body="three", reply_to=second)
    page = web.get(f"/threads/{second}")
    assert page.text.index("one") < page.text.index("two") < page.text.index("three")
    turns = [a["class"] for tag, a in page.tags if tag == "li" and "turn" in (a.get("class") or "")]
    assert turns == ["turn", "turn own", "turn"]
    assert not web.bus.inbox(unread=True).messages


def test_the_log_can_be_narrowed(web: Any) -> None:
    task = web.tell("alice", "bob", kind="task", subject="a task")
    note = web.tell("bob", "user", subject="a note")
    assert web.get("/log").links("/messages/") == [f"/messages/{note}", f"/messages/{task}"]
    assert web.get("/log?kind=task").links("/messages/") == [f"/messages/{task}"]
    assert web.get("/log?agent=alice&kind=").links("/messages/") == [f"/messages/{task}"]
    assert web.get("/agents/alice").links("/messages/") == [f"/messages/{task}"]
    web.get("/log?kind=No%20Kind", status=400)
    web.get("/log?agent=..", status=400)


def test_the_agents_stand_with_what_waits_for_them(web: Any, clock: ManualClock) -> None:
    ident = web.tell("alice", "bob")
    web.forge("bob", ident)
    clock.advance(600)
    with web.made.as_agent("alice").presence.attach("alice", "mcp"):
        page = web.get("/agents")
    assert page.links("/agents/") == [f"/agents/{n}" for n in ("alice", "bob", "conductor", "user")]
    assert "alice yes mcp since" in page.text
    assert "bob no never seen 1 10 min ago 1" in page.text


def test_a_sender_is_told_what_nobody_has_read(web: Any, clock: ManualClock) -> None:
    ident = web.tell("user", "bob", subject="Please look", kind="task")
    assert "nobody has read" not in web.get("/agents").text
    clock.advance(1000)
    page = web.get("/agents")
    assert "Yours that nobody has read for a while Please look" in page.text
    assert "task of 16 min ago; bob is not attached" in page.text
    assert f"/messages/{ident}" in page.links("/messages/")
    web.made.as_agent("bob").read(ident)
    assert "nobody has read" not in web.get("/agents").text


def test_every_page_has_what_a_keyboard_and_a_screen_reader_need(web: Any) -> None:
    web.ask()
    ident = web.tell("alice", "user")
    for path in ("/", "/inbox", "/agents", "/log", f"/messages/{ident}", f"/threads/{ident}"):
        page = web.get(path)
        tags = [tag for tag, _ in page.tags]
        assert tags.count("h1") == 1
        assert tags.count("main") == 1
        assert ("html", {"lang": "en"}) in page.tags
        first = next(a for tag, a in page.tags if tag == "a")
        assert first["href"] == "#content"
        labelled = {a["for"] for tag, a in page.tags if tag == "label"}
        fields = [a for tag, a in page.tags if tag in ("textarea", "select", "input")]
        assert {a["id"] for a in fields if a.get("type") != "hidden"} == labelled


@pytest.mark.parametrize(
    "path", ["/nothing", "/messages/", "/style.css/", "/..%2fapp.py", "/inbox/"]
)
def test_what_is_not_there_is_not_found(web: Any, path: str) -> None:
    assert web.client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "just now"),
        (999, "just now"),
        (-500, "just now"),
        (59_000, "59 s ago"),
        (60_000, "1 min ago"),
        (-7_200_000, "in 2 h"),
        (86_400_000, "1 day ago"),
        (3 * 86_400_000, "3 days ago"),
    ],
)
def test_distances(milliseconds: int, shown: str) -> None:
    assert distance_text(milliseconds) == shown


def test_a_wake_of_anybody_but_the_gateway_is_marked_wherever_it_shows(
    web: Any, false_wake: Any
) -> None:
    ident = false_wake(web.made, "user")
    for path in ("/inbox", "/log", "/agents/alice", f"/messages/{ident}", f"/threads/{ident}"):
        page = web.get(path)
        assert "Warning: a wake is signed by openhands, and this is not" in page.text
        listed = path in ("/inbox", "/log", "/agents/alice")
        assert ("doubted" in page.text) is listed
    shown = web.get(f"/messages/{ident}").text
    assert shown.index("Warning: a wake") < shown.index("The signature holds: alice wrote this.")


def test_a_wake_of_the_gateway_has_no_warning(web: Any) -> None:
    ident = web.made.as_gateway().wake("user", Draft(subject="Child ended"), key="k").id
    for path in ("/inbox", "/log", f"/messages/{ident}", f"/threads/{ident}"):
        page = web.get(path)
        assert "Child ended" in page.text
        assert "Warning" not in page.text


def test_a_message_that_tells_of_a_decision_which_nobody_made_warns(
    web: Any, false_wake: Any
) -> None:
    ident = false_wake(web.made, "user", kind="approval_decision", subject="approve: Drop it?")
    for path in (f"/messages/{ident}", f"/threads/{ident}"):
        assert "Warning: no such decision stands on this bus" in web.get(path).text
