"""The rounds: each child that is not settled is looked up, and taken as far as it can go.

A round needs no sign. It finds what a hook that was lost, a server that was killed or a
gateway that was down have left, since the journal and the agent server say all of it. What
fails for one child is told and does not keep the others; where the agent server cannot be
reached the round is over, and the next one begins anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
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
        self._sign = threading.Event()

    def round(self) -> Round:
        """Look once at every child that is not settled. Raises nothing but StorageError."""
        done = Round()
        signs = self._intents.pending()
        for child in self._parts.journal.ids():
            try:
                if self._look(child, done, signed=child in signs):
                    self._intents.remove(signs.pop(child, []))
            except Busy:
                continue  # somebody is at it
            except Unavailable as error:
                done.problems.append(str(error))
                break
            except AgentBusError as error:
                done.problems.append(f"child {child}: {error}")
        self._tidy(done)
        return done

    def _look(self, child: UUID, done: Round, *, signed: bool) -> bool:
        """One child. False: it is too early for it, the sign stays."""
        parts = self._parts
        record = parts.journal.load(child)
        if not signed and self._is_at_rest(record):
            return True
        with parts.journal.changing(child, _LOCK_SECONDS):
            before = parts.journal.load(child)
            done.looked += 1
            after = self._advance(before)
        if len(after.ends) > len(before.ends):
            done.ended.append(child)
        if before.state in UNSTARTED and after.state == "delivered":
            done.begun.append(child)
        return True

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

    def hurry(self) -> None:
        """Begin the next round now."""
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
        while not ending.is_set():
            self._sign.clear()
            try:
                problems = set(self.round().problems)
            except AgentBusError as error:
                problems = {str(error)}
            for problem in sorted(problems - told):
                warn(problem)
            told = problems
            self._sign.wait(INTERVAL)

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
        self.hurry()
