"""What all pages share: their frame, how a time and a name look, how a list goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_bus.clock import from_text, to_text
from agent_bus.names import AgentName
from agent_bus.web.markup import Child, Html, document, element, foreign, join, text

STYLE, SCRIPT, ICON = "/style.css", "/live.js", "/icon.svg"

_STEPS = ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a page. `now` is in milliseconds since 1970."""

    project: str
    me: AgentName
    admins: tuple[AgentName, ...]
    is_admin: bool
    pending: int | None
    """How many requests wait; None for one who may not see them."""
    unread: int
    serial: int
    """The last change that the page may have seen; see `live`."""
    now: int
    form_token: Callable[[str], str]
    is_locked: bool = False
    """Whether a passphrase must come with a decision."""


def page(frame: Frame, title: str, *content: Child, live: str = "", path: str = "") -> Html:
    """A whole page. `live`: the kinds of change that concern it; `path`: its link in the head."""
    waiting = f"({frame.pending}) " if frame.pending else ""
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(frame, path),
        element(
            "p",
            element("a", "Something has changed. Show it", href=""),
            id="news",
            role="status",
            hidden=True,
        ),
        element("p", id="lost", role="status", hidden=True),
        element("main", *content, id="content", tabindex=-1),
        data_live=live,
        data_serial=frame.serial,
    )
    script = element("script", src=SCRIPT, defer=True)
    return document(f"{waiting}{title} · {frame.project}", [*_head(), script], body)


def bare_page(title: str, what: str, *more: Child, head: Sequence[Child] = ()) -> Html:
    """A page that tells nothing of the bus: for whoever was not let in."""
    content = element("main", element("h1", title), element("p", what), *more, id="content")
    return document(title, [*_head(), *head], element("body", content, class_="bare"))


def _head() -> list[Html]:
    return [
        element("link", rel="stylesheet", href=STYLE),
        element("link", rel="icon", type="image/svg+xml", href=ICON),
    ]


def _header(frame: Frame, path: str) -> Html:
    links = (
        ("/", "Approvals", "pending", frame.pending),
        ("/inbox", "Inbox", "unread", frame.unread),
        ("/agents", "Agents", None, None),
        ("/log", "Log", None, None),
    )
    items = (
        element(
            "li",
            element(
                "a",
                name,
                _count(kind, number),
                href=href,
                aria_current="page" if href == path else None,
            ),
        )
        for href, name, kind, number in links
    )
    who = [element("span", "you are "), element("strong", frame.me)]
    if frame.is_admin:
        who.append(element("span", ", an admin"))
    return element(
        "header",
        element("p", foreign(frame.project), class_="project"),
        element("nav", element("ul", *items), aria_label="Pages"),
        element("p", *who, class_="me"),
    )


def _count(kind: str | None, number: int | None) -> Html | None:
    if kind is None:
        return None
    shown = str(number) if number else ""
    return element("span", shown, class_="count", data_count=kind, hidden=not number)


# -- pieces


def when(moment: str | int, now: int) -> Html:
    """A time, and how long ago that is. RFC 3339 text, or milliseconds since 1970."""
    exact = moment if isinstance(moment, str) else to_text(moment)
    distance = now - (from_text(moment) if isinstance(moment, str) else moment)
    shown = f"{exact[:10]} {exact[11:16]} UTC"
    return element("time", distance_text(distance), datetime=exact, title=shown)


def exactly(moment: str, now: int) -> Html:
    """A time in full."""
    shown = f"{moment[:10]} {moment[11:19]} UTC"
    return join([element("time", shown, datetime=moment), " (", when(moment, now), ")"])


def distance_text(milliseconds: int) -> str:
    """`5 min ago`, or `in 5 min` for a negative distance."""
    seconds = abs(milliseconds) // 1000
    size, unit = next((step for step in _STEPS if seconds >= step[0]), (1, "s"))
    number = seconds // size
    if number == 0:
        return "just now"
    many = f"{number} {unit}{'s' if unit == 'day' and number > 1 else ''}"
    return f"{many} ago" if milliseconds > 0 else f"in {many}"


def agent_link(name: AgentName) -> Html:
    """An agent, with a way to its messages."""
    return element("a", name, href=f"/agents/{name}", class_="agent")


def notice(kind: str, *content: Child, alert: bool = False) -> Html:
    """A box that must be seen: `good`, `bad` or `note`."""
    return element("div", *content, class_=f"notice {kind}", role="alert" if alert else None)


def fields(pairs: Sequence[tuple[str, Child]]) -> Html:
    """Names and values, those without a value left out."""
    shown = (
        element("div", element("dt", name), element("dd", value))
        for name, value in pairs
        if value is not None
    )
    return element("dl", *shown, class_="fields")


def as_json(value: Any) -> str:
    """A JSON value for reading."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def pager(path: str, number: int, more: int | None, query: str = "") -> Html | None:
    """The way to the pages before and behind this one, if there are any."""
    links = []
    if number > 1:
        links.append(element("a", "Page before", href=f"{path}?{query}page={number - 1}"))
    if more is not None:
        links.append(element("a", "Next page", href=f"{path}?{query}page={more}"))
    here = element("span", f"page {number}")
    return element("nav", *links, here, class_="pager", aria_label="More") if links else None


def empty(what: str) -> Html:
    """Instead of a list in which nothing stands."""
    return element("p", text(what), class_="empty")
