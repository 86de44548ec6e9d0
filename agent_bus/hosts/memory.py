"""What a session was shown: small files that may vanish at any time.

    <bus>/cache/hooks/<32 hex>.seen     lines: shown|blocked|told <id>, or prompt; appended
    <data>/hooks/<key>.shown, .stop     one line, the path of the box's `new` folder

The first is what a session was told, keyed by its hashed id. It is a journal, so that hooks
that run at the same time lose nothing of each other's; at worst something is said twice. The
second are the marks of the shell's guard (`guard`). A mark has the time of change that the
folder had *before* it was listed, so that whatever arrives later is newer.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_bus.clock import Clock
from agent_bus.errors import AgentBusError
from agent_bus.files import Folder, UnfitFile, make_folders
from agent_bus.names import AgentName, is_message_id
from agent_bus.store import Store

FOLDER = ("cache", "hooks")
NOBODY = "-"
"""In the place of a box: a session that is on no bus."""

_LIMIT = 4 * 1024 * 1024
_KEY = re.compile(r"[A-Za-z0-9._-]{1,80}", re.ASCII)
_WORDS = ("shown", "blocked", "told")
_LEFTOVER_AGE = 14 * 24 * 3600
_SWEPT = 200
_COARSE = 2_100_000_000
"""Nanoseconds in which a second change may leave the same time of change: the shells that
compare whole seconds, and file systems that keep two of them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session was told."""

    shown: frozenset[str]
    blocked: frozenset[str]
    told: frozenset[str]
    """Messages of its own of which it knows that nobody has read them."""
    blocks: int
    """How often its end was refused since the last prompt."""


class Memory:
    """What one session of an agent was told."""

    def __init__(self, store: Store, agent: AgentName, session: str) -> None:
        self._store = store
        digest = hashlib.sha256(f"{agent}\0{session}".encode("utf-8", "replace")).hexdigest()
        self.name = digest[:32]
        self._file = self.name + ".seen"

    def load(self) -> Seen:
        """What was told; nothing if it cannot be read."""
        words: dict[str, set[str]] = {word: set() for word in _WORDS}
        blocks = 0
        for word, ident in self._lines():
            if word == "prompt":
                blocks = 0
            elif word in words and is_message_id(ident):
                words[word].add(ident)
            elif word == "block":
                blocks += 1
        shown, blocked, told = (frozenset(words[word]) for word in _WORDS)
        return Seen(shown, blocked, told, blocks)

    def add(self, word: str, idents: Iterable[str] = ()) -> bool:
        """Note what was told. Returns whether it will be remembered."""
        lines = "".join(f"{word} {ident}\n" for ident in idents) or f"{word}\n"
        try:
            with self._store.make(*FOLDER) as folder:
                folder.append(self._file, lines.encode())
        except (OSError, AgentBusError):
            return False
        return True

    def begin(self, shown: Iterable[str]) -> bool:
        """Forget all but that these were shown. Returns whether it will be remembered."""
        lines = "".join(f"shown {ident}\n" for ident in shown)
        try:
            with self._store.make(*FOLDER) as folder:
                folder.replace(self._file, lines.encode())
        except (OSError, AgentBusError):
            return False
        return True

    def claim(self, token: str) -> bool:
        """Become the one that waits for this session. Returns whether it is so."""
        try:
            with self._store.make(*FOLDER) as folder:
                folder.replace(self.name + ".waits", token.encode())
        except (OSError, AgentBusError):
            return False
        return True

    def is_claimed_by(self, token: str) -> bool:
        """Whether no other has become the one since."""
        try:
            with self._store.open(*FOLDER) as folder:
                return folder.read(self.name + ".waits", 256) == token.encode()
        except (OSError, UnfitFile, AgentBusError):
            return False

    def _lines(self) -> Iterator[tuple[str, str]]:
        try:
            with self._store.open(*FOLDER) as folder:
                text = folder.read(self._file, _LIMIT).decode("ascii", "replace")
        except (OSError, UnfitFile, AgentBusError):
            return
        for line in text.split("\n"):
            word, _, ident = line.partition(" ")
            yield word, ident


class Mark:
    """The file that the guard of one session compares with the box. Never raises."""

    def __init__(self, data: Path, key: str, clock: Clock) -> None:
        self._folder = data / "hooks"
        self._key = key if _KEY.fullmatch(key) and not key.startswith(".") else ""
        self._clock = clock

    def set(self, kind: str, box: str, changed: int) -> None:
        """Say that all in the box was looked at that was there at its time of change (ns)."""
        if not self._key or "\n" in box:
            return
        if self._clock.now() * 1_000_000 - changed < _COARSE:
            changed -= _COARSE
        with contextlib.suppress(OSError, AgentBusError), make_folders(self._folder) as folder:
            line = box.encode("utf-8", "surrogateescape") + b"\n"
            folder.replace(f"{self._key}.{kind}", line, modified=max(changed, 1))


def sweep(store: Store, data: Path, clock: Clock) -> None:
    """Remove what sessions left behind that are long over. Never raises."""
    with contextlib.suppress(OSError, AgentBusError), store.open(*FOLDER) as folder:
        _sweep(folder, clock)
    with contextlib.suppress(OSError, AgentBusError), Folder.open(data / "hooks") as folder:
        _sweep(folder, clock)


def _sweep(folder: Folder, clock: Clock) -> None:
    for name in folder.names()[:_SWEPT]:
        status = folder.status(name)
        # A mark has the time of its box: when it was made is in the other time.
        if status and clock.now() / 1000 - status.st_ctime > _LEFTOVER_AGE:
            with contextlib.suppress(OSError):
                folder.unlink(name)
