"""Showing results: a table, JSON lines, a chart; and comparing with the committed ratios."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent_bus.filesystem import kind
from benchmarks.measuring import Result, Scale

BASELINE = Path(__file__).with_name("baseline.json")
CHART = Path(__file__).resolve().parents[1] / "docs" / "performance.svg"
MARGIN = 1.75
"""How much worse a ratio may be than the committed one: see docs/performance.md."""
_FAR_BELOW = 0.25

_HEAD = ("figure", "ours", "floor", "ratio", "goal", "")
_PLAIN = ("ours ÷ floor", "% of a core")
_GOOD, _BAD, _SHOWN_TO = "#3d7a5a", "#b4513c", 2.0


def machine(scale: Scale) -> str:
    """Where this was measured, in neutral words."""
    python = platform.python_version()
    cores = os.cpu_count()
    return f"{cores} cores, {platform.system()}, {kind(scale.folder)}, Python {python}"


def table(results: Sequence[Result]) -> str:
    """All of them as a table of Markdown."""
    rows = [_HEAD, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _row(result: Result) -> tuple[str, ...]:
    unit = "" if result.unit == "times" else f" {result.unit}"
    far = f" (p99 {_number(result.more['p99'])})" if "p99" in result.more else ""
    bound = "≥" if result.at_least else "≤"
    verdict = {None: "", True: "met", False: "**missed**"}[result.met]
    return (
        result.title,
        f"{_number(result.ours)}{far}{unit}",
        "–" if result.floor is None else f"{_number(result.floor)}{unit}",
        _number(result.ratio) + ("" if result.of in _PLAIN else f" ({result.of})"),
        "–" if result.goal is None else f"{bound} {result.goal:g}",
        verdict,
    )


def _number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def line(result: Result) -> str:
    """One of them as JSON."""
    value = {
        "figure": result.figure,
        "title": result.title,
        "unit": result.unit,
        "ours": result.ours,
        "floor": result.floor,
        "ratio": result.ratio,
        "of": result.of,
        "goal": result.goal,
        "met": result.met,
        **result.more,
    }
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in value.items()}
    return json.dumps(rounded, ensure_ascii=False)


def save(results: Iterable[Result]) -> None:
    """Make these the ratios that others are compared with. No times: machines differ."""
    ratios = {result.figure: round(result.ratio, 3) for result in results if result.steady}
    BASELINE.write_text(json.dumps(ratios, indent=1) + "\n", encoding="utf-8")


def regressions(results: Iterable[Result]) -> dict[str, str]:
    """What got worse than the committed ratios beyond the margin: a line for each figure."""
    baseline: dict[str, float] = json.loads(BASELINE.read_text(encoding="utf-8"))
    found = {r.figure: _regression(r, baseline) for r in results if r.steady}
    return {figure: text for figure, text in found.items() if text}


def _regression(result: Result, baseline: dict[str, float]) -> str | None:
    before = baseline.get(result.figure)
    if before is None:
        return f"{result.figure} has no committed ratio: scripts/bench --save"
    # Far below its goal a ratio is mostly noise.
    base = max(before, (result.goal or 0) * _FAR_BELOW)
    limit = before / MARGIN if result.at_least else base * MARGIN
    if result.ratio >= limit if result.at_least else result.ratio <= limit:
        return None
    return f"{result.figure}: {_number(result.ratio)}, committed {before}, the limit {limit:.3g}"


def draw(results: Iterable[Result], path: Path = CHART) -> None:
    """A bar for each figure that has a goal: how much of the goal it takes."""
    import leather  # type: ignore[import-not-found, import-untyped, unused-ignore]

    shares = {result.title: result.of_goal for result in results}
    rows = [(min(share, _SHOWN_TO), title) for title, share in shares.items() if share is not None]
    chart = leather.Chart("Measured, as a share of the goal (1 is just good, less is better)")
    chart.add_x_scale(0, _SHOWN_TO)
    chart.add_x_axis(ticks=[0, 0.5, 1, 1.5, 2])
    chart.add_bars(rows, fill_color=lambda row: _GOOD if row.x <= 1 else _BAD)
    chart.to_svg(str(path), width=900, height=60 + 28 * len(rows))
