"""Arguments of tools: what can mean only one thing is taken, all else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from agent_bus.errors import UsageError
from agent_bus.server import arguments as given


def send(**arguments: Any) -> given.SendArguments:
    return given.parse("bus_send", given.SendArguments, {"to": "bob", "body": "x", **arguments})


@pytest.mark.parametrize(
    ("to", "names"),
    [
        ("bob", ["bob"]),
        (["bob"], ["bob"]),
        (["bob", "alice"], ["bob", "alice"]),
        ('["bob", "alice"]', ["bob", "alice"]),
        (' ["bob"]', ["bob"]),
    ],
)
def test_recipients_are_a_name_a_list_or_a_list_as_text(to: Any, names: list[str]) -> None:
    assert send(to=to).to == names


@pytest.mark.parametrize(
    "to", ["a,b", "[a]", '["a"', '[["a"]]', '["a", 1]', "[" * 9999, {}, 5, True]
)
def test_recipients_that_may_mean_two_things_are_refused_with_the_form(to: Any) -> None:
    with pytest.raises(UsageError, match=r'^bus_send: to is a list like \["a", "b"\], not '):
        send(to=to)


@pytest.mark.parametrize("text", [30, 30.0, "30", " 30 ", "30.0"])
def test_a_number_may_come_as_text(text: Any) -> None:
    asked = given.parse("bus_wait", given.WaitArguments, {"timeout": text, "limit": text})

    assert (asked.timeout, asked.limit) == (30, 30)


@pytest.mark.parametrize("value", ["many", "1e3", "-1", -1, 0, 1.5, "1.5", True, [3], "[3]", ""])
def test_what_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^bus_inbox: limit "):
        given.parse("bus_inbox", given.InboxArguments, {"limit": value})


@pytest.mark.parametrize(
    ("text", "value"),
    [(True, True), ("true", True), ("True", True), ("false", False), (1, True), ("0", False)],
)
def test_a_flag_may_come_as_text(text: Any, value: bool) -> None:
    assert send(force=text).force is value


@pytest.mark.parametrize("value", ["maybe", 2, [], {}, "yes please", ""])
def test_what_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^bus_send: force is true or false, not "):
        send(force=value)


def test_a_number_where_text_is_wanted_is_that_text() -> None:
    assert send(idempotency_key=12, body=7).body == "7"


@pytest.mark.parametrize("value", [1.5, True, [], {}, ["x"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^bus_send: body is text, not "):
        send(body=value)


def test_null_counts_as_left_out() -> None:
    asked = send(subject=None, kind=None, force=None, reply_to=None)

    assert (asked.subject, asked.kind, asked.force, asked.reply_to) == ("", "note", False, None)


def test_a_required_argument_that_is_missing_or_null_is_named() -> None:
    with pytest.raises(UsageError, match=r"^bus_send: body is missing$"):
        given.parse("bus_send", given.SendArguments, {"to": "bob", "body": None})


@pytest.mark.parametrize("name", ["from", "sender", "as", "author"])
def test_there_is_no_argument_for_the_sender(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        send(**{name: "conductor"})

    assert str(refused.value) == (
        f"bus_send: there is no argument {name!r}; who sends is fixed for this server; bus_send "
        "takes: to, body, subject, kind, reply_to, thread, priority, expires_in, "
        "idempotency_key, force"
    )


@pytest.mark.parametrize(
    ("tool", "model", "why"),
    [
        ("bus_inbox", given.InboxArguments, "it is called sender"),
        ("bus_log", given.LogArguments, "agent is the sender or a recipient"),
    ],
)
def test_a_filter_by_another_name_is_pointed_to(
    tool: str, model: type[given.Arguments], why: str
) -> None:
    with pytest.raises(UsageError, match=f"there is no argument 'from': {why}; {tool} takes: "):
        given.parse(tool, model, {"from": "bob"})


def test_all_that_is_wrong_stands_in_one_line() -> None:
    with pytest.raises(UsageError) as refused:
        given.parse("bus_read", given.ReadArguments, {"archive": "x\ny", "message\nid": 1})

    assert "\n" not in str(refused.value)
    for part in ("id is missing", "archive is true or false", "no argument 'message\\nid'"):
        assert part in str(refused.value)


def test_an_unknown_priority_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="priority has to be 'low', 'normal', 'high' or 'urgent'"):
        send(priority="asap")


@pytest.mark.parametrize(
    ("details", "value"),
    [
        ({"a": [1]}, {"a": [1]}),
        ('{"a": 1}', {"a": 1}),
        ("plain", "plain"),
        ("{no json", "{no json"),
    ],
)
def test_details_are_an_object_or_text(details: Any, value: Any) -> None:
    asked = given.parse(
        "bus_request_approval", given.RequestArguments, {"question": "?", "details": details}
    )

    assert asked.details == value
