"""The door of the gateway on a real socket, before a played agent server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agent_bus.httpd import Server
from agent_bus.openhands.gateway import capability
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.server.http.app import Door
from agent_bus.server.http.serve import listen

HERE = Path(__file__).resolve().parents[2] / "openhands"
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from scene import KEY, Scene, scene  # noqa: E402 - a module beside other tests

GUARD = 60.0
"""Seconds after which an answer counts as missing."""


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A door that is open, and what the test needs to come through it."""

    gateway: Gateway
    port: int
    warnings: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> Answer:
        """A request of a well-behaved client; a header that is None is left out."""
        given: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if body is not None:
            given |= {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        return self.raw(head.encode() + (body or b""))

    def post(self, path: str, value: Any, **headers: str | None) -> Answer:
        return self.request("POST", path, json.dumps(value).encode(), **headers)

    def raw(self, data: bytes) -> Answer:
        """Send bytes as they are, and read until the end."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=GUARD) as wire:
            wire.sendall(data)
            return parse(read_all(wire))

    def connect(self, token: str | None, mode: str = "auto") -> AbstractAsyncContextManager[Client]:
        """The SDK's own client."""
        return connected(f"{self.url}/mcp", token, mode)


def read_all(wire: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := wire.recv(65536):
            data += more
    return data


def parse(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Answer(
        int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body
    )


@contextlib.asynccontextmanager
async def connected(url: str, token: str | None, mode: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=GUARD) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


Open = Callable[..., Served]


@pytest.fixture
def opened(stage: Scene) -> Iterator[Open]:
    """Open a door: `opened(hosts=…, body_seconds=…, head_seconds=…)`."""
    with contextlib.ExitStack() as stack:

        def begin(gateway: Gateway | None = None, **options: Any) -> Served:
            return stack.enter_context(_serving(gateway or stage.gateway(), options))

        yield begin


@pytest.fixture
def served(opened: Open) -> Served:
    return opened()


@contextlib.contextmanager
def _serving(gateway: Gateway, options: dict[str, Any]) -> Iterator[Served]:
    sockets = listen("127.0.0.1", 0)
    made = Served(gateway, sockets[0].getsockname()[1])
    head_seconds = options.pop("head_seconds", GUARD)
    connections = options.pop("connections", 256)
    chosen = {"hosts": {"127.0.0.1"}, "session_key": KEY, "warn": made.warnings.append} | options
    servers: list[Server] = []
    ready = threading.Event()

    async def run() -> None:
        door = Door(gateway, **chosen)
        server = Server(door.app, connections=connections, head_seconds=head_seconds)
        servers.append(server)
        ready.set()
        async with door.running():
            await server.serve(sockets)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(GUARD)
        yield made
    finally:
        servers[0].should_exit = True
        thread.join(GUARD)
        for each in sockets:
            each.close()
        assert not thread.is_alive()


@dataclass(frozen=True)
class Child:
    """A child of the conductor's whose mission is delivered."""

    id: UUID
    token: str
    """What it calls tools with."""
    completion: str
    """What its Stop hook presents."""


MakeChild = Callable[[str], Child]


@pytest.fixture
def make_child(stage: Scene, served: Served) -> MakeChild:
    """Make a child of the conductor's by its task key."""
    gateway = served.gateway

    def make(task: str) -> Child:
        ident = stage.create(gateway, task)
        secret, owner = gateway.parts.signing.newest(), stage.owner(gateway).subject
        now = stage.clock.now() // 1000
        return Child(
            ident,
            capability.child_capability_token(secret, owner, task, "writer", issued_at=now),
            capability.completion_token(secret, owner, task, "writer", issued_at=now),
        )

    return make


@pytest.fixture
def child(make_child: MakeChild) -> Child:
    return make_child("writer-1")


@pytest.fixture
def main_token(stage: Scene, served: Served) -> str:
    """What a Main that is an OpenHands conversation calls tools with."""
    now = stage.clock.now() // 1000
    return capability.main_capability_token(
        served.gateway.parts.signing.newest(),
        UUID("11111111-1111-4111-8111-111111111111"),
        issued_at=now,
        expires_at=now + 3600,
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    """The era: `auto` is 2026-07-28, `legacy` is 2025-11-25."""
    return str(request.param)
