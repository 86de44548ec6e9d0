"""/mcp: the SDK's own client in both eras, who may call, and what a child is told."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp.types import TextContent

from agent_bus.errors import StorageError
from agent_bus.openhands.gateway import capability

NAMES = [
    "create_child",
    "send_to_parent",
    "request_user_decision",
    "cancel_mission",
    "resume_mission",
    "publish_navigation_links",
]
ACCEPT = {"Accept": "application/json, text/event-stream"}


def ok(answer: Any) -> dict[str, Any]:
    assert not answer.is_error, answer.content
    (content,) = answer.content
    assert isinstance(content, TextContent)
    assert json.loads(content.text) == answer.structured_content
    value: dict[str, Any] = answer.structured_content
    return value


def failed(answer: Any) -> str:
    assert answer.is_error, answer.structured_content
    assert answer.structured_content is None
    (content,) = answer.content
    return str(content.text)


def rpc(method: str, params: dict[str, Any] | None = None, ident: int | None = 1) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    return message if ident is None else message | {"id": ident}


# -- the tools


@pytest.mark.anyio
async def test_exactly_six_tools_are_there_in_both_eras(
    served: Any, child: Any, main_token: str, mode: str
) -> None:
    """Also for whom most of them would refuse: a list that changes with the caller helps nobody."""
    for token in (child.token, main_token):
        async with served.connect(token, mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == NAMES


@pytest.mark.anyio
async def test_a_child_reports_asks_and_shows_links(
    served: Any, stage: Any, child: Any, mode: str
) -> None:
    async with served.connect(child.token, mode) as client:
        result = {"result": {"outcome": "done"}, "messageKey": "k1"}
        first = ok(await client.call_tool("send_to_parent", result))
        again = ok(await client.call_tool("send_to_parent", result))
        asked = ok(
            await client.call_tool(
                "request_user_decision", {"question": "Which?", "options": ["A", "B"]}
            )
        )
        links = {"links": {"issue": "https://example.org/1"}}
        shown = ok(await client.call_tool("publish_navigation_links", links))

    assert first | {"id": ""} == {"accepted": True, "messageKey": "k1", "id": ""}
    assert again == first | {"replayed": True}
    assert asked["messageKey"].startswith("decision:")
    assert shown["messageKey"].startswith("navigation:")
    assert asked["id"] in [request.message.id for request in stage.as_agent().pending()]


@pytest.mark.anyio
async def test_a_main_over_http_creates_cancels_and_resumes(
    served: Any, stage: Any, main_token: str, mode: str
) -> None:
    asked = {"taskKey": "t-1", "role": "writer", "mission": stage.mission()}
    async with served.connect(main_token, mode) as client:
        made = ok(await client.call_tool("create_child", asked))
        again = ok(await client.call_tool("create_child", asked))
        named = {"targetId": made["childId"], "taskKey": "t-1", "messageKey": "m1"}
        stopped = ok(await client.call_tool("cancel_mission", named))
        resumed = ok(
            await client.call_tool(
                "resume_mission", named | {"messageKey": "m2", "context": {"fact": 1}}
            )
        )

    assert made == {
        "conversationUrl": f"http://openhands.test/conversations/{made['childId']}",
        "provider": "openhands",
        "created": True,
        "childId": made["childId"],
        "state": "delivered",
    }
    assert again == made | {"created": False}
    assert stopped == {
        "accepted": True,
        "messageKey": "m1",
        "taskKey": "t-1",
        "outcome": "cancelled",
        "terminal": True,
    }
    assert resumed == {"accepted": True, "messageKey": "m2", "taskKey": "t-1"}


@pytest.mark.anyio
async def test_a_child_does_only_what_its_capability_is_for(
    served: Any, stage: Any, child: Any
) -> None:
    before = len(stage.server.calls)
    named = {"targetId": str(child.id), "taskKey": "writer-1", "messageKey": "m1"}
    async with served.connect(child.token) as client:
        for tool, arguments in (
            ("create_child", {"taskKey": "x", "role": "qa", "mission": stage.mission()}),
            ("cancel_mission", named),
            ("resume_mission", named | {"context": {"a": 1}}),
        ):
            text = failed(await client.call_tool(tool, arguments))
            assert text.startswith("not-permitted: ")
    assert len(stage.server.calls) == before


@pytest.mark.anyio
async def test_no_tool_takes_a_capability_or_more_than_it_knows(served: Any, child: Any) -> None:
    async with served.connect(child.token) as client:
        for name in ("capabilityRef", "parentCapabilityRef", "from", "target"):
            text = failed(
                await client.call_tool("send_to_parent", {"result": {}, name: child.token})
            )
            assert "there is no argument" in text
            assert "takes: result, kind, messageKey" in text
            assert child.token not in text


@pytest.mark.anyio
async def test_an_unknown_tool_is_a_protocol_error_and_a_ping_is_answered(
    served: Any, child: Any, mode: str
) -> None:
    async with served.connect(child.token, mode) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("mint", {})
        assert raised.value.error.code == -32602
    legacy = served.post("/mcp", rpc("ping"), **ACCEPT, Authorization=f"Bearer {child.token}")
    assert legacy.json()["result"] == {}


def test_a_notification_gets_no_reply(served: Any, child: Any) -> None:
    for method in ("notifications/initialized", "notifications/nobody-knows"):
        answer = served.post(
            "/mcp", rpc(method, ident=None), **ACCEPT, Authorization=f"Bearer {child.token}"
        )
        assert (answer.status, answer.body) == (202, b"")


def test_no_session_is_begun(served: Any, child: Any) -> None:
    """So that nothing of one request, above all not its caller, is known to another."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    answer = served.post(
        "/mcp", rpc("initialize", params), **ACCEPT, Authorization=f"Bearer {child.token}"
    )

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    result = answer.json()["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert "send_to_parent" in result["instructions"]


@pytest.mark.anyio
async def test_many_callers_at_once_are_never_confused(
    served: Any, stage: Any, make_child: Any
) -> None:
    """Each speaks as the child that its own capability names."""
    children = [make_child(f"writer-{number}") for number in range(4)]

    async def speak(one: Any, number: int) -> None:
        async with served.connect(one.token) as client:
            for turn in range(5):
                result = {"me": str(one.id)}
                key = {"messageKey": f"{number}-{turn}"}
                ok(await client.call_tool("send_to_parent", {"result": result, **key}))

    async with anyio.create_task_group() as group:
        for number, one in enumerate(children):
            group.start_soon(speak, one, number)

    told = stage.messages("result")
    assert len(told) == 20
    for message in told:
        text = json.dumps(message.data) + message.body
        (named,) = [one for one in children if str(one.id) in text]
        assert not any(str(one.id) in text for one in children if one is not named)


# -- who may call


def variants(token: str) -> list[str]:
    """Forms of an Authorization header that some servers take."""
    return [
        f"bearer {token}",
        f"BEARER {token}",
        f"Bearer  {token}",
        f"Bearer\t{token}",
        f"Bearer {token} {token}",
        f"Bearer {token},{token}",
        f"Bearer {token}, Bearer {token}",
        f"Bearer {token}=",
        f"Bearer {token}%0a",
        f'Bearer "{token}"',
        f"Basic {token}",
        f"Token {token}",
        token,
        f"Bearer{token}",
        "Bearer",
        "Bearer evx1_",
        f"Bearer {token[5:]}",
        f"Bearer evx2_{token[5:]}",
        f"Bearer {token}{'A' * 600}",
        f"Bearer {token[:-1]}",
        "Bearer \u00e9",
    ]


@pytest.mark.parametrize("number", range(len(variants("evx1_x"))))
def test_a_capability_that_is_not_given_plainly_is_none(
    served: Any, child: Any, number: int
) -> None:
    header = variants(child.token)[number]
    answer = served.post("/mcp", rpc("ping"), **ACCEPT, Authorization=header)

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json() == {"error": "unauthorized"}


def test_no_header_and_two_headers_name_nobody(served: Any, child: Any) -> None:
    assert served.post("/mcp", rpc("ping"), **ACCEPT).status == 401
    two = {"Authorization": f"Bearer {child.token}", "authorization": f"Bearer {child.token}"}
    assert served.post("/mcp", rpc("ping"), **ACCEPT, **two).status == 401


def test_a_query_names_nobody(served: Any, child: Any) -> None:
    """Addresses are logged by whatever stands between."""
    path = f"/mcp?access_token={child.token}"

    assert served.post(path, rpc("ping"), **ACCEPT).status == 401


def test_expired_foreign_and_revoked_capabilities_are_refused_alike(
    served: Any, stage: Any, child: Any, make_child: Any
) -> None:
    now = stage.clock.now() // 1000
    foreign = capability.main_capability_token(
        "another secret, which is long enough too",
        str(child.id),
        issued_at=now,
        expires_at=now + 60,
    )
    revoked = make_child("writer-2")
    served.gateway.parts.signing.revoke_token(revoked.id, now)
    answers = [
        served.post("/mcp", rpc("ping"), **ACCEPT, Authorization=f"Bearer {token}")
        for token in (foreign, revoked.token)
    ]
    stage.clock.advance(24 * 3600)
    answers.append(
        served.post("/mcp", rpc("ping"), **ACCEPT, Authorization=f"Bearer {child.token}")
    )

    assert {answer.status for answer in answers} == {401}
    assert {answer.body for answer in answers} == {b'{"error":"unauthorized"}'}


@pytest.mark.anyio
async def test_a_capability_works_to_the_last_second_of_its_day(
    served: Any, stage: Any, child: Any
) -> None:
    """And then neither here nor at the hook, whose own one goes on."""
    stage.clock.advance(24 * 3600 - 1)
    async with served.connect(child.token) as client:
        ok(await client.call_tool("send_to_parent", {"result": {"a": 1}}))
    assert len(stage.messages("result")) == 1

    stage.clock.advance(1)
    headers = {"Authorization": f"Bearer {child.token}"}
    assert served.post("/mcp", rpc("ping"), **ACCEPT, **headers).status == 401
    event = {"session_id": str(child.id)}
    assert served.post("/completion-hook", event, **headers).status == 401
    own = f"Bearer {child.completion}"
    assert served.post("/completion-hook", event, Authorization=own).status == 202


def test_the_capability_of_a_hook_opens_no_tool(served: Any, child: Any) -> None:
    answer = served.post("/mcp", rpc("ping"), **ACCEPT, Authorization=f"Bearer {child.completion}")

    assert answer.status == 403


def test_who_may_not_call_is_refused_before_anything_is_read(served: Any) -> None:
    """The body is announced and never sent."""
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: 1000000\r\n"
        "Content-Type: application/json\r\nAuthorization: Bearer evx1_x\r\n\r\n"
    )

    assert served.raw(head.encode()).status == 401


# -- what is wrong


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"7", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (json.dumps([rpc("ping"), rpc("ping")]).encode(), 400),
    ],
)
def test_no_message_is_a_refusal_without_a_traceback(
    served: Any, child: Any, body: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = served.request("POST", "/mcp", body, **ACCEPT, Authorization=f"Bearer {child.token}")

    assert answer.status == status
    assert child.token.encode() not in answer.body
    assert "Traceback" not in capfd.readouterr().err


def test_a_message_that_is_too_large_is_refused(served: Any, child: Any) -> None:
    headers = {"Authorization": f"Bearer {child.token}", "Content-Length": str(1024 * 1024 + 1)}

    assert served.request("POST", "/mcp", b"{}", **ACCEPT, **headers).status == 413


@pytest.mark.anyio
async def test_an_error_of_this_machine_names_no_place_to_a_child(
    served: Any, child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [
        StorageError("/secret/place: Input/output error"),
        OSError(5, "Input/output error", "/secret/place"),
        RuntimeError("/secret/place"),
    ]

    def fail(*_: object, **__: object) -> None:
        raise errors[-1]

    monkeypatch.setattr(served.gateway, "send_to_parent", fail)
    async with served.connect(child.token) as client:
        while errors:
            text = failed(await client.call_tool("send_to_parent", {"result": {"a": 1}}))
            assert text.startswith(("storage: the gateway", "internal: the gateway"))
            assert "secret" not in text
            errors.pop()
    assert len(served.warnings) == 3
