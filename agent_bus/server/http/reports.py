"""Where ends are reported: the Stop hook of a child, and the webhooks of the agent server.

Both are signals and no more: what is true is asked of the agent server later, and never while
the one who reports waits for an answer. A signal is on disk before it is acknowledged.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent_bus.errors import AgentBusError, Busy, NoSuchChild
from agent_bus.server.http.callers import Callers, bearer, check_session_key, unauthorized
from agent_bus.server.http.guard import busy

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.caller import Caller
    from agent_bus.openhands.gateway.gateway import Gateway

HOOK_LIMIT = 64 * 1024
EVENTS_LIMIT = 8 * 1024 * 1024

_ENDED = frozenset({"paused", "finished", "error", "stuck"})


class Reports:
    """The addresses of signals."""

    def __init__(
        self,
        gateway: Gateway,
        callers: Callers,
        threads: anyio.CapacityLimiter,
        *,
        session_key: str,
        warn: Callable[[str], None],
    ) -> None:
        self._gateway = gateway
        self._callers = callers
        self._threads = threads
        self._session_key = session_key
        self._warn = warn

    async def hook(self, request: Request) -> Response:
        """The Stop hook of a child: the event as the agent server gives it to hooks.

        The capability stands in the Authorization header; in the body as `capabilityRef`, and
        without an event, for hooks of an earlier make.
        """
        token = bearer(request.headers)
        caller = await self._callers.of(token) if token else None
        event = _object(await request.body())
        if caller is None:
            reference = event.get("capabilityRef")
            if not isinstance(reference, str):
                raise unauthorized()
            caller = await self._callers.of(reference)
            event = {"session_id": str(caller.subject), **event}
        _check_hook(caller, event)
        await self._signal(caller.subject, "hook")
        return _accepted()

    async def events(self, request: Request) -> Response:
        """A webhook of the agent server: events of one conversation, most of them nobody's."""
        check_session_key(request.headers, self._session_key)
        child = _uuid(request.path_params["ident"])
        if child is None:
            raise HTTPException(404)
        ended = await self._in_thread(_tells_an_end, await request.body())
        if not ended:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        try:
            await self._signal(child, "webhook")
        except _Unknown:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return _accepted()

    async def conversations(self, request: Request) -> Response:
        """A webhook of the agent server that tells nothing which its events do not."""
        check_session_key(request.headers, self._session_key)
        await request.body()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _signal(self, child: UUID, source: str) -> None:
        """Make a signal durable. Raises HTTPException."""
        try:
            await self._in_thread(self._gateway.signal, child, source)
        except NoSuchChild:
            raise _Unknown from None
        except Busy:
            raise busy(HTTPStatus.TOO_MANY_REQUESTS, "too many signals wait") from None
        except (AgentBusError, OSError) as error:
            self._warn(f"a signal of child {child} could not be kept: {error}")
            raise busy(HTTPStatus.SERVICE_UNAVAILABLE, "it could not be kept") from None

    async def _in_thread(self, act: Callable[..., Any], *arguments: object) -> Any:
        return await anyio.to_thread.run_sync(
            functools.partial(act, *arguments), limiter=self._threads
        )


class _Unknown(HTTPException):
    """Whoever reports is no child in the journal of this bus."""

    def __init__(self) -> None:
        super().__init__(404, "no such child here")


def _check_hook(caller: Caller, event: dict[str, Any]) -> None:
    """Raise HTTPException unless the caller may tell this end."""
    if "complete" not in caller.actions:
        raise HTTPException(403, "this capability is for something else")
    session = _uuid(event.get("session_id"))
    if session is None:
        raise HTTPException(400, "session_id is no UUID")
    if session != caller.subject:
        raise HTTPException(403, "this is the end of another conversation")


def _tells_an_end(body: bytes) -> bool:
    """Whether a list of events tells that a run may have ended. Raises HTTPException."""
    events = _json(body)
    if not isinstance(events, list):
        raise HTTPException(400, "the body is no list of events")
    return any(status in _ENDED for status in _statuses(events))


def _statuses(events: Iterable[object]) -> Iterable[str]:
    for event in events:
        if not isinstance(event, dict) or event.get("kind") != "ConversationStateUpdateEvent":
            continue
        value = event.get("value")
        if event.get("key") == "full_state" and isinstance(value, dict):
            value = value.get("execution_status")
        elif event.get("key") != "execution_status":
            continue
        if isinstance(value, str):
            yield value


def _object(body: bytes) -> dict[str, Any]:
    value = _json(body)
    if not isinstance(value, dict):
        raise HTTPException(400, "the body is no JSON object")
    return value


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON") from None


def _uuid(text: object) -> UUID | None:
    """A UUID, with dashes or without."""
    try:
        found = UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if text in (str(found), found and found.hex) else None


def _accepted() -> Response:
    return JSONResponse({"accepted": True}, status_code=HTTPStatus.ACCEPTED)
