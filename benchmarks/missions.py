"""The gateway of children: from a hook to the wake that its owner sees, looking on, and a round.

The agent server is the one of the tests, over HTTP and in a process of its own. It answers at once
and with little: what is measured is the gateway's part. No git runs; the records of the children
are those that `create_child` leaves.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import UUID

import httpx2

from agent_bus.clock import Clock, to_text
from agent_bus.names import AgentName
from agent_bus.openhands.gateway.capability import completion_token
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.identifiers import child_id
from agent_bus.openhands.gateway.journal import End, Record
from agent_bus.openhands.gateway.parts import Pauses
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.testing import TemporaryBus
from benchmarks.bare_asking import asker, get
from benchmarks.client import ROOT
from benchmarks.measuring import Result, Scale, compared, in_turn, milliseconds, percentile
from benchmarks.sending import BODY, BareBox, box_and_bus
from benchmarks.waking import bare_waiter, idle_shares, until_attached

_OWNER = "conductor"
_MANY, _SETTLED = 50, 500
_PAUSE = Pauses().settle_finished
"""Seconds between the two looks at a run that has finished."""


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    yield from ends(scale)
    yield from idle(scale)
    yield from rounds(scale)


# -- what is around a gateway


class PlayedAgents:
    """The agent server."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.agent_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        self.url, self.key = self._line().split()

    def do(self, *words: object) -> str:
        """Let something happen; what it says to that."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@dataclass
class Post:
    """A bus with a gateway, whose journal is filled by hand."""

    bus: TemporaryBus
    agents: PlayedAgents
    gateway: Gateway
    workspace: Path
    count: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What `openhands serve` needs."""
        return self.bus.environment | {
            "OPENHANDS_URL": self.agents.url,
            "OPENHANDS_API_KEY": self.agents.key,
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(self.workspace),
        }

    def begin(self) -> Record:
        """One more child that works on its mission, which no gateway looks after."""
        record = self._next()
        run = self.agents.do("begin", record.child, self.workspace)
        return record.model_copy(update={"admission_run": run, "mission_run": run})

    def hand_over(self) -> Record:
        """One that the gateway looks after, as it knows it after a round."""
        record = self.begin()
        with self.gateway.journal.changing(record.child):  # which leaves the file of the lock
            return self.gateway.journal.save(record)

    def settle(self) -> None:
        """One more that has ended, of which nobody has to ask."""
        record = self._next()
        end = End(
            run=record.mission_run or "",
            number=0,
            status="finished",
            wake=self.bus.clock.new_id(),
            at=record.created_at,
        )
        changes = {"state": "ended", "ends": (end,), "seen": "finished"}
        self.gateway.journal.save(record.model_copy(update=changes))

    def token(self, record: Record) -> str:
        """That of the child's Stop hook."""
        signing = self.gateway.parts.signing
        return completion_token(
            signing.newest(),
            record.owner,
            record.task_key,
            record.role,
            issued_at=record.issued_at,
        )

    def _next(self) -> Record:
        self.count += 1
        return _record(self.gateway, f"writer-{self.count}", self.bus.clock)


def _record(gateway: Gateway, task: str, clock: Clock) -> Record:
    owner, settings = gateway.identity_caller(AgentName(_OWNER)).subject, gateway.settings
    now = clock.now()
    at, run = to_text(now), clock.new_id()
    return Record(
        child=child_id(owner, task),
        owner=owner,
        owner_box=AgentName(_OWNER),
        server=settings.url,
        workspace=str(settings.workspace),
        task_key=task,
        role="writer",
        repository="acme/widgets",
        branch=f"fix/{task}",
        head_sha=secrets.token_hex(20),
        mission=json.dumps({"immediateTask": BODY * 5}),
        mission_sha256=secrets.token_hex(32),
        state="delivered",
        created_at=at,
        updated_at=at,
        issued_at=now // 1000,
        servers={"agent_bus": "http://127.0.0.1:3101/mcp"},
        admission_run=run,
        mission_run=run,
        run_since=at,
        seen="running",
        seen_since=at,
    )


@contextmanager
def _post(scale: Scale, agents: PlayedAgents) -> Iterator[tuple[BareBox, Post]]:
    with box_and_bus(scale) as (bare, bus):
        workspace = bus.path.parent / "workspace"
        workspace.mkdir()
        settings = GatewaySettings(
            url=agents.url, api_key=agents.key, public_url=agents.url, workspace=workspace
        )
        with Gateway.open(bus.settings, settings) as gateway:
            yield bare, Post(bus, agents, gateway, workspace)


@contextmanager
def _serving(post: Post) -> Iterator[tuple[str, int]]:
    """`agent-bus openhands serve`: its URL and its process."""
    command = [sys.executable, "-m", "agent_bus", "openhands", "serve", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | post.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


# -- from the hook to the wake


def ends(scale: Scale) -> Iterator[Result]:
    """A child finishes and its hook says so; `agent-bus watch` of its owner prints the wake."""
    with ExitStack() as stack:
        agents = stack.enter_context(PlayedAgents())
        bare, post = stack.enter_context(_post(scale, agents))
        woken = stack.enter_context(bare_waiter(bare))
        floors = [_Floor(bare, post, woken, ask) for ask in _askers(agents, stack)]
        ours = _Ours(post, stack)
        times: list[list[float]] = [[], [], []]
        steps = [
            lambda: times[0].append(floors[0].end()),
            lambda: times[1].append(floors[1].end()),
            lambda: times[2].append(ours.end()),
        ]
        in_turn(steps, scale.rounds(200, 24))
    low, lowest, high = ([taken - _PAUSE for taken in some[1:]] for some in times)
    more = {
        "pause": _PAUSE * 1000,
        "answered": milliseconds(ours.answered[1:]),
        "bare_python": milliseconds(lowest),
    }
    yield compared("hook-wake", "hook → wake seen, without the pause", low, high, 1.5, **more)
    far = percentile(high, 0.99)
    yield Result(
        "hook-wake-p99",
        "hook → wake seen, without the pause: p99",
        "ms",
        far * 1000,
        percentile(low, 0.99) * 1000,
        far * 1000 / milliseconds(high),
        10.0,
        of="p99 ÷ p50",
        steady=False,
    )


def _askers(agents: PlayedAgents, stack: ExitStack) -> Iterator[Callable[[str], object]]:
    """A plain GET with the client that the gateway uses, and with that of Python."""
    client = httpx2.Client(
        base_url=agents.url, headers={"X-Session-API-Key": agents.key}, trust_env=False
    )
    stack.enter_context(client)
    yield lambda path: client.get(path).json()
    connection = stack.enter_context(closing(asker(agents.url)))
    yield lambda path: get(connection, agents.key, path)


class _Floor:
    """The same, bare: take the sign, keep it, ask three times with the pause, send, be woken.

    `ask` gets a path of the agent server.
    """

    def __init__(
        self, bare: BareBox, post: Post, woken: Callable[[], None], ask: Callable[[str], object]
    ) -> None:
        self._bare = bare
        self._post = post
        self._woken = woken
        self._ask = ask
        self._signs = post.workspace / secrets.token_hex(4)
        self._signs.mkdir()

    def end(self) -> float:
        """Seconds from before a hook's post until the bare waiter has seen it."""
        agents, child = self._post.agents, self._post.begin().child
        agents.do("finish", child)
        path = f"/api/conversations/{child}"
        begun = time.perf_counter()
        report(agents.url, "/alive", "", {})
        self._keep()
        self._ask(path)
        time.sleep(_PAUSE)
        self._ask(path)
        self._ask(f"{path}/events/search?limit=100&sort_order=TIMESTAMP_DESC")
        self._bare.send()
        self._woken()
        return time.perf_counter() - begun

    def _keep(self) -> None:
        fd = os.open(self._signs / secrets.token_hex(13), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, b"hook\n")
        os.fsync(fd)
        os.close(fd)
        folder = os.open(self._signs, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


class _Ours:
    """`agent-bus openhands serve`, and `agent-bus watch` of the owner."""

    def __init__(self, post: Post, stack: ExitStack) -> None:
        self._post = post
        self._url, _ = stack.enter_context(_serving(post))
        self._lines = stack.enter_context(_watching(post.bus))
        self.answered: list[float] = []
        """Seconds until the hook was answered."""

    def end(self) -> float:
        """Seconds from before the hook's post until its owner has seen the wake."""
        agents, record = self._post.agents, self._post.hand_over()
        token = self._post.token(record)
        agents.do("finish", record.child)
        event = {"event_type": "Stop", "session_id": str(record.child)}
        begun = time.perf_counter()
        status = report(self._url, "/completion-hook", token, event)
        answered = time.perf_counter()
        line = json.loads(self._lines.readline())
        seen = time.perf_counter()
        assert (status, line["kind"], line["from"]) == (202, "wake", "openhands")
        assert line["subject"].startswith(record.task_key), line
        self.answered.append(answered - begun)
        return seen - begun


def report(url: str, path: str, token: str, event: dict[str, Any]) -> int:
    """Post as a hook does, on a connection of its own; the status."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("POST", path, json.dumps(event), headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@contextmanager
def _watching(bus: TemporaryBus) -> Iterator[Any]:
    command = [sys.executable, "-m", "agent_bus", "watch", "--json"]
    environment = os.environ | bus.environment | {"AGENT_MSG_AS": _OWNER}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until_attached(bus.as_agent(_OWNER), [_OWNER])
            yield process.stdout
        finally:
            process.terminate()


# -- looking on


def idle(scale: Scale) -> Iterator[Result]:
    """What `openhands serve` takes while nothing ends, beside a process that only asks."""
    with ExitStack() as stack:
        agents = stack.enter_context(PlayedAgents())
        _, none = stack.enter_context(_post(scale, agents))
        _, many = stack.enter_context(_post(scale, agents))
        children = [many.hand_over().child for _ in range(_MANY)]
        pids = [stack.enter_context(_serving(post))[1] for post in (none, many)]
        pids.append(stack.enter_context(_bare_asking(agents, children)))
        time.sleep(1)
        shares = idle_shares(pids, scale.rounds(60, 10))
    alone, looking, floor = (shares[pid] for pid in pids)
    unit, of = "% of a core", f"ours ÷ {_MANY} GETs"
    yield Result("idle-gateway", "idle gateway, no child", unit, alone, None, alone, None, of=unit)
    title = f"gateway with {_MANY} children at work"
    yield Result("idle-children", title, unit, looking, floor, looking / floor, None, of=of)


@contextmanager
def _bare_asking(agents: PlayedAgents, children: Sequence[UUID]) -> Iterator[int]:
    paths = [f"/api/conversations/{child}" for child in children]
    command = [sys.executable, "-m", "benchmarks.bare_asking", agents.url, agents.key, *paths]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        try:
            yield process.pid
        finally:
            process.terminate()


# -- a round


def rounds(scale: Scale) -> Iterator[Result]:
    """A round where every child is settled: the first of a gateway, and all later ones."""
    with ExitStack() as stack:
        agents = stack.enter_context(PlayedAgents())
        _, post = stack.enter_context(_post(scale, agents))
        for _ in range(_SETTLED):
            post.settle()
        folder = post.bus.path / "openhands" / "gateway" / "children"
        settings = post.gateway.settings

        def bare() -> None:
            for name in os.listdir(folder):
                with open(folder / name, "rb") as file:
                    file.read()

        fresh = [
            stack.enter_context(Gateway.open(post.bus.settings, settings))
            for _ in range(scale.rounds(15, 7) + 1)
        ]
        floor, first = in_turn([bare, lambda: fresh.pop().reconcile()], len(fresh) - 1)
        title = f"round over {_SETTLED} settled children"
        yield compared("round-first", f"first {title}", floor, first, 3.0)
        steps = [bare, post.gateway.reconcile]
        floor, later = in_turn(steps, scale.rounds(100, 30))
        yield compared("round", title, floor, later, 3.0)
