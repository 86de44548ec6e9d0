"""What the unread files of a box turned out to be that no observer was given yet.

A message that a filter refuses is not read again at each look. A bad file is looked at each
time and judged anew when it has changed, since a slow copy is bad until it is whole;
everything is judged anew when a key has changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from agent_bus.clock import Clock, from_text
from agent_bus.envelope import CLOCK_TOLERANCE, Judged
from agent_bus.files import Folder
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.reading import Judge, Reader, Stored
from agent_bus.store import Store

_SETTLED = 1.0
"""Seconds for which a file must not change before it is called bad: it may be half copied."""
_KEPT_BYTES = 16 << 20
_ENTRY_BYTES = 1024

Stamp = tuple[int, ...]
"""How a file or folder looks from outside; the time of its last change comes last."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a file was when it looked like this."""

    stored: Stored
    stamp: Stamp | None
    since: float
    """Since when it looks like this, by the monotonic clock."""
    was_read: bool

    @property
    def is_bad(self) -> bool:
        return self.stored.judged.message is None

    @property
    def weight(self) -> int:
        return _ENTRY_BYTES + len(self.stored.judged.raw)


class Verdicts:
    """The judgements of one box, and which bad files were named. Its owner locks it."""

    def __init__(
        self, store: Store, box: AgentName, clock: Clock, warn: Callable[[str], None]
    ) -> None:
        self._store = store
        self._box = box
        self._clock = clock
        self._warn = warn
        self._kept: dict[MessageId, _Verdict] = {}
        self._weight = 0
        self._keys: KeyIndex | None = None
        self._named: set[MessageId] = set()
        self._unnamed: set[MessageId] = set()
        self._untold: dict[MessageId, Stored] = {}

    @property
    def unsettled(self) -> bool:
        """Whether there is a bad file that may only be incomplete."""
        return bool(self._unnamed)

    def forget(self) -> None:
        """Judge everything anew."""
        for ident in list(self._kept):
            self._drop(ident)

    def forget_all_but(self, unread: list[MessageId]) -> None:
        """Keep nothing of files that are no longer there."""
        if self._kept or self._named:
            there = set(unread)
            self._named &= there
            self._untold = {i: bad for i, bad in self._untold.items() if i in there}
            for ident in self._kept.keys() - there:
                self._drop(ident)

    @contextlib.contextmanager
    def reading(self, wanted: bool) -> Iterator[Callable[[MessageId], Stored | None]]:
        """Open the box, if it is wanted, and give a function that judges one of its files."""
        if not wanted:
            yield _gone
            return
        judge = self._store.judge()
        if judge.keys is not self._keys:
            self._keys = judge.keys
            self.forget()
        with contextlib.ExitStack() as stack:
            of: Callable[[MessageId], Stored | None] = _gone
            with contextlib.suppress(FileNotFoundError):
                reader = stack.enter_context(Reader(self._store.box(self._box), judge))
                new = stack.enter_context(self._store.open("messages", self._box, "new"))
                of = partial(self._of, reader, new, judge)
            yield of

    def name_bad(self, *, at_once: bool = False) -> None:
        """Warn of the bad files that were not named yet, each once.

        Those that may only be incomplete `at_once` or in time.
        """
        found = [self._kept[ident] for ident in sorted(self._unnamed)]
        named = [verdict.stored for verdict in found if at_once or self._is_settled(verdict)]
        for stored in named:
            self._unnamed.discard(stored.place.id)
            self._named.add(stored.place.id)
            self._untold[stored.place.id] = stored
            self._warn(
                f"{stored.place.id} in the box of {self._box} is not shown: "
                f"{stored.judged.outcome}, {stored.judged.detail}: agent-bus doctor"
            )

    def take_bad(self) -> list[Stored]:
        """The named files that no wait was told of yet; they count as told now."""
        told, self._untold = self._untold, {}
        return [told[ident] for ident in sorted(told)]

    def give_bad(self, bad: Iterable[Stored]) -> None:
        """Count these as not told: whoever was told has gone."""
        self._untold |= {one.place.id: one for one in bad if one.place.id in self._named}

    def _of(self, reader: Reader, new: Folder, judge: Judge, ident: MessageId) -> Stored | None:
        kept = self._kept.get(ident)
        if kept is not None and _still_holds(kept.stored.judged, judge.now):
            return kept.stored
        status = new.status(message_file(ident))
        stamp = None if status is None else stamp_of(status)
        is_same = kept is not None and kept.stamp == stamp
        if kept is not None and is_same and kept.is_bad and kept.was_read:
            return kept.stored
        stored = reader.load(ident)
        self._drop(ident)
        if stored is not None:
            since = kept.since if kept is not None and is_same else self._clock.monotonic()
            self._keep(ident, stored, stamp, since)
        return stored

    def _keep(self, ident: MessageId, stored: Stored, stamp: Stamp | None, since: float) -> None:
        was_read = bool(stored.judged.raw)
        if not is_offered(stored):
            stored = replace(stored, judged=replace(stored.judged, raw=b""))
        verdict = _Verdict(stored, stamp, since, was_read)
        if verdict.is_bad and ident not in self._named:
            self._unnamed.add(ident)
        if not verdict.is_bad:
            self._untold.pop(ident, None)
        if verdict.is_bad or self._weight + verdict.weight <= _KEPT_BYTES:
            self._kept[ident] = verdict
            self._weight += verdict.weight

    def _drop(self, ident: MessageId) -> None:
        verdict = self._kept.pop(ident, None)
        self._unnamed.discard(ident)
        if verdict is not None:
            self._weight -= verdict.weight

    def _is_settled(self, verdict: _Verdict) -> bool:
        if verdict.stored.judged.outcome not in ("malformed", "bad-signature"):
            return True  # signed as a whole, or by a key that nobody has
        changed = verdict.stamp[-1] // 1_000_000 if verdict.stamp else 0
        waited = max(self._clock.monotonic() - verdict.since, (self._clock.now() - changed) / 1000)
        return waited >= _SETTLED


def is_offered(stored: Stored) -> bool:
    """Whether it may be given to an observer: valid, not expired, and not read meanwhile."""
    return stored.judged.ok and stored.place.state == "new"


def _gone(_: MessageId) -> None:
    """Stands for a box that is not there."""


def _still_holds(judged: Judged, now: int) -> bool:
    """Whether a judgement of a message stays as it is, however its file looks now."""
    if judged.message is None:
        return False
    expires = judged.message.expires_at
    return not judged.ok or expires is None or now <= from_text(expires) + CLOCK_TOLERANCE


def stamp_of(status: os.stat_result) -> Stamp:
    """How it looks from outside."""
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns
