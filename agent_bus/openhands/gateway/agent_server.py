"""An OpenHands agent server as a provider, over its REST interface.

Held against openhands-agent-server 1.58.2; docs/openhands-gateway.md has what was measured. The
session key is given to that server alone and stands in no text of an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, get_args
from uuid import UUID

from agent_bus.clock import Clock
from agent_bus.errors import ServerRefused, Unavailable
from agent_bus.openhands.gateway import events, launching
from agent_bus.openhands.gateway.events import Event
from agent_bus.openhands.gateway.exchange import LIMIT, Exchange, Parameters
from agent_bus.openhands.gateway.provider import Conversation, Order, RunEnd, Status

SECONDS = 10.0
"""How long a request may take."""

_STATUSES: tuple[str, ...] = get_args(Status)
_PAGE = 100
# An event repeats its text as the arguments of a call, where each quote is escaped once more.
_ONE_EVENT = 32 * 1024 * 1024
# The first message starts the child's agent, which connects to its MCP servers; a later one
# waits for the step that is under way.
_PATIENCE = 6.0
_MARKER = 200


class AgentServer:
    """The conversations of one agent server. Safe to use from several threads.

    `url` is its address without a slash at the end, `public_url` what people open; `seconds` is
    the time limit of a request. Creating a conversation and posting to it may take six times
    as long.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        public_url: str,
        *,
        seconds: float = SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._exchange = Exchange(url, api_key, seconds, clock)
        self._public_url = public_url.rstrip("/")

    def close(self) -> None:
        """Close the connections to it."""
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def conversation(self, ident: UUID) -> Conversation | None:
        """How it stands, or None if the server does not know it."""
        what = "show a conversation"
        answer = self._exchange.send(what, "GET", _path(ident), accept=(404,))
        found = answer.json()
        if answer.status == 404:
            return None
        last = found.get("last_user_message_id")
        status, tags = found.get("execution_status"), found.get("tags") or {}
        folder = _inside(found, "workspace", "working_dir")
        if found.get("id") != str(ident) or not isinstance(tags, dict) or not folder:
            raise Unavailable("the agent server, asked to show a conversation, showed another")
        if status not in _STATUSES:
            raise Unavailable(f"the agent server names a state unknown here: {status!a:.60}")
        return Conversation(
            id=ident,
            status=status,
            folder=folder,
            tags={str(key): str(value) for key, value in tags.items()},
            last_user_message=last if isinstance(last, str) else self._newest_message(ident),
            is_acp=_inside(found, "agent", "kind") == "ACPAgent",
            servers=_servers(found),
        )

    def create(self, order: Order) -> bool:
        """Make it, idle. False: it was there already, and nothing of the order was applied.

        Raises ConfigurationError if no agent can be made that has the order's MCP servers alone.
        """
        settings = self._stored_settings() if order.agent is None else None
        answer = self._exchange.send(
            "create a conversation",
            "POST",
            "/api/conversations",
            body=launching.creation(order, settings),
            patience=_PATIENCE,
        )
        if answer.json().get("id") != str(order.child):
            raise Unavailable("the agent server, asked to create a conversation, made another")
        if answer.status != 201:
            return False
        # A name for people: the conversation is there, whatever becomes of it.
        with suppress(Unavailable, ServerRefused):
            title = {"title": order.title[: launching.TITLE_LIMIT]}
            self._exchange.send("name it", "PATCH", _path(order.child), body=title)
        return True

    def post(self, ident: UUID, text: str, *, run: bool = True) -> bool:
        """Add a user message and start a run.

        False: the message was saved, but there is no room for a run now.
        """
        answer = self._exchange.send(
            "take a message",
            "POST",
            f"{_path(ident)}/events",
            body={"role": "user", "content": [{"type": "text", "text": text}], "run": run},
            accept=(429,),
            patience=_PATIENCE,
        )
        # An answer that is no JSON is not the server's own, and says nothing of the message.
        answer.json()
        return answer.status != 429

    def run(self, ident: UUID) -> bool:
        """Start a run. False: there is no room now. True also if it is running already."""
        answer = self._exchange.send(
            "start a run", "POST", f"{_path(ident)}/run", body={}, accept=(409, 429)
        )
        answer.json()
        return answer.status != 429

    def interrupt(self, ident: UUID) -> None:
        """Stop the run at once; it then is paused."""
        self._exchange.send("interrupt a run", "POST", f"{_path(ident)}/interrupt", body={}).json()

    def reject(self, ident: UUID, reason: str) -> None:
        """Refuse what waits for a confirmation; it is idle then."""
        self._exchange.send(
            "refuse what waits for a confirmation",
            "POST",
            f"{_path(ident)}/events/respond_to_confirmation",
            body={"accept": False, "reason": reason},
        ).json()

    def find_message(self, ident: UUID, marker: str) -> str | None:
        """The id of the newest user message whose text contains a marker, or None."""
        # The server compares without case and in all messages; it only narrows the search.
        hint = marker.split("\n", 1)[0][:_MARKER]
        for event in self._messages(ident, **({"body": hint} if hint else {})):
            if marker in events.message_text(event):
                return events.identity(event)
        return None

    def run_end(self, ident: UUID, run: str | None) -> RunEnd:
        """What happened after the message `run`; None for after the newest user message."""
        return events.run_end(self._newest_first(ident, "show what happened"), run)

    def url(self, ident: UUID) -> str:
        """What a person opens the conversation under."""
        return f"{self._public_url}/conversations/{ident}"

    def _stored_settings(self) -> Mapping[str, Any] | None:
        """What an agent is by default, its secrets encrypted; None if the server has no key."""
        answer = self._exchange.send(
            "show its agent settings",
            "GET",
            "/api/settings",
            headers={"X-Expose-Secrets": "encrypted"},
            accept=(404, 503),
        )
        found = answer.json()
        if answer.status == 503 and "OH_SECRET_KEY" not in str(found.get("detail")):
            raise Unavailable("the agent server is not ready to show its agent settings (HTTP 503)")
        settings = found.get("agent_settings") if answer.status < 300 else None
        return settings if isinstance(settings, dict) else None

    def _newest_message(self, ident: UUID) -> str | None:
        return next((events.identity(event) for event in self._messages(ident)), None)

    def _messages(self, ident: UUID, **filters: str) -> Iterator[Event]:
        found = self._newest_first(ident, "find a message", source="user", **filters)
        return (event for event in found if events.is_user_message(event))

    def _newest_first(self, ident: UUID, what: str, **filters: str) -> Iterator[Event]:
        """All events that fit, page by page: no more than one page is held."""
        path, size, start = f"{_path(ident)}/events/search", _PAGE, ""
        while True:
            params: Parameters = {"limit": size, "sort_order": "TIMESTAMP_DESC", **filters}
            if start:
                params = {**params, "page_id": start}
            limit = LIMIT if size > 1 else _ONE_EVENT
            answer = self._exchange.send(what, "GET", path, params=params, limit=limit)
            if answer.body is None and size > 1:
                size //= 10
                continue
            found = answer.json()
            items = [item for item in found.get("items") or () if isinstance(item, dict)]
            if start and (not items or events.identity(items[0]) != start):
                # A page that the server does not know is answered with the first one.
                raise Unavailable("the events of a conversation changed while they were read")
            yield from items
            following = found.get("next_page_id")
            if not isinstance(following, str) or not following:
                return
            start, size = following, min(_PAGE, size * 10)


def _path(ident: UUID) -> str:
    return f"/api/conversations/{ident}"


def _servers(found: Mapping[str, Any]) -> dict[str, str]:
    agent = found.get("agent")
    entries = agent.get("mcp_config") if isinstance(agent, dict) else None
    if not isinstance(entries, dict):
        return {}
    # One on stdio has no URL; it is one all the same.
    return {name: _inside(entries, name, "url") for name in entries}


def _inside(found: Mapping[str, Any], outer: str, name: str) -> str:
    value = found.get(outer)
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
