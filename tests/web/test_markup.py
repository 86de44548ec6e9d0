"""Whatever is put into a page as text stays text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_bus.visible import is_hidden, visible
from agent_bus.web.markup import Html, block, document, element, foreign, join, text


def test_text_is_escaped_and_markup_is_not() -> None:
    assert text("<b>&") == "&lt;b&gt;&amp;"
    assert text(Html("<b>")) == "<b>"
    assert element("p", "a<b", element("i", "c")) == "<p>a&lt;b<i>c</i></p>"


def test_what_cannot_be_seen_is_shown_and_marked() -> None:
    shown = text("a\u202eb\n")
    assert "\u202e" not in shown
    assert '<span class="unseen" title="a character that cannot be seen">\\u202e</span>' in shown
    assert "\\x0a" in shown


def test_lines_stay_in_a_block() -> None:
    assert block("a\n\tb\r").count("\n") == 1
    assert "\\x0d" in block("a\r")


def test_an_attribute_cannot_be_left() -> None:
    made = element("a", "x", href='" onclick="alert(1)', title="\u202e\n")
    assert made == ('<a href="&quot; onclick=&quot;alert(1)" title="\\u202e\\x0a">x</a>')


def test_attributes_that_are_off_are_left_out() -> None:
    made = element(
        "input", name="a", hidden=True, disabled=False, title=None, data_live="x", for_="y"
    )
    assert made == '<input name="a" hidden data-live="x" for="y">'


def test_joining_escapes_what_stands_between() -> None:
    assert join(["a", None, element("b", "c")], " < ") == "a &lt; <b>c</b>"


def test_a_title_has_no_elements(parse: Callable[[str], Any]) -> None:
    page = parse(document("</title><script>\u202e", [], element("body", "b")))
    assert page.title == "</title><script>\\u202e"
    assert page.names == {"html", "head", "meta", "title", "body"}


@given(st.text())
def test_any_text_comes_out_as_it_is_with_nothing_hidden(given_text: str) -> None:
    from html.parser import HTMLParser

    pieces: list[str] = []
    tags: set[str] = set()
    parser = HTMLParser(convert_charrefs=True)
    parser.handle_data = pieces.append  # type: ignore[method-assign]
    parser.handle_starttag = lambda tag, attrs: tags.add(tag)  # type: ignore[method-assign]
    parser.feed(element("div", foreign(given_text), title=given_text))
    parser.close()
    shown = "".join(pieces)
    assert shown == visible(given_text)
    assert not any(is_hidden(char) for char in shown)
    assert tags <= {"div", "bdi", "span"}
