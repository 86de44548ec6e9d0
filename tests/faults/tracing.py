"""strace: count the system calls of an operation, then let one of them fail or be the last.

`when=N` counts calls of one name since the process began, so each operation is recorded
once, and a point is a name with its number. A run whose fault struck outside the operation
is a fault of this rig and raises.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from looking import Outcome, ailments
from operations import named, repeat
from processes import GUARD, HERE, environment, python, python_path

_CALL = re.compile(r"(?:\d+ +)?([a-z0-9_]+)\(")
MARKS = "?access,?faccessat,?faccessat2"

CHANGES = {
    *("openat", "write", "fsync", "fdatasync", "close", "ftruncate", "fchmod", "utimensat"),
    *("link", "linkat", "unlink", "unlinkat", "rename", "renameat", "renameat2"),
    *("mkdir", "mkdirat", "flock", "exit_group"),
}
"""Calls that change what is on disk; the rest only look."""

ERRORS: Mapping[str, Sequence[str]] = {
    "openat": ("EMFILE", "ENOSPC", "EIO", "EROFS", "EDQUOT", "ENOMEM", "EACCES", "EINTR"),
    "read": ("EIO", "EINTR"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "EFBIG", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "close": ("EIO", "ENOSPC", "EDQUOT"),
    "linkat": ("ENOSPC", "EIO", "EMLINK", "EXDEV", "EPERM", "EROFS", "EDQUOT", "EEXIST"),
    "unlinkat": ("EIO", "EROFS", "EPERM"),
    "unlink": ("EIO", "EROFS", "EPERM"),
    "mkdirat": ("ENOSPC", "EIO", "EROFS", "EMLINK", "EDQUOT"),
    "mkdir": ("ENOSPC", "EIO", "EROFS", "EMLINK", "EDQUOT"),
    "renameat": ("ENOSPC", "EIO", "EROFS"),
    "rename": ("ENOSPC", "EIO", "EROFS"),
    "newfstatat": ("EIO", "ENOMEM"),
    "fstat": ("EIO",),
    "getdents64": ("EIO",),
    "lseek": ("EIO",),
    "flock": ("ENOLCK",),
}


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A system call: the `when`-th of this name in the life of the process."""

    name: str
    when: int


@dataclass(frozen=True, slots=True)
class Task:
    """One operation on one folder, in a process of its own."""

    operation: str
    root: Path
    ident: str
    defects: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of the process, while it performs: `NOFILE`, `FSIZE`."""
    alone: bool = False
    """Whether only the process itself is harmed, and not those that it starts."""

    def words(self) -> list[str]:
        """The command."""
        said = {
            "path": python_path(),
            "root": str(self.root),
            "operation": self.operation,
            "ident": self.ident,
            "defects": list(self.defects),
            "limits": dict(self.limits),
        }
        return [*python(), str(HERE / "workload.py"), json.dumps(said)]

    def judged(self, outcome: Outcome) -> list[str]:
        """What is wrong after this outcome, and after a repetition in peace."""
        operation = named(self.operation)
        found = list(operation.check(self.root, self.ident, outcome))
        if outcome.code == "raw":
            found.append(f"an exception that is none of ours: {outcome.text}")
        # Half a bus is none yet, and what is half pruned is called replayed.
        if self.operation not in ("init", "prune"):
            found += ailments(self.root)
        found += repeat(operation, self.root, self.ident, outcome)
        return found + [f"repeated, {what}" for what in ailments(self.root)]


def run(task: Task, strace: Sequence[str] = ()) -> Outcome:
    """Run a task, under strace if there are arguments for it."""
    follow = [] if task.alone else ["-f"]
    words = ["strace", *follow, *strace, *task.words()] if strace else task.words()
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(**task.env),
        timeout=GUARD,
        check=False,
    )
    said = done.stdout.decode().strip().splitlines()
    if said:
        return Outcome(*json.loads(said[-1]))
    if done.returncode not in (-9, 137):
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return Outcome("died")


def record(task: Task, log: Path) -> list[Point]:
    """The points of an operation, in order."""
    outcome = run(task, ["-o", str(log)])
    if outcome.code != "ok":
        raise AssertionError(f"without any fault it gave {outcome}")
    counts: Counter[str] = Counter()
    points: list[Point] = []
    inside = False
    for line in log.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        counts[found[1]] += 1
        if "/agent-bus-mark/" in line:
            inside = not inside
        elif inside:
            points.append(Point(found[1], counts[found[1]]))
    return points


def strike(task: Task, point: Point, fault: str, log: Path) -> Outcome:
    """Run a task with one fault: `error=EIO`, `signal=KILL`, `delay_enter=…`."""
    # Faster, since the other calls do not stop the process; strace 6.1 sends no signals then.
    fast = ["--seccomp-bpf"] if fault.startswith("error") and not task.alone else []
    outcome = run(
        task,
        [
            *fast,
            *("-o", str(log)),
            *("-e", f"trace={point.name},{MARKS}"),
            *("-e", f"inject={point.name}:{fault}:when={point.when}"),
        ],
    )
    text = log.read_text(errors="replace")
    before, begun, _ = text.partition("/agent-bus-mark/begin")
    if not begun or "INJECTED" in before:
        raise AssertionError(f"{fault} at {point} struck before the operation:\n{text[-2000:]}")
    if fault.startswith("error") and "INJECTED" not in text:
        raise AssertionError(f"{fault} at {point} did not strike:\n{text[-2000:]}")
    return outcome


def deaths(points: list[Point], *, exhaustive: bool, sample: int) -> list[Point]:
    """Before which calls to die. Between two calls that change something nothing happens."""
    changing = [point for point in points if point.name in CHANGES and point.name != "close"]
    return points if exhaustive else changing[:: -(-len(changing) // sample)]
