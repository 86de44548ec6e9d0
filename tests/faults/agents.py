"""Agents that work until they are killed: they send, archive or watch.

agents.py '{"path": […], "root": "…", "role": "send", "name": "alice", …}'

send     one keyed message after the other, to each of `to` in turn; a line "key id" in
         the file `acks` after each receipt. A new process goes on where that file ends.
archive  whatever is unread; a line "archived id" each
decide   for each id on stdin: decides `decision`, and says how it ended
rotate   for each line on stdin: a new key for `name`
init     `count` processes at once make the bus of the project in `root`
watch    a line "mode …", then a line "shown id" for each message, "warned …" for warnings
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

task: dict[str, Any] = json.loads(sys.argv[1])
sys.path[:0] = task["path"]

from looking import attempt, bus  # noqa: E402

from agent_bus import create  # noqa: E402
from agent_bus.bus import Bus  # noqa: E402
from agent_bus.clock import SystemClock  # noqa: E402
from agent_bus.errors import BusFull, NoSuchMessage, StorageError  # noqa: E402
from agent_bus.sending import Draft  # noqa: E402
from agent_bus.settings import Settings  # noqa: E402


def say(text: str) -> None:
    """One line, in one write."""
    os.write(1, text.encode() + b"\n")


def send(me: Bus) -> None:
    """Send for ever."""
    acks = os.open(task["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number = len(Path(task["acks"]).read_bytes().split(b"\n")) - 1
    while True:
        to = task["to"][number % len(task["to"])]
        key = f"{task['name']}-{number}"
        try:
            receipt = me.send_one(to, Draft(body=f"{key} " * 300, subject=key), key=key)
        except BusFull:
            continue
        os.write(acks, f"{key} {receipt.id}\n".encode())
        number += 1


def archive(me: Bus) -> None:
    """Archive for ever; another process of the same agent may be quicker."""
    while True:
        for ident in me.store.unread(me.identity):
            try:
                if me.read(ident).judged.ok:
                    me.archive(ident)
                    say(f"archived {ident}")
            except (NoSuchMessage, StorageError) as error:
                say(f"failed {ident} {error}")


def watch(me: Bus) -> None:
    """Watch until the time is up that the task gives."""
    with me.watch(warn=lambda line: say(f"warned {line}")) as watching:
        say(f"mode {watching.mode}")
        while True:
            found = watching.next(timeout=task.get("timeout", 3600))
            for stored in found.messages:
                say(f"shown {stored.place.id}")
            for stored in found.bad:
                say(f"bad {stored.place.id} {stored.judged.outcome}")
            if found.timed_out:
                say("timed out")


def decide(me: Bus) -> None:
    """Decide what is named on stdin."""
    say("ready")
    for line in sys.stdin:
        ident = line.strip()
        outcome = attempt(lambda ident=ident: me.decide(ident, task["decision"]).decision.by)  # type: ignore[misc]
        say(f"{ident} {outcome.code}")


def rotate(me: Bus) -> None:
    """Rotate one's own key for each line on stdin."""
    say("ready")
    for _ in sys.stdin:
        outcome = attempt(lambda: me.keys.rotate(me.identity).kid)
        say(f"{outcome.code} {outcome.ident}{outcome.text}")


def init() -> None:
    """Fork, and let all children begin at once."""
    root = Path(task["root"])
    chosen = Settings(data=root / "data", keys=root / "keys", project=root / "project")
    gate, opener = os.pipe()
    for _ in range(task["count"]):
        if os.fork() == 0:
            os.close(opener)
            os.read(gate, 1)  # until the parent closes its end
            try:
                made = create.create(chosen, SystemClock())
                say(f"made {made.file.bus} {made.created} {len(made.warnings)}")
            except Exception as error:  # noqa: BLE001 - said to the test
                say(f"failed {error!r}")
            os._exit(0)
    os.close(gate)
    os.close(opener)
    for _ in range(task["count"]):
        os.wait()


ROLES: dict[str, Callable[[Bus], None]] = {
    "send": send,
    "archive": archive,
    "watch": watch,
    "decide": decide,
    "rotate": rotate,
}
if task["role"] == "init":
    init()
else:
    ROLES[task["role"]](bus(Path(task["root"]), task["name"]))
