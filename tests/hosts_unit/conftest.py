"""Hooks as a host runs them: a shell, the command that `connect` writes, JSON on stdin."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_bus.hosts import guard
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

GUARD = 60.0
"""Seconds after which a process counts as hanging."""


@dataclass(frozen=True)
class Ran:
    """How a hook ended."""

    code: int
    out: str
    err: str

    @property
    def reply(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def note(self) -> str:
        """What the model is told."""
        return str(self.reply["hookSpecificOutput"]["additionalContext"])

    def silent(self) -> None:
        assert (self.code, self.out, self.err) == (0, "", "")


@dataclass
class Host:
    """A host with one session of one agent."""

    bus: TemporaryBus
    environment: dict[str, str]
    name: str = "claude"
    session: str = "session-1"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def marks(self) -> Path:
        return Path(self.environment["HOME"]) / ".local/share/agent-bus/hooks"

    @property
    def box(self) -> Path:
        return self.bus.path / "messages/alice/new"

    def program(self) -> guard.Program:
        words = [sys.executable, "-m", "agent_bus"]
        return guard.Program(words, self.bus.environment, shlex.quote(str(self.marks)))

    def command(self, event: str) -> str:
        script = guard.command(self.program(), self.name, event)
        return guard.portable(script) if self.name == "codex" else script

    def variables(self, **more: str | None) -> dict[str, str]:
        own = {"AGENT_MSG_AS": "alice", "CLAUDE_CODE_SESSION_ID": self.session}
        every = self.environment | own | more
        return {key: value for key, value in every.items() if value is not None}

    def __call__(
        self,
        event: str,
        *,
        stdin: bytes | int | None = None,
        wrap: tuple[str, ...] = (),
        shell: str = "sh",
        variables: dict[str, str | None] | None = None,
        **given: Any,
    ) -> Ran:
        value = {"session_id": self.session, "hook_event_name": event} | given
        data: dict[str, Any] = {"input": json.dumps(value).encode()}
        if isinstance(stdin, int):
            data = {"stdin": stdin}
        elif stdin is not None:
            data = {"input": stdin}
        done = subprocess.run(
            [*wrap, shell, "-c", self.command(event)],
            env=self.variables(**(variables or {})),
            cwd=self.bus.path.parent,
            capture_output=True,
            timeout=GUARD,
            check=False,
            **data,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, command: str, **variables: str | None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", command],
            env=self.variables(**variables),
            cwd=self.bus.path.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def send(self, **fields: Any) -> str:
        """A message from bob to alice."""
        draft = Draft(**{"body": "the body", "subject": "hello"} | fields)
        return self.bus.as_agent("bob").send_one("alice", draft).id

    def settle(self) -> None:
        """Let the box look as if it had last changed a while ago."""
        past = self.box.stat().st_mtime_ns - 10_000_000_000
        os.utime(self.box, ns=(past, past))

    def attach(self, agent: str, session: str) -> Any:
        """What the server of a session does."""
        bus = self.bus.as_agent(agent)
        return bus.presence.attach(AgentName(agent), "mcp", session=session)


@pytest.fixture
def host(bus: TemporaryBus, environment: dict[str, str]) -> Iterator[Host]:
    """Claude Code with a session of alice."""
    made = Host(bus, environment)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=GUARD)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool], str], None]:
    """Wait for something; the time limit is a guard against hanging."""
    import time

    def wait(condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + GUARD
        while not condition():
            assert time.monotonic() < until, f"never happened: {what}"
            time.sleep(0.02)

    return wait
