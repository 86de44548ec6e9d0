"""One request to the agent server, and what came of it.

Nothing is tried twice, no redirect is followed, no proxy of the environment is used: the
session key goes to that one server. What is read of an answer is bounded, in bytes and in time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from agent_bus.clock import Clock, SystemClock
from agent_bus.errors import ServerRefused, Unavailable
from agent_bus.visible import visible

LIMIT = 8 * 1024 * 1024
"""Bytes of an answer that are read at most, where a request does not say otherwise."""

Parameters = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    what: str
    """What it was asked to do, for the text of an error."""
    status: int
    body: bytes | None
    """None: it is larger than the request allowed, and was not read on."""

    def json(self) -> dict[str, Any]:
        """The JSON object that it is. Raises Unavailable for anything else."""
        if self.body is None:
            raise Unavailable(f"the agent server, asked to {self.what}, answered far too much")
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Unavailable(
                f"what answers at OPENHANDS_URL, asked to {self.what}, does not speak like an "
                f"agent server (HTTP {self.status}, no JSON object)"
            )
        return found


class Exchange:
    """The way to one server. Safe to use from several threads.

    `seconds` is the time limit of a request, the reading of its answer included.
    """

    def __init__(self, url: str, api_key: str, seconds: float, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._client = httpx2.Client(
            base_url=url,
            headers={
                "X-Session-API-Key": api_key,
                "Accept": "application/json",
                # A compressed answer could grow beyond every bound while it is unpacked.
                "Accept-Encoding": "identity",
            },
            trust_env=False,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close the connections."""
        # What was asked has been answered: nothing is lost with a socket.
        with contextlib.suppress(OSError):
            self._client.close()

    def send(  # noqa: PLR0913 - each is a part of one request
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
        limit: int = LIMIT,
        patience: float = 1.0,
    ) -> Answer:
        """Send it once. Statuses 2xx and those in `accept` are answers, all others errors.

        `what` completes "asked to …"; `patience` multiplies the time limit. Raises Unavailable
        and ServerRefused.
        """
        seconds = self._seconds * patience
        request = self._client.build_request(
            method,
            path,
            params=params,
            content=None if body is None else json.dumps(body).encode("ascii"),
            headers={"Content-Type": "application/json"} | dict(headers or {}),
            timeout=seconds,
        )
        answer = self._answer(what, request, seconds, limit)
        if 200 <= answer.status < 300 or answer.status in accept:
            return answer
        raise _refusal(answer)

    def _answer(self, what: str, request: httpx2.Request, seconds: float, limit: int) -> Answer:
        late = f"the agent server, asked to {what}, did not answer within {seconds:g} s"
        deadline = self._clock.monotonic() + seconds
        try:
            response = self._client.send(request, stream=True)
            try:
                parts, size = [], 0
                # What has arrived, as it is: nothing is unpacked.
                for part in response.iter_raw():
                    size += len(part)
                    if size > limit:
                        return Answer(what, response.status_code, None)
                    parts.append(part)
                    if self._clock.monotonic() > deadline:
                        raise Unavailable(late)
            finally:
                response.close()
        except httpx2.ConnectError:
            raise Unavailable(
                f"no agent server can be reached to {what}: see whether it runs, and OPENHANDS_URL"
            ) from None
        except httpx2.TimeoutException:
            raise Unavailable(late) from None
        except (httpx2.HTTPError, httpx2.StreamError):
            raise Unavailable(
                f"the connection to the agent server, asked to {what}, broke"
            ) from None
        return Answer(what, response.status_code, b"".join(parts))


def _refusal(answer: Answer) -> Unavailable | ServerRefused:
    status, what = answer.status, answer.what
    if status >= 500 or status < 200:
        return Unavailable(f"the agent server, asked to {what}, failed (HTTP {status})")
    if status in (401, 403):
        return ServerRefused(
            f"the agent server does not accept OPENHANDS_API_KEY (HTTP {status})", status=status
        )
    if status < 400:
        return ServerRefused(
            f"what answers at OPENHANDS_URL, asked to {what}, sends elsewhere (HTTP {status}): "
            "set OPENHANDS_URL to the agent server itself",
            status=status,
        )
    why = _fields(answer)
    return ServerRefused(f"the agent server refuses to {what} (HTTP {status}{why})", status=status)


def _fields(answer: Answer) -> str:
    """Which fields of a request the server objects to; its own words may hold paths."""
    try:
        detail = answer.json().get("detail")
    except Unavailable:
        return ""
    if not isinstance(detail, list):
        return ""
    found = [
        ".".join(str(step) for step in problem["loc"]) + f" {problem.get('type', '')}"
        for problem in detail
        if isinstance(problem, dict) and isinstance(problem.get("loc"), list)
    ]
    return visible((": " + ", ".join(found))[:200]) if found else ""
