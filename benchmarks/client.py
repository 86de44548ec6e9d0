"""A client of an MCP server on two pipes, as small as it can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
BARE = (sys.executable, "-m", "benchmarks.bare_server")
OURS = (sys.executable, "-m", "agent_bus", "mcp")

_INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class Client:
    """One server process and its initialised session."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str] = {}) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | environment,
        )
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.request("initialize", _INITIALIZE)
        self._write({"method": "notifications/initialized"})

    def begin(self, method: str, parameters: dict[str, Any]) -> int:
        """Send a request; the number is for `answer`."""
        self._count += 1
        self._write({"id": self._count, "method": method, "params": parameters})
        return self._count

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the answer to a request. Raises RuntimeError for a failure."""
        assert self.process.stdout is not None
        while number not in self._answers:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the server has ended")
            value = json.loads(line)
            if "id" in value:
                self._answers[value["id"]] = value
        answer = self._answers.pop(number)
        if "error" in answer or answer["result"].get("isError"):
            raise RuntimeError(json.dumps(answer))
        result: dict[str, Any] = answer["result"]
        return result

    def request(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        return self.answer(self.begin(method, parameters))

    def begin_call(self, tool: str, **arguments: Any) -> int:
        """Begin to call a tool."""
        return self.begin("tools/call", {"name": tool, "arguments": arguments})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and wait for what it answers."""
        return self.answer(self.begin_call(tool, **arguments))

    def close(self) -> None:
        """End the session and the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()
