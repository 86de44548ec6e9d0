"""What the rules of arguments are tried with, and what is asked of their errors."""

from __future__ import annotations

from typing import Any


def check_line(said: str) -> None:
    """Every error is one short line that can be shown as it is."""
    assert said.isascii()
    assert said.isprintable()
    assert len(said) < 600


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made
