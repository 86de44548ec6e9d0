"""A table at a terminal, whatever its width. Ids are always whole.

Where a table is too wide, times are shortened first, then columns that may go are left out,
and the last column gets what is left. Where nothing may go, a record takes several lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from agent_bus.clock import SystemClock, to_text

_TIME = re.compile(r"(\d{4})-(\d\d-\d\d)T(\d\d:\d\d):\d\d\.\d{3}Z", re.ASCII)
_GAP = "  "
_ENOUGH = 24
"""Cells of a last column that say something, where it may be cut."""


@dataclass(frozen=True)
class Grid:
    """What is to be drawn: a head and its rows, escaped, and which columns may go."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()

    def widths(self) -> list[int]:
        """Cells of a terminal that each column takes."""
        from rich.cells import cell_len

        return [max(map(cell_len, column)) for column in zip(self.head, *self.rows, strict=True)]

    def fits(self, width: int, *, whole: bool = False) -> bool:
        """Whether each record can stand on one line; `whole`: and nothing is cut."""
        *fixed, last = self.widths()
        if self.spare and not whole:
            last = min(last, max(_ENOUGH, len(self.head[-1])))
        return _line(fixed) + last <= width

    def shortened(self) -> Grid:
        """With times to the minute, and the year only where it is not this one."""
        year = to_text(SystemClock().now())[:4]

        def short(cell: str) -> str:
            return _TIME.sub(lambda found: _minute(found, year), cell)

        rows = tuple((*map(short, row[:-1]), row[-1]) for row in self.rows)
        timed = [any(a != b for a, b in zip(*cells, strict=True)) for cells in self._pairs(rows)]
        head = zip(self.head, timed, strict=True)
        return Grid(
            tuple(f"{n.removesuffix(' at')} UTC" if t else n for n, t in head), rows, self.spare
        )

    def _pairs(self, rows: Sequence[Sequence[str]]) -> list[tuple[tuple[str, ...], ...]]:
        return list(zip(zip(*self.rows, strict=True), zip(*rows, strict=True), strict=True))

    def without(self, name: str) -> Grid:
        """With one column less."""
        kept = [number for number, title in enumerate(self.head) if title != name]
        rows = tuple(tuple(row[number] for number in kept) for row in self.rows)
        return Grid(tuple(self.head[number] for number in kept), rows, self.spare)


def draw(grid: Grid) -> None:
    """Print it as wide as the terminal is; nothing where there are no rows."""
    from rich.console import Console

    if not grid.rows:
        return
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    width = console.width
    if not grid.fits(width, whole=True):
        grid = grid.shortened()
    for name in grid.spare:
        if not grid.fits(width):
            grid = grid.without(name)
    for text, style in _lines(grid, width):
        console.print(text, style=style, soft_wrap=True)


def _lines(grid: Grid, width: int) -> list[tuple[str, str]]:
    if grid.fits(width):
        widths = grid.widths()
        widths[-1] = min(widths[-1], width - _line(widths[:-1]))
        shown = [(_aligned(grid.head, widths), "bold")]
        return shown + [(_aligned(row, widths), "") for row in grid.rows]
    *widths, last = grid.widths()
    if _line(widths) - len(_GAP) > width or last < _ENOUGH:
        return [(line, "") for row in grid.rows for line in _flowing(grid.head, row, width)]
    shown = [(_aligned(grid.head[:-1], widths), "bold")]
    for row in grid.rows:
        shown.append((_aligned(row[:-1], widths), ""))
        shown += [(line, "") for line in _wrapped(row[-1], width)]
    return shown


def _line(widths: Sequence[int]) -> int:
    """Cells that columns take with the gaps behind them."""
    return sum(width + len(_GAP) for width in widths)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    from rich.cells import cell_len, set_cell_size

    cells = [
        cell + " " * (width - cell_len(cell))
        if cell_len(cell) <= width
        else set_cell_size(cell, width - 1).rstrip() + "…"
        for cell, width in zip(row, widths, strict=True)
    ]
    return _GAP.join(cells).rstrip()


def _flowing(head: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """A record over several lines, broken between its fields."""
    from rich.cells import cell_len

    first, *others = row
    lines, here = [], first
    for name, text in zip(head[1:], others, strict=True):
        if text in ("", "-"):
            continue
        cell = f"{name}: {text}"
        if cell_len(here) + len(_GAP) + cell_len(cell) <= width:
            here += _GAP + cell
            continue
        lines.append(here)
        *whole, here = _wrapped(cell, width)
        lines += whole
    return [*lines, here]


def _wrapped(text: str, width: int) -> list[str]:
    """Text on lines of its own, under the record that it belongs to."""
    from rich.console import Console
    from rich.text import Text

    if text in ("", "-"):
        return []
    inner = max(width - len(_GAP), 1)
    return [_GAP + line.plain.rstrip() for line in Text(text).wrap(Console(), inner)]


def _minute(found: re.Match[str], year: str) -> str:
    day = found[2] if found[1] == year else f"{found[1]}-{found[2]}"
    return f"{day} {found[3]}"
