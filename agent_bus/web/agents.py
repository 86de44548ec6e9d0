"""Who is attached, and how much waits unread for whom."""

from __future__ import annotations

from collections.abc import Sequence

from agent_bus import doubts
from agent_bus.standing import AgentStatus
from agent_bus.unread import Neglect, Unread
from agent_bus.web.layout import Frame, agent_link, page, when
from agent_bus.web.markup import Child, Html, element, foreign, join

LIVE = "agents messages"


def agents_page(frame: Frame, agents: Sequence[AgentStatus], neglect: Neglect) -> Html:
    """All agents of the bus, and which of one's own messages they have left unread."""
    heads = ("Agent", "Attached", "Unread", "Oldest unread", "Do not verify")
    head = element("tr", *(element("th", name, scope="col") for name in heads))
    return page(
        frame,
        "Agents",
        element("h1", "Agents"),
        element(
            "table",
            element("thead", head),
            element("tbody", *(_row(frame, agent, heads) for agent in agents)),
        ),
        _unread(frame, neglect),
        live=LIVE,
        path="/agents",
    )


def _unread(frame: Frame, neglect: Neglect) -> Html | None:
    if not neglect.messages:
        return None
    older = None if neglect.complete else element("p", "There may be older ones.", class_="small")
    return element(
        "section",
        element("h2", "Yours that nobody has read for a while", id="unread"),
        element("ul", *(_unread_row(frame, one) for one in neglect.messages), class_="rows"),
        older,
        aria_labelledby="unread",
    )


def _unread_row(frame: Frame, one: Unread) -> Html:
    message = one.message
    subject = foreign(message.subject or "(no subject)")
    doubted = " (doubted)" if doubts.of_wake(message) else ""
    there = "is attached" if one.attached else "is not attached"
    seen = None
    if not one.attached and one.last_seen is not None:
        seen = join([", last seen ", when(one.last_seen, frame.now)])
    return element(
        "li",
        element("p", element("a", subject, href=f"/messages/{message.id}")),
        element(
            "p",
            f"{message.kind}{doubted} of ",
            when(message.sent_at, frame.now),
            "; ",
            agent_link(message.to),
            f" {there}",
            seen,
            class_="small",
        ),
    )


def _row(frame: Frame, agent: AgentStatus, heads: Sequence[str]) -> Html:
    oldest = agent.oldest_unread
    bad = len(agent.bad)
    cells: list[Child] = [
        _attached(frame, agent),
        str(agent.unread),
        "–" if oldest is None else when(oldest, frame.now),
        element("span", str(bad), class_="badge bad") if bad else "0",
    ]
    named = zip(heads[1:], cells, strict=True)
    return element(
        "tr",
        element("th", agent_link(agent.agent), scope="row"),
        *(element("td", element("span", cell), data_head=name) for name, cell in named),
    )


def _attached(frame: Frame, agent: AgentStatus) -> Html:
    if not agent.attached:
        seen = agent.last_seen
        last = join([" last seen ", when(seen, frame.now)]) if seen else " never seen"
        return element("span", element("span", "no", class_="badge"), last)
    each = (
        join(
            [
                f"{process.role} since ",
                when(process.started_at, frame.now),
                " on ",
                foreign(process.host),
            ]
        )
        for process in agent.attached
    )
    return element("span", element("span", "yes", class_="badge good"), " ", join(each, "; "))
