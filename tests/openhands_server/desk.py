"""A bus, a mirror and gateways beside a real agent server, and what a test looks at there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from model import Model
from scene import Scene, make_mirror
from server import Server

from agent_bus.clock import SystemClock
from agent_bus.openhands.gateway.creation import Created
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.parts import Pauses
from agent_bus.openhands.gateway.provider import Provider
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.testing import TemporaryBus

ROOT = Path(__file__).resolve().parent.parent.parent
GUARD = 90.0
"""Seconds after which something counts as never happening."""
PAUSES = Pauses(poll=0.1, settle=0.1, settle_paused=0.7, lost=0.5, stop=20.0)
PUBLIC = "http://openhands.test"

Value = TypeVar("Value")


def until(what: str, look: Callable[[], Value], seconds: float = GUARD) -> Value:
    """The first true value of `look`."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Serve:
    """A running `agent-bus openhands serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=GUARD)


class Desk(Scene):
    """The scene of the fast tests, with a real agent server, a model and the time of day."""

    def __init__(
        self,
        bus: TemporaryBus,
        settings: GatewaySettings,
        head: str,
        *,
        real: Server,
        model: Model,
        folder: Path,
    ) -> None:
        self.bus, self.settings, self.head = bus, settings, head
        self.clock = SystemClock()  # type: ignore[assignment]
        self.gateways = []
        self.real, self.model, self.folder = real, model, folder
        self.served: list[Serve] = []

    def __repr__(self) -> str:
        return f"Desk({self.folder})"

    # -- gateways

    def gateway(self, provider: Provider | None = None) -> Gateway:
        opened = Gateway.open(self.bus.settings, self.settings, provider=provider, pauses=PAUSES)
        self.gateways.append(opened)
        return opened

    def agent(self, **changes: Any) -> None:
        """Which agent a child is from now on."""
        self.write_agent(self.model.agent() | changes)

    def write_agent(self, content: dict[str, Any]) -> None:
        path = self.folder / "agent.json"
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        self.settings = replace(self.settings, agent=path)

    def environment(self, **variables: str) -> dict[str, str]:
        """For a process that is a gateway."""
        settings = self.settings
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AGENT_MSG_AS": "conductor",
            "OPENHANDS_URL": settings.url,
            "OPENHANDS_API_KEY": settings.api_key,
            "OPENHANDS_PUBLIC_URL": settings.public_url,
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(settings.workspace),
            **({"AGENT_BUS_OPENHANDS_AGENT": str(settings.agent)} if settings.agent else {}),
            **({"EVEX_MESSAGING_SECRET": settings.secret} if settings.secret else {}),
            **self.bus.environment,
            **variables,
        }

    def serve(self, *arguments: str) -> Serve:
        """Start `agent-bus openhands serve`; returns when it can be reached."""
        log = self.folder / f"serve-{len(self.served)}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agent_bus", "openhands", "serve", "--json"),
                    *(arguments or ("--port", "0")),
                ],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert process.stdout
        made = Serve(process, "", log)
        self.served.append(made)
        line = process.stdout.readline()
        assert line, log.read_text()
        made.url = json.loads(line)["url"]
        return made

    # -- children

    def order(self, script: str, task: str = "writer-1", **changes: Any) -> dict[str, Any]:
        """A mission whose script the model follows."""
        return self.mission(
            branch=f"fix/{task}", immediateTask=f"Your task now: {script}", **changes
        )

    def start(
        self,
        gateway: Gateway,
        script: str = "[[finish:done]]",
        task: str = "writer-1",
        **changes: Any,
    ) -> UUID:
        """Create a child, and wait until its mission is delivered."""
        made = gateway.create_child(
            self.owner(gateway),
            task_key=task,
            role="writer",
            mission=self.order(script, task, **changes),
            wait=GUARD,
        )
        assert (made.state, made.problem) == ("delivered", None)
        return made.child

    def held_in_admission(self, gateway: Gateway, script: str) -> Created:
        """Create a child whose admission turn goes on until the model is released."""
        self.model.admissions[self.child(gateway)] = "[[hold]] [[finish:PROVIDER_READY]]"
        made = gateway.create_child(
            self.owner(gateway),
            task_key="writer-1",
            role="writer",
            mission=self.order(script),
            wait=0,
        )
        assert made.state == "admitting"
        return made

    def status(self, child: UUID) -> str:
        """What the server says of it; "" if it does not know it."""
        found = self.real.call("GET", f"/api/conversations/{child}")
        return str(found.json()["execution_status"]) if found.status_code == 200 else ""

    def wait_for(self, child: UUID, *statuses: str) -> str:
        """Wait until the server says one of these, and go on saying it."""

        def settled() -> str | None:
            first = self.status(child)
            if first not in statuses:
                return None
            time.sleep(0.2)
            return first if self.status(child) == first else None

        found = until(f"{child} is {' or '.join(statuses)}", settled)
        assert found
        return found

    def events(self, child: UUID) -> list[dict[str, Any]]:
        """All its events, oldest first."""
        found: list[dict[str, Any]] = []
        page = ""
        while True:
            path = f"/api/conversations/{child}/events/search?limit=100"
            answer = self.real.call("GET", path + (f"&page_id={page}" if page else "")).json()
            found += answer["items"]
            page = answer.get("next_page_id") or ""
            if not page:
                return found

    def said(self, child: UUID) -> list[str]:
        """The beginnings of its user messages, oldest first."""
        texts = (
            event["llm_message"]["content"][0]["text"]
            for event in self.events(child)
            if event["kind"] == "MessageEvent" and event["source"] == "user"
        )
        return [text.partition("\n")[0] for text in texts]

    def hooks(self, child: UUID) -> list[dict[str, Any]]:
        """The Stop hooks that ran."""
        return [
            event
            for event in self.events(child)
            if event["kind"] == "HookExecutionEvent" and event["hook_event_type"] == "Stop"
        ]

    def uses_terminal(self, child: UUID) -> bool:
        """Whether it has begun a command."""
        return any(
            event["kind"] == "ActionEvent" and event["tool_name"] == "terminal"
            for event in self.events(child)
        )

    # -- wakes

    def woken(self, gateway: Gateway, count: int = 1) -> list[dict[str, Any]]:
        """Reconcile until there are so many wakes, and then find that there are no more."""

        def look() -> bool:
            gateway.reconcile()
            return len(self.wakes()) >= count

        until(f"{count} wakes", look)
        for _ in range(2):
            gateway.reconcile()
        found = self.wakes()
        assert len(found) == count
        return found

    def close(self) -> None:
        """Stop what was started, and take the conversations away."""
        self.model.release()
        for serve in self.served:
            serve.end()
        children = {child for gateway in self.gateways for child in gateway.journal.ids()}
        for child in children:
            self.real.call("DELETE", f"/api/conversations/{child}")
        for gateway in self.gateways:
            gateway.close()


@contextlib.contextmanager
def desk(folder: Path, real: Server, model: Model, **changes: Any) -> Iterator[Desk]:
    """A desk in a folder of a test's own."""
    workspace, stage = folder / "workspace", folder / "bus"
    workspace.mkdir()
    stage.mkdir()
    head = make_mirror(workspace)
    settings = GatewaySettings(
        url=real.url,
        api_key=real.key,
        public_url=PUBLIC,
        workspace=workspace,
        **changes,
    )
    with TemporaryBus("conductor", "alice", folder=stage) as bus:
        made = Desk(bus, settings, head, real=real, model=model, folder=folder)
        made.agent()
        model.hold()
        try:
            yield made
        finally:
            made.close()
