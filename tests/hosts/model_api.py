"""A stand-in for the model behind a coding agent, on loopback.

It answers as its script says and keeps every request, so that a test can ask what the model
was shown. It is also the proxy of the agent's process: what the agent wants from anywhere
else is refused and noted.

    with ModelApi(Call("bus_send", {"to": "bob", "body": "hello"})) as model:
        ...  # run a host whose model API is model.url
        assert model.first.offers("bus_send")

A request without tools (a title, a summary) is answered with a word and takes no step of the
script. When the script has ended, the answer is a word too.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from dialects import DIALECTS, Answer, Body, Dialect, Find, Tool, Use, texts

GUARD = 60.0
"""Seconds after which a request that does not come is not waited for any longer."""
LAST_WORD = "All done."


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Say:
    """A step of the script: the model ends its turn with a text."""

    text: str = LAST_WORD
    before: Callable[[], object] = _nothing
    """What happens in the world while the model thinks."""


@dataclass(frozen=True, slots=True)
class Call:
    """A step of the script: the model calls the tool whose name ends so."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[], object] = _nothing


Step = Say | Call


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an answer, as it came."""

    dialect: Dialect
    path: str
    body: Body

    @property
    def tools(self) -> list[Tool]:
        """What can be called at once."""
        return self.dialect.offered(self.body)

    @property
    def results(self) -> list[str]:
        """What tools have answered so far."""
        return self.dialect.results(self.body)

    @property
    def text(self) -> str:
        """All that the model reads but the tools: every text of the request, in order."""
        return texts({key: value for key, value in self.body.items() if key != "tools"})

    @property
    def everything(self) -> str:
        """The same with what describes the tools."""
        return texts(self.body)

    def offers(self, ending: str) -> Tool | None:
        """The tool whose name ends so, if it can be called at once."""
        return next((tool for tool in self.tools if tool.name.endswith(ending)), None)

    def knows(self, ending: str) -> bool:
        """Whether there is such a tool for the model: at once, or shown when searched for."""
        late = self.dialect.search(self.body, ending)
        return self.offers(ending) is not None or late is not None


class ModelApi:
    """The model, its script, and what it was asked. `url` has no path."""

    def __init__(self, *script: Step) -> None:
        self._script = list(script)
        self._asked: list[Asked] = []
        self._outside: list[str] = []
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join(GUARD)
        self._server.server_close()

    def then(self, *steps: Step) -> None:
        """Go on with these steps after those that are left."""
        with self._news:
            self._script += steps

    @property
    def asked(self) -> list[Asked]:
        """The requests that offered tools, oldest first."""
        with self._news:
            return [asked for asked in self._asked if asked.tools]

    @property
    def first(self) -> Asked:
        """The first of them."""
        assert self.asked, "the model was never asked"
        return self.asked[0]

    @property
    def last(self) -> Asked:
        """The last of them."""
        assert self.asked, "the model was never asked"
        return self.asked[-1]

    @property
    def outside(self) -> list[str]:
        """Where the agent wanted to go besides the model."""
        with self._news:
            return list(self._outside)

    @property
    def left(self) -> list[Step]:
        """The steps that were not taken."""
        with self._news:
            return list(self._script)

    def wait_until(self, holds: Callable[[list[Asked]], bool], what: str) -> None:
        """Wait until this holds of what was asked."""
        with self._news:
            came = self._news.wait_for(
                lambda: holds([asked for asked in self._asked if asked.tools]), GUARD
            )
        assert came, f"waited in vain: {what}"

    # -- for the handler

    def refuse(self, target: str) -> None:
        """Note that the agent wanted something from elsewhere."""
        with self._news:
            self._outside.append(target)

    def answer(self, asked: Asked) -> tuple[Answer, int]:
        """What the model says to a request, and the number of this answer."""
        with self._news:
            self._asked.append(asked)
            number = len(self._asked)
            self._news.notify_all()
            step = self._script[0] if asked.tools and self._script else Say()
            answer = step.text if isinstance(step, Say) else _use(step, asked)
            if isinstance(answer, Find):
                return answer, number
            if asked.tools and self._script:
                del self._script[0]
        step.before()
        return answer, number


def _use(step: Call, asked: Asked) -> Answer:
    tool = asked.offers(step.tool)
    if tool is not None:
        return Use(tool, step.arguments)
    late = asked.dialect.search(asked.body, step.tool)
    return late or f"There is no tool {step.tool} here."


def _handler(model: ModelApi) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        api = model

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ModelApi

    def log_message(self, *_: object) -> None:
        """Nothing on stderr: the log is the model's."""

    def do_CONNECT(self) -> None:
        self._refuse(self.path)

    def do_HEAD(self) -> None:
        self._send(b"", "application/json")

    def do_GET(self) -> None:
        if not self.path.startswith("/"):
            return self._refuse(self.path)
        # The lists that hosts ask for, such as of models, are empty here.
        return self._send_json({"data": [], "models": []})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.startswith("/"):
            return self._refuse(self.path)
        path = urlsplit(self.path).path
        dialect = next((dialect for dialect in DIALECTS if dialect.speaks(path)), None)
        if dialect is None:
            # Token counts and telemetry: any object will do.
            return self._send_json({"input_tokens": 1, "totalTokens": 1})
        return self._answer(Asked(dialect, path, json.loads(raw)))

    def _answer(self, asked: Asked) -> None:
        answer, number = self.api.answer(asked)
        events = asked.dialect.reply(asked.body, answer, number)
        if asked.dialect.streams(asked.path, asked.body):
            self._send("".join(map(_event, events)).encode(), "text/event-stream")
        else:
            self._send_json(asked.dialect.whole(events))

    def _refuse(self, target: str) -> None:
        self.api.refuse(target)
        self._send(b"", "text/plain", status=403)

    def _send_json(self, value: Body) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)


def _event(event: Body) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"
