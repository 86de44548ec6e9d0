"""The approvals queue: what waits for a decision, what was decided, one request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agent_bus.approvals import WITHDRAW, Request, earlier
from agent_bus.payload import Decision, Message
from agent_bus.web.layout import (
    Frame,
    agent_link,
    as_json,
    empty,
    exactly,
    fields,
    notice,
    page,
    when,
)
from agent_bus.web.markup import Child, Html, block, element, foreign, join

LIVE = "approvals"
REASON_LENGTH = 1000
"""Characters: at four bytes each no more than a reason may have."""

_SHOWN_BEFORE = 20
_LONG = 6000
"""Characters above which a request is decided on a page of its own, below all of its text."""

Pair = tuple[Request, Decision]


def queue_page(
    frame: Frame, pending: Sequence[Request], decided: Sequence[Pair], just: Pair | None
) -> Html:
    """The queue of an admin. `just` is what was decided a moment ago."""
    waiting = (request_card(frame, request, decided) for request in pending)
    return page(
        frame,
        "Approvals",
        _just(frame, just),
        element("h1", "Waiting for a decision"),
        *(waiting if pending else [empty("Nothing waits for a decision.")]),
        _history(frame, decided),
        live=LIVE,
        path="/",
    )


def no_queue_page(frame: Frame) -> Html:
    """What one sees who is no admin."""
    admins = join(map(agent_link, frame.admins), ", ") if frame.admins else "nobody"
    return page(
        frame,
        "Approvals",
        element("h1", "Approvals"),
        notice(
            "note",
            element("strong", f"{frame.me} is no admin of this bus, and has no queue."),
            element("p", "Requests are seen and decided by ", admins, "."),
            element("p", "Answers to what you have asked arrive in your inbox."),
        ),
        path="/",
    )


def request_page(
    frame: Frame,
    request: Request,
    decision: Decision | None,
    decided: Sequence[Pair] = (),
    problem: str | None = None,
) -> Html:
    """One request with all of its text, and its decision or the form for it."""
    wrong = None
    if problem is not None:
        wrong = notice("bad", element("strong", "Not decided. "), problem, alert=True)
    return page(
        frame,
        f"Request {request.message.subject}",
        element("p", element("a", "All that waits", href="/"), class_="back"),
        wrong,
        _decided(frame, decision) if decision else None,
        request_card(frame, request, decided, alone=True, closed=decision is not None, level="h1"),
        live=LIVE,
    )


def request_card(
    frame: Frame,
    request: Request,
    decided: Sequence[Pair],
    *,
    alone: bool = False,
    closed: bool = False,
    level: str = "h2",
) -> Html:
    """A request; the form stands below everything that the decision is about."""
    message = request.message
    details = None if request.details is None else as_json(request.details)
    long = not alone and len(message.body) + len(details or "") > _LONG
    name = f"question-{message.id}"
    return element(
        "article",
        _asked(frame, message),
        element(level, foreign(message.subject or "(no subject)"), id=name),
        element("p", _open_link(message), class_="long")
        if long
        else join([_question(message), _details(request.details)]),
        *(() if closed else _before(frame, request, decided)),
        None if closed or long else _form(frame, request),
        _proof(frame, request),
        class_="request",
        aria_labelledby=name,
    )


def _asked(frame: Frame, message: Message) -> Html:
    whom = "you" if message.to == frame.me else agent_link(message.to)
    parts: list[Child] = [agent_link(message.sender), " asks ", whom, ", "]
    parts.append(when(message.sent_at, frame.now))
    if message.expires_at is not None:
        parts += [element("span", " · expires ", when(message.expires_at, frame.now))]
    return element("p", *parts, class_="asked")


def _open_link(message: Message) -> Html:
    size = f"It has {len(message.body)} characters. "
    return join([size, element("a", "Read all of it and decide", href=_path(message))])


def _question(message: Message) -> Html | None:
    # Who asks writes the subject as well: only if it is the first line, that is shown once.
    first, _, rest = message.body.partition("\n")
    shown = rest.strip("\n") if first == message.subject else message.body
    return block(shown) if shown.strip() else None


def _details(details: Any) -> Html | None:
    if details is None:
        return None
    shown = details if isinstance(details, str) else as_json(details)
    return element("div", element("p", "Details", class_="label"), block(shown, "text details"))


def _before(frame: Frame, request: Request, decided: Sequence[Pair]) -> Iterable[Html]:
    """What became of the same question of the same agent."""
    for _, decision in earlier(request, decided):
        yield notice(
            "note",
            "Asked before, in the same words: ",
            _verdict(decision),
            " by ",
            agent_link(decision.by),
            ", ",
            when(decision.decided_at, frame.now),
            *([": ", foreign(decision.reason)] if decision.reason else []),
        )


def _form(frame: Frame, request: Request) -> Html:
    message, own = request.message, request.message.sender == frame.me
    if request.needs not in (None, frame.me) and not own:
        return element("p", "Only ", foreign(request.needs or ""), " may decide this.")
    offered = [(WITHDRAW, WITHDRAW)] if own else list(_numbered(request.options))
    path, reason = _path(message), f"reason-{message.id}"
    buttons = (
        element("button", foreign(option), type="submit", name="choice", value=value)
        for value, option in offered
    )
    whom = message.to if own else message.sender
    return element(
        "form",
        element("input", type="hidden", name="token", value=frame.form_token(path)),
        element("input", type="hidden", name="sha256", value=request.sha256),
        element("label", f"Reason (optional; {whom} will read it)", for_=reason),
        element("textarea", id=reason, name="reason", rows=2, maxlength=REASON_LENGTH, dir="auto"),
        element("p", "You have asked this yourself: all you can do is withdraw it.")
        if own
        else None,
        _passphrase(frame, message) if frame.is_locked else None,
        element("div", *buttons, class_="options", role="group", aria_label="Decide"),
        element("p", "It offers no option: nobody can decide it.") if not offered else None,
        method="post",
        action=path,
        autocomplete="off",
    )


def _passphrase(frame: Frame, message: Message) -> Html:
    name = f"passphrase-{message.id}"
    return join(
        [
            element("label", f"Passphrase of {frame.me}", for_=name),
            element(
                "input",
                type="password",
                id=name,
                name="passphrase",
                autocomplete="off",
                required=True,
            ),
        ]
    )


def _numbered(options: Iterable[str]) -> Iterable[tuple[str, str]]:
    # By number: a browser would change the line ends in a text.
    return ((str(number), option) for number, option in enumerate(options))


def _proof(frame: Frame, request: Request) -> Html:
    message = request.message
    asked = exactly(message.sent_at, frame.now)
    ident = element("a", element("code", message.id), href=_path(message))
    rows: list[tuple[str, Child]] = [
        ("signed by", element("span", message.sender)),
        ("asked", asked),
        ("id", ident),
        ("sha256", element("code", request.sha256)),
    ]
    return element(
        "details", element("summary", "What a decision is bound to"), fields(rows), class_="proof"
    )


def _decided(frame: Frame, decision: Decision) -> Html:
    return notice(
        "good",
        element("strong", "Decided: ", _verdict(decision)),
        " by ",
        agent_link(decision.by),
        ", ",
        exactly(decision.decided_at, frame.now),
        ". It stands for good.",
        block(decision.reason) if decision.reason else None,
    )


def _just(frame: Frame, just: Pair | None) -> Html | None:
    if just is None:
        return None
    request, decision = just
    whose = "You decided" if decision.by == frame.me else f"{decision.by} had decided"
    return notice(
        "good",
        element("strong", f"{whose}: ", _verdict(decision)),
        " — ",
        element("a", foreign(request.message.subject), href=_path(request.message)),
        alert=True,
    )


def _history(frame: Frame, decided: Sequence[Pair]) -> Html | None:
    if not decided:
        return None
    rows = (
        element(
            "li",
            element(
                "p",
                _verdict(decision),
                " ",
                element("a", foreign(request.message.subject), href=_path(request.message)),
            ),
            element(
                "p",
                "asked by ",
                agent_link(request.message.sender),
                ", decided by ",
                agent_link(decision.by),
                ", ",
                when(decision.decided_at, frame.now),
                class_="small",
            ),
            element("p", foreign(decision.reason), class_="reason") if decision.reason else None,
        )
        for request, decision in decided[:_SHOWN_BEFORE]
    )
    return element(
        "section",
        element("h2", "Decided before", id="before"),
        element("ul", *rows, class_="rows"),
        aria_labelledby="before",
    )


def _verdict(decision: Decision) -> Html:
    return element("strong", foreign(decision.decision), class_="verdict")


def _path(message: Message) -> str:
    return f"/approvals/{message.id}"
