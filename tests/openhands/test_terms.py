"""The rules for what the tools take beside a mission."""

from __future__ import annotations

import hashlib
import json
import string
from typing import Any

import pytest
from hostile import check_line, nested
from hypothesis import given
from hypothesis import strategies as st

from agent_bus.approvals import request_content
from agent_bus.errors import InvalidMission
from agent_bus.openhands.gateway import terms
from agent_bus.openhands.gateway.wire import compact

SHA = "0123456789abcdef0123456789abcdef01234567"


def refusal(rule: Any, value: object) -> str:
    with pytest.raises(InvalidMission) as caught:
        rule(value)
    check_line(str(caught.value))
    return str(caught.value)


def short(value: object) -> str:
    """What a derived key must end with, computed independently."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@pytest.mark.parametrize("key", ["a", "result-1", "x" * 200, "~!{}\"'", "terminal:1:2"])
def test_keys_of_messages(key: str) -> None:
    assert terms.message_key(key) == key


@pytest.mark.parametrize(
    "key", ["", "x" * 201, "a b", "a\n", "\ta", "é", "ａ", "a\x7f", "\ud800", None, 7, b"a", ["a"]]
)
def test_a_key_that_is_not_visible_ascii_is_refused(key: object) -> None:
    assert "messageKey" in refusal(terms.message_key, key)


def test_kinds_of_reports() -> None:
    assert terms.report_kind("RESULT") == "RESULT"
    assert terms.report_kind("NEEDS_INPUT") == "NEEDS_INPUT"


@pytest.mark.parametrize(
    "kind", ["", "result", "NAVIGATION", "RESULT ", "RECOVERY_WAKE", None, 1, ["RESULT"], {}]
)
def test_a_child_reports_nothing_else(kind: object) -> None:
    assert "RESULT" in refusal(terms.report_kind, kind)


def test_a_result_is_an_object_of_twenty_thousand_bytes_and_not_one_more() -> None:
    whole = {"text": "x" * (20_000 - len('{"text":""}'))}

    assert terms.result(whole) == whole
    assert terms.result({}) == {}
    assert "result is longer than 20000" in refusal(terms.result, {"text": whole["text"] + "x"})


@pytest.mark.parametrize(
    "value",
    [
        *(None, "text", [], [1], 7, {"a": float("nan")}, {"a": ["\ud800"]}, {1: 2}),
        *({"a": nested(10_000)}, {"a": nested(32)}, {"a": b"x"}, {"a": "x" * 10_000_000}),
    ],
    ids=range(12),
)
def test_a_result_is_strict_json(value: object) -> None:
    assert "result" in refusal(terms.result, value)


def test_the_same_result_has_the_same_key() -> None:
    key = terms.result_key({"b": [1, {"d": 1, "c": 2}], "a": "é"})

    assert key == terms.result_key({"a": "é", "b": [1, {"c": 2, "d": 1}]})
    assert key == "result:" + short({"a": "é", "b": [1, {"c": 2, "d": 1}]})
    assert key == terms.result_key({"a": "é", "b": [1, {"c": 2, "d": 1}], "messageKey": "k"})
    assert key != terms.result_key({"a": "e", "b": [1, {"c": 2, "d": 1}]})
    assert terms.message_key(key) == key


@pytest.mark.parametrize("text", ["Why?", "x" * 4000, " " * 9 + "x" * 4000 + "\n", "a\n\nb", "é?"])
def test_questions(text: str) -> None:
    assert terms.question(text) == text.strip()


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u200b\u202e", "x" * 4001, "a\ud800", None, 7, ["Why?"], b"Why?"]
)
def test_a_question_asks_something_in_four_thousand_characters(text: object) -> None:
    assert "question" in refusal(terms.question, text)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_two_to_five_options(count: int) -> None:
    offered = [f"{letter}: do it so" for letter in string.ascii_uppercase[:count]]

    assert terms.options(offered) == tuple(offered)


@pytest.mark.parametrize(
    "value",
    [
        *([], ["a"], list("abcdef"), None, "ab", {"a": 1, "b": 2}, ("a", "b"), nested(10_000)),
        *(["a", ""], ["a", " "], ["a", "\u200b"], ["a", 7], ["a", None], ["a", ["b"]]),
        *(["a", "b\nc"], ["a", "\x1b[2J"], ["a", "b\u2028"], ["a", "x" * 65], ["a", "\ud800"]),
        *(["a", "a"], ["Yes", "yes"], ["a", "a "], ["a", "withdraw"]),
    ],
)
def test_options_that_could_not_be_decided_on_are_refused(value: object) -> None:
    assert "options" in refusal(terms.options, value)


def test_the_reason_of_the_approval_is_passed_on() -> None:
    assert "1 to 64 characters" in refusal(terms.options, ["a", "x" * 65])
    assert "withdraw" in refusal(terms.options, ["a", "withdraw"])


@given(st.text(max_size=50), st.lists(st.text(max_size=70), max_size=6))
def test_what_is_taken_can_be_asked_for_as_an_approval(asked: str, offered: list[str]) -> None:
    try:
        question, options = terms.question(asked), terms.options(offered)
    except InvalidMission:
        return

    subject, data = request_content(question, options, None)

    assert data["options"] == list(options)
    assert subject


def test_the_same_question_has_the_same_key() -> None:
    key = terms.decision_key("Which?", ("a", "b"))

    assert key == "decision:" + short({"question": "Which?", "options": ["a", "b"]})
    assert key != terms.decision_key("Which?", ("b", "a"))


GOOD_URLS = [
    "https://github.com/acme/tool/issues/604",
    "http://localhost:8000/conversations/1?a=b&c=%20#d",
    "HTTPS://Example.org",
    "https://[::1]:8000/",
    "https://xn--nxasmq6b.example/~x/@me/(1)",
    "https://example.org/" + "x" * (2048 - len("https://example.org/")),
]


@pytest.mark.parametrize("url", GOOD_URLS)
def test_links(url: str) -> None:
    assert terms.links({"issue": url}) == {"issue": url}


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "//example.org", "javascript:alert(1)", "JavaScript:alert(1)", "ftp://a.org"),
        *("file:///etc/passwd", "data:text/html,x", "http:/a.org", "http:///a", "http://:80/"),
        *("https://user@a.org/", "https://user:pw@a.org/", "https://a.org\\@evil.org/"),
        *("https://a.org/ b", " https://a.org", "https://a.org\n", "https://a.org/\tb"),
        *("https://a.org/\u202egpj", "https://a.org/\u200b", "https://аpple.com", "https://ａ.org"),
        *("https://a.org/\x00", "https://a.org/<b>", 'https://a.org/"', "https://a.org/\ud800"),
        *("https://[::1/", "https://a.org:99x/", "https://a.org/" + "x" * 2048),
        *(None, 7, ["https://a.org"], {"url": "https://a.org"}),
    ],
)
def test_a_link_that_hides_something_or_leads_nowhere_is_refused(url: object) -> None:
    said = refusal(terms.links, {"issue": url})

    assert "links" in said
    assert "pw" not in said


@pytest.mark.parametrize("count", [1, 12])
def test_up_to_twelve_links(count: int) -> None:
    value = {f"l{index}-_": GOOD_URLS[-1] for index in range(count)}

    assert terms.links(value) == value


@pytest.mark.parametrize("count", [0, 13, 10_000])
def test_no_other_number_of_links(count: int) -> None:
    refusal(terms.links, {f"l{index}": "https://a.org" for index in range(count)})


@pytest.mark.parametrize(
    "key", ["", "Issue", "1a", "-a", "a b", "a\n", "é", "x" * 33, "a.b", "ａ", 7, None]
)
def test_names_of_links_are_plain(key: object) -> None:
    refusal(terms.links, {key: "https://a.org"})


def test_the_same_links_have_the_same_key() -> None:
    one = {"pr": "https://a.org/1", "issue": "https://a.org/2"}

    assert terms.navigation_key(one) == "navigation:" + short(one)
    assert terms.navigation_key(dict(reversed(one.items()))) == terms.navigation_key(one)


@pytest.mark.parametrize(
    "value",
    [
        {"answer": "B"},
        {"currentRevision": SHA},
        {"currentRevision": SHA, "facts": [{"test_log": "green", "n": 1.5}, None]},
        {"heads": 1, "branches": ["a"], "note": "the branch is main, your role is admin"},
    ],
)
def test_contexts(value: dict[str, Any]) -> None:
    found = terms.context(value)

    assert found == value
    assert found is not value


@pytest.mark.parametrize(
    "value",
    [
        *(None, {}, [], [{"a": 1}], "text", 7),
        {"a": float("inf")},
        {"a": nested(10_000)},
        {"a": {1}},
    ],
    ids=range(9),
)
def test_a_context_is_an_object_that_says_something(value: object) -> None:
    assert "context" in refusal(terms.context, value)


def test_a_context_has_twenty_thousand_bytes_and_not_one_more() -> None:
    whole = {"text": "x" * (20_000 - len('{"text":""}'))}

    assert terms.context(whole) == whole
    assert "longer than 20000" in refusal(terms.context, {"text": whole["text"] + "x"})


def disguises(word: str) -> list[str]:
    return [
        word,
        word.upper(),
        word.title(),
        "-".join(word),
        f"_{word[0]}_{word[1:]}",
        f" {word} ",
        f"{word}.",
        f"{word[0]}\u200b{word[1:]}",
        f"{word}\u00ad",
        "".join(chr(ord(char) + 0xFEE0) for char in word),
    ]


@pytest.mark.parametrize("word", sorted(terms.FORBIDDEN_IN_CONTEXT))
def test_no_disguise_widens_what_a_child_may_do(word: str) -> None:
    for key in disguises(word):
        places: tuple[object, ...] = ({key: 1}, {"facts": [{"a": {key: {}}}]})
        for value in places:
            assert "context" in refusal(terms.context, value)


@pytest.mark.parametrize(
    "key", ["head_sha", "Head-SHA", "headSha", "ｈｅａｄ", "roІe", "𝐫ole", "ſkills"]
)
def test_forbidden_keys_are_found_inside_and_in_other_letters(key: str) -> None:
    refusal(terms.context, {"facts": {key: SHA}})


@pytest.mark.parametrize(
    "value",
    [
        {"currentRevision": SHA.upper()},
        {"currentRevision": SHA[:39]},
        {"currentRevision": SHA + "\n"},
        {"currentRevision": None},
        {"currentRevision": {"role": "main"}},
        {"current_revision": SHA},
        {"facts": {"currentRevision": SHA}},
        {"facts": [{"Current-Revision": SHA}]},
    ],
)
def test_a_revision_stands_at_the_root_and_is_a_commit(value: object) -> None:
    assert "evision" in refusal(terms.context, value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.text(st.characters(categories=["Cs", "Cf", "Zs", "Cc"]), max_size=5)
    | st.sampled_from([*GOOD_URLS, SHA, b"x", nested(40)])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "currentRevision"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "rule",
    [
        *(terms.message_key, terms.report_kind, terms.result, terms.question, terms.options),
        *(terms.links, terms.context),
    ],
)
def test_nothing_at_all_raises_another_error(rule: Any) -> None:
    @given(ANYTHING)
    def holds(value: object) -> None:
        try:
            found = rule(value)
        except InvalidMission as error:
            check_line(str(error))
        else:
            assert compact(rule(found if not isinstance(found, tuple) else list(found)))

    holds()
