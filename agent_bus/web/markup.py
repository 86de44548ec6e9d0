"""HTML as values: text is escaped by being text, and only `Html` is markup.

There are no templates, so there is no place where escaping could be forgotten: whatever is
put into an element and is not `Html` is text, and what cannot be seen in it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from agent_bus.visible import segments, visible

_EMPTY = frozenset({"br", "hr", "input", "link", "meta"})


class Html(str):
    """Markup. Only this module makes it."""

    __slots__ = ()


Child = Html | str | None
Attribute = str | int | bool | None


def text(value: str, keep: str = "") -> Html:
    """Text as markup. What cannot be seen becomes its number, marked as such.

    `keep` are characters that stay as they are.
    """
    if isinstance(value, Html):
        return value
    return Html(
        "".join(
            f'<span class="unseen" title="a character that cannot be seen">{shown}</span>'
            if hidden
            else escape(shown)
            for shown, hidden in segments(value, keep)
        )
    )


def join(children: Iterable[Child], between: Html | str = "") -> Html:
    """Several pieces one after the other."""
    return Html(text(between).join(text(child) for child in children if child is not None))


def element(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """An element. `class_` and `data_live` name the attributes `class` and `data-live`.

    An attribute that is None or False is left out, one that is True has no value.
    """
    opening = Html(f"<{tag}{''.join(_attribute(*pair) for pair in attributes.items())}>")
    return opening if tag in _EMPTY else Html(f"{opening}{join(children)}</{tag}>")


def block(value: str, class_: str = "text") -> Html:
    """Text of several lines as it was written, in a direction of its own."""
    return element("pre", text(value, keep="\n\t"), class_=class_, dir="auto")


def foreign(value: str) -> Html:
    """One line that somebody else wrote: its direction does not reach what stands beside it."""
    return element("bdi", value)


def document(title: str, head: Iterable[Child], body: Html) -> Html:
    """A whole page."""
    metas = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        # A title has no elements in it.
        element("title", Html(escape(visible(title)))),
    ]
    whole = element("html", element("head", *metas, *head), body, lang="en")
    return Html(f"<!doctype html>\n{whole}\n")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(visible(str(value)))}"'
