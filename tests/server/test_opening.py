"""The static answer to the first request is the SDK's own answer, or there is none."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agent_bus.server.opening import DISCOVER_VERSION, HANDSHAKE_VERSIONS

PREFIX = "io.modelcontextprotocol/"
CLAUDE = {
    "capabilities": {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}},
    "clientInfo": {"name": "claude-code", "title": "Claude Code", "version": "2.1.332"},
}
CODEX = {
    "capabilities": {"elicitation": {"form": {}, "url": {}}, "experimental": {"x": {"y": 1}}},
    "clientInfo": {"name": "codex-mcp-client", "title": "Codex", "version": "0.171.0"},
}
BARE: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ECHO = _load("echo_server")


def initialize(version: Any, client: dict[str, Any], **more: Any) -> dict[str, Any]:
    params = {"protocolVersion": version, **copy.deepcopy(client), **more}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def discover(client: dict[str, Any], **more: Any) -> dict[str, Any]:
    meta = {
        PREFIX + "protocolVersion": DISCOVER_VERSION,
        PREFIX + "clientCapabilities": client["capabilities"],
        PREFIX + "clientInfo": client["clientInfo"],
        **more,
    }
    meta = {key: value for key, value in meta.items() if value is not ...}
    params = {"_meta": meta}
    return {"jsonrpc": "2.0", "id": "a", "method": "server/discover", "params": params}


async def _ask(request: dict[str, Any]) -> dict[str, Any]:
    server, options = ECHO.build()
    to_server, server_in = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    server_out, from_server = anyio.create_memory_object_stream[SessionMessage](1)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run, server_in, server_out, options)
        await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_python(request)))
        answer = await from_server.receive()
        group.cancel_scope.cancel()
    for stream in (to_server, server_in, server_out, from_server):
        stream.close()
    dumped: dict[str, Any] = answer.message.model_dump(by_alias=True, exclude_unset=True)
    return dumped


def sdk_answer(request: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_ask(request))


@pytest.mark.parametrize("client", [CLAUDE, CODEX, BARE])
@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, DISCOVER_VERSION, "1999-01-01", ""])
def test_initialize_is_answered_as_the_sdk_does(version: str, client: dict[str, Any]) -> None:
    request = initialize(version, client)

    assert ECHO.OPENING(request) == sdk_answer(request)


@pytest.mark.parametrize("client", [CLAUDE, CODEX, BARE])
def test_discover_is_answered_as_the_sdk_does(client: dict[str, Any]) -> None:
    request = discover(client)

    assert ECHO.OPENING(request) == sdk_answer(request)


def test_discover_without_client_info_is_answered_as_the_sdk_does() -> None:
    request = discover(BARE, **{PREFIX + "clientInfo": ...})

    assert ECHO.OPENING(request) == sdk_answer(request)


@pytest.mark.parametrize(
    "request_",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize"},
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover"},
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": discover(BARE)["params"]},
        initialize(3, BARE),
        initialize("2025-11-25", {**BARE, "clientInfo": {"name": "c"}}),
        initialize("2025-11-25", {**BARE, "clientInfo": {"name": "c", "version": 1}}),
        initialize("2025-11-25", {**BARE, "clientInfo": {**BARE["clientInfo"], "icons": [1]}}),
        initialize("2025-11-25", {**BARE, "capabilities": {"roots": True}}),
        initialize("2025-11-25", {**BARE, "capabilities": {"roots": {"listChanged": 7}}}),
        initialize("2025-11-25", {**BARE, "capabilities": {"sampling": {"tools": 1}}}),
        initialize("2025-11-25", {**BARE, "capabilities": {"tasks": {}}}),
        initialize("2025-11-25", BARE, _meta=[]),
        discover(BARE, **{PREFIX + "protocolVersion": "2027-01-01"}),
        discover(BARE, **{PREFIX + "protocolVersion": 3}),
        discover(BARE, **{PREFIX + "clientCapabilities": ...}),
        discover(BARE, **{PREFIX + "clientInfo": "c"}),
        discover(BARE, **{PREFIX + "logLevel": "loud"}),
    ],
)
def test_whatever_is_unusual_waits_for_the_sdk(request_: dict[str, Any]) -> None:
    assert ECHO.OPENING(request_) is None


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1.5, "", "x", [], {}, [{}], {"x": 1}, {"x": {}}]
)
MEMBERS = st.dictionaries(st.sampled_from(["listChanged", "form", "tools", "x"]), JUNK, max_size=2)
CAPABILITIES = st.dictionaries(
    st.sampled_from(
        ["roots", "sampling", "elicitation", "experimental", "tasks", "extensions", "x"]
    ),
    MEMBERS | JUNK,
    max_size=3,
)
INFO = st.fixed_dictionaries(
    {"name": st.just("c"), "version": st.just("1") | JUNK},
    optional=dict.fromkeys(("title", "description", "websiteUrl", "icons", "x"), JUNK),
)
META = st.dictionaries(
    st.sampled_from(
        ["progressToken", PREFIX + "logLevel", PREFIX + "subscriptionId", "x", "traceparent"]
    ),
    JUNK,
    max_size=2,
)


@settings(max_examples=60, deadline=None, database=None)
@given(st.booleans(), CAPABILITIES, INFO, META)
def test_the_sdk_accepts_whatever_is_answered_for_it(
    modern: bool, capabilities: dict[str, Any], info: dict[str, Any], meta: dict[str, Any]
) -> None:
    """Else the client would be told that all is well, and the SDK would refuse its calls."""
    client = {"capabilities": capabilities, "clientInfo": info}
    more = {"_meta": meta} if meta else {}
    request = discover(client, **meta) if modern else initialize("2025-06-18", client, **more)
    answer = ECHO.OPENING(request)

    if answer is not None:
        assert answer == sdk_answer(request)
