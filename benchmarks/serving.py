"""The MCP server: a send, the start, the memory. The floor is the SDK's bare server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.client import BARE, OURS, Client
from benchmarks.measuring import Result, Scale, compared, in_turn, median
from benchmarks.sending import BODY, box_and_bus

_SETTLING = 1.5
"""Seconds after which a server has loaded what it loads."""


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    with box_and_bus(scale, "alice", "bob") as (bare_box, bus):
        environment = bus.environment | {"AGENT_MSG_AS": "alice"}
        with Client(BARE) as bare, Client(OURS, environment) as ours:
            steps = [
                bare_box.send,
                lambda: bare.call("nothing"),
                lambda: ours.call("bus_send", to="bob", body=BODY),
            ]
            written, called, sent = in_turn(steps, scale.rounds(600, 150))
        floor = [median(written) + median(called)]
        yield compared("mcp-send", "bus_send over MCP", floor, sent, 1.25)
        yield start(scale, environment)
        yield memory(scale, environment)


def start(scale: Scale, environment: Mapping[str, str]) -> Result:
    """From the start of the process to the answer to `initialize`."""

    def begin(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
        begun = time.perf_counter()
        client = Client(command, environment)
        taken = time.perf_counter() - begun
        client.close()
        return taken

    floor, ours = [], []
    for _ in range(scale.rounds(12, 5)):
        floor.append(begin(BARE, {}))
        ours.append(begin(OURS, environment))
    return compared("mcp-start", "start → initialize answered", floor, ours, 1.0)


def memory(scale: Scale, environment: Mapping[str, str]) -> Result:
    """Resident memory of a server whose client waits."""
    floor, ours = [], []
    for _ in range(scale.rounds(5, 3)):
        with Client(BARE) as bare, Client(OURS, environment) as client:
            bare.call("nothing")
            client.call("bus_status")
            waiting = client.begin_call("bus_wait", timeout=_SETTLING + 2)
            time.sleep(_SETTLING)
            floor.append(_resident(bare.process.pid))
            ours.append(_resident(client.process.pid))
            client.answer(waiting)
    low, high = median(floor), median(ours)
    return Result("mcp-memory", "memory of a waiting server", "MB", high, low, high / low, 1.1)


def _resident(pid: int) -> float:
    """Megabytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1024
