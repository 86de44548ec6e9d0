"""What every request must fulfil before anything looks at it.

The door stands on loopback as a rule, and there it can be reached by every web page that a
browser of this machine shows: so the name under which it is called and the page that calls
are looked at first. Each address has a bound on the size of a body, on the time that it may
take, and on how many requests are dealt with at once, so that no address starves another.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 10.0
"""How long a client may take for the body of a request."""
JSON = "application/json"

_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,9}", re.ASCII)
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for an address."""

    methods: tuple[str, ...]
    body: int = 0
    """Bytes that a body may have; 0 for no body."""
    at_once: int = 64
    """Requests that are dealt with at the same time."""


class Guard:
    """Stands around the application.

    `rules` are by the first part of a path. `hosts` are the names, without a port, under which
    the door may be called, and `origins` the pages that may call it. `failed` is told the name
    of an error that should not have happened, and nothing else of it.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: Mapping[str, Rule],
        *,
        hosts: Collection[str],
        origins: Collection[str] = (),
        failed: Callable[[str], None],
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._app = app
        self._rules = rules
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._failed = failed
        self._body_seconds = body_seconds
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        place = "/" + scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        try:
            rule = self._judge(scope, place)
            timed = _Timed(receive, self._body_seconds) if rule.body else receive
            self._open[place] += 1
            try:
                await self._app(scope, timed, answer)
            finally:
                self._open[place] -= 1
        except HTTPException as error:
            await answer.instead(refusal(error), scope, receive)
        except ClientDisconnect:
            pass  # nobody is there to be told
        except Exception as error:  # noqa: BLE001 - a traceback would hold what was sent
            self._failed(type(error).__name__)
            await answer.instead(refusal(HTTPException(500)), scope, receive)

    def _judge(self, scope: Scope, place: str) -> Rule:
        """The rule for a request that may be dealt with. Raises HTTPException."""
        headers = Headers(scope=scope)
        # The host first: whoever comes by another name learns nothing at all.
        self._check_caller(headers)
        rule = self._rules.get(place)
        if rule is None:
            raise HTTPException(404)
        if scope["method"] not in rule.methods:
            raise HTTPException(405, headers={"Allow": ", ".join(rule.methods)})
        _check_body(headers, rule.body if scope["method"] == "POST" else 0)
        if self._open[place] >= rule.at_once:
            raise busy(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
        return rule

    def _check_caller(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1 or host_name(given[0]) not in self._hosts:
            raise HTTPException(421, "there is nothing under this name")
        if any(origin not in self._origins for origin in headers.getlist("origin")):
            raise HTTPException(403, "no web page may call this")


def host_name(text: str) -> str | None:
    """The name in a Host header, in lower case and without the port; None if it is no name."""
    named = _HOST.fullmatch(text.lower())
    return named[1] if named else None


def busy(status: HTTPStatus, why: str) -> HTTPException:
    """Says: come again a little later."""
    return HTTPException(status, why, headers={"Retry-After": "2"})


def refusal(error: HTTPException) -> Response:
    """The answer to what is not let through. It ends the connection: a body may be unread."""
    headers = {**(error.headers or {}), "Connection": "close"}
    told = {"error": error.detail.lower() if error.detail else "refused"}
    return JSONResponse(told, status_code=error.status_code, headers=headers)


def _check_body(headers: Headers, limit: int) -> None:
    """RFC 9112, section 6: how long a body is must be plain. Raises HTTPException."""
    lengths = headers.getlist("content-length")
    if "transfer-encoding" in headers:
        raise HTTPException(411 if limit else 400, "say how long the body is")
    if not limit:
        if lengths not in ([], ["0"]):
            raise HTTPException(400, "there is a body")
        return
    if not lengths:
        raise HTTPException(411, "say how long the body is")
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HTTPException(400, "the length of the body is not plain")
    if int(lengths[0]) > limit:
        raise HTTPException(413, f"the body has more than {limit} bytes")
    kinds = headers.getlist("content-type")
    if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != JSON:
        raise HTTPException(415, f"the body is no {JSON}")


class _Timed:
    """Hands the body on, for as long as it comes in time; what comes after it takes any time."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._until = asyncio.get_running_loop().time() + seconds
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body took too long") from None
        self._whole = not message.get("more_body", False)
        return message


class _Answer:
    """Sends an answer, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await self._send(message)

    async def instead(self, response: Response, scope: Scope, receive: Receive) -> None:
        """Answer with this, unless an answer was begun."""
        if not self._begun:
            await response(scope, receive, self)
