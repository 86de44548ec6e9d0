"""The tools of profile `openhands` on stdio: in memory, and as a process before a fake server."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from agent_bus.errors import StorageError
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.server import app, missions
from agent_bus.server.verbs import Service
from agent_bus.testing import TemporaryBus

HERE = Path(__file__).resolve().parents[1] / "openhands"
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from fake_server import FakeServer  # noqa: E402 - modules beside other tests
from scene import Scene, make_mirror, scene  # noqa: E402

NAMES = [tool.name for tool in missions.TOOLS]
KB = 1000
GUARD = 60.0
COMMAND = [sys.executable, "-m", "agent_bus", "mcp"]

Ok = Callable[[Any], dict[str, Any]]
Failed = Callable[[Any], str]
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


@pytest.fixture
def gateway(stage: Scene) -> Gateway:
    return stage.gateway()


@pytest.fixture
def here(stage: Scene, gateway: Gateway) -> Iterator[Connect]:
    """`async with here("openhands") as client`: the conductor's server with these profiles."""
    with contextlib.ExitStack() as stack:

        def begin(*profiles: str, name: str = "conductor", mode: str = "auto") -> Client:
            stage.bus.settings = replace(stage.bus.settings, profiles=profiles or ("openhands",))
            opened = stage.as_agent(name)
            watch = opened.watch(warn=lambda _: None)
            stack.callback(watch.close)
            attachment = opened.presence.attach(opened.identity, "mcp", mode=watch.mode)
            stack.callback(attachment.close)
            return Client(app.make(Service(opened, watch, attachment), gateway), mode=mode)

        yield begin


def asked(stage: Scene, task: str = "writer-1", **changes: Any) -> dict[str, Any]:
    return {"taskKey": task, "role": "writer", "mission": stage.mission(branch=f"fix/{task}")} | (
        changes
    )


# -- what clients are shown


@pytest.mark.anyio
async def test_the_profile_alone_has_exactly_six_tools(here: Any, mode: str) -> None:
    async with here(mode=mode) as client:
        listed = await client.list_tools()
        with pytest.raises(MCPError) as raised:
            await client.call_tool("wake", {})

    assert [tool.name for tool in listed.tools] == [
        "create_child",
        "send_to_parent",
        "request_user_decision",
        "cancel_mission",
        "resume_mission",
        "publish_navigation_links",
    ]
    assert raised.value.error.code == -32602


@pytest.mark.anyio
async def test_the_tools_are_few_bytes_and_tell_the_truth_of_themselves(here: Any) -> None:
    async with here() as client:
        listed = await client.list_tools()

    text = json.dumps(listed.model_dump(by_alias=True, exclude_none=True, mode="json"))
    assert len(text) < 7 * KB
    for word in ('"title"', '"null"', '"$ref"', "capabilityRef", "evx1"):
        assert word not in text
    hints = {tool.name: tool.annotations for tool in listed.tools}
    for tool in listed.tools:
        assert tool.description
        assert len(tool.description) < 100
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema
        assert not hints[tool.name].read_only_hint
        assert hints[tool.name].idempotent_hint
        assert hints[tool.name].destructive_hint is (tool.name == "cancel_mission")
    assert {name for name, hint in hints.items() if hint.open_world_hint} == {
        "create_child",
        "cancel_mission",
        "resume_mission",
    }
    (create,) = [tool for tool in listed.tools if tool.name == "create_child"]
    assert create.input_schema["required"] == ["taskKey", "role", "mission"]


@pytest.mark.anyio
async def test_both_profiles_have_the_tools_of_both(here: Any, ok: Ok) -> None:
    async with here("bus", "openhands") as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert ok(await client.call_tool("bus_status", {}))["identity"] == "conductor"

    assert names[-6:] == NAMES
    assert len(names) == 17


@pytest.mark.parametrize("profiles", [("openhands",), ("bus", "openhands"), ("bus",)])
@pytest.mark.parametrize("name", ["a" * 64, "conductor"])
def test_the_instructions_fit_and_fit_the_profiles(
    bus: TemporaryBus, name: str, profiles: tuple[str, ...]
) -> None:
    bus.add_agent(name) if name != "conductor" else None
    bus.settings = replace(bus.settings, profiles=profiles)

    text = app.instructions(bus.as_agent(name))

    assert len(text.encode()) < 2 * KB
    assert f"You are `{name}`" in text[:200]
    assert ("create_child" in text) is ("openhands" in profiles)
    assert ("bus_inbox" in text) is ("bus" in profiles)
    assert "{" not in text


# -- what they do


@pytest.mark.anyio
async def test_a_child_is_made_once_steered_and_its_owner_told_how_it_goes_on(
    stage: Scene, here: Any, ok: Ok, mode: str
) -> None:
    told: list[str | None] = []

    async def progress(done: float, total: float | None, text: str | None) -> None:
        told.append(text)

    async with here(mode=mode) as client:
        made = ok(await client.call_tool("create_child", asked(stage), progress_callback=progress))
        again = ok(await client.call_tool("create_child", asked(stage)))
        named = {"targetId": made["childId"], "taskKey": "writer-1"}
        stopped = ok(await client.call_tool("cancel_mission", named))
        more = named | {"messageKey": "r1", "context": {"news": "go on"}}
        resumed = ok(await client.call_tool("resume_mission", more))
        repeated = ok(await client.call_tool("resume_mission", more))

    assert (made["created"], made["state"], made["provider"]) == (True, "delivered", "openhands")
    assert "hint" not in made
    assert again == made | {"created": False}
    assert told
    assert told[0] == "checking the checkout"
    assert (stopped["outcome"], stopped["terminal"]) == ("cancelled", True)
    assert resumed == {"accepted": True, "messageKey": "r1", "taskKey": "writer-1"}
    assert repeated == resumed | {"replayed": True}


@pytest.mark.anyio
async def test_a_child_that_is_not_ready_yet_goes_on_and_the_answer_says_so(
    stage: Scene, gateway: Gateway, here: Any, ok: Ok, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.server.play = None
    whole = gateway.create_child
    monkeypatch.setattr(gateway, "create_child", lambda *a, **k: whole(*a, **k, wait=0))
    async with here() as client:
        made = ok(await client.call_tool("create_child", asked(stage)))

    assert made["state"] != "delivered"
    assert "the same call again" in made["hint"]


@pytest.mark.anyio
async def test_text_that_is_json_is_taken_as_what_it_says(stage: Scene, here: Any, ok: Ok) -> None:
    """Some models send an object as text now and then."""
    given = asked(stage)
    async with here() as client:
        made = ok(
            await client.call_tool(
                "create_child",
                given | {"mission": json.dumps(given["mission"]), "capabilities": "[]"},
            )
        )
    assert made["created"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tool", "arguments", "line"),
    [
        ("create_child", {}, "usage: create_child: taskKey is missing; role is missing"),
        (
            "create_child",
            {"taskKey": "a", "role": "qa", "mission": [], "parentCapabilityRef": "evx1_x"},
            "usage: create_child: mission is an object like",
        ),
        ("send_to_parent", {"result": "done"}, "usage: send_to_parent: result is an object"),
        ("send_to_parent", {"result": {}, "kind": "RESULT"}, "not-permitted: "),
        (
            "request_user_decision",
            {"question": "?", "options": "a,b"},
            "usage: request_user_decision: options is a list",
        ),
        ("publish_navigation_links", {"links": {"a": "https://x.test"}}, "not-permitted: "),
        (
            "cancel_mission",
            {"targetId": "x", "taskKey": "t", "from": "bob"},
            "usage: cancel_mission: there is no argument 'from'",
        ),
        ("cancel_mission", {"targetId": "x", "taskKey": "t"}, "invalid-mission: "),
        (
            "resume_mission",
            {"targetId": "x", "taskKey": "t", "messageKey": "k"},
            "usage: resume_mission: context is missing",
        ),
        ("create_child", {"taskKey": "a b", "role": "qa", "mission": {}}, "invalid-mission: "),
    ],
)
async def test_what_is_wrong_is_one_line_and_asks_no_agent_server(
    stage: Scene,
    here: Any,
    failed: Failed,
    tool: str,
    arguments: dict[str, Any],
    line: str,
) -> None:
    async with here() as client:
        text = failed(await client.call_tool(tool, arguments))

    assert text.startswith(line)
    assert "\n" not in text
    assert stage.server.calls == []


@pytest.mark.anyio
async def test_the_owner_of_a_process_is_told_the_whole_error(
    gateway: Gateway, here: Any, failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("/a/place: No space left on device")

    monkeypatch.setattr(gateway, "publish_navigation_links", fail)
    async with here() as client:
        text = failed(await client.call_tool("publish_navigation_links", {"links": {}}))

    assert text == "storage: /a/place: No space left on device"


@pytest.mark.anyio
async def test_another_identity_s_child_is_nobody_s_to_steer(
    stage: Scene, gateway: Gateway, here: Any, failed: Failed
) -> None:
    ident = stage.create(gateway)
    before = len(stage.server.calls)
    async with here(name="alice") as client:
        text = failed(
            await client.call_tool(
                "cancel_mission", {"targetId": str(ident), "taskKey": "writer-1"}
            )
        )

    assert text.split(":")[0] in ("not-permitted", "no-such-child")
    assert len(stage.server.calls) == before


# -- as a process


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """An agent server whose agent admits itself, and finishes each mission with its task key."""
    ending = threading.Event()

    def work(server: FakeServer) -> None:
        while not ending.wait(0.02):
            for ident in list(server.chats):
                child = UUID(ident)
                if server.chats[ident].info["execution_status"] == "running":
                    last = server.messages(child)[-1]
                    begins = last.startswith("PROVIDER_ADMISSION")
                    server.finish(child, "PROVIDER_READY" if begins else "the widget is mended")

    with FakeServer() as server:
        agent = threading.Thread(target=work, args=(server,))
        agent.start()
        yield server
        ending.set()
        agent.join(GUARD)


@pytest.fixture
def variables(
    bus: TemporaryBus, environment: dict[str, str], fake: FakeServer, tmp_path: Path
) -> dict[str, str]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return (
        environment
        | bus.environment
        | {
            "AGENT_MSG_AS": "alice",
            "AGENT_BUS_PROFILES": "bus,openhands",
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(workspace),
            "OPENHANDS_URL": fake.url,
            "OPENHANDS_API_KEY": fake.key,
        }
    )


@contextlib.asynccontextmanager
async def process(variables: dict[str, str], log: IO[str], mode: str) -> AsyncIterator[Client]:
    command, *arguments = COMMAND
    parameters = StdioServerParameters(command=command, args=arguments, env=variables)
    async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
        yield client


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[str]]:
    with (tmp_path / "log").open("w+") as opened:
        yield opened


@pytest.mark.anyio
async def test_a_process_makes_a_child_and_is_woken_when_it_ends(
    bus: TemporaryBus,
    fake: FakeServer,
    variables: dict[str, str],
    ok: Ok,
    mode: str,
    log: IO[str],
) -> None:
    """The main job, without HTTP: the process itself looks after its children."""
    head = make_mirror(Path(variables["AGENT_BUS_OPENHANDS_WORKSPACE"]))
    mission = {
        "immediateTask": "Your task now: mend the widget.",
        "links": {},
        "checkout": {"repository": "acme/widgets", "branch": "fix/1", "headSha": head},
        "allowedMutations": ["src/**"],
        "prohibitions": [],
        "skills": ["python"],
        "evidence": [],
    }
    with anyio.fail_after(GUARD):
        async with process(variables, log, mode) as client:
            given = {"taskKey": "w-1", "role": "writer", "mission": mission}
            made = ok(await client.call_tool("create_child", given))
            assert made["state"] == "delivered"
            found: list[dict[str, Any]] = []
            while not found:
                waited = {"timeout": 60, "include_existing": True}
                found = ok(await client.call_tool("bus_wait", waited))["messages"]
            read = ok(await client.call_tool("bus_read", {"id": found[0]["id"]}))

    message = read["message"]
    assert (message["from"], message["kind"]) == ("openhands", "wake")
    assert message["data"]["child"] == made["childId"]
    assert message["data"]["status"] == "finished"
    assert "the widget is mended" in json.dumps(message)
    log.seek(0)
    assert fake.key not in log.read() + json.dumps(message)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"OPENHANDS_URL": ""}, "OPENHANDS_URL is not set"),
        ({"OPENHANDS_API_KEY": ""}, "OPENHANDS_API_KEY is not set"),
        ({"OPENHANDS_URL": "http://u:p@h"}, "OPENHANDS_URL holds a credential"),
        ({"AGENT_BUS_PROFILES": "openhands,terminal"}, "terminal is not in this version"),
    ],
)
def test_what_is_missing_is_told_to_the_client(
    variables: dict[str, str], fake: FakeServer, changes: dict[str, str], words: str
) -> None:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    done = subprocess.run(
        COMMAND,
        env=variables | changes,
        input=json.dumps(first).encode() + b"\n",
        capture_output=True,
        check=False,
        timeout=GUARD,
    )

    assert done.returncode == 78
    assert words in json.loads(done.stdout)["error"]["message"]
    assert words in done.stderr.decode()
    assert fake.key.encode() not in done.stdout + done.stderr
    assert fake.requests == []


def test_the_opening_is_what_the_sdk_says(variables: dict[str, str]) -> None:
    """With its tools alone; the SDK's own answer is compared by the server, which warns."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/nobody-knows"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
    ]
    process = subprocess.Popen(
        COMMAND,
        env=variables | {"AGENT_BUS_PROFILES": "openhands"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(3)]
        rest, log = process.communicate(timeout=GUARD)
    finally:
        process.kill()
    by_id = {answer["id"]: answer["result"] for answer in answers}
    assert by_id[1]["capabilities"] == app.CAPABILITIES
    assert by_id[2] == {}
    assert [tool["name"] for tool in by_id[3]["tools"]] == NAMES
    assert (process.returncode, rest, log) == (0, b"", b"")


def test_without_the_profile_nothing_of_the_gateway_is_loaded(
    bus: TemporaryBus, environment: dict[str, str]
) -> None:
    code = (
        "import sys\n"
        "from agent_bus import settings\n"
        "from agent_bus.server import app\n"
        "from agent_bus.server.verbs import Service\n"
        "started = app.start(settings.load())\n"
        "service = Service(started.bus, started.watch, started.attachment)\n"
        "app.make(service, started.gateway)\n"
        "print([m for m in sys.modules if m.startswith('agent_bus.openhands')])\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | bus.environment | {"AGENT_MSG_AS": "alice"},
        capture_output=True,
        check=True,
        timeout=GUARD,
    )

    assert out.stdout.decode().strip() == "[]"
