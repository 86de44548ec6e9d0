"""Waiting for messages: events as a hint, listing as the truth.

    subscribe, look, sleep until an event or the interval, look again

A look lists what is unread, leaves out what this observer was shown (`cursor`), and judges
the rest. Whatever goes wrong with events costs time and never a message. The one part of
this that is shared by the whole process is a `Watch`: one cursor, one subscription, any
number of threads that wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from agent_bus.arrivals import POLL_INTERVAL, Arrivals, Mode
from agent_bus.clock import Clock
from agent_bus.cursor import Cursor
from agent_bus.errors import StorageError
from agent_bus.names import AgentName, MessageId
from agent_bus.reading import Stored, reason
from agent_bus.store import Store
from agent_bus.verdicts import Stamp, Verdicts, is_offered, stamp_of

_OLD = 2000
"""Milliseconds after which a folder's time of change says all: clocks of files are coarse."""
_JUMP = 2000
"""Milliseconds by which the two clocks may differ in one sleep before it counts as a jump."""
_AHEAD = 256
"""How many messages beyond the limit are judged to say exactly how many are left."""

_Judged = Callable[[MessageId], Stored | None]


@dataclass(frozen=True, slots=True)
class Found:
    """What a wait came back with."""

    messages: tuple[Stored, ...] = ()
    """Oldest first. Empty if the time ran out or the wait was cancelled."""
    remaining: int = 0
    """How many more are ready, and go to no other wait: a next one like it gives them at once."""
    bad: tuple[Stored, ...] = ()
    """Files that turned out not to verify, each told once; without their bytes."""
    timed_out: bool = False
    """Whether it ended without messages."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """What one call wants."""

    since: int
    include_existing: bool
    limit: int | None
    accept: Callable[[Stored], bool] | None
    cancelled: threading.Event | None
    takes: bool

    def full(self, count: int) -> bool:
        return self.limit is not None and count >= self.limit

    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled.is_set()


class Watch:
    """Watches one box for one observer, whose cursor is taken when this is made.

    Safe between threads: every wait is given what is not yet shown, and what was shown to
    another wait that ran at the same time. Close it, or use `with`.
    """

    def __init__(
        self,
        store: Store,
        box: AgentName,
        *,
        poll: bool,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self._store = store
        self._box = box
        self._clock = clock
        self._lock = threading.Lock()
        self._arrivals = Arrivals(store.root / "messages" / box / "new", poll=poll, warn=warn)
        self._jump = _Jump(clock)
        self._listing = _Listing(store, box, clock)
        self._verdicts = Verdicts(store, box, clock, warn)
        self._waiting: list[_Wish] = []
        try:
            with _storage(box):
                self._cursor = Cursor(store.unread(box))
        except BaseException:
            self._arrivals.close()
            raise

    @property
    def mode(self) -> Mode:
        """Whether events wake it, or it looks once a second."""
        return self._arrivals.mode

    @property
    def why(self) -> str:
        """Why it is polling; empty under events."""
        return self._arrivals.why

    @property
    def unread_before_start(self) -> int:
        """How many of the messages that lay there at the start are still unread.

        What does not verify or has expired is no message; only the oldest few hundred are
        looked at for that.
        """
        with self._lock, _storage(self._box):
            before = self._cursor.from_before(self._store.unread(self._box))
            with self._verdicts.reading(bool(before)) as judged:
                found = [judged(ident) for ident in before[:_AHEAD]]
            offered = sum(stored is not None and is_offered(stored) for stored in found)
            return offered + len(before[_AHEAD:])

    def next(
        self,
        *,
        timeout: float,
        include_existing: bool = False,
        limit: int | None = None,
        accept: Callable[[Stored], bool] | None = None,
        cancelled: threading.Event | None = None,
        takes: bool = True,
    ) -> Found:
        """Wait for messages that this observer was not shown, at most `timeout` seconds.

        With `include_existing` also for those that lay there at the start. What `accept`
        refuses stays unseen for other waits. A wait that times out, or whose `cancelled` is
        set (call `wake` then), consumes nothing. One that only looks on, with an `accept` that
        refuses all, says `takes=False`: bad files are then left for others as well. Raises
        NoBus and StorageError.
        """
        wish = _Wish(self._cursor.position, include_existing, limit, accept, cancelled, takes)
        with self._registered(wish):
            return self._wait(wish, timeout)

    def _wait(self, wish: _Wish, timeout: float) -> Found:
        began, slept = self._clock.monotonic(), 0.0
        sure = True
        while True:
            # Taken before the look: what arrives during it ends the sleep at once.
            seen = self._arrivals.count
            found = self._look(wish, sure=sure)
            if found is not None:
                return found
            # A clock held in hand may stand still; sleeping through counts all the same.
            left = timeout - max(self._clock.monotonic() - began, slept)
            if left <= 0 or self._arrivals.closed or wish.is_cancelled():
                break
            pause = min(left, self._interval)
            happened = self._arrivals.wait(pause, seen)
            slept += 0.0 if happened else pause
            sure = happened
        with self._lock:
            self._verdicts.name_bad(at_once=True)
            return Found(bad=self._bad_for(wish), timed_out=True)

    def give_back(self, found: Found) -> None:
        """Count all of this as not shown: whoever waited for it has gone."""
        with self._lock:
            self._verdicts.give_bad(found.bad)
            self._cursor.unmark(stored.place.id for stored in found.messages)
        self._arrivals.wake()

    def wake(self) -> None:
        """Make every waiting call look again: after setting a `cancelled`."""
        self._arrivals.wake()

    def close(self) -> None:
        """End every waiting call and the subscription."""
        self._arrivals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _interval(self) -> float:
        return POLL_INTERVAL if self._verdicts.unsettled else self._arrivals.interval

    @contextlib.contextmanager
    def _registered(self, wish: _Wish) -> Iterator[None]:
        with self._lock:
            self._waiting.append(wish)
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(wish)

    def _look(self, wish: _Wish, *, sure: bool) -> Found | None:
        """One look at the box: what is given to this call, if anything."""
        with self._lock, _storage(self._box):
            if self._jump.happened():
                sure = True
                self._verdicts.forget()
            self._arrivals.renew()
            unread = self._listing.read(sure=sure)
            self._verdicts.forget_all_but(unread)
            candidates = self._fresh(unread, wish)
            with self._verdicts.reading(bool(candidates)) as judged:
                ready, rest = _sort(candidates, wish, judged)
                self._verdicts.name_bad()
                if not ready or wish.is_cancelled():
                    return None
                # Answered: the other calls are not to reckon with it any more.
                self._waiting.remove(wish)
                self._cursor.mark(stored.place.id for stored in ready)
                remaining = self._remaining(rest, unread, wish, judged)
            found = Found(tuple(ready), remaining, self._bad_for(wish))
        # Other calls of this process are to get the same messages, before somebody reads them.
        self._arrivals.wake()
        return found

    def _fresh(self, unread: list[MessageId], wish: _Wish) -> list[MessageId]:
        return self._cursor.fresh(unread, since=wish.since, include_existing=wish.include_existing)

    def _remaining(
        self, rest: list[MessageId], unread: list[MessageId], wish: _Wish, judged: _Judged
    ) -> int:
        """How many of the rest were not given to another call, and will not be."""
        if not rest:
            return 0
        left = set(rest) & set(self._cursor.fresh(unread, include_existing=wish.include_existing))
        for other in self._waiting:
            if left and other.takes and not other.is_cancelled():
                theirs, _ = _sort(self._fresh(unread, other), other, judged)
                left.difference_update(stored.place.id for stored in theirs)
        return len(left)

    def _bad_for(self, wish: _Wish) -> tuple[Stored, ...]:
        if not wish.takes or wish.is_cancelled():
            return ()
        return tuple(self._verdicts.take_bad())


def _sort(
    candidates: list[MessageId], wish: _Wish, judged: _Judged
) -> tuple[list[Stored], list[MessageId]]:
    """What a call is given, and what it would be given besides if it had no limit."""
    ready: list[Stored] = []
    rest: list[MessageId] = []
    for number, ident in enumerate(candidates):
        if wish.full(len(ready)) and len(rest) >= _AHEAD and wish.accept is None:
            rest += candidates[number:]
            break
        stored = judged(ident)
        if stored is None or not is_offered(stored):
            continue
        if wish.accept is not None and not wish.accept(stored):
            continue
        if wish.full(len(ready)):
            rest.append(ident)
        else:
            ready.append(stored)
    return ready, rest


class _Listing:
    """The unread ids of a box, listed again only where something may have changed."""

    def __init__(self, store: Store, box: AgentName, clock: Clock) -> None:
        self._store = store
        self._box = box
        self._clock = clock
        self._stamp: Stamp | None = None
        self._ids: list[MessageId] = []

    def read(self, *, sure: bool) -> list[MessageId]:
        """The unread ids, oldest first. `sure` lists whatever the folder's times say."""
        now = self._clock.now()
        # Taken before the listing, so that a change in between shows the next time.
        stamp = self._folder_stamp()
        if sure or stamp is None or stamp != self._stamp:
            self._ids = self._store.unread(self._box)
            is_old = stamp is not None and now - stamp[-1] // 1_000_000 >= _OLD
            self._stamp = stamp if is_old else None
        return self._ids

    def _folder_stamp(self) -> Stamp | None:
        try:
            with self._store.open("messages", self._box, "new") as folder:
                return stamp_of(folder.own_status())
        except FileNotFoundError:
            return None


class _Jump:
    """Tells when the wall clock was set, or the machine slept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._difference()

    def happened(self) -> bool:
        """Whether the two clocks have parted since the last question."""
        before, self._offset = self._offset, self._difference()
        return abs(self._offset - before) >= _JUMP

    def _difference(self) -> float:
        return self._clock.now() - self._clock.monotonic() * 1000


@contextlib.contextmanager
def _storage(box: AgentName) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the box of {box} cannot be watched: {reason(error)}") from error
