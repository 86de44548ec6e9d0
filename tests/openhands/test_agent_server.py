"""The agent server over HTTP: what goes over the wire, and what goes wrong on it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fake_server import FakeServer, Trouble

from agent_bus.errors import AgentBusError, ConfigurationError, ServerRefused, Unavailable
from agent_bus.openhands.gateway.agent_server import AgentServer
from agent_bus.openhands.gateway.provider import McpEntry, Order, RunEnd, StopHook

Ask = Callable[[AgentServer, UUID], object]

ASKS: dict[str, tuple[str, str, Ask]] = {
    "conversation": ("GET", "", lambda server, child: server.conversation(child)),
    "post": ("POST", "/events", lambda server, child: server.post(child, "hello")),
    "run": ("POST", "/run", lambda server, child: server.run(child)),
    "interrupt": ("POST", "/interrupt", lambda server, child: server.interrupt(child)),
    "find": ("GET", "/events/search", lambda server, child: server.find_message(child, "x")),
    "run_end": ("GET", "/events/search", lambda server, child: server.run_end(child, None)),
}
every_ask = pytest.mark.parametrize("name", ASKS)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def server(fake: FakeServer) -> Iterator[AgentServer]:
    with AgentServer(fake.url, fake.key, "http://people.test/canvas") as made:
        yield made


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(
        child=uuid4(),
        folder=tmp_path,
        title="writer-604",
        tags={"task": "writer-604"},
        instructions="Be a writer.",
        servers=(McpEntry("agent_bus", "http://127.0.0.1:3101/mcp", "evx1_token"),),
        gate=tmp_path / "gate",
        hook=StopHook("http://127.0.0.1:3101/completion-hook", tmp_path / "header"),
        agent={"agent": {"kind": "Agent"}},
    )


@pytest.fixture
def child(server: AgentServer, order: Order, fake: FakeServer) -> UUID:
    """A conversation that was made; what was asked for it is forgotten."""
    assert server.create(order)
    fake.requests.clear()
    return order.child


@every_ask
def test_the_key_goes_with_every_request_and_stands_nowhere_else(
    fake: FakeServer, server: AgentServer, child: UUID, name: str
) -> None:
    ASKS[name][2](server, child)
    assert fake.requests
    for asked in fake.requests:
        assert asked.headers["x-session-api-key"] == fake.key
        assert fake.key not in f"{asked.path}{asked.query}{asked.body}"


@every_ask
@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_accepted_is_named_by_its_variable(
    fake: FakeServer, server: AgentServer, child: UUID, name: str, status: int
) -> None:
    method, path, ask = ASKS[name]
    fake.on(method, path, Trouble(status))
    with pytest.raises(ServerRefused, match="does not accept OPENHANDS_API_KEY") as refused:
        ask(server, child)
    assert refused.value.status == status
    assert fake.key not in str(refused.value)


@every_ask
@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(500),
        Trouble(503),
        Trouble(200, b"<html>welcome</html>"),
        Trouble(200, b"[]"),
        Trouble(200, b"\xff\xfe"),
        Trouble(200, b'{"a":' * 100_000),
        Trouble(200, b""),
        Trouble(reset=True),
    ],
    ids=["500", "503", "html", "array", "bytes", "deep", "empty", "reset"],
)
def test_what_is_no_answer_is_unavailable_and_not_asked_again(
    fake: FakeServer, server: AgentServer, child: UUID, name: str, trouble: Trouble
) -> None:
    method, path, ask = ASKS[name]
    fake.on(method, path, trouble)
    with pytest.raises(Unavailable) as unavailable:
        ask(server, child)
    assert fake.key not in str(unavailable.value)
    assert fake.url not in str(unavailable.value)
    assert len(fake.requests) == 1


@every_ask
def test_an_answer_without_end_is_not_read_to_its_end(
    fake: FakeServer, server: AgentServer, child: UUID, name: str
) -> None:
    """A page of events is asked for in smaller pieces first."""
    method, path, ask = ASKS[name]
    body = b'{"items":["' + b"x" * (33 * 1024 * 1024) + b'"]}'
    fake.on(method, path, Trouble(200, body), times=3)
    with pytest.raises(Unavailable, match="far too much"):
        ask(server, child)
    assert [asked.query.get("limit") for asked in fake.requests] == (
        ["100", "10", "1"] if path == "/events/search" else [None]
    )


@every_ask
def test_a_redirect_is_not_followed(
    fake: FakeServer, server: AgentServer, child: UUID, name: str
) -> None:
    method, path, ask = ASKS[name]
    with FakeServer() as other:
        fake.on(method, path, Trouble(307, headers={"Location": f"{other.url}/api"}))
        with pytest.raises(ServerRefused, match="set OPENHANDS_URL"):
            ask(server, child)
        assert not other.requests


def test_a_proxy_of_the_environment_is_not_used(
    fake: FakeServer, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with AgentServer(fake.url, fake.key, fake.url) as server:
            assert server.create(order)
        assert not proxy.requests


def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            AgentServer(url, "secret-key", url) as server,
            pytest.raises(Unavailable, match="see whether it runs") as unavailable,
        ):
            server.conversation(uuid4())
    assert "secret-key" not in str(unavailable.value)


def test_an_answer_that_is_late_is_unavailable(fake: FakeServer, child: UUID) -> None:
    done = threading.Event()
    fake.on("GET", "", Trouble(hold=done))
    with AgentServer(fake.url, fake.key, fake.url, seconds=0.2) as server:
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
            server.conversation(child)
        done.set()


def test_an_answer_that_drips_is_late_as_a_whole(fake: FakeServer, child: UUID) -> None:
    fake.on("GET", "", Trouble(drip=0.05))
    with (
        AgentServer(fake.url, fake.key, fake.url, seconds=0.2) as server,
        pytest.raises(Unavailable, match="did not answer within"),
    ):
        server.conversation(child)


def test_a_message_whose_reply_is_lost_was_taken_once(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    fake.on("POST", "/events", Trouble(after=True, reset=True))
    with pytest.raises(Unavailable):
        server.post(child, "MISSION 1")
    assert fake.messages(child) == ["MISSION 1"]
    assert server.find_message(child, "MISSION 1")


def test_a_conversation_whose_reply_is_lost_is_there(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    fake.on("POST", "/conversations", Trouble(after=True, reset=True))
    with pytest.raises(Unavailable):
        server.create(order)
    assert not server.create(order)


def test_a_404_that_is_no_json_does_not_mean_that_the_conversation_is_gone(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    """It may come from whatever stands before the server."""
    fake.on("GET", "", Trouble(404, b"<html>not found</html>"))
    with pytest.raises(Unavailable):
        server.conversation(child)


def test_a_429_that_is_no_json_does_not_mean_that_the_message_was_saved(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    fake.on("POST", "/events", Trouble(429, b"slow down"))
    with pytest.raises(Unavailable):
        server.post(child, "hello")


def test_an_order_becomes_one_request_and_a_title(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    assert server.create(replace(order, title="t" * 300))
    made, named = fake.requests
    assert (made.method, made.path) == ("POST", "/api/conversations")
    assert made.body["conversation_id"] == str(order.child)
    assert "initial_message" not in made.body
    assert json.dumps(made.body).count("evx1_token") == 1
    assert (named.method, named.body) == ("PATCH", {"title": "t" * 200})


def test_one_that_was_there_gets_no_new_title(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    server.create(order)
    assert not server.create(replace(order, title="another"))
    assert len(fake.asked("PATCH")) == 1


@pytest.mark.parametrize("trouble", [Trouble(500), Trouble(422), Trouble(reset=True)])
def test_a_title_that_is_refused_changes_nothing(
    fake: FakeServer, server: AgentServer, order: Order, trouble: Trouble
) -> None:
    fake.on("PATCH", "", trouble)
    assert server.create(order)


def test_an_agent_that_the_server_refuses_is_named_by_its_fields(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    detail = [{"type": "missing", "loc": ["body", "agent", "llm"], "msg": "/secret/path"}]
    fake.on("POST", "", Trouble(422, json.dumps({"detail": detail}).encode()))
    with pytest.raises(ServerRefused, match=r"HTTP 422: body\.agent\.llm missing") as refused:
        server.create(order)
    assert "/secret" not in str(refused.value)


def test_without_an_agent_the_servers_settings_are_taken_encrypted(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    assert server.create(replace(order, agent=None))
    shown, made = fake.requests[:2]
    assert (shown.path, shown.headers["x-expose-secrets"]) == ("/api/settings", "encrypted")
    assert made.body["agent_settings"]["llm"] == {"model": "stub", "api_key": "gAA"}
    assert made.body["agent_settings"]["mcp_config"].keys() == {"agent_bus"}
    assert made.body["secrets_encrypted"] is True


def test_a_server_that_cannot_encrypt_needs_an_agent_file(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    fake.settings = None
    with pytest.raises(ConfigurationError, match="AGENT_BUS_OPENHANDS_AGENT"):
        server.create(replace(order, agent=None))
    assert not fake.asked("POST")


def test_a_server_that_is_not_ready_is_unavailable(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    fake.on("GET", "/settings", Trouble(503, b'{"detail":"Server not fully initialized"}'))
    with pytest.raises(Unavailable):
        server.create(replace(order, agent=None))
    assert not fake.asked("POST")


def test_an_unusable_agent_is_found_before_any_request(
    fake: FakeServer, server: AgentServer, order: Order
) -> None:
    with pytest.raises(ConfigurationError):
        server.create(replace(order, agent={"agent_profile_id": str(uuid4())}))
    assert not fake.requests


@pytest.mark.parametrize(
    "change",
    [
        {"execution_status": "dreaming"},
        {"id": "ac0e4948-30e3-593d-8169-c06a02eee9f4"},
        {"workspace": None},
        {"tags": ["a"]},
    ],
)
def test_a_conversation_that_cannot_be_understood_is_unavailable(
    fake: FakeServer, server: AgentServer, child: UUID, change: dict[str, object]
) -> None:
    fake.chats[str(child)].info.update(change)
    with pytest.raises(Unavailable):
        server.conversation(child)


def test_a_server_that_does_not_name_the_run_is_asked_for_its_message(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    """And a person's pause, which has the source `user` too, is no message."""
    server.post(child, "one")
    fake.pause(child)
    chat = fake.chats[str(child)]
    last = chat.info["last_user_message_id"]
    chat.info["last_user_message_id"] = None
    found = server.conversation(child)
    assert found
    assert found.last_user_message == last


def fill(fake: FakeServer, child: UUID, count: int, size: int = 1) -> None:
    chat = fake.chats[str(child)]
    for _ in range(count):
        chat.add("ObservationEvent", "environment", tool_name="terminal", text="x" * size)


@pytest.mark.parametrize("count", [0, 97, 98, 99, 100, 450])
def test_a_long_run_is_read_page_by_page(
    fake: FakeServer, server: AgentServer, child: UUID, count: int
) -> None:
    server.post(child, "first")
    fake.use_tool(child)
    fake.finish(child, "READY")
    server.post(child, "second")
    run = fake.chats[str(child)].info["last_user_message_id"]
    fill(fake, child, count)
    assert server.run_end(child, run) == server.run_end(child, None) == RunEnd()
    fake.finish(child, "done")
    assert server.run_end(child, run) == RunEnd("done")
    assert {asked.query["limit"] for asked in fake.asked("GET", "/search")} == {"100"}


def test_a_message_is_found_behind_many_others(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    server.post(child, "MISSION\n{first}")
    first = fake.chats[str(child)].info["last_user_message_id"]
    for number in range(250):
        server.post(child, f"mission\n{number}")
    fill(fake, child, 300)
    assert server.find_message(child, "MISSION\n{first}") == first
    assert server.find_message(child, "MISSION\n{second}") is None
    assert {asked.query["body"] for asked in fake.asked("GET", "/search")} == {"MISSION"}


@pytest.mark.parametrize("marker", ["\nMISSION", "ü" * 500 + "\nend", "a&b=c#d%20 + e"])
def test_a_marker_may_be_any_text(server: AgentServer, child: UUID, marker: str) -> None:
    server.post(child, f"before {marker} after", run=False)
    assert server.find_message(child, marker)
    assert server.find_message(child, marker + "!") is None


def test_a_page_that_the_server_forgot_is_no_endless_loop(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    """It begins again at the first page then, for ever."""
    server.post(child, "go")
    fill(fake, child, 300)
    page = fake.chats[str(child)].events[:-101:-1]
    stale = {"items": page, "next_page_id": str(uuid4())}
    fake.on("GET", "/search", Trouble(200, json.dumps(stale).encode()), times=5)
    with pytest.raises(Unavailable, match="changed while they were read"):
        server.run_end(child, None)
    assert len(fake.asked("GET", "/search")) == 2


def test_a_conversation_that_is_made_anew_while_it_is_read_is_noticed(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    server.post(child, "go")
    fill(fake, child, 300)
    page = fake.chats[str(child)].events[:-101:-1]
    stale = {"items": page, "next_page_id": str(uuid4())}
    fake.on("GET", "/search", Trouble(200, json.dumps(stale).encode()))
    with pytest.raises(Unavailable, match="changed while they were read"):
        server.run_end(child, None)


def test_an_answer_of_five_megabytes_comes_whole(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    """It stands twice in its event, the second time with its quotes escaped once more."""
    answer = '"a"\n' * (5 * 1024 * 1024 // 4)
    server.post(child, "go")
    fill(fake, child, 150)
    fake.finish(child, answer)
    fill(fake, child, 3)
    assert server.run_end(child, None).answer == answer


def test_a_run_with_much_output_is_read_in_smaller_pages(
    fake: FakeServer, server: AgentServer, child: UUID
) -> None:
    server.post(child, "go")
    fill(fake, child, 40, 300_000)
    fake.finish(child, "done")
    assert server.run_end(child, None) == RunEnd("done")
    assert {asked.query["limit"] for asked in fake.asked("GET", "/search")} == {"100", "10"}


def test_threads_may_share_it(fake: FakeServer, server: AgentServer, child: UUID) -> None:
    errors: list[AgentBusError] = []

    def ask() -> None:
        try:
            for number in range(10):
                server.post(child, f"{threading.get_ident()} {number}")
                server.conversation(child)
        except AgentBusError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(fake.messages(child)) == 40


def test_people_open_it_under_the_public_url(server: AgentServer, child: UUID) -> None:
    assert server.url(child) == f"http://people.test/canvas/conversations/{child}"
