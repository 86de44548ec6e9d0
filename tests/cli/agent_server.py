"""What the verbs of `openhands` need around them: an agent server that plays along, a mirror."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "openhands"))

from fake_server import Chat, FakeServer, Received
from program import Cli, Result

from agent_bus.openhands.gateway.doctor import IDEMPOTENT
from agent_bus.openhands.gateway.identifiers import child_id, main_id
from agent_bus.openhands.gateway.mirror import REFSPEC

REPOSITORY = "acme/tool"
GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@localhost",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@localhost",
}


class ObedientServer(FakeServer):
    """An agent server whose children are ready when they are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "1.58.2"
        self.capabilities = [IDEMPOTENT]
        self.keyed = True
        self.obeys = True

    def _answer(self, asked: Received) -> tuple[int, Any]:
        if asked.path == "/server_info":
            return 200, {"version": self.version, "capabilities": self.capabilities}
        if not self.keyed:
            asked.headers["x-session-api-key"] = self.key
        return super()._answer(asked)

    def _take(self, chat: Chat, asked: Received) -> tuple[int, Any]:
        taken = super()._take(chat, asked)
        text = asked.body["content"][0]["text"]
        if self.obeys and text.startswith("PROVIDER_ADMISSION") and taken[0] == 200:
            self.finish(UUID(chat.info["id"]), "PROVIDER_READY")
        return taken


@dataclass
class Desk:
    """The command line, its agent server and its workspace."""

    cli: Cli
    server: ObedientServer
    workspace: Path
    source: Path
    head: str

    @property
    def variables(self) -> dict[str, str]:
        return {
            "OPENHANDS_URL": self.server.url,
            "OPENHANDS_API_KEY": self.server.key,
            "OPENHANDS_PUBLIC_URL": "https://people.example/canvas",
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(self.workspace),
        }

    def __call__(self, *words: object, **more: Any) -> Result:
        """Run a verb of `openhands`; the server's key must never show."""
        done = self.cli("openhands", *words, **(self.variables | more))
        for text in (done.out, done.err):
            assert self.server.key not in text
            assert "evx1_" not in text
            assert "Bearer" not in text
        return done

    def child(self, owner: str, task: str) -> UUID:
        return child_id(main_id(self.cli.bus.as_agent("user").file.bus, owner), task)

    def mission(self, **changed: Any) -> dict[str, Any]:
        return {
            "immediateTask": "Your task now: mend the parser\x1b[2J",
            "links": {"issue": "https://github.com/acme/tool/issues/604"},
            "checkout": {"repository": REPOSITORY, "branch": "fix/604", "headSha": self.head},
            "allowedMutations": ["src/parser.py"],
            "prohibitions": [],
            "skills": ["tests-first"],
            "evidence": ["the tests pass"],
        } | changed

    def create(self, task: str = "writer-604", me: str = "alice", **more: Any) -> Result:
        words = ["create", task, "--role", "writer", "--mission", "-", *more.pop("words", ())]
        checkout = {"repository": REPOSITORY, "branch": f"{me}/{task}", "headSha": self.head}
        mission = self.mission(checkout=checkout, **more.pop("mission", {}))
        return self(*words, me=me, stdin=json.dumps(mission).encode(), **more)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env={"PATH": os.environ["PATH"]} | GIT,
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def make_source(folder: Path) -> str:
    """A repository with one commit; returns the commit."""
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    (folder / "README").write_text("hello\n")
    git(folder, "add", "README")
    git(folder, "commit", "--quiet", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


def make_mirror(workspace: Path, source: Path) -> Path:
    """What `openhands mirror` makes, without a network."""
    path = workspace / "mirrors" / "acme--tool.git"
    path.mkdir(parents=True, mode=0o700)
    git(path, "init", "--quiet", "--bare")
    git(path, "config", "remote.origin.url", f"https://github.com/{REPOSITORY}.git")
    git(path, "config", "remote.origin.fetch", REFSPEC)
    git(path, "fetch", "--quiet", str(source), REFSPEC)
    return path
