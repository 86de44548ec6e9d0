"""A server in memory, under the SDK's own client, in either era of the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from agent_bus.server import app
from agent_bus.server.verbs import Service
from agent_bus.testing import TemporaryBus

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    """The era: `auto` is 2026-07-28, `legacy` is 2025-11-25."""
    return str(request.param)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def warnings() -> list[str]:
    """What the servers of this test said to people."""
    return []


@pytest.fixture
def serve(bus: TemporaryBus, warnings: list[str]) -> Iterator[Callable[[str], Service]]:
    """Make what a server of one identity has; its cursor is taken at the call."""
    made: list[Service] = []

    def begin(name: str) -> Service:
        opened = bus.as_agent(name)
        watch = opened.watch(warn=warnings.append)
        attachment = opened.presence.attach(opened.identity, "mcp", mode=watch.mode)
        opened.attend()
        made.append(Service(opened, watch, attachment))
        return made[-1]

    yield begin
    for service in made:
        service.attachment.close()
        service.watch.close()


@pytest.fixture
def connect(serve: Callable[[str], Service]) -> Connect:
    """`async with connect("alice") as client`: one identity's server and a client of it."""

    def begin(name: str, mode: str = "auto", **options: Any) -> Client:
        return Client(app.make(serve(name)), mode=mode, **options)

    return begin


@pytest.fixture
def ok() -> Callable[[Any], dict[str, Any]]:
    """The structured part of an answer, which is the same as its text."""

    def check(answer: CallToolResult) -> dict[str, Any]:
        assert not answer.is_error, answer.content
        value = answer.structured_content
        assert isinstance(value, dict)
        assert json.loads(_text(answer)) == value
        return value

    return check


@pytest.fixture
def failed() -> Callable[[Any], str]:
    """The line of a failure, which has no structured part."""

    def check(answer: CallToolResult) -> str:
        assert answer.is_error, answer.structured_content
        assert answer.structured_content is None
        return _text(answer)

    return check


def _text(answer: CallToolResult) -> str:
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text
