"""What every request must fulfil before a page sees it, and what every answer says.

A page on loopback can be reached by every web site that the browser shows, and by every
program of the machine: neither the address nor the port is a secret, and a name that points
here can belong to anybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_bus.web.door import Door

BODY_LIMIT = 64 * 1024
METHODS = ("GET", "HEAD", "POST")
FORM = "application/x-www-form-urlencoded"

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Under no-referrer a browser sends forms with `Origin: null`, and none could be told apart.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_Refuse = Callable[[HTTPStatus, str], Response]


class Guard:
    """Stands around the pages. `refuse` makes the answer to what is not let through.

    `public` are the paths that need no cookie; `failed` is told the name of an error that
    should not have happened, and nothing else of it.
    """

    def __init__(
        self,
        app: ASGIApp,
        door: Door,
        *,
        public: frozenset[str],
        entrance: str,
        refuse: _Refuse,
        failed: Callable[[str], None],
    ) -> None:
        self._app = app
        self._door = door
        self._public = public
        self._entrance = entrance
        self._refuse = refuse
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        refused = self._judge(Request(scope))
        try:
            await (refused or self._app)(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - a traceback would hold text of messages
            self._failed(type(error).__name__)
            if not answer.begun:
                sorry = self._refuse(
                    HTTPStatus.INTERNAL_SERVER_ERROR, "This should not have happened."
                )
                await sorry(scope, receive, answer)

    def _judge(self, request: Request) -> Response | None:
        """The answer to a request that is not let through, or None."""
        # The host first: whoever comes by another name learns nothing at all.
        if request.headers.getlist("host") != [self._door.host]:
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "No page has this name.")
        if request.method not in METHODS:
            refused = self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "There is no such method.")
            refused.headers["Allow"] = ", ".join(METHODS)
            return refused
        for check in (_size, self._origin, self._session):
            wrong = check(request)
            if wrong is not None:
                return self._refuse(*wrong)
        return None

    def _origin(self, request: Request) -> tuple[HTTPStatus, str] | None:
        headers = request.headers
        own = headers.get("sec-fetch-site", "same-origin")
        if request.method == "POST":
            foreign = headers.getlist("origin") != [self._door.origin] or own != "same-origin"
        else:
            # The link may be followed from anywhere: it is right once, or not at all.
            foreign = own not in ("same-origin", "none") and request.scope["path"] != self._entrance
        if foreign:
            return HTTPStatus.FORBIDDEN, "This request was made by another page."
        return None

    def _session(self, request: Request) -> tuple[HTTPStatus, str] | None:
        if request.scope["path"] in self._public or self._door.admits(request.cookies):
            return None
        return HTTPStatus.UNAUTHORIZED, "Open this with the link that agent-bus ui has printed."


def _size(request: Request) -> tuple[HTTPStatus, str] | None:
    headers = request.headers
    length = headers.get("content-length", "0")
    if request.method != "POST":
        bare = length == "0" and "transfer-encoding" not in headers
        return None if bare else (HTTPStatus.BAD_REQUEST, "This request has a body.")
    if "content-length" not in headers or "transfer-encoding" in headers:
        return HTTPStatus.LENGTH_REQUIRED, "This form does not say how long it is."
    is_number = length.isascii() and length.isdigit() and len(length) < 10
    if not is_number or int(length) > BODY_LIMIT:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This form is too large."
    if _media_type(headers) != FORM:
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "This is no form."
    return None


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class _Answer:
    """Sends an answer, with the headers that all have."""

    def __init__(self, send: Callable[[Message], Awaitable[None]]) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await self._send(message)
