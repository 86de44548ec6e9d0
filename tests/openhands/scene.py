"""A stage for the gateway: a real bus, a real mirror, a played agent server, a clock in hand."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from agent_bus.bus import Bus
from agent_bus.names import AgentName
from agent_bus.openhands.gateway import capability
from agent_bus.openhands.gateway.caller import Caller
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.identifiers import child_id
from agent_bus.openhands.gateway.parts import Pauses
from agent_bus.openhands.gateway.provider import Provider
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.openhands.gateway.testing import PlayedServer
from agent_bus.testing import ManualClock, TemporaryBus

REPOSITORY = "acme/widgets"
KEY = "session-key-of-the-played-server"
PAUSES = Pauses(poll=0.005, settle_finished=0.0, settle=0.0, settle_paused=0.0, lost=30.0, stop=0.2)


def git(*arguments: str, folder: Path) -> str:
    """Run a git of one's own; its output."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_mirror(workspace: Path, repository: str = REPOSITORY) -> str:
    """A mirror with one commit, as `agent-bus openhands mirror` leaves it; the commit's id."""
    source = workspace / "source"
    source.mkdir(parents=True)
    git("init", "-q", "-b", "main", folder=source)
    (source / "README.md").write_text("widgets\n")
    git("add", ".", folder=source)
    git("commit", "-q", "-m", "first", folder=source)
    mirrors = workspace / "mirrors"
    mirrors.mkdir(mode=0o700)
    mirror = mirrors / (repository.replace("/", "--") + ".git")
    git("init", "-q", "--bare", str(mirror), folder=workspace)
    git("remote", "add", "origin", f"https://github.com/{repository}.git", folder=mirror)
    git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", folder=mirror)
    git("fetch", "-q", str(source), "main:refs/remotes/origin/main", folder=mirror)
    return git("rev-parse", "HEAD", folder=source)


def admit(server: PlayedServer, child: UUID, message: str) -> None:
    """An agent that begins as it is told, and works on its mission until a test ends it."""
    if message.startswith("PROVIDER_ADMISSION"):
        server.finish(child, "PROVIDER_READY")


@dataclass
class Scene:
    """One bus and what is around it. `owner` is the identity `conductor`."""

    bus: TemporaryBus
    server: PlayedServer
    settings: GatewaySettings
    head: str
    clock: ManualClock
    gateways: list[Gateway] = field(default_factory=list)

    def gateway(self, provider: Provider | None = None) -> Gateway:
        """One more process of the gateway, as far as that goes within this one."""
        opened = Gateway.open(
            self.bus.settings,
            self.settings,
            provider=provider or self.server,
            clock=self.clock,
            pauses=PAUSES,
        )
        self.gateways.append(opened)
        return opened

    def mission(self, **changes: Any) -> dict[str, Any]:
        """A mission that keeps every rule."""
        branch = changes.pop("branch", "fix/1")
        return {
            "immediateTask": "Your task now: mend the widget.",
            "links": {"issue": "https://github.com/acme/widgets/issues/1"},
            "checkout": {"repository": REPOSITORY, "branch": branch, "headSha": self.head},
            "allowedMutations": ["src/**"],
            "prohibitions": ["do not push"],
            "skills": ["python"],
            "evidence": ["the tests pass"],
        } | changes

    def owner(self, gateway: Gateway) -> Caller:
        """The conductor as a Main."""
        return gateway.identity_caller(AgentName("conductor"))

    def create(self, gateway: Gateway, task: str = "writer-1", **changes: Any) -> UUID:
        """Create a child whose mission is delivered at once."""
        made = gateway.create_child(
            self.owner(gateway),
            task_key=task,
            role="writer",
            mission=self.mission(branch=f"fix/{task}", **changes),
            wait=5,
        )
        assert (made.state, made.problem) == ("delivered", None)
        return made.child

    def child(self, gateway: Gateway, task: str = "writer-1") -> UUID:
        """The id of the conductor's child."""
        return child_id(self.owner(gateway).subject, task)

    def child_caller(self, gateway: Gateway, task: str = "writer-1") -> Caller:
        """A child as its capability names it."""
        token = capability.child_capability_token(
            gateway.parts.signing.newest(),
            self.owner(gateway).subject,
            task,
            "writer",
            issued_at=self.clock.now() // 1000,
        )
        return gateway.caller(token)

    def as_agent(self, name: str = "conductor") -> Bus:
        """The bus as one of its agents."""
        return self.bus.as_agent(name)

    def wakes(self, name: str = "conductor") -> list[dict[str, Any]]:
        """The data of the wakes in a box, oldest first; every one verifies."""
        return [dict(message.data or {}) for message in self.messages("wake", name)]

    def messages(self, kind: str, name: str = "conductor") -> list[Any]:
        """The messages of a kind in a box, oldest first."""
        page = self.as_agent(name).inbox(limit=200)
        assert all(stored.judged.ok for stored in page.messages)
        found = [stored.judged.message for stored in page.messages]
        return [message for message in found if message and message.kind == kind]


@contextmanager
def scene(folder: Path, *, acp: bool = False, **changes: Any) -> Iterator[Scene]:
    """A scene in a folder of a test's own."""
    clock = ManualClock()
    workspace = folder / "workspace"
    workspace.mkdir()
    head = make_mirror(workspace)
    settings = GatewaySettings(
        url="http://127.0.0.1:1",
        api_key=KEY,
        public_url="http://openhands.test",
        workspace=workspace,
        **changes,
    )
    stage = folder / "bus"
    stage.mkdir()
    with TemporaryBus("conductor", "alice", folder=stage, clock=clock) as bus:
        made = Scene(bus, PlayedServer(play=admit, acp=acp), settings, head, clock)
        try:
            yield made
        finally:
            for gateway in made.gateways:
                gateway.close()
