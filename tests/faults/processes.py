"""Processes that a test starts, ends, stops and waits for: always by their id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = "AGENT_BUS_FAULTS_SOURCE"
"""The variable with the folder that holds the package."""
GUARD = 120.0
"""Seconds after which a test is taken to hang."""


def python_path() -> list[str]:
    """Where a bare Python finds these modules, the package and what it needs."""
    source = os.environ.get(SOURCE, str(ROOT))
    return [str(HERE), source, *(entry for entry in sys.path if entry.endswith("-packages"))]


def python() -> list[str]:
    """A Python that starts fast: without `site`."""
    return [sys.executable, "-S", "-s", "-P"]


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that is the same each time it is started."""
    kept = ("PATH", "HOME", "PYTHONPYCACHEPREFIX")
    inherited = {name: os.environ[name] for name in kept if name in os.environ}
    return {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", **inherited, **more}


def wait_until(what: Callable[[], bool], describe: str) -> None:
    """Wait for a condition; a guard against hanging, no measure of time."""
    limit = time.monotonic() + GUARD
    while not what():
        if time.monotonic() > limit:
            raise AssertionError(f"waited in vain: {describe}")
        time.sleep(0.005)


class Processes:
    """Started processes, each in a session of its own. Their output lies in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        words: Sequence[str],
        *,
        output: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process. stdout goes to `output` (appended) or to a pipe."""
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context((self._folder / "stderr").open("ab"))
            out = stack.enter_context(output.open("ab")) if output else subprocess.PIPE
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out,
                stderr=errors,
                env=dict(env) if env is not None else environment(),
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def complaints(self) -> str:
        """What they wrote to stderr."""
        path = self._folder / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self) -> None:
        """Kill what still runs, and wait for all."""
        for process in self._started:
            kill(process)
        self._started.clear()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its session, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(GUARD)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def agent(role: str, root: Path, name: str, **more: object) -> list[str]:
    """The command of an agent that works until it is killed; see agents.py."""
    task = {"path": python_path(), "root": str(root), "role": role, "name": name, **more}
    return [*python(), str(HERE / "agents.py"), json.dumps(task)]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until it stands still: a flush in the kernel ends first."""
    os.kill(process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    wait_until(
        lambda: status.read_text().rpartition(")")[2].split()[0] in "TtZ", f"{process.pid} stops"
    )
