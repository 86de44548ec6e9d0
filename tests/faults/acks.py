"""What the agents of agents.py said and were told, and whether it is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from looking import everything


def acknowledged(folder: Path) -> dict[str, str]:
    """Key to id, of every receipt that was written down whole."""
    found: dict[str, str] = {}
    for path in folder.glob("*.acks"):
        for line in path.read_text().split("\n")[:-1]:
            key, _, ident = line.partition(" ")
            found[key] = ident
    return found


def lies(root: Path, receipts: dict[str, str]) -> Iterator[str]:
    """Whatever contradicts the receipts: lost, torn, twice under one key."""
    there: dict[str, str] = {}
    keys: Counter[str] = Counter()
    for stored in everything(root):
        message = stored.judged.message
        if message is None or not stored.judged.ok:
            yield f"{stored.place} is {stored.judged.outcome}: {stored.judged.detail}"
        elif message.body != f"{message.subject} " * 300:
            yield f"{message.id} says something else"
        else:
            keys[message.subject] += 1
            there[message.subject] = message.id
    yield from (f"{key} is there {count} times" for key, count in keys.items() if count > 1)
    for key, ident in receipts.items():
        if there.get(key) != ident:
            yield f"{key} was acknowledged as {ident}, and is {there.get(key, 'not there')}"


def begun(output: Path) -> bool:
    """Whether the watcher has taken its cursor."""
    return output.exists() and b"mode " in output.read_bytes()


def said_after(output: Path, word: str) -> list[str]:
    """What the watcher said after this word."""
    said = output.read_text().splitlines()
    return [line.removeprefix(f"{word} ") for line in said if line.startswith(f"{word} ")]
