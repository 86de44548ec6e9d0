"""`agent-bus demo`: the main job, played for all to see, on a bus that goes away afterwards.

Two MCP servers are started as real processes, as a coding agent's program would start them,
and called over their pipes. A third agent is a child on an agent server, which is played.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

from agent_bus import create
from agent_bus.bus import Bus
from agent_bus.cli import demo_child
from agent_bus.cli.demo_stage import call, say, step, text_of
from agent_bus.cli.render import visible
from agent_bus.clock import SystemClock
from agent_bus.files import Folder
from agent_bus.names import MessageId, agent_name, message_file
from agent_bus.settings import Settings, child_environment

AGENTS = ("backend", "reviewer", "conductor")
_FILE_LIMIT = 1 << 20


def demo() -> None:
    """Play the demonstration; everything it makes is in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="agent-bus-demo-") as folder:
        anyio.run(_play, Path(folder))


async def _play(folder: Path) -> None:
    bus = _make_bus(folder)
    async with _server(bus, "backend") as backend, _server(bus, "conductor") as conductor:
        tools = (await backend.list_tools()).tools
        await conductor.list_tools()
        step("Two MCP servers run, one as backend, one as conductor; each is bound to its name")
        say(f"and offers {len(tools)} tools.")
        ident = await _send_and_wait(backend, conductor)
        await _read(conductor, ident)
        await _approve(backend, conductor)
        await demo_child.play(bus, conductor, folder / "workspace")
        await _forge(bus, backend, conductor)
    _closing()


def _make_bus(folder: Path) -> Bus:
    project = folder / "my-project"
    if git := shutil.which("git"):
        subprocess.run([git, "init", "-q", str(project)], check=True, env=child_environment())
    settings = Settings(
        data=folder / "data", keys=folder / "keys", project=project if git else folder
    )
    clock = SystemClock()
    made = create.create(settings, clock)
    bus = Bus.open(settings, clock=clock)
    for name in AGENTS:
        bus.keys.generate(agent_name(name))
        bus.store.make_box(agent_name(name)).close()
    step(f"A bus was made for {settings.project}, with a key and a box each for")
    say(f"{', '.join(AGENTS)}. It stands at")
    say(f"  {made.address.path}")
    return bus


async def _send_and_wait(backend: Client, conductor: Client) -> str:
    step("conductor calls bus_wait. backend calls bus_send:")
    body = "Tests are green, the branch is ready for a look."
    woken: dict[str, Any] = {}

    async def wait() -> None:
        woken["answer"] = await call(conductor, "bus_wait", timeout=30)
        woken["at"] = time.perf_counter()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.sleep(0.5)  # so that it really waits
        begun = time.perf_counter()
        sent = await call(backend, "bus_send", to="conductor", subject="API done", body=body)
        returned = time.perf_counter()
    receipt = sent["receipts"][0]
    found = woken["answer"]["messages"][0]
    say(f"stored as {receipt['id']}, durability: {receipt['durability']}")
    say(
        f"bus_send answered after {(returned - begun) * 1000:.1f} ms, the waiting bus_wait woke "
        f"{(woken['at'] - begun) * 1000:.1f} ms after the send began:"
    )
    say(f"  {found['id']}  {found['from']}  {found['kind']}  {visible(found['subject'])}")
    return str(receipt["id"])


async def _read(conductor: Client, ident: str) -> None:
    step("conductor reads it. The sender is the one whose key signed it; no tool has a `from`:")
    read = await call(conductor, "bus_read", id=ident)
    message = read["message"]
    say(f"  outcome {read['outcome']}, from {message['from']}: {visible(message['body'])}")


async def _approve(backend: Client, conductor: Client) -> None:
    step("backend asks for an approval; conductor is an admin of this bus and sees the queue:")
    asked = await call(backend, "bus_request_approval", question="May I drop the table old_users?")
    pending = (await call(conductor, "bus_pending_approval"))["pending"][0]
    say(f"  {pending['id']}  {pending['from']}: {visible(pending['question'])}")
    say(f"  options: {', '.join(pending['options'])}")
    step("conductor decides; the decision binds what it was shown, and backend is told:")
    await call(
        conductor,
        "bus_decide",
        id=asked["id"],
        decision="deny",
        reason="Keep it until the release.",
        sha256=pending["sha256"],
    )
    answer = (await call(backend, "bus_wait", timeout=30))["messages"][0]
    say(f"  {answer['id']}  {answer['from']}  {answer['kind']}  {visible(answer['subject'])}")
    again = await conductor.call_tool("bus_decide", {"id": asked["id"], "decision": "approve"})
    say(f"  deciding again is refused: {visible(text_of(again))}")


async def _forge(bus: Bus, backend: Client, conductor: Client) -> None:
    step("Somebody changes one byte of a stored message, behind the bus's back:")
    sent = await call(backend, "bus_send", to="conductor", body="Please pay 100 to bob.")
    ident = MessageId(sent["receipts"][0]["id"])
    _forge_byte(bus.address.path, ident)
    checked = await call(conductor, "bus_verify")
    failed = checked["failed"][0]
    say(f"  bus_verify: {checked['checked']} checked, {checked['ok']} ok, one is not:")
    say(f"  {failed['id']}  {failed['outcome']}")
    read = await conductor.call_tool("bus_read", {"id": ident})
    say("  bus_read answers with an error, the warning first:")
    for line in text_of(read).splitlines():
        for part in textwrap.wrap(visible(line), 96):
            say(f"    {part}")


def _forge_byte(path: Path, ident: MessageId) -> None:
    with Folder.open(path) as root, root.descend("messages", "conductor", "new") as box:
        data = box.read(message_file(ident), _FILE_LIMIT)
        box.replace(message_file(ident), data.replace(b"pay 100", b"pay 900"))


def _closing() -> None:
    step("That bus is gone again. For your own project:")
    beside = Path(sys.executable).with_name("agent-bus")
    program = str(beside) if beside.exists() else f"{sys.executable} -m agent_bus"
    for line in (
        "cd /path/to/your/project",
        f"{program} init --agents backend,reviewer",
        f"{program} connect claude --as backend",
        f"{program} connect codex --as reviewer",
    ):
        say(f"  {line}")
    say("connect prints what to type for Claude Code, or to write into Codex's configuration.")


@contextlib.asynccontextmanager
async def _server(bus: Bus, name: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agent_bus", "mcp"],
        env={
            "AGENT_MSG_AS": name,
            "AGENT_MSG_BUS": str(bus.address.path),
            "AGENT_MSG_KEYS": str(bus.settings.keys),
        },
    )
    async with Client(parameters) as client:
        yield client
