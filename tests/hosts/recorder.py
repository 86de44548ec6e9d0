"""Stands in a host's configuration as `agent-bus` and is it, with the wire of its server kept.

The bytes pass through two threads of the same process, so that signals, the parent and the
exit stay as they are. Each server writes a file of its own: a line of JSON for each message.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import agent_bus

PROGRAM = """\
#!{python}
import sys
sys.path[:0] = {path!r}
import recorder
recorder.main({wires!r})
"""


def install(folder: Path, wires: Path) -> Path:
    """Put the program into a folder. Returns its path."""
    program = folder / "agent-bus"
    path = [str(Path(__file__).resolve().parent), str(Path(agent_bus.__file__).parent.parent)]
    program.write_text(PROGRAM.format(python=sys.executable, path=path, wires=str(wires)))
    program.chmod(0o755)
    return program


def main(wires: str) -> None:
    """Be `agent-bus`; keep what is said if it is the server."""
    if sys.argv[1:] == ["mcp"]:
        _record(Path(wires) / f"{os.getpid()}.jsonl")
    from agent_bus.cli import main as run

    run()


def _record(path: Path) -> None:
    log = path.open("ab", buffering=0)
    inner, outer = os.pipe(), os.pipe()
    ways = (("in", os.dup(0), inner[1]), ("out", outer[0], os.dup(1)))
    os.dup2(inner[0], 0)
    os.dup2(outer[1], 1)
    # The write ends of what stdin and stdout are now belong to a thread each, and to no child.
    os.close(inner[0])
    os.close(outer[1])
    threads = [
        threading.Thread(target=_pass_on, args=(way, source, target, log), daemon=True)
        for way, source, target in ways
    ]
    for thread in threads:
        thread.start()
    atexit.register(_let_out, threads[1])


def _let_out(thread: threading.Thread) -> None:
    # A server that refuses to start ends at once after its answer.
    os.close(1)
    thread.join(2)


def _pass_on(way: str, source: int, target: int, log: BinaryIO) -> None:
    rest = b""
    try:
        while chunk := os.read(source, 1 << 16):
            os.write(target, chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                said = json.dumps({"way": way, "said": line.decode("utf-8", "replace")})
                log.write(said.encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(target)
