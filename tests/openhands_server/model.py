"""The model behind the agents: chat completions on loopback that say what a test wants.

What an agent is to do stands in its newest user message, as a script of steps:

    [[tool:COMMAND]]          run a command in the terminal
    [[mcp:NAME {"a": 1}]]     call an MCP tool
    [[think:TEXT]]            call the tool `think`
    [[say:TEXT]]              write text and call nothing, which ends a turn
    [[finish:TEXT]]           finish with this answer
    [[loop]]                  the same call for ever
    [[endless]]               another call each time, for ever
    [[401]] [[500]]           an HTTP error
    [[slow:SECONDS]]          wait before the next step
    [[hold]]                  wait until the test lets go, then take the next step

A step is taken for each answer of the agent since that message. Without a script an agent
begins as it is told (PROVIDER_READY), repeats a decision, and finishes. Messages to the path
`/c/<id>/` have no script at all: a test plays their runs, step by step.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from uuid import UUID

API_KEY = "model-key-of-the-tests"
MODEL = "openai/scripted"
GUARD = 100.0
"""Seconds after which an answer that is held back counts as forgotten."""

_FOR_EVER = ("loop", "endless", "401", "500")
_STEP = re.compile(r"\[\[(\w+)(?:[: ](.*?))?\]\]", re.DOTALL)
_CHILD = re.compile(r"for Child ([0-9a-f-]{36}),")
_PLAYED = re.compile(r"/c/([0-9a-f-]{36})/")


@dataclass(frozen=True)
class Step:
    """What the model does once."""

    what: str
    argument: str = ""


@dataclass(frozen=True)
class Asked:
    """A request that reached the model."""

    message: str
    """The newest user message in it."""
    step: Step


class Played:
    """A conversation whose runs a test plays."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._given = self._asked = 0

    @property
    def waits(self) -> bool:
        return self._asked > self._given

    def give(self, step: Step) -> None:
        self._given += 1
        self._steps.put(step)

    def take(self) -> Step:
        self._asked += 1
        try:
            return self._steps.get(timeout=GUARD)
        except queue.Empty:
            return Step("500", "no test has played this run")


class Model:
    """The server; it goes away at the end of the `with`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.heard: list[str] = []
        """The bodies of these requests, whole."""
        self.keys: set[str] = set()
        """What it was called with."""
        self.admissions: dict[UUID, str] = {}
        """Scripts for the admission turn of some children."""
        self._released = threading.Event()
        self._played: dict[UUID, Played] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def agent(self, played: UUID | None = None, **changes: Any) -> dict[str, Any]:
        """An agent as the agent server takes it, which has this model and a terminal."""
        path = f"/c/{played}" if played else ""
        language = {
            "model": MODEL,
            "api_key": API_KEY,
            "base_url": f"{self.url}{path}/v1",
            "usage_id": "agent",
            "num_retries": 0,
            "stream": False,
        }
        agent = {"kind": "Agent", "tools": [{"name": "terminal"}], "llm": language}
        return {"agent": agent | changes}

    def play(self, ident: UUID, what: str, argument: str = "") -> None:
        """The next step of a conversation whose runs are played."""
        self._played.setdefault(ident, Played()).give(Step(what, argument))

    def waits(self, ident: UUID) -> bool:
        """Whether a played conversation has asked more often than it was given steps."""
        return self._played.setdefault(ident, Played()).waits

    def forget(self, ident: UUID) -> None:
        """Let go of the requests that an interrupted run of a played conversation has left."""
        self._played.pop(ident, Played()).give(Step("500"))

    def hold(self) -> None:
        """From now on `[[hold]]` waits."""
        self._released.clear()

    def release(self) -> None:
        """What waits at `[[hold]]` goes on, and nothing waits there any more."""
        self._released.set()

    def count(self, marker: str) -> int:
        """How often it was asked with this in the newest user message."""
        return sum(marker in asked.message for asked in self.asked)

    def choose(self, path: str, messages: list[Mapping[str, Any]]) -> Step:
        """What the agent does next; returns when it is time for it."""
        message, place = _newest(messages)
        played = _PLAYED.search(path)
        if played is not None:
            self.asked.append(Asked(message, Step("played")))
            return self._played.setdefault(UUID(played[1]), Played()).take()
        steps = self._script(message)
        taken = sum(entry.get("role") == "assistant" for entry in messages[place + 1 :])
        chosen = [step for step in steps if step.what not in ("slow", "hold")]
        step: Step = chosen[min(taken, len(chosen) - 1)]
        self.asked.append(Asked(message, step))
        for pause in _before(steps, step):
            if pause.what == "slow":
                time.sleep(float(pause.argument))
            elif not self._released.wait(GUARD):
                return Step("500")
        return step

    def _script(self, message: str) -> list[Step]:
        child = _CHILD.search(message)
        text = message
        if message.startswith("PROVIDER_ADMISSION") and child:
            text = self.admissions.get(UUID(child[1]), "[[finish:PROVIDER_READY]]")
        elif message.startswith("MISSION\n"):
            text = json.loads(message.partition("\n")[2])["immediateTask"]
        elif message.startswith("RESUME_MISSION\n"):
            text = str(json.loads(message.partition("\n")[2])["context"].get("script", ""))
        elif message.startswith("USER_DECISION\n"):
            said = json.loads(message.partition("\n")[2])["decision"]
            text = f"[[finish:decided: {said}]]"
        steps = [Step(found[1], found[2] or "") for found in _STEP.finditer(text)]
        ever = [number for number, step in enumerate(steps) if step.what in _FOR_EVER]
        return steps[: ever[0] + 1] if ever else [*steps, Step("finish", "done")]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        for played in self._played.values():
            played.give(Step("500"))
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """An agent that was stopped does not wait for its answer."""


def _before(steps: list[Step], step: Step) -> list[Step]:
    """The pauses right before a step."""
    place = next(number for number, each in enumerate(steps) if each is step)
    found: list[Step] = []
    while place and steps[place - 1].what in ("slow", "hold"):
        place -= 1
        found.insert(0, steps[place])
    return found


def _newest(messages: list[Mapping[str, Any]]) -> tuple[str, int]:
    """The newest user message, and where it stands. What hooks say is none."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            return _text(messages[place].get("content")), place
    return "", 0


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part.get("text", "") for part in parts if isinstance(part, dict))


def _call(step: Step) -> tuple[str, dict[str, Any]] | None:
    """The call that a step is."""
    match step.what:
        case "tool":
            return "terminal", {"command": step.argument}
        case "think":
            return "think", {"thought": step.argument}
        case "finish":
            return "finish", {"message": step.argument}
        case "loop":
            return "think", {"thought": "the same again"}
        case "endless":
            return "think", {"thought": uuid.uuid4().hex}
        case "mcp":
            name, _, arguments = step.argument.partition(" ")
            return name, json.loads(arguments)
        case _:
            return None


def _answer(step: Step) -> dict[str, Any]:
    call = _call(step)
    message: dict[str, Any] = {"role": "assistant", "content": "" if call else step.argument}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        ident = f"call_{uuid.uuid4().hex[:12]}"
        message["tool_calls"] = [{"id": ident, "type": "function", "function": function}]
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:12]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            model.heard.append(body)
            model.keys.add(self.headers.get("Authorization", ""))
            step = model.choose(self.path, json.loads(body)["messages"])
            if step.what.isdigit():
                self._reply(int(step.what), {"error": {"message": step.argument or "no"}})
            else:
                self._reply(200, _answer(step))

        def _reply(self, status: int, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A test says what went wrong."""

    return Handler
