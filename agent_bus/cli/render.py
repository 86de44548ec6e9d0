"""What is shown: escaped for people, exact for programs.

What cannot be seen is escaped (`visible`), on a terminal and in a pipe alike, so that one
record is one line. JSON is ASCII and exact. Data goes to stdout, talk to stderr. Colours,
tables and bars are for terminals only.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agent_bus.visible import cut, fenced, visible

__all__ = [
    "OutputGone",
    "cut",
    "fenced",
    "is_terminal",
    "progress",
    "put",
    "put_json",
    "say",
    "table",
    "visible",
]


class OutputGone(Exception):
    """Nobody reads the output any more. Not an OSError, which typer would end itself."""


def put(text: str, *, end: str = "\n", flush: bool = False) -> None:
    """One line of data, escaped already; nothing happens if stdout is closed.

    Raises OutputGone, and OSError where it cannot be written.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + end)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise OutputGone from None


def put_json(record: Mapping[str, object], *, flush: bool = False) -> None:
    """One record, as an ASCII line. Raises what `put` raises."""
    put(json.dumps(record), flush=flush)


def say(text: str) -> None:
    """One line of talk."""
    if sys.stderr is None:
        return
    # Nobody is left to tell that nobody is left to tell.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"agent-bus: {visible(text)}\n")
        sys.stderr.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Records for people: aligned on a terminal, separated by tabs and without a head else.

    On a terminal that is too narrow, columns in `spare` are left out, the first one first, and
    then the last column is cut. Without `spare` everything is shown, on more lines if need be.
    """
    escaped = (tuple(visible(cell) for cell in row) for row in rows)
    if is_terminal():
        from agent_bus.cli.tables import Grid, draw

        draw(Grid(tuple(head), tuple(escaped), tuple(spare)))
        return
    for row in escaped:
        put("\t".join(row))


def is_terminal() -> bool:
    """Whether people look at the output."""
    return sys.stdout is not None and sys.stdout.isatty()


@contextlib.contextmanager
def progress(
    what: str, total: Callable[[], int], *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while many files are worked on, if people look there.

    Gives a function to call with how many were done since the last call. Nothing may be
    written to a terminal meanwhile.
    """
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Not redirected: rich would send data for stdout to stderr as well.
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(what, total=total())
        yield lambda done: bar.advance(task, done)
