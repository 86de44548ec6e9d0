"""One person's machine in a folder: a home, a project with a bus, and the real hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import recorder
from wire import Wire, wires

from agent_bus.bus import Bus
from agent_bus.settings import Settings

INSTALLED = "AGENT_BUS_HOSTS"
"""The variable with the folder that npm has put the hosts into."""
MARK = "AGENT_BUS_TEST"
"""The variable by which the processes of a test are known, also those that left its tree."""
GUARD = 120.0
"""Seconds after which a host counts as hanging."""
KEY = "sk-ant-api03-" + "0" * 40
"""Nobody's key: the model stands on loopback and looks at none."""


class Desk:
    """Alice and Bob have keys here. Hosts are started as Alice unless `variables` say else."""

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self.home, self.project = folder / "home", folder / "project"
        self.mark = uuid.uuid4().hex
        self.variables: dict[str, str] = {}
        """What the host is started with."""
        self.temporary = folder / "tmp"
        self._wires, programs = folder / "wires", folder / "bin"
        for made in (self.home, self.project, self.temporary, self._wires, programs):
            made.mkdir()
        self.program = recorder.install(programs, self._wires)
        self.run("git", "init", "--quiet")
        self.agent_bus("init", "--agents", "alice,bob", name=None)

    @property
    def wires(self) -> list[Wire]:
        """What was said to each server, oldest first."""
        return wires(self._wires)

    @property
    def wire(self) -> Wire:
        """What was said to the one server that was started."""
        (only,) = self.wires
        return only

    def bus(self, name: str) -> Bus:
        """The bus of the project, as one of its agents."""
        data = self.home / ".local/share/agent-bus"
        return Bus.open(
            Settings(data=data, keys=data / "keys", project=self.project), identity=name
        )

    def environment(self, name: str | None = "alice", **more: str) -> dict[str, str]:
        """What a host is started with: nothing of the tester's own but PATH."""
        path = [str(self.program.parent), str(installed() / "node_modules/.bin")]
        given = {
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
            "TERM": "xterm-256color",
            "TMPDIR": str(self.temporary),
            MARK: self.mark,
            # Whatever is wanted from elsewhere is asked for at the model's door, and refused.
            "HTTP_PROXY": self.model,
            "HTTPS_PROXY": self.model,
            "NO_PROXY": "127.0.0.1,localhost",
        }
        given |= {} if name is None else {"AGENT_MSG_AS": name}
        return given | self.variables | more

    def start(
        self,
        *words: str,
        name: str | None = "alice",
        talks: bool = False,
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Start a program in the project; with `talks`, its input is a pipe."""
        return subprocess.Popen(
            words,
            cwd=self.project,
            env=self.environment(name, **variables),
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, *words: str, name: str | None = "alice", **variables: str) -> str:
        """Run a program in the project to its end. Returns what it wrote to both outputs."""
        return self.finish(self.start(*words, name=name, talks=False, **variables))

    def wait_for_call(self, tool: str, during: subprocess.Popen[str]) -> None:
        """Wait until some server was asked to run this tool, while the host runs."""
        until = time.monotonic() + GUARD
        while not any(wire.calls(tool) for wire in self.wires):
            if during.poll() is not None or time.monotonic() > until:
                self.end_processes()
                out = during.communicate(timeout=GUARD)[0]
                raise AssertionError(f"nobody called {tool}; {during.args!r} wrote:\n{out}")
            time.sleep(0.02)

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end of a program. Returns what it wrote."""
        try:
            return process.communicate(timeout=GUARD)[0]
        except subprocess.TimeoutExpired:
            self.end_processes()
            out = process.communicate(timeout=GUARD)[0]
            raise AssertionError(f"{process.args!r} hangs, after writing:\n{out}") from None

    def agent_bus(self, *words: str, name: str | None = "alice") -> str:
        """Run `agent-bus`; it has to succeed. Returns what it wrote."""
        process = self.start(str(self.program), *words, name=name)
        out = self.finish(process)
        assert process.returncode == 0, out
        return out

    def write(self, path: str, text: str) -> None:
        """Put a file into the home."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def end_processes(self) -> None:
        """End all that was started here, also what runs apart, by its id."""
        until = time.monotonic() + GUARD
        while left := self.processes:
            assert time.monotonic() < until, f"cannot end {left}"
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        until = time.monotonic() + GUARD
        while not holds():
            assert time.monotonic() < until, f"waited in vain: {what}"
            time.sleep(0.05)

    @property
    def waiting_hooks(self) -> list[int]:
        """The processes that wait for a message to wake a model, once they listen for one.

        Empty while another hook is still at work, which may take the message for its own.
        """
        hooks = [process for process in self.processes if b"hook" in _words(process)]
        return hooks if all(map(_listens, hooks)) else []

    @property
    def processes(self) -> list[int]:
        """What was started here and still runs."""
        numbers = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return [number for number in numbers if self._is_ours(number)]

    def _is_ours(self, process: int) -> bool:
        mark = f"{MARK}={self.mark}".encode()
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            return mark in variables and _state(process) != "Z"
        except OSError:
            return False


def _words(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _listens(hook: int) -> bool:
    if b"\0rewake\0" not in _words(hook):
        return False
    try:
        opened = [os.readlink(link) for link in Path(f"/proc/{hook}/fd").iterdir()]
        return any("inotify" in target for target in opened) and _state(hook) == "S"
    except OSError:
        return False


def _state(process: int) -> str:
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[0]


def installed() -> Path:
    """The folder that npm has put the hosts into."""
    return Path(os.environ[INSTALLED])


def dump(value: object) -> str:
    """JSON for a file of a host."""
    return json.dumps(value, indent=2)


if sys.platform != "linux":
    raise ImportError("the processes of hosts are found in /proc: these tests need Linux")
