"""The stage of scene.py before an agent server that is reached over HTTP, played like the other.

with wired(tmp_path) as stage:
    child = stage.create(stage.gateway())
    stage.server.finish(child, "done")
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from fake_server import Chat, FakeServer, Received
from scene import PAUSES, Scene, scene

from agent_bus.openhands.gateway.doctor import IDEMPOTENT
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.provider import Provider

ROOT = Path(__file__).resolve().parents[2]


def admit(server: FakeServer, child: UUID, message: str) -> None:
    """An agent that begins as it is told, and works on its mission until a test ends it."""
    if message.startswith("PROVIDER_ADMISSION"):
        server.finish(child, "PROVIDER_READY")


class PlayingServer(FakeServer):
    """A fake server whose `play` is called for each run that starts, as `PlayedServer` does it."""

    def __init__(self, *, acp: bool = False) -> None:
        super().__init__(acp=acp)
        self.play: Callable[[FakeServer, UUID, str], None] = admit

    def _answer(self, asked: Received) -> tuple[int, Any]:
        if asked.path == "/server_info":
            return 200, {"version": "1.58.2", "capabilities": [IDEMPOTENT]}
        return super()._answer(asked)

    def _take(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        before = chat.info["execution_status"]
        taken = super()._take(chat, asked)
        if (before, chat.info["execution_status"]) != ("running", "running"):
            self._begun(chat)
        return taken

    def _run(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        taken = super()._run(chat, asked)
        if taken[0] == 200:
            self._begun(chat)
        return taken

    def _begun(self, chat: Chat) -> None:
        if chat.info["execution_status"] == "running":
            child = UUID(chat.info["id"])
            self.play(self, child, self.messages(child)[-1])


@dataclass
class Wired(Scene):
    """A scene whose gateways speak HTTP."""

    server: PlayingServer  # type: ignore[assignment]

    def gateway(self, provider: Provider | None = None) -> Gateway:
        """One more process of the gateway, as far as that goes within this one."""
        opened = Gateway.open(
            self.bus.settings, self.settings, provider=provider, clock=self.clock, pauses=PAUSES
        )
        self.gateways.append(opened)
        return opened

    def environment(self, me: str = "conductor") -> dict[str, str]:
        """For a process of its own that is a gateway, or an agent of the bus."""
        home = self.settings.workspace / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AGENT_MSG_AS": me,
            "OPENHANDS_URL": self.settings.url,
            "OPENHANDS_API_KEY": self.settings.api_key,
            "OPENHANDS_PUBLIC_URL": self.settings.public_url,
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(self.settings.workspace),
            **self.bus.environment,
        }

    def missions(self, child: UUID) -> list[str]:
        """The missions that a child was told."""
        return [text for text in self.server.messages(child) if text.startswith("MISSION\n")]


COMMAND = (sys.executable, "-m", "agent_bus")


@contextmanager
def wired(folder: Path, *, acp: bool = False, **changes: Any) -> Iterator[Wired]:
    """A wired scene in a folder of a test's own."""
    with PlayingServer(acp=acp) as fake, scene(folder, **changes) as made:
        settings = replace(made.settings, url=fake.url, api_key=fake.key)
        yield Wired(made.bus, fake, settings, made.head, made.clock, made.gateways)
