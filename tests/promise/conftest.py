"""Processes that send, wrapped in faults where the system has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_bus.testing import TemporaryBus

SEND = """
import json, sys
from agent_bus.bus import Bus
from agent_bus.errors import AgentBusError
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
verb, to, body, key = sys.argv[1:5]
print("ready", flush=True)
sys.stdin.readline()
try:
    if verb == "ask":
        receipt = bus.request_approval(body, key=key or None)
    else:
        receipt = bus.send_one(to, Draft(body=body), key=key or None)
    answer = {"id": receipt.id, "duplicate": receipt.duplicate, "durability": receipt.durability}
except AgentBusError as error:
    answer = {"error": error.code, "text": str(error), "key": getattr(error, "key", None)}
print(json.dumps(answer), flush=True)
"""

Answer = dict[str, Any]


class Sending:
    """A process that is about to send. `go` lets it; `answer` is its last line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._out = process.stdout

    def is_ready(self) -> bool:
        """Wait until it has opened the bus."""
        return self._out.readline() == "ready\n"

    def go(self) -> None:
        """Let it send."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        """What came of it; {} if the process died before it could say."""
        out, _ = self.process.communicate(timeout=120)
        lines = out.splitlines()
        return dict(json.loads(lines[-1])) if lines and lines[-1] != "ready" else {}


Begin = Callable[..., Sending]


@pytest.fixture
def begin(bus: TemporaryBus, start: Callable[..., subprocess.Popen[str]]) -> Begin:
    """Start a process that will send: `begin("bob", "text", key=…, sender=…, wrap=…)`."""

    def begin_one(
        to: str,
        body: str,
        *,
        key: str = "",
        sender: str = "alice",
        verb: str = "send",
        wrap: tuple[str, ...] = (),
        at: TemporaryBus = bus,
    ) -> Sending:
        variables = {"AGENT_MSG_AS": sender, **at.environment}
        return Sending(start(SEND, verb, to, body, key, wrap=wrap, **variables))

    return begin_one


@pytest.fixture
def send(begin: Begin) -> Callable[..., Answer]:
    """Send in a process of its own and give what came of it."""

    def send_one(to: str, body: str, **options: Any) -> Answer:
        sending = begin(to, body, **options)
        # A fault may have hit it before.
        if sending.is_ready():
            sending.go()
        return sending.answer()

    return send_one


@pytest.fixture
def strace() -> Callable[..., tuple[str, ...]]:
    """The words that run a program under strace; skips where it cannot trace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not there")
    tried = subprocess.run(
        ["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False, timeout=60
    )
    if tried.returncode != 0:
        pytest.skip("strace may not trace here")

    def words(*options: str, output: Path | str = os.devnull) -> tuple[str, ...]:
        return ("strace", "-f", "-qq", "-o", str(output), *options)

    return words


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system in memory of half a megabyte; skips where none can be mounted."""
    path = tmp_path_factory.mktemp("disk")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(path)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        pytest.skip("this process may not mount a tmpfs")
    yield path
    subprocess.run(["umount", str(path)], check=True, timeout=60)


@pytest.fixture
def immutable() -> Iterator[Callable[[Path], None]]:
    """Make a folder immutable until the end of the test; skips where chattr does not work."""
    changed: list[Path] = []

    def change(path: Path) -> None:
        done = subprocess.run(
            ["chattr", "+i", str(path)], capture_output=True, check=False, timeout=60
        )
        if done.returncode != 0:
            pytest.skip("chattr +i does not work here")
        changed.append(path)

    yield change
    for path in changed:
        subprocess.run(["chattr", "-i", str(path)], check=True, timeout=60)


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Everything below a folder: its names, and the bytes of its files."""

    def look(path: Path) -> dict[str, bytes]:
        return {
            str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else b""
            for entry in sorted(path.rglob("*"))
        }

    return look
