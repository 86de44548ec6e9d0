"""Results, and taking the times of two things in turn, so that noise hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured, and where the files go. `quick` is for a machine in a hurry."""

    folder: Path
    quick: bool = False

    def rounds(self, full: int, quick: int) -> int:
        """How often, or how many."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `ratio` is what goal, chart and check go by; it has no unit."""

    figure: str
    """A name that stays."""
    title: str
    unit: str
    ours: float
    floor: float | None
    ratio: float
    goal: float | None
    """The largest ratio that is good, or the smallest with `at_least`; None: only shown."""
    of: str = "ours ÷ floor"
    """What the ratio is of what."""
    at_least: bool = False
    steady: bool = True
    """Whether it can be compared between runs: a tail and a full disk are the machine's own."""
    more: dict[str, float] = field(default_factory=dict)

    @property
    def of_goal(self) -> float | None:
        """How much of its goal it takes: 1 is just good, less is better."""
        if self.goal is None:
            return None
        return self.goal / self.ratio if self.at_least else self.ratio / self.goal

    @property
    def met(self) -> bool | None:
        """Whether the goal is met."""
        share = self.of_goal
        return None if share is None else share <= 1


def in_turn(steps: Sequence[Step], rounds: int) -> list[list[float]]:
    """Seconds of each step, taken in turn, the order turned round every time.

    A first round warms up and is not counted.
    """
    times: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        order = range(len(steps)) if number % 2 else reversed(range(len(steps)))
        for index in order:
            taken = seconds(steps[index])
            if number:
                times[index].append(taken)
    return times


def seconds(step: Step) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def milliseconds(values: Sequence[float]) -> float:
    """The median of some seconds, in milliseconds."""
    return median(values) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compared(
    figure: str,
    title: str,
    floor: Sequence[float],
    ours: Sequence[float],
    goal: float | None,
    **more: float,
) -> Result:
    """A figure in milliseconds: the medians of both, and 99 of 100 beside them."""
    more |= {
        "p99": percentile(ours, 0.99) * 1000,
        "floor_p99": percentile(floor, 0.99) * 1000,
        "samples": len(ours),
    }
    low, high = milliseconds(floor), milliseconds(ours)
    return Result(figure, title, "ms", high, low, high / low, goal, more=more)
