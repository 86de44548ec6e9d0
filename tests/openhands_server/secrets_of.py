"""What must not be seen, and all the places where a reader of a conversation could see it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from uuid import UUID

from desk import GUARD, Desk
from server import processes, read_proc

from agent_bus.openhands.gateway.capability import child_capability_token
from agent_bus.openhands.gateway.gateway import Gateway

Seen = tuple[str, str]
"""Where, and what stands there."""
LISTENER = Path(__file__).resolve().parent / "listener.py"


def secrets_of(desk: Desk, gateway: Gateway, child: UUID) -> dict[str, str]:
    """All secrets that are about, by what they are."""
    record = gateway.journal.load(child)
    capability = child_capability_token(
        gateway.parts.signing.newest(),
        record.owner,
        record.task_key,
        record.role,
        issued_at=record.issued_at,
    )
    found = {
        "capability": capability,
        "session key": desk.real.key,
        "storage key": desk.real.secret_key,
    }
    if desk.settings.secret:
        found["messaging secret"] = desk.settings.secret
    header = desk.settings.gates / str(child) / "completion"
    if header.exists():
        found["completion token"] = header.read_text().rpartition(" ")[2].strip()
    return found


def shown_by_rest(desk: Desk, child: UUID) -> Iterator[Seen]:
    """All answers of the server that are about a conversation, or about its settings."""
    here = f"/api/conversations/{child}"
    places = [
        here,
        f"{here}?include_skills=true",
        f"{here}/agent_final_response",
        f"{here}/events/search?limit=100",
        f"/api/conversations?ids={child}",
        "/api/conversations/search",
        "/api/settings",
        f"/api/file/download-trajectory/{child}",
        *(f"{here}/events/{event['id']}" for event in desk.events(child)),
    ]
    for place in places:
        yield place, desk.real.call("GET", place).text
    for exposed in ("plaintext", "encrypted"):
        answer = desk.real.call("GET", here, **{"X-Expose-Secrets": exposed})
        yield f"{here} {exposed}", answer.text


def in_files(folder: Path, *leave_out: str) -> Iterator[Seen]:
    """All files below a folder."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in leave_out:
            with contextlib.suppress(OSError):
                yield str(path.relative_to(folder)), path.read_text(errors="replace")


class Processes:
    """Looks at all processes, over and over, while the `with` lasts.

    What it sees: the command lines of all, and the environments of the hooks. The server's own,
    and that of its tmux, hold its keys; its user alone can read them.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: set[Seen] = set()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for pid in processes():
                command = read_proc(pid, "cmdline").decode(errors="replace").replace("\0", " ")
                self.seen.add(("a command line", command))
                environment = read_proc(pid, "environ")
                if b"OPENHANDS_EVENT_TYPE=" in environment:
                    text = environment.decode(errors="replace")
                    self.seen.add((f"the environment of a hook: {command[:40]}", text))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(GUARD)


@contextlib.contextmanager
def listening(desk: Desk, program: Path, child: UUID) -> Iterator[Path]:
    """Both sockets of a conversation write what they say into a file while the `with` lasts."""
    frames = desk.folder / "frames"
    process = subprocess.Popen(
        [program / "bin" / "python", LISTENER, str(desk.real.port), str(child), frames],
        env={"PATH": os.environ["PATH"], "SESSION_KEY": desk.real.key},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == "listening\n"
        yield frames
    finally:
        process.communicate(timeout=GUARD)
