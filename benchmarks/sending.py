"""A durable send, a keyed send, a decision; four senders at once."""

from __future__ import annotations

import hmac
import multiprocessing
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus
from benchmarks.measuring import Result, Scale, Step, compared, in_turn, median

BODY = "The build is green again; the two failing tests were a race in the fixture. " * 4
_SENDERS = 4


class BareBox:
    """The floor: create, write, fsync, link, fsync the folder, unlink, with one HMAC."""

    def __init__(self, folder: Path) -> None:
        self.tmp, self.new = folder / "tmp", folder / "new"
        for made in (self.tmp, self.new):
            made.mkdir(parents=True)
        self._secret = secrets.token_bytes(32)
        self._payload = (BODY + "x" * 300).encode()

    def send(self) -> None:
        """One message."""
        name = secrets.token_hex(13)
        mac = hmac.new(self._secret, self._payload, "sha256").hexdigest()
        written, target = self.tmp / name, self.new / name
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, mac.encode() + self._payload)
        os.fsync(fd)
        os.close(fd)
        os.link(written, target)
        folder = os.open(self.new, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        os.unlink(written)


@contextmanager
def box_and_bus(scale: Scale, *agents: str) -> Iterator[tuple[BareBox, TemporaryBus]]:
    """Both on the same disk."""
    with tempfile.TemporaryDirectory(prefix="agent-bus-bench-", dir=scale.folder) as place:
        folder = Path(place)
        yield BareBox(folder / "bare"), TemporaryBus(*agents, folder=folder)


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    yield from single(scale)
    yield many(scale)


def single(scale: Scale) -> Iterator[Result]:
    """One sender, in this process; each figure in turn with the floor alone."""
    rounds = scale.rounds(400, 150)
    with box_and_bus(scale, "alice", "bob") as (bare, bus):
        alice, draft = bus.as_agent("alice"), Draft(body=BODY)
        beside: dict[str, tuple[str, Step, float | None]] = {
            "send": ("durable send", lambda: alice.send_one("bob", draft), 1.25),
            "send-keyed": (
                "keyed send",
                lambda: alice.send_one("bob", draft, key=secrets.token_hex(8)),
                None,
            ),
            "decide": ("decision, with its notice", _decisions(bus, rounds + 3), None),
        }
        for name, (title, step, goal) in beside.items():
            count = _flushes(step)
            floor, times = in_turn([bare.send, step], rounds)
            made = compared(name, f"{title}, {count} fsyncs", floor, times, goal)
            made.more["fsyncs"] = count
            yield made


def many(scale: Scale) -> Result:
    """Four processes that send to one box at the same time."""
    count = scale.rounds(200, 80)
    bare_rates, rates = [], []
    with box_and_bus(scale, "bob", *(f"sender{n}" for n in range(_SENDERS))) as (bare, bus):
        senders = [bus.as_agent(f"sender{n}") for n in range(_SENDERS)]
        draft = Draft(body=BODY)
        for _ in range(scale.rounds(7, 5)):
            bare_rates.append(_rate([bare.send] * _SENDERS, count))
            steps = [partial(sender.send_one, "bob", draft) for sender in senders]
            rates.append(_rate(steps, count))
    low, high = median(bare_rates), median(rates)
    return Result(
        "senders",
        "four senders at once",
        "messages/s",
        high,
        low,
        high / low,
        0.8,
        at_least=True,
        steady=False,
    )


def _decisions(bus: TemporaryBus, count: int) -> Callable[[], object]:
    """A step that decides the next of so many requests."""
    alice, conductor = bus.as_agent("alice"), bus.as_agent("conductor")
    waiting = iter([alice.request_approval("May I?").id for _ in range(count)])
    return lambda: conductor.decide(next(waiting), "approve")


def _flushes(step: Step) -> int:
    """How many fsyncs a step makes."""
    calls: list[int] = []
    step()  # the first one makes folders
    real = os.fsync

    def counting(fd: Any) -> None:
        calls.append(1)
        real(fd)

    os.fsync = counting
    try:
        step()
    finally:
        os.fsync = real
    return len(calls)


def _rate(steps: Sequence[Step], count: int) -> float:
    """Steps a second, each in a process of its own, all at once."""
    context = multiprocessing.get_context("fork")
    ready, spans = context.Barrier(len(steps)), context.SimpleQueue()

    def work(step: Step) -> None:
        step()
        ready.wait()
        begin = time.monotonic()
        for _ in range(count):
            step()
        spans.put((begin, time.monotonic()))

    workers = [context.Process(target=work, args=(step,)) for step in steps]
    for worker in workers:
        worker.start()
    taken: list[tuple[float, float]] = [spans.get() for _ in workers]
    for worker in workers:
        worker.join()
    begin, end = min(span[0] for span in taken), max(span[1] for span in taken)
    return len(steps) * count / (end - begin)
