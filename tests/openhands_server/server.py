"""A real agent server, in folders and on a port of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

GUARD = 120.0
"""Seconds after which it counts as not coming up."""
RUNS = 4
"""How many runs it has room for."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Server:
    """The server; it runs inside the `with`, and can be killed and started again there."""

    def __init__(self, program: Path, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.key = f"session-{secrets.token_urlsafe(24)}"
        self.secret_key = f"storage-{secrets.token_urlsafe(24)}"
        self.port = free_port()
        self.log = folder / "server.log"
        self._program = program
        # A socket's path has little room, so that this one stands apart.
        self._sockets = tempfile.TemporaryDirectory(prefix="oh-")
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self.client = httpx2.Client(
            base_url=self.url,
            headers={"X-Session-API-Key": self.key},
            trust_env=False,
            timeout=60,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """All that it is given: nothing of this process but where programs are."""
        folder = self.folder
        return {
            "PATH": f"{self._program}/bin{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TMUX_TMPDIR": self._sockets.name,
            "TMPDIR": self._sockets.name,
            "OH_SESSION_API_KEYS_0": self.key,
            "OH_SECRET_KEY": self.secret_key,
            "OH_CONVERSATIONS_PATH": str(folder / "conversations"),
            "OH_WORKSPACE_PATH": str(folder / "project"),
            "OH_BASH_EVENTS_DIR": str(folder / "bash"),
            "OH_PERSISTENCE_DIR": str(folder / "settings"),
            "OH_ENABLE_VSCODE": "false",
            "OH_ENABLE_BROWSER": "false",
            "OH_PRELOAD_TOOLS": "false",
            "OH_MAX_CONCURRENT_RUNS": str(RUNS),
            # Else its log is broken into short lines, in which nothing is found.
            "LOG_JSON": "true",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "ACP_USAGE_UPDATE_TIMEOUT": "0.2",
        } | self._variables

    def start(self) -> None:
        """Start it; returns when it answers."""
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program / "bin" / "python",
                    *("-m", "openhands.agent_server"),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                ],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + GUARD
        while not self._is_ready():
            assert self._process.poll() is None, f"it ended: {self._tail()}"
            assert time.monotonic() < until, f"it does not come up: {self._tail()}"
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, and its terminals with it: a server that is killed leaves them behind."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again, with the same folders."""
        self.kill()
        self.start()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """A request to its REST interface."""
        return self.client.request(method, path, json=body, headers=headers)

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/ready", timeout=2).status_code == 200
        except httpx2.HTTPError:
            return False

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _end(self, number: signal.Signals) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(20)
        for pid in terminals(self._sockets.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(signal.SIGTERM)
        self.client.close()
        self._sockets.cleanup()


def terminals(sockets: str) -> list[int]:
    """The processes whose terminals stand in this folder: tmux and what it runs."""
    wanted = f"TMUX_TMPDIR={sockets}".encode()
    return [pid for pid in processes() if wanted in read_proc(pid, "environ").split(b"\0")]


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_proc(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def living_children() -> set[int]:
    """The children of this process that have not ended."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in listing.read_text().split()}
    return {pid for pid in found if _state(pid) not in (b"Z", b"")}


def _state(pid: int) -> bytes:
    return read_proc(pid, "stat").rpartition(b")")[2].strip()[:1]
