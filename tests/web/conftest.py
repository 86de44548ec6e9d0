"""The pages as a browser sees them: in this process, and served by a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.testclient import TestClient

from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus
from agent_bus.web.app import make_app
from agent_bus.web.door import Door
from agent_bus.web.live import Live

GUARD = 60.0
"""Seconds after which a process counts as hanging."""

HOSTILE = (
    "<script>document.title='x'</script><img src=x onerror=alert(1)>\"'>&amp;"
    "\x1b[2J\x07\x9b1A\u202egnp.exe\u200b\u2066\ufeff\U000e0041\u2028end"
)
"""Markup, attribute ends, an entity, escape sequences, bidi, zero-width, separators."""


@dataclass
class Form:
    """A form of a page: where it goes, what it holds, its buttons as (name, value, words)."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[tuple[str, str, str]] = field(default_factory=list)

    def pressed(self, words: str, **more: str) -> dict[str, str]:
        """What a browser sends when the button with these words is pressed."""
        (found,) = [button for button in self.buttons if button[2] == words]
        return self.fields | {found[0]: found[1]} | more


class Parsed(HTMLParser):
    """A page, taken apart."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[Form] = []
        self.pieces: list[str] = []
        self._apart: list[str] = []
        self.title = ""
        self._open: list[str] = []
        self._button: list[str] | None = None
        self.feed(html)

    @property
    def text(self) -> str:
        """All that is shown."""
        return " ".join("".join(self._apart).split())

    @property
    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}

    def links(self, start: str) -> list[str]:
        """Where links lead that begin like this."""
        found = [attributes.get("href") or "" for tag, attributes in self.tags if tag == "a"]
        return [link for link in found if link.startswith(start)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._open.append(tag)
        if tag not in ("a", "bdi", "code", "span", "strong", "time"):
            self._apart.append(" ")
        if tag == "form":
            self.forms.append(Form(attributes["action"] or "", attributes["method"] or ""))
        elif tag in ("input", "textarea") and attributes.get("name"):
            name = attributes["name"] or ""
            self.forms[-1].fields[name] = attributes.get("value") or ""
        elif tag == "button":
            self._button = []
            self.forms[-1].buttons.append(
                (attributes.get("name") or "", attributes.get("value") or "", "")
            )

    def handle_endtag(self, tag: str) -> None:
        if tag == "button" and self._button is not None:
            name, value, _ = self.forms[-1].buttons[-1]
            self.forms[-1].buttons[-1] = (name, value, "".join(self._button))
            self._button = None

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["title"] and not self.title:
            self.title = data
            return
        self.pieces.append(data)
        self._apart.append(data)
        if self._button is not None:
            self._button.append(data)


@dataclass
class Web:
    """The pages of one identity, and a browser that was let in."""

    made: TemporaryBus
    bus: Bus
    door: Door
    live: Live
    client: TestClient
    said: list[str]

    def get(self, path: str, status: int = 200, **headers: str) -> Parsed:
        answer = self.client.get(path, headers=_names(headers))
        assert answer.status_code == status, answer.text
        return Parsed(answer.text)

    def send(self, form: Form, words: str, *, status: int = 303, **more: str) -> httpx2.Response:
        """Press a button."""
        answer = self.client.post(
            form.action,
            content=urlencode(form.pressed(words, **more)),
            headers={
                "content-type": "application/x-www-form-urlencoded",
                "origin": self.door.origin,
                "sec-fetch-site": "same-origin",
            },
            follow_redirects=False,
        )
        assert answer.status_code == status, answer.text
        return answer

    def ask(self, asker: str = "alice", question: str = "May I?", **more: Any) -> str:
        """Request an approval; returns its id."""
        return self.made.as_agent(asker).request_approval(question, **more).id

    def tell(self, sender: str, to: str, **fields: Any) -> str:
        """Send a message; returns its id."""
        return self.made.as_agent(sender).send_one(to, Draft(**{"body": "hello"} | fields)).id

    def forge(self, box: str, ident: str) -> None:
        """Change a byte of a stored message, so that its signature does not hold."""
        path = self.made.path / "messages" / box / "new" / f"{ident}.msg"
        path.write_bytes(path.read_bytes().replace(b"hello", b"hellp", 1))


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def web_as(held: TemporaryBus) -> Iterator[Callable[[str], Web]]:
    """Make the pages of an identity, on a bus whose clock is held."""
    clients: list[TestClient] = []

    def make(name: str) -> Web:
        bus, door, said = held.as_agent(name), Door(4000), []
        live = Live(bus, warn=said.append)
        app = make_app(bus, door, live, warn=said.append)
        client = TestClient(app, base_url=door.origin, raise_server_exceptions=True)
        cookie = door.open(door.url.partition("token=")[2])
        assert cookie is not None
        client.headers["cookie"] = cookie.partition(";")[0]
        clients.append(client)
        return Web(held, bus, door, live, client, said)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def web(web_as: Callable[[str], Web]) -> Web:
    """The pages of `user`, who is an admin."""
    return web_as("user")


# -- a server of its own


class Server:
    """`agent-bus ui` as a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.url = self._line()
        self.host = self.url.split("/")[2]
        self.port = int(self.host.rpartition(":")[2])
        self.cookie = ""

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def client(self, address: str = "127.0.0.1") -> httpx2.Client:
        """A client that needs no resolver."""
        headers = {"host": self.host}
        if self.cookie:
            headers["cookie"] = self.cookie
        return httpx2.Client(
            base_url=f"http://{address}:{self.port}", headers=headers, timeout=GUARD
        )

    def enter(self) -> None:
        """Use the link."""
        with self.client() as client:
            answer = client.get(self.url.partition(self.host)[2])
        assert answer.status_code == 200, answer.text
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it; its exit code and all that it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=GUARD)
        return self.process.returncode, said.decode()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], GUARD)
            assert ready, "no link came"
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                _, said = self.process.communicate(timeout=GUARD)
                pytest.fail(f"it ended: {said.decode()}")
            line += byte
        text = line.decode().strip()
        return json.loads(text)["url"] if text.startswith("{") else text


@pytest.fixture
def serve(
    bus: TemporaryBus, environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Server]]:
    """Start `agent-bus ui` as an identity; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(me: str | None, *words: str, **variables: str) -> Server:
        env = environment | bus.environment | variables
        if me is not None:
            env["AGENT_MSG_AS"] = me
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_bus", "ui", *words],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return Server(process)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=GUARD)


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture
def parse() -> Callable[[str], Parsed]:
    """Take a page apart."""
    return Parsed
