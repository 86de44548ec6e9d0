"""The rounds: each child that is not settled is looked up, and taken as far as it can go.

A round needs no sign. It finds what a hook that was lost, a server that was killed or a
gateway that was down have left, since the journal and the agent server say all of it. What
fails for one child is told and does not keep the others; where the agent server does not answer
for several in a row the round is over, and the next one begins behind them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from agent_bus.clock import from_text
from agent_bus.errors import AgentBusError, Busy, NoSuchChild, Unavailable
from agent_bus.openhands.gateway import belonging, decisions, ends, letters
from agent_bus.openhands.gateway.creation import Creation
from agent_bus.openhands.gateway.intents import Intents
from agent_bus.openhands.gateway.journal import UNSTARTED, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.watch import Watch

INTERVAL = 5.0
"""Seconds between two rounds; a sign or a decision begins one at once."""
_LOCK_SECONDS = 0.5
_FRUITLESS = 3
"""Children in a row for which the agent server does not answer, until a round is over: it is
down then, and each would be waited for."""
_LOOKED_AFTER = 7 * 24 * 3600
"""Seconds for which a child is looked up whose run has failed or was paused: a person may take
it up again in the meantime, without a word to the gateway."""
_PATIENCE = 100
"""The part of the time since its end after which it is looked up once more."""


@dataclass(slots=True)
class Round:
    """What a round has done."""

    looked: int = 0
    ended: list[UUID] = field(default_factory=list)
    """The children whose owners were woken."""
    begun: list[UUID] = field(default_factory=list)
    """The children whose missions were delivered."""
    problems: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Why children are left to another gateway, a line each."""


class Reconciliation:
    """Goes round the children of one bus."""

    def __init__(self, parts: Parts, intents: Intents, creation: Creation) -> None:
        self._parts = parts
        self._intents = intents
        self._creation = creation
        self._resting: dict[UUID, int] = {}
        """The records that need no look, as they stood."""
        self._looked: dict[UUID, int] = {}
        """When a child was last looked up, in milliseconds since 1970."""
        self._behind = UUID(int=0)
        """The child at which the last round gave up."""
        self._sign = threading.Event()
        self._due = threading.Event()
        """Whether the next turn is a whole round: after a while, after a decision."""

    def round(self) -> Round:
        """Look once at every child that is not settled. Raises nothing but StorageError."""
        done, journal = Round(), self._parts.journal
        signs = self._intents.pending()
        tried = self._look_at(signs, done, signs)
        ids = dict.fromkeys((*journal.ids(), *signs))
        restless = [child for child in ids if child in signs or self._is_restless(child)]
        rest = sorted(set(restless).difference(tried), key=self._comes_later)
        tried = self._look_at(rest, done, signs)
        if len(tried) < len(rest):
            self._behind = tried[-1]
        self._tidy(done)
        return done

    def _heed(self, done: Round) -> None:
        """Look at the children of which there are signs."""
        signs = self._intents.pending()
        self._look_at(signs, done, signs)

    def _is_restless(self, child: UUID) -> bool:
        known = self._resting.get(child)
        return known is None or known != self._parts.journal.stamp(child)

    def _comes_later(self, child: UUID) -> tuple[bool, int]:
        return child.int <= self._behind.int, child.int

    def _look_at(
        self, children: Iterable[UUID], done: Round, signs: Mapping[UUID, Sequence[str]]
    ) -> list[UUID]:
        """Look at these children, unless the agent server does not answer; those it came to."""
        tried: list[UUID] = []
        fruitless = 0
        for child in children:
            tried.append(child)
            try:
                self._look(child, done, signed=child in signs)
                self._intents.remove(signs.get(child, ()))
                fruitless = 0
            except Busy:
                continue  # somebody is at it; the sign stays
            except Unavailable as error:
                done.problems.append(str(error))
                fruitless += 1
                if fruitless == _FRUITLESS:
                    break
            except NoSuchChild:
                self._intents.remove(signs.get(child, ()))
            except AgentBusError as error:
                text = str(error)
                named = str(child) in text
                done.problems.append(text if named else f"child {child}: {text}")
            except Exception as error:  # noqa: BLE001 - one child must not keep the others
                done.problems.append(f"child {child}: {_surprise(error)}")
        return tried

    def _look(self, child: UUID, done: Round, *, signed: bool) -> None:
        parts = self._parts
        stamp = parts.journal.stamp(child)
        if not signed:
            record = parts.journal.load(child)
            if self._is_at_rest(record):
                self._resting[child] = stamp
                return
            if not self._is_due(record):
                return
        with parts.journal.changing(child, _LOCK_SECONDS):
            before = parts.journal.load(child)
            if why := belonging.objection(parts, before):
                done.elsewhere.append(why)
                return
            done.looked += 1
            self._looked[child] = parts.clock.now()
            after = self._advance(before)
        if len(after.ends) > len(before.ends):
            done.ended.append(child)
        if before.state in UNSTARTED and after.state == "delivered":
            done.begun.append(child)

    def _advance(self, record: Record) -> Record:
        # The end comes first: what else is told to its owner must not keep it, and a letter
        # begins another run.
        if record.state in UNSTARTED:
            record = self._creation.advance(record)
        elif record.state in ("delivered", "ended"):
            record = letters.start_owed_run(self._parts, record)
            record = ends.conclude(self._parts, record)
        record = decisions.carry(self._parts, record)
        return letters.deliver(self._parts, record)

    def _is_at_rest(self, record: Record) -> bool:
        if record.is_settled:
            return True
        return self._since_end(record) > _LOOKED_AFTER * 1000

    def _is_due(self, record: Record) -> bool:
        """Whether it is looked up in this round: after its end ever more rarely."""
        last = self._looked.get(record.child, 0)
        return abs(self._parts.clock.now() - last) * _PATIENCE >= self._since_end(record)

    def _since_end(self, record: Record) -> int:
        """Milliseconds since it has ended, for what only a person goes on with; else 0."""
        last = record.last_end
        if record.state != "ended" or last is None or last.status == "overdue":
            return 0
        if record.waits_for_others or record.run_owed:
            return 0
        return self._parts.clock.now() - from_text(last.at)

    def _tidy(self, done: Round) -> None:
        try:
            decisions.tidy(self._parts)
        except AgentBusError as error:
            done.problems.append(str(error))

    # -- in the background

    def hurry(self, *, whole: bool = True) -> None:
        """Begin the next turn now; not a `whole` round is for the children with signs."""
        if whole:
            self._due.set()
        self._sign.set()

    @contextlib.contextmanager
    def running(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Go round on start, every so often, and at each sign, in a thread of its own."""
        ending = threading.Event()
        watch = self._parts.bus.watch(warn=warn)
        threads = [
            threading.Thread(target=self._go_round, args=(ending, warn), name="reconciliation"),
            threading.Thread(target=self._listen, args=(ending, watch, warn), name="decisions"),
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            yield
        finally:
            ending.set()
            self._sign.set()
            watch.close()
            for thread in threads:
                thread.join(timeout=30)

    def _go_round(self, ending: threading.Event, warn: Callable[[str], None]) -> None:
        told: set[str] = set()
        clock = self._parts.clock
        last = clock.monotonic() - INTERVAL
        while not ending.is_set():
            self._sign.clear()
            left = INTERVAL - (clock.monotonic() - last)
            if whole := self._due.is_set() or left <= 0:
                self._due.clear()
                last, left = clock.monotonic(), INTERVAL
            done = self._turn(whole=whole)
            problems = {*done.problems, *done.elsewhere}
            for problem in sorted(problems - told):
                _tell(warn, problem)
            told = problems if whole else told | problems
            if not self._sign.wait(left):
                # Slept through counts also where a clock held in hand stands still.
                self._due.set()

    def _turn(self, *, whole: bool) -> Round:
        done = Round()
        try:
            if whole:
                return self.round()
            self._heed(done)
        except AgentBusError as error:
            done.problems.append(str(error))
        except Exception as error:  # noqa: BLE001 - without this thread nobody is woken
            done.problems.append(_surprise(error))
        return done

    def _listen(self, ending: threading.Event, watch: Watch, warn: Callable[[str], None]) -> None:
        """Begin a round when somebody has decided: the notice comes into our own box."""
        while not ending.is_set():
            try:
                if watch.next(timeout=60).messages:
                    self.hurry()
            except AgentBusError as error:
                if not ending.is_set():
                    _tell(warn, str(error))
                    ending.wait(INTERVAL)

    def signal(self, child: UUID, source: str) -> None:
        """Note on disk that a run of a child may have ended, and begin a round.

        Raises NoSuchChild, Busy where too many signs wait already, and StorageError.
        """
        if self._parts.journal.find(child) is None:
            raise NoSuchChild(f"no child {child} in the journal of this bus")
        self._intents.add(child, source, lambda: self.hurry(whole=False))


def _surprise(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}"
    return f"unexpected, please report it: {what[:300]}"


def _tell(warn: Callable[[str], None], line: str) -> None:
    # Whoever started this may have closed its stderr: the children are looked after all the same.
    with contextlib.suppress(OSError, ValueError):
        warn(line)
