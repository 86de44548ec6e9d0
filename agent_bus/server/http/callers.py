"""Who calls: the capability in the Authorization header, or the key of the agent server.

A capability is taken as it was minted and in no other form, since whatever stands between can
read a header that is not plain otherwise (RFC 6750, section 2.1). Why one is refused is not
told.
"""

from __future__ import annotations

import hmac
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from agent_bus.errors import AgentBusError, InvalidCapability
from agent_bus.server.http.guard import busy

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.caller import Caller
    from agent_bus.openhands.gateway.gateway import Gateway

_BEARER = re.compile(r"Bearer (evx1_[A-Za-z0-9_-]{1,507})", re.ASCII)
SESSION_KEY = "x-session-api-key"


class Callers:
    """Names the callers of a gateway. Make it on the event loop."""

    def __init__(self, gateway: Gateway, threads: anyio.CapacityLimiter) -> None:
        self._gateway = gateway
        self._threads = threads

    async def of(self, token: str) -> Caller:
        """Whom a capability names. Raises HTTPException."""
        try:
            return await anyio.to_thread.run_sync(
                self._gateway.caller, token, limiter=self._threads
            )
        except InvalidCapability:
            raise unauthorized() from None
        except AgentBusError:
            raise busy(HTTPStatus.SERVICE_UNAVAILABLE, "callers cannot be told apart now") from None


def bearer(headers: Headers) -> str | None:
    """The capability of a request; None without an Authorization header.

    Raises HTTPException for every other form.
    """
    given = headers.getlist("authorization")
    if not given:
        return None
    found = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise unauthorized()
    return found[1]


def check_session_key(headers: Headers, key: str) -> None:
    """Raise HTTPException unless the agent server's own key came with the request."""
    given = headers.getlist(SESSION_KEY)
    sent = given[0].encode("utf-8", "replace") if len(given) == 1 else b""
    if not key or not hmac.compare_digest(sent, key.encode()):
        raise HTTPException(401)


def unauthorized() -> HTTPException:
    """No caller, or none that may be one."""
    return HTTPException(401, headers={"WWW-Authenticate": "Bearer"})
