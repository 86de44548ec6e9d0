"""The pages by their addresses, over the bus of one identity."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path, PurePath
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_bus.approvals import WITHDRAW, Request
from agent_bus.bus import Bus
from agent_bus.errors import (
    AgentBusError,
    Conflict,
    InvalidDecision,
    NoSuchMessage,
    NotPermitted,
    UsageError,
)
from agent_bus.history import Filter, Page
from agent_bus.names import agent_name, is_message_id, kind_name, message_id
from agent_bus.reading import Stored
from agent_bus.web import agents, decisions, layout, letters
from agent_bus.web.door import Door
from agent_bus.web.guard import Guard
from agent_bus.web.layout import Frame
from agent_bus.web.letters import Listed, Wanted
from agent_bus.web.live import Live
from agent_bus.web.markup import Html, element

ENTRANCE = "/open"
ASSETS = {
    layout.STYLE: ("style.css", "text/css"),
    layout.SCRIPT: ("live.js", "text/javascript"),
    layout.ICON: ("icon.svg", "image/svg+xml"),
}

_LINES = 50
_TURNS = 200
_DECIDED = 50
_FAILED = HTTPStatus.INTERNAL_SERVER_ERROR
_BODY_TIME = 15.0
_FORM_FIELDS = 8

_STATUS: tuple[tuple[type[AgentBusError], HTTPStatus], ...] = (
    (Conflict, HTTPStatus.CONFLICT),
    (NotPermitted, HTTPStatus.FORBIDDEN),
    (InvalidDecision, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NoSuchMessage, HTTPStatus.NOT_FOUND),
    (UsageError, HTTPStatus.BAD_REQUEST),
)


def make_app(bus: Bus, door: Door, live: Live, *, warn: Callable[[str], None]) -> Guard:
    """The whole application. `warn` gets a line for people."""
    site = Site(bus, door, live)
    routes = [
        Route(ENTRANCE, site.entrance),
        Route("/", _page(site.queue)),
        Route("/approvals/{ident}", _page(site.request), methods=["GET"]),
        Route("/approvals/{ident}", _form(site, site.decide), methods=["POST"]),
        Route("/inbox", _page(site.inbox)),
        Route("/messages/{ident}", _page(site.message)),
        Route("/messages/{ident}/archive", _form(site, site.archive), methods=["POST"]),
        Route("/threads/{ident}", _page(site.thread)),
        Route("/agents", _page(site.agents)),
        Route("/agents/{name}", _page(site.agent)),
        Route("/log", _page(site.log)),
        Route("/events", site.events),
        *(Route(path, _asset(*asset)) for path, asset in ASSETS.items()),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _no_page,
            AgentBusError: _refused,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return Guard(
        app,
        door,
        public=frozenset({ENTRANCE, *ASSETS}),
        entrance=ENTRANCE,
        refuse=refusal,
        failed=lambda name: warn(f"a page failed: {name}"),
    )


class Site:
    """What stands behind each address."""

    def __init__(self, bus: Bus, door: Door, live: Live) -> None:
        self.bus = bus
        self.door = door
        self.live = live

    # -- being let in

    async def entrance(self, request: HttpRequest) -> Response:
        """Exchange the token for the cookie, once."""
        if request.method != "GET" or "sec-purpose" in request.headers:
            # A browser that only looks ahead would use the link up.
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Follow this link to open it.")
        cookie = self.door.open(request.query_params.get("token", ""))
        if cookie is None and not self.door.admits(request.cookies):
            return refusal(
                HTTPStatus.FORBIDDEN,
                "This link is not right, or has been used. If it was not you who used it, end "
                "agent-bus ui. Start it again for a new link.",
            )
        # No redirect: a browser that comes from elsewhere would not send the cookie along.
        onward = element("meta", http_equiv="refresh", content="0; url=/")
        body = element("p", element("a", "Go on", href="/"))
        answer = HTMLResponse(layout.bare_page("agent-bus", "You are in.", body, head=[onward]))
        if cookie is not None:
            answer.headers["Set-Cookie"] = cookie
        return answer

    # -- approvals

    def queue(self, request: HttpRequest) -> Html:
        """What waits, and what was decided before."""
        frame = self._frame()
        if not self.bus.is_admin:
            return decisions.no_queue_page(frame)
        just = self._just(request.query_params.get("decided", ""))
        return decisions.queue_page(
            frame, self.bus.pending(), self.bus.approvals.decided(_DECIDED), just
        )

    def request(self, request: HttpRequest) -> Html:
        """One request."""
        return self._request_page(self._request(request.path_params["ident"]))

    def decide(self, request: HttpRequest, given: dict[str, str]) -> Response:
        """Decide, and show the queue again; or the request, with what was wrong."""
        asked = self._request(request.path_params["ident"])
        try:
            chosen = _chosen(asked, given)
            if self.bus.is_locked:
                self.bus.unlock(given.get("passphrase", ""))
            self.bus.decide(
                asked.message.id,
                chosen,
                reason=given.get("reason", "").replace("\r\n", "\n").strip() or None,
                sha256=given.get("sha256", ""),
            )
        except AgentBusError as error:
            shown = self._request_page(asked, str(error))
            return HTMLResponse(shown, status_code=status_of(error))
        if not self.bus.is_admin:
            return _see(f"/approvals/{asked.message.id}")
        return _see(f"/?decided={asked.message.id}")

    def _just(self, ident: str) -> decisions.Pair | None:
        if not is_message_id(ident):
            return None
        asked = self._request(ident)
        decision = self.bus.approvals.decision(asked)
        return None if decision is None else (asked, decision)

    def _request(self, ident: str) -> Request:
        found = self.bus.approvals.request(message_id(ident))
        if not self.bus.is_admin and found.message.sender != self.bus.identity:
            raise NotPermitted(f"{self.bus.identity} is no admin of this bus and did not ask this")
        return found

    def _request_page(self, asked: Request, problem: str | None = None) -> Html:
        frame = self._frame()
        before = self.bus.approvals.decided(_DECIDED) if self.bus.is_admin else []
        return decisions.request_page(
            frame, asked, self.bus.approvals.decision(asked), before, problem
        )

    # -- messages

    def inbox(self, request: HttpRequest) -> Html:
        """One's own box."""
        frame, number = self._frame(), _number(request)
        unread = request.query_params.get("unread") == "1"
        found = self.bus.inbox(unread=unread, limit=_LINES, page=number)
        return letters.inbox_page(frame, found, number, Wanted(unread=unread))

    def log(self, request: HttpRequest) -> Html:
        """All messages."""
        frame, number = self._frame(), _number(request)
        agent, kind = (request.query_params.get(name) or None for name in ("agent", "kind"))
        wanted = Wanted(
            agent=None if agent is None else agent_name(agent),
            kind=None if kind is None else kind_name(kind),
        )
        found = self._log(Filter(agent=wanted.agent, kind=wanted.kind), number)
        listed = self._listed(found.messages)
        return letters.log_page(frame, listed, number, found.next, wanted, self.bus.known())

    def message(self, request: HttpRequest) -> Html:
        """One message, which counts as read from now on if it is one's own."""
        ident = message_id(request.path_params["ident"])
        stored = self.bus.read(ident)
        frame = self._frame()
        message = stored.judged.message
        mine = message is not None and (message.sender == self.bus.identity or self.bus.is_admin)
        became = self.bus.message_status(ident) if mine else []
        return letters.message_page(
            frame,
            stored,
            [one for one in became if one.to == stored.place.box],
            self._doubt(stored),
        )

    def archive(self, request: HttpRequest, given: dict[str, str]) -> Response:  # noqa: ARG002
        """Acknowledge a message."""
        self.bus.archive(request.path_params["ident"])
        return _see("/inbox")

    def thread(self, request: HttpRequest) -> Html:
        """A conversation. What is one's own in it counts as read from now on."""
        root = message_id(request.path_params["ident"])
        found = self.bus.thread(root)
        shown = found[-_TURNS:]
        for stored in shown:
            if stored.place.box == self.bus.identity and stored.place.state == "new":
                self.bus.read(stored.place.id)
        frame = self._frame()
        turns = [replace(one, doubt=self._doubt(one.stored)) for one in self._listed(shown)]
        return letters.thread_page(frame, root, turns, len(found) - len(shown))

    def _doubt(self, stored: Stored) -> str | None:
        message = stored.judged.message
        return None if message is None else self.bus.doubt(message)

    def _log(self, wanted: Filter, number: int) -> Page:
        return self.bus.log(wanted, limit=_LINES, page=number)

    def _listed(self, found: tuple[Stored, ...] | list[Stored]) -> list[Listed]:
        return [Listed(stored, self.bus.may_see(stored)) for stored in found]

    # -- agents

    def agents(self, _: HttpRequest) -> Html:
        """How each agent stands."""
        return agents.agents_page(self._frame(), self.bus.status(), self.bus.unread_by_others())

    def agent(self, request: HttpRequest) -> Html:
        """What one agent has sent and received."""
        name, number = agent_name(request.path_params["name"]), _number(request)
        found = self._log(Filter(agent=name), number)
        listed = self._listed(found.messages)
        return letters.agent_page(self._frame(), name, listed, number, found.next)

    # -- what is not a page

    async def events(self, request: HttpRequest) -> Response:
        """The changes since a page was made."""
        last = request.headers.get("last-event-id") or request.query_params.get("since", "")
        since = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else 0
        return StreamingResponse(self.live.events(since), media_type="text/event-stream")

    def _frame(self) -> Frame:
        # The look first: what changes while the page is made is then told to it.
        serial, counts = self.live.look(), self.live.counts()
        return Frame(
            project=PurePath(self.bus.file.project).name or self.bus.file.bus,
            me=self.bus.identity,
            admins=self.bus.admins,
            is_admin=self.bus.is_admin,
            pending=counts.pending,
            unread=counts.unread,
            serial=serial,
            now=self.bus.clock.now(),
            form_token=self.door.form_token,
            is_locked=self.bus.is_locked,
        )


def refusal(status: HTTPStatus, what: str) -> Response:
    """A page that tells why there is no page."""
    shown = layout.bare_page(status.phrase, what)
    return HTMLResponse(shown, status_code=status)


def status_of(error: AgentBusError) -> HTTPStatus:
    """How HTTP says it."""
    found = (status for kind, status in _STATUS if isinstance(error, kind))
    return next(found, HTTPStatus.SERVICE_UNAVAILABLE)


def _no_page(_: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    return refusal(HTTPStatus(status), "There is no such page.")


def _refused(_: HttpRequest, error: Exception) -> Response:
    """What the bus refuses, in the words of the command line."""
    status = status_of(error) if isinstance(error, AgentBusError) else _FAILED
    return refusal(status, str(error))


def _failed(_: HttpRequest, __: Exception) -> Response:
    # The guard is given the error as well, and says its name.
    return refusal(_FAILED, "This should not have happened.")


def _page(make: Callable[[HttpRequest], Html]) -> Callable[[HttpRequest], Response]:
    @functools.wraps(make)
    def respond(request: HttpRequest) -> Response:
        return HTMLResponse(make(request))

    return respond


def _form(
    site: Site, act: Callable[[HttpRequest, dict[str, str]], Response]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    """A form of ours, read and checked before anything is done."""

    async def respond(request: HttpRequest) -> Response:
        try:
            body = await asyncio.wait_for(request.body(), _BODY_TIME)
        except TimeoutError:
            return refusal(HTTPStatus.REQUEST_TIMEOUT, "This form took too long.")
        given = _fields(body)
        if not site.door.is_own_form(request.scope["path"], given.get("token", "")):
            raise NotPermitted("this form was not made by this page: go back, and load it again")
        return await run_in_threadpool(act, request, given)

    return respond


def _fields(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_FORM_FIELDS,
        )
    except ValueError:
        raise UsageError("this form cannot be read") from None
    if len(dict(pairs)) != len(pairs):
        raise UsageError("this form has a field twice")
    return dict(pairs)


def _chosen(asked: Request, given: dict[str, str]) -> str:
    choice = given.get("choice", "")
    if choice == WITHDRAW:
        return choice
    # What the number means is bound by the hash that the form holds.
    if given.get("sha256") != asked.sha256:
        raise Conflict(f"request {asked.message.id} is not what was shown: look at it again")
    offered = {str(number): option for number, option in enumerate(asked.options)}
    if choice not in offered:
        raise UsageError("no option was chosen")
    return offered[choice]


def _number(request: HttpRequest) -> int:
    text = request.query_params.get("page", "1")
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) < 1:
        raise UsageError("a page has a number from 1")
    return int(text)


def _see(path: str) -> Response:
    return RedirectResponse(path, status_code=HTTPStatus.SEE_OTHER)


def _asset(name: str, media_type: str) -> Callable[[HttpRequest], Response]:
    content = (Path(__file__).parent / "assets" / name).read_bytes()

    def respond(_: HttpRequest) -> Response:
        return Response(content, media_type=media_type)

    return respond
