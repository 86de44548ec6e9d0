"""Messages: lists of them, one with its signature, a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from agent_bus import doubts
from agent_bus.delivery import APPROVAL_REQUEST
from agent_bus.history import Page
from agent_bus.names import AgentName
from agent_bus.payload import Message
from agent_bus.reading import Stored
from agent_bus.standing import MessageStatus
from agent_bus.visible import cut
from agent_bus.web.layout import (
    Frame,
    agent_link,
    as_json,
    empty,
    exactly,
    fields,
    notice,
    page,
    pager,
    when,
)
from agent_bus.web.markup import Child, Html, block, element, foreign, join

LIVE = "messages"
_OPENING = 80
"""Characters of a text that stand for a subject."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A message in a list. `readable`: whether the one who looks may see its text."""

    stored: Stored
    readable: bool
    doubt: str | None = None
    """Why it is not to be believed although it verifies, where its text is shown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list is narrowed to."""

    agent: AgentName | None = None
    kind: str | None = None
    unread: bool = False

    def query(self) -> str:
        """The same for a link, to be continued."""
        pairs = {"agent": self.agent, "kind": self.kind, "unread": "1" if self.unread else None}
        given = {name: value for name, value in pairs.items() if value}
        return urlencode(given) + "&" if given else ""


def inbox_page(frame: Frame, found: Page, number: int, wanted: Wanted) -> Html:
    """One's own box without its archive, oldest first."""
    listed = [Listed(stored, readable=True) for stored in found.messages]
    other = ("All", "/inbox") if wanted.unread else ("Only unread", "/inbox?unread=1")
    return page(
        frame,
        "Inbox",
        element("h1", f"Inbox of {frame.me}"),
        element(
            "p",
            f"{found.total} {'unread' if wanted.unread else 'not archived'}, oldest first. ",
            element("a", other[0], href=other[1]),
        ),
        _rows(frame, listed, "Nothing lies here."),
        pager("/inbox", number, found.next, wanted.query()),
        live=LIVE,
        path="/inbox",
    )


def log_page(
    frame: Frame,
    listed: Sequence[Listed],
    number: int,
    more: int | None,
    wanted: Wanted,
    known: Iterable[AgentName],
) -> Html:
    """All messages of the bus, newest first."""
    return page(
        frame,
        "Log",
        element("h1", "Log"),
        _narrow(wanted, known),
        _rows(frame, listed, "No message."),
        pager("/log", number, more, wanted.query()),
        live=LIVE,
        path="/log",
    )


def agent_page(
    frame: Frame, name: AgentName, listed: Sequence[Listed], number: int, more: int | None
) -> Html:
    """What one agent has sent and received, newest first."""
    return page(
        frame,
        name,
        element("p", element("a", "All agents", href="/agents"), class_="back"),
        element("h1", f"From and to {name}"),
        _rows(frame, listed, "No message."),
        pager(f"/agents/{name}", number, more),
        live=LIVE,
    )


def message_page(
    frame: Frame, stored: Stored, became: Sequence[MessageStatus], doubt: str | None = None
) -> Html:
    """One message, its signature first, and before that why it is not to be believed."""
    message = stored.judged.message
    if message is None:
        return _unverified_page(frame, stored)
    return page(
        frame,
        message.subject or "(no subject)",
        element("h1", foreign(message.subject or "(no subject)")),
        _warning(doubt),
        signature(stored),
        fields(_head(frame, message)),
        block(message.body, "text body"),
        _data(message),
        *(fields(_became(frame, one)) for one in became),
        _archive_form(frame, stored),
    )


def thread_page(frame: Frame, root: str, listed: Sequence[Listed], hidden: int) -> Html:
    """A conversation, oldest first."""
    return page(
        frame,
        "Thread",
        element("h1", "Conversation"),
        element("p", element("code", root), class_="small"),
        notice("note", f"{hidden} earlier messages are not shown.") if hidden else None,
        element("ol", *(_turn(frame, one) for one in listed), class_="thread"),
        live=LIVE,
    )


def signature(stored: Stored) -> Html:
    """What is known of who wrote a message."""
    judged, message = stored.judged, stored.judged.message
    if message is None:
        return notice(
            "bad",
            element("strong", f"Warning: this does not verify ({judged.outcome}). "),
            judged.detail,
            ". Nobody vouches for it: not for its sender, and not for its text.",
            alert=True,
        )
    holds = join([element("strong", "The signature holds: "), f"{message.sender} wrote this."])
    if judged.ok:
        return notice("good", holds)
    return notice("note", holds, f" It has {judged.detail}.")


# -- parts


def _rows(frame: Frame, listed: Sequence[Listed], nothing: str) -> Html:
    if not listed:
        return empty(nothing)
    return element("ul", *(_row(frame, one) for one in listed), class_="rows")


def _row(frame: Frame, one: Listed) -> Html:
    place, message = one.stored.place, one.stored.judged.message
    if message is None:
        return _bad_row(one)
    subject = foreign(message.subject or _opening(one.readable, message.body))
    title = element("a", subject, href=f"/messages/{place.id}") if one.readable else subject
    urgent = message.priority in ("high", "urgent")
    doubt = doubts.of_wake(message)
    return element(
        "li",
        element(
            "p",
            element("span", "doubted", class_="badge bad") if doubt else None,
            element("span", message.priority or "", class_="badge bad") if urgent else None,
            title,
            element("span", "unread", class_="badge") if place.state == "new" else None,
            _badge(one.stored),
        ),
        element("p", *_route(message), " · ", when(message.sent_at, frame.now), class_="small"),
        _warning(doubt),
        class_="unread" if place.state == "new" and place.box == frame.me else None,
    )


def _opening(readable: bool, body: str) -> str:
    first = body.strip().partition("\n")[0] if readable else ""
    return f"({cut(first, _OPENING)})" if first else "(no subject)"


def _bad_row(one: Listed) -> Html:
    place, judged = one.stored.place, one.stored.judged
    name = element("code", place.id)
    return element(
        "li",
        element(
            "p",
            element("a", name, href=f"/messages/{place.id}") if one.readable else name,
            element("span", judged.outcome, class_="badge bad"),
        ),
        element(
            "p",
            "in the box of ",
            agent_link(place.box),
            ": ",
            foreign(judged.detail),
            class_="small",
        ),
    )


def _whose(stored: Stored) -> list[Child]:
    return ["in the box of ", agent_link(stored.place.box), ": ", foreign(stored.judged.detail)]


def _badge(stored: Stored) -> Html | None:
    outcome = stored.judged.outcome
    return None if outcome == "ok" else element("span", outcome, class_="badge")


def _warning(doubt: str | None) -> Html | None:
    if doubt is None:
        return None
    return notice("bad", element("strong", "Warning: "), f"{doubt}.", alert=True)


def _route(message: Message) -> list[Child]:
    return [agent_link(message.sender), " → ", agent_link(message.to), f" · {message.kind}"]


def _narrow(wanted: Wanted, known: Iterable[AgentName]) -> Html:
    every = element("option", "all agents", value="", selected=wanted.agent is None)
    options = (element("option", name, value=name, selected=name == wanted.agent) for name in known)
    return element(
        "form",
        element("label", "Agent", for_="agent"),
        element("select", every, *options, id="agent", name="agent"),
        element("label", "Kind", for_="kind"),
        element("input", id="kind", name="kind", value=wanted.kind or "", size=16, maxlength=32),
        element("button", "Show", type="submit"),
        method="get",
        action="/log",
        class_="narrow",
    )


def _head(frame: Frame, message: Message) -> list[tuple[str, Child]]:
    others = [name for name in message.recipients if name != message.to]
    answered = message.reply_to
    expires = message.expires_at
    queue = element("a", "open the request", href=f"/approvals/{message.id}")
    return [
        ("from", agent_link(message.sender)),
        ("to", agent_link(message.to)),
        ("also to", join(map(agent_link, others), ", ") if others else None),
        ("sent", exactly(message.sent_at, frame.now)),
        ("kind", element("span", message.kind)),
        ("approval", queue if message.kind == APPROVAL_REQUEST and frame.is_admin else None),
        ("priority", message.priority),
        ("expires", exactly(expires, frame.now) if expires else None),
        ("answers", element("a", answered, href=f"/messages/{answered}") if answered else None),
        ("thread", _thread_link(message)),
        ("id", element("code", message.id)),
    ]


def _thread_link(message: Message) -> Html:
    return element("a", "the whole conversation", href=f"/threads/{message.thread or message.id}")


def _data(message: Message) -> Html | None:
    if message.data is None:
        return None
    shown = block(as_json(dict(message.data)), "text details")
    return element("div", element("p", "Data", class_="label"), shown)


def _became(frame: Frame, one: MessageStatus) -> list[tuple[str, Child]]:
    read, archived = one.read_at, one.archived_at
    return [
        ("read", exactly(read, frame.now) if read else "not yet"),
        ("archived", exactly(archived, frame.now) if archived else "not yet"),
        ("recipient", "attached now" if one.attached else "not attached now"),
    ]


def _archive_form(frame: Frame, stored: Stored) -> Html | None:
    place = stored.place
    if place.box != frame.me or place.state == "archived":
        return None
    path = f"/messages/{place.id}/archive"
    return element(
        "form",
        element("input", type="hidden", name="token", value=frame.form_token(path)),
        element("button", "Archive: this is done", type="submit"),
        method="post",
        action=path,
    )


def _unverified_page(frame: Frame, stored: Stored) -> Html:
    stored_text = stored.judged.raw.decode("utf-8", "backslashreplace")
    return page(
        frame,
        "A message that does not verify",
        element("h1", "A message that does not verify"),
        signature(stored),
        fields(
            [
                ("id", element("code", stored.place.id)),
                ("box", agent_link(stored.place.box)),
                ("what to do", element("code", "agent-bus doctor")),
            ]
        ),
        element(
            "details",
            element("summary", "Show what is stored, which nobody vouches for"),
            block(stored_text, "text unverified"),
        ),
    )


def _turn(frame: Frame, one: Listed) -> Html:
    place, message = one.stored.place, one.stored.judged.message
    if message is None:
        return element("li", signature(one.stored), element("code", place.id), class_="turn")
    shown = block(message.body, "text body")
    if not one.readable:
        shown = element("p", "Only sender, recipient and admins see the text.", class_="small")
    return element(
        "li",
        element("p", *_route(message), " · ", when(message.sent_at, frame.now), class_="small"),
        element("h2", element("a", foreign(message.subject), href=f"/messages/{message.id}"))
        if message.subject
        else None,
        _warning(one.doubt),
        shown,
        class_="turn own" if message.sender == frame.me else "turn",
    )
