"""The addresses of the gateway, and what holds for each.

POST /mcp                     the tools of children
POST /completion-hook         the Stop hook of a child
POST /webhooks/events/<id>    the webhooks of the agent server
POST /webhooks/conversations
GET  /healthz                 whether it is there
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_bus.server.http import mcp, reports
from agent_bus.server.http.callers import Callers
from agent_bus.server.http.guard import BODY_SECONDS, Guard, Rule, refusal

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.gateway import Gateway

MCP = "/mcp"
HOOK = "/completion-hook"
RULES = {
    MCP: Rule(("POST",), body=mcp.BODY_LIMIT),
    HOOK: Rule(("POST",), body=reports.HOOK_LIMIT),
    "/webhooks": Rule(("POST",), body=reports.EVENTS_LIMIT, at_once=16),
    "/healthz": Rule(("GET", "HEAD")),
}
_THREADS = 16


class Door:
    """The application: call it as ASGI while `running` lasts. Make it on the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        hosts: Collection[str],
        origins: Collection[str] = (),
        session_key: str,
        warn: Callable[[str], None],
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        # Apart from the threads of the tools, which may wait for the agent server.
        threads = anyio.CapacityLimiter(_THREADS)
        callers = Callers(gateway, threads)
        signals = reports.Reports(gateway, callers, threads, session_key=session_key, warn=warn)
        self._mcp = mcp.Endpoint(gateway, callers, warn)
        app = Starlette(
            routes=[
                Route(MCP, self._mcp),
                Route(HOOK, signals.hook, methods=["POST"]),
                Route("/webhooks/events/{ident}", signals.events, methods=["POST"]),
                Route("/webhooks/conversations", signals.conversations, methods=["POST"]),
                Route("/healthz", _health),
            ],
            exception_handlers={HTTPException: _refused},
        )
        app.router.redirect_slashes = False
        self.app = Guard(
            app,
            RULES,
            hosts=hosts,
            origins=origins,
            failed=lambda name: warn(f"a request failed: {name}"),
            body_seconds=body_seconds,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Requests can be answered while the `async with` lasts."""
        async with self._mcp.running():
            yield


async def _health(_: Request) -> Response:
    return JSONResponse({"ok": True})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error)
