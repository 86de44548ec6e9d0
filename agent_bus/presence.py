"""Who is attached: one file per attached process, written by it alone.

    agents/<agent>/<start id>.json
    {"pid","role","started_at","host","version","mode","session"?}

A lock (flock) held on the file means that the process lives: the kernel lets go of it
however the process ends, and no process number is ever trusted. The file's time is when the
process was last busy. A dead file stays, for "last seen", until the agent attaches again.
Presence is for people and for receipts; nothing is delivered or withheld because of it, and
nothing that is wrong here is an error anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from agent_bus.arrivals import Mode
from agent_bus.clock import Clock, from_text, to_text
from agent_bus.errors import AgentBusError
from agent_bus.files import Folder, UnfitFile
from agent_bus.names import AgentName, is_agent_name, is_message_id
from agent_bus.reading import reason
from agent_bus.store import open_or_make

Role = Literal["mcp", "watch", "wait"]

AGENTS = "agents"
_ROLES: tuple[str, ...] = get_args(Role)
_MODES: tuple[str, ...] = get_args(Mode)
_LIMIT = 16 * 1024
_TEXT_LIMIT = 256
_SUFFIX = ".json"
_SEEN_INTERVAL = 30.0
_LEFTOVER_AGE = 24 * 3600


@dataclass(frozen=True, slots=True)
class Process:
    """One process that is or was attached."""

    id: str
    """When it started, as a ULID."""
    pid: int
    role: Role
    started_at: str
    """RFC 3339."""
    alive: bool
    seen_at: int
    """Milliseconds since 1970 at which it was last busy."""
    mode: Mode
    session: str | None
    host: str
    version: str


class Presence:
    """The attached processes of one bus. `warn` gets a line if this one cannot be recorded."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        version: str,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root = root
        self._clock = clock
        self._version = version
        self._warn = warn

    def attach(
        self, agent: AgentName, role: Role, *, mode: Mode = "events", session: str | None = None
    ) -> Attachment:
        """Record that this process serves an agent, until the result is closed.

        Where the folder cannot be written the result holds nothing, and says so in
        `problem`.
        """
        fields: dict[str, object] = {
            "pid": os.getpid(),
            "role": role,
            "started_at": to_text(self._clock.now()),
            "host": platform.node(),
            "version": self._version,
            "mode": mode,
        }
        attachment = Attachment(self._clock, lambda: self._make(agent), fields, session)
        if attachment.problem:
            self._warn(f"this process will not be seen as attached: {attachment.problem}")
        else:
            with contextlib.suppress(OSError, AgentBusError):
                self._clear(agent)
        return attachment

    def processes(self, agent: AgentName) -> list[Process]:
        """The processes of an agent: the living first, and of each kind the newest first."""
        try:
            with self._open(agent) as folder:
                found = [_read(folder, name) for name in folder.names()]
        except (OSError, AgentBusError):
            return []
        known = (process for process in found if process is not None)
        return sorted(known, key=lambda process: (process.alive, process.id), reverse=True)

    def attached(self, agent: AgentName) -> bool:
        """Whether a living process serves the agent."""
        try:
            with self._open(agent) as folder:
                return any(_is_start(name) and folder.is_held(name) for name in folder.names())
        except (OSError, AgentBusError):
            return False

    def last_seen(self, agent: AgentName) -> int | None:
        """When a process of the agent was last busy: milliseconds since 1970, None for never."""
        return max((process.seen_at for process in self.processes(agent)), default=None)

    def session_agent(self, session: str) -> AgentName | None:
        """The agent whose living process named this session; None if there are none or several."""
        found = {
            agent
            for agent in self._agents()
            if any(p.alive and p.session == session for p in self.processes(agent))
        }
        return found.pop() if len(found) == 1 else None

    def _agents(self) -> Iterator[AgentName]:
        try:
            with Folder.open(self._root) as root, root.child(AGENTS) as agents:
                names = agents.names()
        except (OSError, AgentBusError):
            return
        yield from (AgentName(name) for name in names if is_agent_name(name))

    def _open(self, agent: AgentName) -> Folder:
        with Folder.open(self._root) as root:
            return root.descend(AGENTS, agent)

    def _make(self, agent: AgentName) -> Folder:
        with Folder.open(self._root) as root, open_or_make(root, AGENTS) as agents:
            return open_or_make(agents, agent)

    def _clear(self, agent: AgentName) -> None:
        """Remove the agent's dead files, except the one that was seen last."""
        dead = [process for process in self.processes(agent) if not process.alive]
        dead.sort(key=lambda process: process.seen_at)
        with self._open(agent) as folder:
            names = [process.id + _SUFFIX for process in dead[:-1]]
            for name in (*names, *self._leftovers(folder)):
                with contextlib.suppress(OSError):
                    folder.unlink(name)

    def _leftovers(self, folder: Folder) -> Iterator[str]:
        """What a crash in the middle of attaching has left."""
        for name in folder.names():
            status = folder.status(name) if name.startswith(".") else None
            if status and self._clock.now() / 1000 - status.st_mtime > _LEFTOVER_AGE:
                yield name


class Attachment:
    """The presence of this process, until `close`. Safe between threads."""

    def __init__(
        self,
        clock: Clock,
        folder: Callable[[], Folder],
        fields: Mapping[str, object],
        session: str | None,
    ) -> None:
        self.problem = ""
        """Why it holds nothing; empty if it does."""
        self._clock = clock
        self._folder = folder
        self._fields = fields
        self._session = session if _is_session(session) else None
        self._name = clock.new_id() + _SUFFIX
        self._lock = threading.Lock()
        self._seen = clock.monotonic()
        self._fd: int | None = None
        self._hold()
        _here.add(self)

    def seen(self) -> None:
        """Note that the process is busy; writes at most every 30 seconds, and never raises."""
        with self._lock:
            now = self._clock.monotonic()
            if self._fd is None or now - self._seen < _SEEN_INTERVAL:
                return
            self._seen = now
            try:
                self._touch()
            except FileNotFoundError:
                # Somebody removed it, or the whole folder.
                self._release()
                self._hold()
            except (OSError, AgentBusError):
                pass

    def name_session(self, session: str) -> None:
        """Record the session of the host, where it is told after the start; never raises.

        A second name is another session of the same process, and takes the place of the
        first. The record is made anew, so that nobody ever finds half of one.
        """
        with self._lock:
            if self._fd is None or session == self._session or not _is_session(session):
                return
            old, old_fd = self._name, self._fd
            self._session, self._name, self._fd = session, self._clock.new_id() + _SUFFIX, None
            self._hold()
            with contextlib.suppress(OSError, AgentBusError), self._folder() as folder:
                folder.unlink(old)
            os.close(old_fd)

    def close(self) -> None:
        """End it; a second call does nothing."""
        with self._lock, contextlib.suppress(OSError, AgentBusError):
            if self._fd is not None:
                try:
                    self._touch()
                finally:
                    self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self) -> None:
        try:
            with self._folder() as folder:
                self._fd = folder.hold(self._name, self._data())
        except OSError as error:
            self.problem = reason(error)
        except AgentBusError as error:
            self.problem = str(error)

    def _data(self) -> bytes:
        session = {"session": self._session} if self._session else {}
        return json.dumps({**self._fields, **session}).encode() + b"\n"

    def _touch(self) -> None:
        with self._folder() as folder:
            folder.touch(self._name)

    def _release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


_here: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _let_go() -> None:
    for attachment in list(_here):
        attachment._release()  # noqa: SLF001 - the child is no reader of our interface


if hasattr(os, "register_at_fork"):
    # A child that was forked and runs no other program shares the lock, and would keep it
    # alive after this process has died.
    os.register_at_fork(after_in_child=_let_go)


def _read(folder: Folder, name: str) -> Process | None:
    """One presence file; None for whatever is none."""
    if not _is_start(name):
        return None
    try:
        value = json.loads(folder.read(name, _LIMIT))
        status = folder.status(name)
        if status is None or not _is_presence(value):
            return None
    except (OSError, UnfitFile, ValueError, RecursionError):
        return None
    return Process(
        id=name.removesuffix(_SUFFIX),
        pid=value["pid"],
        role=value["role"],
        started_at=value["started_at"],
        alive=folder.is_held(name),
        seen_at=status.st_mtime_ns // 1_000_000,
        mode=value["mode"],
        session=value.get("session"),
        host=value["host"],
        version=value["version"],
    )


def _is_session(session: str | None) -> bool:
    return bool(session) and len(session or "") <= _TEXT_LIMIT


def _is_start(name: str) -> bool:
    return name.endswith(_SUFFIX) and is_message_id(name.removesuffix(_SUFFIX))


def _is_presence(value: Any) -> bool:
    """Whether this is what `attach` writes. Raises ValueError for a time that is none."""
    if not isinstance(value, dict) or type(value.get("pid")) is not int:
        return False
    texts = [value.get(name) for name in ("role", "started_at", "host", "version", "mode")]
    texts.append(value.get("session", ""))
    if not all(isinstance(text, str) and len(text) <= _TEXT_LIMIT for text in texts):
        return False
    from_text(value["started_at"])
    return value["role"] in _ROLES and value["mode"] in _MODES
