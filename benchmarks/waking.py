"""From the return of a send to the answer of a wait in another process; fifty at once; idling."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from agent_bus.bus import Bus
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus
from benchmarks.client import OURS, ROOT, Client
from benchmarks.measuring import Result, Scale, in_turn, median, milliseconds, percentile
from benchmarks.sending import BODY, BareBox, box_and_bus

_AGENTS = 50
_PAUSE = 0.01
"""Seconds in which a waiter has surely gone to sleep."""
_LIMIT = 120.0
_ALLOWANCE = 3.0
"""Milliseconds that a wake-up may take more than the bare one."""
_POLLING = 10


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    yield from wakes(scale)
    yield from crowd(scale)


def wakes(scale: Scale) -> Iterator[Result]:
    """One waiter, asleep when the message is sent."""
    with ExitStack() as stack:
        bare, bus = stack.enter_context(box_and_bus(scale, "alice", "bob"))
        woken = stack.enter_context(bare_waiter(bare))
        environment = bus.environment | {"AGENT_MSG_AS": "bob"}
        waiter = _Waiter(stack.enter_context(Client(OURS, environment)), bus.as_agent("alice"))
        times: list[list[float]] = [[], [], []]
        steps = [
            lambda: times[0].append(_bare_wake(bare, woken)),
            lambda: times[1].append(waiter.wake()),
            lambda: times[2].append(waiter.wake(after_a_read=True)),
        ]
        in_turn(steps, scale.rounds(300, 60))
    floor = times[0][1:]
    yield from _wake("wake", "send returns → bus_wait answers", floor, times[1][1:])
    yield from _wake("wake-after-read", "the same, right after a read", floor, times[2][1:])


def _wake(
    figure: str, title: str, floor: Sequence[float], ours: Sequence[float]
) -> Iterator[Result]:
    low, high = milliseconds(floor), milliseconds(ours)
    samples = {"samples": float(len(ours))}
    ratio, of = high / (low + _ALLOWANCE), f"ours ÷ (floor + {_ALLOWANCE:.0f} ms)"
    yield Result(figure, title, "ms", high, low, ratio, 1.0, of=of, more=samples)
    far, floor_far = percentile(ours, 0.99) * 1000, percentile(floor, 0.99) * 1000
    yield Result(
        f"{figure}-p99",
        f"{title}: p99",
        "ms",
        far,
        floor_far,
        far / high,
        10.0,
        of="p99 ÷ p50",
        steady=False,
        more=samples,
    )


class _Waiter:
    """An agent's server that waits, and another agent that sends to it."""

    def __init__(self, client: Client, sender: Bus) -> None:
        self._client = client
        self._sender = sender
        self._last = sender.send_one("bob", Draft(body=BODY)).id
        client.call("bus_wait", timeout=60)

    def wake(self, *, after_a_read: bool = False) -> float:
        """Seconds from the return of the send to the answer."""
        waiting = self._client.begin_call("bus_wait", timeout=60)
        time.sleep(_PAUSE)
        if after_a_read:
            self._client.call("bus_read", id=self._last)
        sent = self._sender.send_one("bob", Draft(body=BODY))
        returned = time.perf_counter()
        answer = self._client.answer(waiting)
        taken = time.perf_counter() - returned
        assert [one["id"] for one in answer["structuredContent"]["messages"]] == [sent.id]
        # The box stays small: what it costs to hold many messages is another figure.
        self._client.call("bus_archive", id=self._last)
        self._last = sent.id
        return taken


def _bare_wake(bare: BareBox, woken: Callable[[], None]) -> float:
    time.sleep(_PAUSE)
    bare.send()
    returned = time.perf_counter()
    woken()
    return time.perf_counter() - returned


@contextmanager
def bare_waiter(bare: BareBox) -> Iterator[Callable[[], None]]:
    """A process that watches a bare box; what is yielded waits until it has seen one arrival."""
    command = [sys.executable, "-m", "benchmarks.bare_wake", str(bare.new)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = process.stdout
        assert lines.readline() == b"ready\n"

        def woken() -> None:
            assert lines.readline() == b"woken\n"

        try:
            yield woken
        finally:
            process.kill()


def crowd(scale: Scale) -> Iterator[Result]:
    """Fifty waiting agents, a message to each; then all of them idle, by events and by polling."""
    names = [f"agent{number:02}" for number in range(_AGENTS)]
    pollers = [f"poller{number}" for number in range(_POLLING)]
    with ExitStack() as stack:
        _, bus = stack.enter_context(box_and_bus(scale, "alice", "bob", *names, *pollers))
        listening = stack.enter_context(_Crowd(bus, names))
        yield listening.woken(scale.rounds(4, 2))
        polling = stack.enter_context(_Crowd(bus, pollers, {"AGENT_BUS_POLL": "1"}))
        client = stack.enter_context(Client(OURS, bus.environment | {"AGENT_MSG_AS": "bob"}))
        client.begin_call("bus_wait", timeout=300)
        time.sleep(3)
        waiters = {
            "idle-events": ("idle watch, by events", listening.pids),
            "idle-polling": ("idle watch, by polling", polling.pids),
            "idle-server": ("idle server with a bus_wait", [client.process.pid]),
        }
        yield from _idle(waiters, scale.rounds(65, 35))


class _Crowd:
    """Agents that wait, each an `agent-bus watch`."""

    def __init__(
        self, bus: TemporaryBus, names: Sequence[str], environment: Mapping[str, str] = {}
    ) -> None:
        self._sender = bus.as_agent("alice")
        self._arrived: dict[str, float] = {}
        self._processes = {
            name: subprocess.Popen(
                [sys.executable, "-m", "agent_bus", "watch"],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, **bus.environment, **environment, "AGENT_MSG_AS": name},
            )
            for name in names
        }

    def __enter__(self) -> Self:
        until_attached(self._sender, self._processes)
        time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.communicate()

    def woken(self, rounds: int) -> Result:
        """How long it takes until each has said so."""
        latencies, woken = [], 0
        for _ in range(rounds):
            times = self._round()
            latencies += times
            woken += len(times)
        share = woken / (rounds * len(self._processes))
        more = {"p99": percentile(latencies, 0.99) * 1000, "woken": woken}
        title, of = f"{len(self._processes)} agents woken at once", "woken ÷ sent"
        value = median(latencies) * 1000
        return Result(
            "crowd", title, "ms", value, None, share, 1.0, of=of, at_least=True, more=more
        )

    def _round(self) -> list[float]:
        self._arrived.clear()
        reader = threading.Thread(target=self._listen, args=(time.monotonic() + 30,))
        reader.start()
        returned = {}
        for name in self._processes:
            self._sender.send_one(name, Draft(subject="wake up"))
            returned[name] = time.perf_counter()
        reader.join()
        # A waiter may answer before the sender has returned: that counts as at once.
        return [max(0.0, at - returned[name]) for name, at in self._arrived.items()]

    def _listen(self, end: float) -> None:
        """Note when each has written its line."""
        with selectors.DefaultSelector() as selector:
            for name, process in self._processes.items():
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, name)
            while len(self._arrived) < len(self._processes) and time.monotonic() < end:
                for key, _ in selector.select(1):
                    self._arrived.setdefault(key.data, time.perf_counter())
                    os.read(key.fd, 65536)

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes.values()]


def until_attached(bus: Bus, names: Collection[str]) -> None:
    """Wait until each of these watches its box. Raises TimeoutError."""
    end = time.monotonic() + _LIMIT
    while not all(bus.presence.attached(AgentName(name)) for name in names):
        if time.monotonic() > end:
            raise TimeoutError("not all agents are attached")
        time.sleep(0.1)


def _idle(waiters: Mapping[str, tuple[str, list[int]]], window: float) -> Iterator[Result]:
    """The share of a core that each takes while nothing happens for so many seconds."""
    shares = idle_shares([pid for _, some in waiters.values() for pid in some], window)
    for figure, (title, some) in waiters.items():
        each = sum(shares[pid] for pid in some) / len(some)
        more = {"largest": max(shares[pid] for pid in some), "processes": len(some)}
        of = "% of a core"
        yield Result(figure, title, of, each, None, each, 0.1, of=of, more=more)


def idle_shares(pids: Sequence[int], window: float) -> dict[int, float]:
    """The share of a core, in percent, that each process takes in so many seconds."""
    before, begin = {pid: _cpu(pid) for pid in pids}, time.monotonic()
    time.sleep(window)
    elapsed = time.monotonic() - begin
    return {pid: (_cpu(pid) - before[pid]) / elapsed * 100 for pid in pids}


def _cpu(pid: int) -> float:
    """Seconds on a processor, of all threads; nothing coarser than a nanosecond counts here."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return spent / 1e9
