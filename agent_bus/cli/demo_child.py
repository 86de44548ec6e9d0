"""The demonstration's third agent: a child with a mission, on an agent server that is played.

Gateway, journal, git worktree, capabilities, boxes and signatures are real. Only what the agent
server and its model would do is done here.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import anyio.to_thread
from mcp import Client

from agent_bus.bus import Bus
from agent_bus.cli.demo_stage import call, say, step
from agent_bus.cli.render import visible
from agent_bus.files import make_folders
from agent_bus.names import AgentName
from agent_bus.openhands.gateway.caller import Caller
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.mirror import REFSPEC
from agent_bus.openhands.gateway.parts import Pauses
from agent_bus.openhands.gateway.provider import StopHook
from agent_bus.openhands.gateway.settings import GatewaySettings, git_environment
from agent_bus.openhands.gateway.testing import PlayedServer

REPOSITORY = "acme/widgets"
TASK = "writer-604"
_BRANCH = "fix/604-retry"
_ADDRESS = "http://127.0.0.1:9"
"""Nobody is there, and nobody calls it."""
_MAIN = AgentName("conductor")
_LIMIT = 30
_COMMIT = b"""\
commit refs/remotes/origin/main
committer demo <demo@localhost> 0 +0000
data 5
first
M 100644 inline README.md
data 8
widgets

"""


async def play(bus: Bus, conductor: Client, workspace: Path) -> None:
    """From a mission to two wakes; left out where there is no git."""
    if shutil.which("git") is None:
        step("A child on an agent server works in a git worktree, and no git is on the PATH here:")
        say("this part is left out.")
        return
    head = _make_mirror(workspace)
    server = PlayedServer(play=_admit)
    with _gateway(bus, server, workspace) as gateway:
        child = await _create(gateway, head)
        await _report(gateway, server, child, conductor)
        await _finish(server, child, conductor)
        await _fail(gateway, server, child, conductor)


def _make_mirror(workspace: Path) -> str:
    """What `agent-bus openhands mirror` leaves, without a network; the commit that is in it."""
    mirror = workspace / "mirrors" / f"{REPOSITORY.replace('/', '--')}.git"
    make_folders(mirror.parent).close()

    def git(*words: str, given: bytes = b"") -> str:
        command = ["git", f"--git-dir={mirror}", *words]
        environment = git_environment()
        done = subprocess.run(
            command, env=environment, input=given, capture_output=True, check=True, cwd=workspace
        )
        return done.stdout.decode().strip()

    git("init", "--quiet", "--bare", "--template=")
    git("config", "remote.origin.url", f"https://github.com/{REPOSITORY}.git")
    git("config", "remote.origin.fetch", REFSPEC)
    git("fast-import", "--quiet", given=_COMMIT)
    return git("rev-parse", "refs/remotes/origin/main")


def _admit(server: PlayedServer, child: UUID, message: str) -> None:
    """Begin as a child is told to; what comes after that is played below."""
    if message.startswith("PROVIDER_ADMISSION"):
        server.finish(child, "PROVIDER_READY")


@contextlib.contextmanager
def _gateway(bus: Bus, server: PlayedServer, workspace: Path) -> Iterator[Gateway]:
    settings = GatewaySettings(
        url=_ADDRESS,
        api_key="played",
        public_url="http://played.example",
        workspace=workspace,
        gateway_url=_ADDRESS,
    )
    with Gateway.open(bus.settings, settings, provider=server, pauses=Pauses(poll=0.02)) as gateway:

        def stopped(child: UUID, _: StopHook) -> None:
            gateway.signal(child, "hook")

        server.on_stop = stopped
        with gateway.run_in_background(say):
            yield gateway


async def _create(gateway: Gateway, head: str) -> UUID:
    step("conductor hands a mission to a child on an OpenHands agent server. That server, and what")
    say("the child does, is PLAYED in this process; gateway, checkout, box and keys are real:")
    mission = {
        "immediateTask": "Your task now: make the retry of the uploader idempotent.",
        "links": {"issue": f"https://github.com/{REPOSITORY}/issues/604"},
        "checkout": {"repository": REPOSITORY, "branch": _BRANCH, "headSha": head},
        "allowedMutations": ["src/uploader/**"],
        "prohibitions": ["no push"],
        "skills": [],
        "evidence": ["the uploader's tests pass"],
    }
    made = await anyio.to_thread.run_sync(
        partial(
            gateway.create_child,
            gateway.identity_caller(_MAIN),
            task_key=TASK,
            role="writer",
            mission=mission,
        )
    )
    say(f"  child {made.child}, task {TASK}: {made.state}")
    say(f"  in a worktree of its own, on {_BRANCH} at {head[:12]}; its tools were shut till then")
    return made.child


async def _report(gateway: Gateway, server: PlayedServer, child: UUID, conductor: Client) -> None:
    step(
        "The child reports, and asks. Who it is says a capability that it was given and never sees:"
    )
    caller = _caller(gateway, server, child)
    options = ["by content", "by name"]
    await anyio.to_thread.run_sync(
        lambda: gateway.send_to_parent(caller, result={"done": "a test that fails without it"})
    )
    asked = await anyio.to_thread.run_sync(
        lambda: gateway.request_user_decision(
            caller, question="What is the key of an upload?", options=options
        )
    )
    _show(await _await(conductor, "result"))
    pending = (await call(conductor, "bus_pending_approval"))["pending"][0]
    say(f"  {pending['id']}  {pending['from']}: {visible(pending['question'])}")
    await call(conductor, "bus_decide", id=asked.id, decision=options[0], sha256=pending["sha256"])
    with anyio.fail_after(_LIMIT):
        # The gateway's thread posts it.
        while not server.messages(child)[-1].startswith("USER_DECISION"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    say(f"  conductor decides, and the child finds it in its conversation: {options[0]}")


def _caller(gateway: Gateway, server: PlayedServer, child: UUID) -> Caller:
    """Who the child is, by the token of its MCP entry."""
    return gateway.caller(server.orders[child].servers[0].bearer)


async def _finish(server: PlayedServer, child: UUID, conductor: Client) -> None:
    step("The child finishes. Its Stop hook gives a sign, the gateway asks the agent server:")
    begun = time.perf_counter()
    await anyio.to_thread.run_sync(server.finish, child, "The retry is idempotent now.")
    wake = await _await(conductor, "wake")
    _show(wake)
    say(f"  bus_wait woke {(time.perf_counter() - begun) * 1000:.0f} ms later; bus_read says:")
    read = await call(conductor, "bus_read", id=wake["id"])
    message = read["message"]
    say(f"  outcome {read['outcome']}, from {message['from']}: {visible(message['body'])}")


async def _fail(gateway: Gateway, server: PlayedServer, child: UUID, conductor: Client) -> None:
    step("conductor sends it to work again, and that run fails. No hook tells of a failure; the")
    say("gateway finds it by looking, every five seconds, or at once as here:")
    context = {"review": "The test for two uploads at once is missing."}
    await anyio.to_thread.run_sync(
        lambda: gateway.resume_mission(
            gateway.identity_caller(_MAIN),
            target=str(child),
            task_key=TASK,
            message_key="review-1",
            context=context,
        )
    )
    server.fail(child, "LLMRateLimitError", "the model's quota is used up")
    await anyio.to_thread.run_sync(gateway.reconcile)
    wake = await _await(conductor, "wake")
    _show(wake)
    read = await call(conductor, "bus_read", id=wake["id"])
    say(f"  {visible(read['message']['body'])}")


async def _await(conductor: Client, kind: str) -> dict[str, Any]:
    """The next message of this kind that conductor's bus_wait shows."""
    with anyio.fail_after(_LIMIT):
        while True:
            for found in (await call(conductor, "bus_wait", timeout=_LIMIT))["messages"]:
                if found["kind"] == kind:
                    return dict(found)


def _show(found: dict[str, Any]) -> None:
    say(f"  {found['id']}  {found['from']}  {found['kind']}  {visible(found['subject'])}")
