"""The rounds: each child that is not settled is looked up, and taken as far as it can go.

A round needs no sign. It finds what a hook that was lost, a server that was killed or a
gateway that was down have left, since the journal and the agent server say all of it. What
fails for one child is told and does not keep the others; where the agent server cannot be
reached the round is over, and the next one begins anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from agent_bus.clock import from_text
from agent_bus.errors import AgentBusError, Busy, NoSuchChild, Unavailable
from agent_bus.openhands.gateway import decisions, ends, letters
from agent_bus.openhands.gateway.creation import Creation
from agent_bus.openhands.gateway.intents import Intents
from agent_bus.openhands.gateway.journal import UNSTARTED, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.watch import Watch

INTERVAL = 5.0
"""Seconds between two rounds; a sign or a decision begins one at once."""
_LOCK_SECONDS = 0.5
_LOOKED_AFTER = 7 * 24 * 3600
"""Seconds for which a child is looked up whose run has failed or was paused: a person may take
it up again in the meantime, without a word to the gateway."""


@dataclass(slots=True)
class Round:
    """What a round has done."""

    looked: int = 0
    ended: list[UUID] = field(default_factory=list)
    """The children whose owners were woken."""
    begun: list[UUID] = field(default_factory=list)
    """The children whose missions were delivered."""
    problems: list[str] = field(default_factory=list)


class Reconciliation:
    """Goes round the children of one bus."""

    def __init__(self, parts: Parts, intents: Intents, creation: Creation) -> None:
        self._parts = parts
        self._intents = intents
        self._creation = creation
        self._resting: dict[UUID, int] = {}
        """The records that need no look, as they stood."""
        self._sign = threading.Event()
        self._due = threading.Event()
        """Whether the next turn is a whole round: after a while, after a decision."""

    def round(self) -> Round:
        """Look once at every child that is not settled. Raises nothing but StorageError."""
        done = Round()
        journal = self._parts.journal
        if self._heed(done):
            restless = (c for c in journal.ids() if journal.stamp(c) != self._resting.get(c))
            self._look_at(restless, done)
        self._tidy(done)
        return done

    def _heed(self, done: Round) -> bool:
        """Look at the children of which there are signs. False: no server can be reached."""
        signs = self._intents.pending()
        return all(self._look_at([child], done, names) for child, names in signs.items())

    def _look_at(self, children: Iterable[UUID], done: Round, signs: Sequence[str] = ()) -> bool:
        for child in children:
            try:
                self._look(child, done, signed=bool(signs))
                self._intents.remove(signs)
            except Busy:
                continue  # somebody is at it; the sign stays
            except Unavailable as error:
                done.problems.append(str(error))
                return False
            except NoSuchChild:
                self._intents.remove(signs)
            except AgentBusError as error:
                done.problems.append(f"child {child}: {error}")
            except Exception as error:  # noqa: BLE001 - one child must not keep the others
                what = f"{type(error).__name__}: {error}"
                done.problems.append(f"child {child}: unexpected, please report it: {what[:300]}")
        return True

    def _look(self, child: UUID, done: Round, *, signed: bool) -> None:
        parts = self._parts
        stamp = parts.journal.stamp(child)
        if not signed and self._is_at_rest(parts.journal.load(child)):
            self._resting[child] = stamp
            return
        with parts.journal.changing(child, _LOCK_SECONDS):
            before = parts.journal.load(child)
            done.looked += 1
            after = self._advance(before)
        if len(after.ends) > len(before.ends):
            done.ended.append(child)
        if before.state in UNSTARTED and after.state == "delivered":
            done.begun.append(child)

    def _advance(self, record: Record) -> Record:
        record = decisions.carry(self._parts, record)
        if record.state in UNSTARTED:
            record = self._creation.advance(record)
        elif record.state != "refused":
            record = letters.start_owed_run(self._parts, record)
            record = ends.conclude(self._parts, record)
        return letters.deliver(self._parts, record)

    def _is_at_rest(self, record: Record) -> bool:
        if record.is_settled:
            return True
        last = record.last_end
        if record.state != "ended" or last is None:
            return False
        age = (self._parts.clock.now() - from_text(last.at)) / 1000
        owed = any(letter.state in ("owed", "saved") for letter in record.letters)
        asked = any(question.decision is None for question in record.questions)
        return age > _LOOKED_AFTER and not owed and not asked

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
            problems = set(self._turn(whole=whole).problems)
            for problem in sorted(problems - told):
                warn(problem)
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
        return done

    def _listen(self, ending: threading.Event, watch: Watch, warn: Callable[[str], None]) -> None:
        """Begin a round when somebody has decided: the notice comes into our own box."""
        while not ending.is_set():
            try:
                if watch.next(timeout=60).messages:
                    self.hurry()
            except AgentBusError as error:
                if not ending.is_set():
                    warn(str(error))
                    ending.wait(INTERVAL)

    def signal(self, child: UUID, source: str) -> None:
        """Note on disk that a run of a child may have ended, and begin a round.

        Raises NoSuchChild, Busy where too many signs wait already, and StorageError.
        """
        if self._parts.journal.find(child) is None:
            raise NoSuchChild(f"no child {child} in the journal of this bus")
        self._intents.add(child, source)
        self.hurry(whole=False)
