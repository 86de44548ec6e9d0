"""An agent server for tests, over real HTTP: it answers like the recorded one (1.58.2).

    with FakeServer() as fake:
        server = AgentServer(fake.url, fake.key, "http://people.test")

A test plays its runs with the same methods as those of `PlayedServer`; `requests` has what
arrived. `on(...)` says what goes wrong with the next requests of a kind.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID, uuid4

Json = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By their names in lower case."""
    body: Any


@dataclass
class Trouble:
    """What becomes of a request."""

    status: int | None = None
    """Answer this instead, and do nothing."""
    body: bytes = b'{"detail":"no"}'
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    """Do what was asked for first."""
    reset: bool = False
    """Reset the connection instead of an answer."""
    hold: threading.Event | None = None
    """Wait for this before the answer; at most ten seconds."""
    drip: float = 0.0
    """Seconds between the bytes of the answer."""


@dataclass
class Chat:
    """A conversation: what the server shows of it, and its events."""

    info: Json
    events: list[Json] = field(default_factory=list)

    def add(self, kind: str, source: str, **fields: Any) -> Json:
        """Append an event as the server writes it."""
        event = {
            "id": str(uuid4()),
            "timestamp": datetime.now(UTC).replace(tzinfo=None).isoformat(),
            "source": source,
            "parent_id": self.events[-1]["id"] if self.events else "__root__",
            **fields,
            "kind": kind,
        }
        self.events.append(event)
        return event

    def become(self, status: str) -> None:
        """Change the state, and say so."""
        self.info["execution_status"] = status
        self.update("execution_status", status)

    def update(self, key: str, value: Any) -> None:
        self.add("ConversationStateUpdateEvent", "environment", key=key, value=value)


Route = Callable[[Chat, Received], tuple[int, Any]]


def _shown_servers(body: Json) -> Json:
    """The MCP servers of a new conversation as they are shown: without what they carry."""
    given = (body.get("agent") or body.get("agent_settings") or {}).get("mcp_config") or {}
    return {
        name: {"url": entry["url"], "enabled": True}
        | ({"auth": {"strategy": entry["auth"]["strategy"]}} if "auth" in entry else {})
        for name, entry in given.items()
    }


class FakeServer:
    """The server, on 127.0.0.1, from `with` to its end."""

    def __init__(self, *, acp: bool = False) -> None:
        self.key = f"key-{uuid4().hex}"
        self.requests: list[Received] = []
        self.chats: dict[str, Chat] = {}
        self.stops: list[str] = []
        """The conversations whose Stop hook was started."""
        self.settings: Json | None = {
            "agent_settings": {"llm": {"model": "stub", "api_key": "gAA"}}
        }
        """What /api/settings shows; None: the server has no key to encrypt it with."""
        self._acp = acp
        self._full = False
        self._troubles: list[tuple[str, re.Pattern[str], Trouble, int]] = []
        self._lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def on(self, method: str, path: str, trouble: Trouble, times: int = 1) -> None:
        """Let the next requests of this method, whose path matches the end of `path`, go wrong."""
        with self._lock:
            self._troubles.append((method, re.compile(path + "$"), trouble, times))

    def asked(self, method: str, path: str = "") -> list[Received]:
        """The requests of this method whose path ends like this."""
        with self._lock:
            return [r for r in self.requests if r.method == method and r.path.endswith(path)]

    # What happens to a run.

    def finish(self, ident: UUID, answer: str) -> None:
        with self._lock:
            chat = self._running(ident)
            chat.add("ActionEvent", "agent", **_call("finish", {"message": answer}, "FinishAction"))
            chat.add("ObservationEvent", "environment", tool_name="finish")
            chat.become("finished")
            self._stop(ident)

    def fail(self, ident: UUID, code: str, text: str) -> None:
        with self._lock:
            chat = self._running(ident)
            chat.become("error")
            chat.add("ConversationErrorEvent", "environment", code=code, detail=text)

    def stick(self, ident: UUID) -> None:
        with self._lock:
            self._running(ident).become("stuck")

    def pause(self, ident: UUID) -> None:
        with self._lock:
            chat = self.chats[str(ident)]
            if chat.info["execution_status"] in ("idle", "running"):
                chat.become("paused")
                chat.add("PauseEvent", "user")

    def wait_for_confirmation(self, ident: UUID) -> None:
        with self._lock:
            self.use_tool(ident)
            self._running(ident).become("waiting_for_confirmation")

    def say(self, ident: UUID, text: str) -> None:
        with self._lock:
            self._running(ident).add("MessageEvent", "agent", llm_message=_said("assistant", text))

    def use_tool(self, ident: UUID, name: str = "terminal") -> None:
        with self._lock:
            chat = self._running(ident)
            if self._acp:
                chat.add("ACPToolCallEvent", "agent", tool_call_id="1", title=name, status="done")
            else:
                chat.add("ActionEvent", "agent", **_call(name, {"x": 1}, "OtherAction"))
                chat.add("ObservationEvent", "environment", tool_name=name)

    def vanish(self, ident: UUID) -> None:
        with self._lock:
            self.chats.pop(str(ident), None)

    def full(self, full: bool = True) -> None:
        with self._lock:
            self._full = full

    def messages(self, ident: UUID) -> list[str]:
        """All that users wrote, oldest first."""
        with self._lock:
            return [
                event["llm_message"]["content"][0]["text"]
                for event in self.chats[str(ident)].events
                if event["kind"] == "MessageEvent" and event["source"] == "user"
            ]

    # What it answers.

    def answer(self, asked: Received) -> tuple[int, bytes]:
        """Status and JSON."""
        with self._lock:
            status, body = self._answer(asked)
            return status, json.dumps(body).encode()

    def _answer(self, asked: Received) -> tuple[int, Any]:
        if asked.path == "/alive":
            return 200, {"status": "ok"}
        if asked.headers.get("x-session-api-key") != self.key:
            return 401, {"detail": "Unauthorized"}
        if asked.path == "/api/settings":
            return self._show_settings(asked)
        if (asked.method, asked.path) == ("POST", "/api/conversations"):
            return self._create(asked.body)
        found = re.fullmatch(r"/api/conversations/([^/]+)(/.*)?", asked.path)
        if found is None:
            return 404, {"detail": "Not Found"}
        chat = self.chats.get(found[1])
        if chat is None:
            return 404, {"detail": f"Conversation not found: {found[1]}"}
        routes: dict[tuple[str, str], Route] = {
            ("GET", ""): self._show,
            ("PATCH", ""): self._rename,
            ("POST", "/events"): self._take,
            ("GET", "/events/search"): self._search,
            ("POST", "/run"): self._run,
            ("POST", "/interrupt"): self._interrupt,
            ("POST", "/events/respond_to_confirmation"): self._respond,
        }
        route = routes.get((asked.method, found[2] or ""))
        return route(chat, asked) if route else (405, {"detail": "Method Not Allowed"})

    def trouble(self, asked: Received) -> Trouble | None:
        """What was ordered for this request, once."""
        with self._lock:
            for place, (method, path, trouble, times) in enumerate(self._troubles):
                if method == asked.method and path.search(asked.path):
                    left = [(method, path, trouble, times - 1)] if times > 1 else []
                    self._troubles[place : place + 1] = left
                    return trouble
        return None

    def _show_settings(self, asked: Received) -> tuple[int, Any]:
        if asked.headers.get("x-expose-secrets") != "encrypted":
            return 200, {"agent_settings": {"llm": {"api_key": "**********"}}}
        if self.settings is None:
            return 503, {"detail": "Encryption not available: OH_SECRET_KEY is not configured."}
        return 200, self.settings

    def _create(self, body: Json) -> tuple[int, Any]:
        missing = [name for name in ("workspace",) if name not in body]
        if not any(body.get(name) for name in ("agent", "agent_settings", "agent_profile_id")):
            missing.append("agent")
        if missing:
            problems = [{"type": "missing", "loc": ["body", name], "msg": "/a"} for name in missing]
            return 422, {"detail": problems}
        ident = str(UUID(body["conversation_id"]))
        if ident in self.chats:
            return 200, self.chats[ident].info
        if self._full:
            return 429, {
                "detail": "Conversation run limit reached. Retry the request later.",
            }
        kind = "ACPAgent" if self._acp else body.get("agent", {}).get("kind", "Agent")
        info = {
            "id": ident,
            "agent": {
                "kind": kind,
                "llm": {"model": "stub", "api_key": None},
                "mcp_config": _shown_servers(body),
            },
            "workspace": body["workspace"],
            "execution_status": "idle",
            "tags": body.get("tags", {}),
            "last_user_message_id": None,
            "hook_config": None,
            "title": None,
        }
        self.chats[ident] = Chat(info)
        return 201, info

    def _show(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        return 200, chat.info

    def _rename(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        if not 1 <= len(asked.body["title"]) <= 200:
            return 422, {"detail": [{"type": "string_too_long", "loc": ["body", "title"]}]}
        chat.info["title"] = asked.body["title"]
        return 200, {"success": True}

    def _take(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        body = asked.body
        if body["role"] != "user":
            return 500, {"detail": "Internal Server Error"}
        if not chat.events:
            chat.add("SystemPromptEvent", "agent", system_prompt={"type": "text", "text": "…"})
        if chat.info["execution_status"] in ("finished", "stuck"):
            chat.become("idle")
        event = chat.add(
            "MessageEvent", "user", llm_message={"role": "user", "content": body["content"]}
        )
        chat.info["last_user_message_id"] = event["id"]
        chat.update("last_user_message_id", event["id"])
        if body.get("run") and chat.info["execution_status"] != "running":
            if self._full:
                return 429, {"detail": "Message saved, but the conversation run limit was reached."}
            chat.become("running")
        return 200, {"success": True}

    def _run(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        status = chat.info["execution_status"]
        if status == "running":
            return 409, {"detail": "Conversation already running. Wait for completion or pause."}
        if self._full:
            return 429, {"detail": "Conversation run limit reached. Retry the request later."}
        if status == "finished":
            self._stop(UUID(chat.info["id"]))
        else:
            chat.become("running")
        return 200, {"success": True}

    def _interrupt(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        if chat.info["execution_status"] in ("idle", "running"):
            chat.become("paused")
            chat.add("InterruptEvent", "user", reason="User requested interrupt", detail="x")
        return 200, {"success": True}

    def _respond(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        waits = chat.info["execution_status"] == "waiting_for_confirmation"
        if asked.body["accept"]:
            return self._run(chat, asked)
        if waits:
            chat.become("idle")
            chat.add(
                "UserRejectObservation",
                "environment",
                rejection_source="user",
                rejection_reason=asked.body.get("reason"),
            )
        return 200, {"success": True}

    def _search(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        query = asked.query
        limit = int(query.get("limit", 100))
        if not 1 <= limit <= 100:
            return 422, {"detail": [{"type": "less_than_equal", "loc": ["query", "limit"]}]}
        events = chat.events[::-1] if query.get("sort_order") == "TIMESTAMP_DESC" else chat.events
        # An unknown page begins at the start again.
        ids = [event["id"] for event in events]
        begin = ids.index(query["page_id"]) if query.get("page_id") in ids else 0
        found = [event for event in events[begin:] if _fits(event, query)]
        following = found[limit]["id"] if len(found) > limit else None
        return 200, {"items": found[:limit], "next_page_id": following}

    def _running(self, ident: UUID) -> Chat:
        chat = self.chats[str(ident)]
        assert chat.info["execution_status"] == "running", chat.info["execution_status"]
        return chat

    def _stop(self, ident: UUID) -> None:
        self.stops.append(str(ident))
        self.chats[str(ident)].add("HookExecutionEvent", "hook", hook_event_type="Stop")


def _said(role: str, text: str) -> Json:
    return {"role": role, "content": [{"cache_prompt": False, "type": "text", "text": text}]}


def _call(name: str, arguments: Json, kind: str) -> Json:
    call = {"id": "c1", "name": name, "arguments": json.dumps(arguments), "origin": "completion"}
    return {"action": arguments | {"kind": kind}, "tool_name": name, "tool_call": call}


def _fits(event: Json, query: dict[str, str]) -> bool:
    if "source" in query and event["source"] != query["source"]:
        return False
    if "body" not in query:
        return True
    parts = event.get("llm_message", {}).get("content", [])
    return query["body"].lower() in " ".join(part["text"] for part in parts).lower()


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body leave in one packet, and a small one is not held back.
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            parts = urlsplit(self.path)
            asked = Received(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                {name.lower(): value for name, value in self.headers.items()},
                json.loads(body) if body else None,
            )
            fake.requests.append(asked)
            trouble = fake.trouble(asked) or Trouble()
            said = (0, b"")
            if trouble.after or (trouble.status is None and not trouble.reset):
                said = fake.answer(asked)
            if trouble.hold:
                trouble.hold.wait(10)
            if trouble.reset:
                return self._reset()
            if trouble.status is not None:
                return self._send(trouble.status, trouble.body, trouble)
            return self._send(*said, trouble)

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PATCH(self) -> None:
            self._serve()

        def _send(self, status: int, body: bytes, trouble: Trouble) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in trouble.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for part in [body] if not trouble.drip else [bytes([byte]) for byte in body]:
                    self.wfile.write(part)
                    if trouble.drip:
                        self.wfile.flush()
                        time.sleep(trouble.drip)
                self.wfile.flush()
            except OSError:
                # The client has gone, which is what some tests are about.
                self.close_connection = True

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    return Handler
