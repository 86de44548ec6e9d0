"""The command line as its users start it: a process of its own, on a real bus."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

Program = Callable[..., Any]
"""Something that starts a process when it is called."""
GUARD = 60.0
"""Seconds after which a process counts as hanging."""
COMMAND = (sys.executable, "-m", "agent_bus")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]

    @property
    def records(self) -> list[dict[str, Any]]:
        self.raw.decode("ascii")
        return [json.loads(line) for line in self.lines]

    @property
    def record(self) -> dict[str, Any]:
        (one,) = self.records
        return one

    def refused(self, code: int, *words: str) -> Result:
        """Assert that it was refused in one line, with these words, and without a traceback."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.err.startswith("agent-bus: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err
        return self

    def ended(self, code: int, *words: str) -> Result:
        """Assert the same of one that had told before how it goes on: its last line counts."""
        assert self.code == code, (self.code, self.out, self.err)
        return Result(code, self.raw, self.err.splitlines(keepends=True)[-1]).refused(code, *words)


@dataclass
class Cli:
    """Starts `agent-bus` on the bus of the test."""

    bus: TemporaryBus
    environment: dict[str, str]
    folder: Path
    command: tuple[str, ...] = COMMAND
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def variables(self, name: str | None, **more: str | None) -> dict[str, str]:
        every = self.environment | self.bus.environment | more
        if name is not None:
            every["AGENT_MSG_AS"] = name
        return {key: value for key, value in every.items() if value is not None}

    def __call__(
        self,
        *words: object,
        me: str | None = None,
        stdin: bytes | int = b"",
        **more: str | None,
    ) -> Result:
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = subprocess.run(
            [*COMMAND, *map(os.fsencode, map(str, words))],
            env=self.variables(me, **more),
            cwd=self.folder,
            capture_output=True,
            timeout=GUARD,
            check=False,
            **given,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    def start(
        self, *words: object, me: str | None = None, stdout: int = subprocess.PIPE, **more: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            env=self.variables(me, **more),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def send(self, sender: str, to: str, **fields: Any) -> str:
        """Send without a process of its own; returns the id."""
        fields = {"body": "hello"} | fields
        key = fields.pop("key", None)
        return self.bus.as_agent(sender).send_one(to, Draft(**fields), key=key).id

    def file(self, box: str, ident: str) -> Path:
        """Where an unread message lies."""
        return self.bus.path / "messages" / box / "new" / message_file(MessageId(ident))

    def forge(self, box: str, ident: str) -> Path:
        """Change one byte of a stored message, so that its signature does not hold."""
        path = self.file(box, ident)
        path.write_bytes(path.read_bytes().replace(b"hello", b"hellp", 1))
        return path

    def files(self) -> set[str]:
        """All that stands on the bus and among the keys."""
        roots = (self.bus.path, self.bus.settings.keys)
        return {str(path) for root in roots for path in root.rglob("*")}

    def attached(self, name: str) -> bool:
        return self.bus.as_agent("user").presence.attached(AgentName(name))


class Lines:
    """Follows running processes. Its time limits are guards against hanging."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli

    def attached(self, name: str, number: int = 1) -> None:
        """Wait until so many processes of an agent are attached."""
        self._until(lambda: self._count(name) >= number, f"{name} attaches")

    def detached(self, name: str) -> None:
        """Wait until no process of an agent is attached."""
        self._until(lambda: not self._count(name), f"{name} detaches")

    def next(self, process: subprocess.Popen[bytes]) -> str:
        """The next line of a process, which must have been flushed."""
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], GUARD)
            assert ready, "no line came"
            byte = os.read(process.stdout.fileno(), 1)
            assert byte, f"the output ended after {line!r}"
            line += byte
        return line.decode().removesuffix("\n")

    def _count(self, name: str) -> int:
        processes = self._cli.bus.as_agent("user").presence.processes(AgentName(name))
        return sum(process.alive for process in processes)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + GUARD
        while not condition():
            assert time.monotonic() < until, f"never happened: {what}"
            time.sleep(0.01)
