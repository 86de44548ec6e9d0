"""create_child: from a mission to a conversation that works on it.

    begun      the mission is in the journal, the worktree exactly right
    created    the conversation is there: idle, its gate shut
    admitting  it was asked to begin without tools; its runtime starts with that
    admitted   it answered so, and the checkout was right once more afterwards; the gate is open
    delivered  the mission is in the conversation

`advance` takes the steps that can be taken now, and waits for nothing. So whoever creates,
creates again, or reconciles does the same thing, and each step finds out first whether an
earlier try that was cut off has taken it already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agent_bus.clock import from_text, to_text
from agent_bus.errors import (
    AdmissionFailed,
    Busy,
    CheckoutRefused,
    ConfigurationError,
    Conflict,
    ServerRefused,
    Unavailable,
)
from agent_bus.openhands.gateway import agent_file, belonging, ends, letters, orders
from agent_bus.openhands.gateway.caller import Caller
from agent_bus.openhands.gateway.identifiers import box_of, child_id, task_key
from agent_bus.openhands.gateway.journal import CONVERSATION, UNSTARTED, Record, State
from agent_bus.openhands.gateway.mission import Mission, bind, parse
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import ENDED, Conversation, RunEnd
from agent_bus.openhands.gateway.wire import compact

ADMISSION_LIMIT = 600
"""Seconds after which an admission turn that does not end has failed."""
UNAUTHORIZED = (401, 403)
"""The HTTP statuses of a server that does not accept the gateway's key."""
FULL = 429
"""The HTTP status of a server whose runs are all taken."""
_UNFIT = "the gateway is not set up right: agent-bus openhands doctor says more"
_READY = re.compile(r"\W*PROVIDER_READY\W*", re.ASCII)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Created:
    """A child, and how far it is."""

    child: UUID
    conversation_url: str
    created: bool
    """False: this mission had been given before."""
    state: str
    problem: str | None
    """What it waits for, where it has not come as far as `delivered`."""


class Creation:
    """Makes children."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def create(
        self,
        caller: Caller,
        *,
        task: object,
        role: object,
        mission: object,
        capabilities: object,
        wait: float,
        progress: Progress,
    ) -> Created:
        """Begin a mission, and go on with it for as long as `wait` seconds.

        What has not come as far as `delivered` by then goes on by reconciliation. Raises
        NotPermitted, InvalidMission, Conflict, CheckoutRefused, AdmissionFailed, Busy and
        ConfigurationError.
        """
        caller.require_parent("create_child")
        wanted = parse(task, role, mission, capabilities)
        child = child_id(caller.subject, task_key(wanted.task_key))
        # What is missing here is said before anything is begun.
        agent_file.load(self._parts.settings)
        if wanted.capabilities:
            agent_file.runtime_servers(self._parts.settings)
        with self._parts.journal.changing(child):
            record, is_new = self._begin(caller, child, wanted, progress)
        record = self._drive(record, wait, progress)
        if record.state == "refused":
            raise AdmissionFailed(f"child {child} did not begin: {record.problem}")
        url = self._parts.provider.url(child)
        return Created(child, url, is_new, record.state, record.problem)

    def _begin(
        self, caller: Caller, child: UUID, wanted: Mission, progress: Progress
    ) -> tuple[Record, bool]:
        journal = self._parts.journal
        known = journal.find(child)
        if known is None:
            progress("checking the checkout")
            self._parts.checkouts.ensure(child, wanted.checkout)
            return journal.save(self._new_record(caller, child, wanted)), True
        if known.mission_sha256 != wanted.sha256:
            raise Conflict(
                f"task {known.task_key} has another mission already (child {child}): "
                "give the new mission a task key of its own"
            )
        if known.state == "refused":
            again: dict[str, Any] = {
                "state": "begun",
                "attempt": known.attempt + 1,
                "problem": None,
                # Of an earlier attempt it may be there.
                "owed": CONVERSATION,
                "admission_run": None,
                "run_since": to_text(self._parts.clock.now()),
            }
            known = journal.save(known.model_copy(update=again | self._home()))
        elif known.state == "begun":
            known = self._save(known, **self._home())
        elif known.state in UNSTARTED:
            belonging.require(self._parts, known)
        return known, False

    def _home(self) -> dict[str, str]:
        settings = self._parts.settings
        return {"server": settings.url, "workspace": str(settings.workspace)}

    def _new_record(self, caller: Caller, child: UUID, wanted: Mission) -> Record:
        parts = self._parts
        now = parts.clock.now()
        return Record(
            child=child,
            owner=caller.subject,
            owner_box=box_of(caller.subject, parts.bus.file.bus, parts.bus.known()),
            server=parts.settings.url,
            workspace=str(parts.settings.workspace),
            task_key=wanted.task_key,
            role=wanted.role,
            repository=wanted.checkout.repository,
            branch=wanted.checkout.branch,
            head_sha=wanted.checkout.head_sha,
            capabilities=wanted.capabilities,
            mission=compact(wanted.content),
            mission_sha256=wanted.sha256,
            state="begun",
            created_at=to_text(now),
            updated_at=to_text(now),
            issued_at=now // 1000,
            run_since=to_text(now),
        )

    def _drive(self, record: Record, wait: float, progress: Progress) -> Record:
        parts = self._parts
        began, slept = parts.clock.monotonic(), 0.0
        told = ""
        while record.state in UNSTARTED:
            try:
                with parts.journal.changing(record.child):
                    record = self.advance(parts.journal.load(record.child))
            except Unavailable as error:
                record = record.model_copy(update={"problem": str(error)})
            except Busy:
                pass  # another process takes the same steps
            # A clock held in hand may stand still; what was slept counts all the same.
            if max(parts.clock.monotonic() - began, slept) >= wait or parts.closing.is_set():
                break
            if (line := _told(record)) != told:
                progress(line)
                told = line
            parts.pauses.sleep(parts.pauses.poll)
            slept += parts.pauses.poll
        return record

    # -- the steps

    def advance(self, record: Record) -> Record:
        """Take every step towards `delivered` that can be taken now. Hold the child's lock.

        Raises Unavailable, ConfigurationError, ServerRefused for a wrong key, and what
        `Bus.wake` raises.
        """
        try:
            record = letters.start_owed_run(self._parts, record)
            steps = {
                "begun": self._create,
                "created": self._ask,
                "admitting": self._admit,
                "admitted": self._deliver,
            }
            while (step := steps.get(record.state)) is not None:
                before = record.state
                record = step(record)
                if record.state == before:
                    break
        except CheckoutRefused as error:
            return self._refuse(record, f"its checkout is not right: {error}")
        except Conflict as error:
            return self._refuse(record, str(error))
        except (ConfigurationError, ServerRefused) as error:
            if isinstance(error, ServerRefused) and error.status not in UNAUTHORIZED:
                return self._refuse(record, str(error))
            # Another gateway of this bus may be set up right, and goes on then.
            if self._is_late(record):
                # What is wrong may name places that are none of its owner's business.
                self._refuse(record, _UNFIT)
            raise
        return record

    def _create(self, record: Record) -> Record:
        parts = self._parts
        folder = parts.checkouts.ensure(record.child, record.checkout)
        found = parts.provider.conversation(record.child) if record.owed == CONVERSATION else None
        if found is None:
            now = parts.clock.now() // 1000
            order = orders.order(parts, record, folder, issued_at=now)
            given = {entry.name: entry.url for entry in order.servers}
            record = self._save(record, owed=CONVERSATION, servers=given)
            try:
                made = parts.provider.create(order)
            except ServerRefused as error:
                if error.status != FULL:
                    raise
                return self._save(record, problem="the agent server has no room for a run now")
            found = parts.provider.conversation(record.child)
            if found is None:
                raise Unavailable(
                    "the agent server does not show the conversation it has just made"
                )
            record = record.model_copy(update={"issued_at": now}) if made else record
        orders.require_own(found, record, folder)
        return self._save(record, state="created", owed=None, problem=None)

    def _ask(self, record: Record) -> Record:
        marker = f"Initialize runtime for Child {record.child}, attempt {record.attempt}."
        text = f"PROVIDER_ADMISSION\n{marker} Use no tools and finish with PROVIDER_READY."
        return self._say(record, marker, text, state="admitting", names="admission_run")

    def _say(self, record: Record, marker: str, text: str, *, state: State, names: str) -> Record:
        """Post a message once; the record is in this state then, and `names` the run of it."""
        record, run = letters.post_once(self._parts, record, marker, text)
        if run is None:
            return record
        now = to_text(self._parts.clock.now())
        changes = {names: run, "state": state, "owed": None, "problem": None, "run_since": now}
        return self._save(record, **changes)

    def _admit(self, record: Record) -> Record:
        found = ends.settled(self._parts, record)
        if found is None or found.status in ("idle", "running"):
            return self._refuse_late(record)
        wrong = self._objection(record, found)
        if wrong is not None:
            return self._refuse(record, wrong)
        self._parts.checkouts.revalidate(record.child, record.checkout)
        self._parts.gates.open(record.child)
        return self._save(record, state="admitted")

    def _objection(self, record: Record, found: Conversation) -> str | None:
        """Why an admission turn that is over does not admit."""
        if found.status not in ENDED:
            return f"its admission turn did not end: the conversation is {found.status}"
        if found.last_user_message != record.admission_run:
            return "somebody else wrote to it in its admission turn"
        if dict(found.servers) != record.servers:
            # A plugin of the repository, or of the server's user: a child has what it was given.
            extra = sorted(set(found.servers.items()) ^ set(record.servers.items()))
            return f"its runtime has other MCP servers than it was given: {extra[0][0][:80]!a}"
        end = self._parts.provider.run_end(record.child, record.admission_run)
        if found.status != "finished":
            why = f"{end.error_code}: {end.error_text}" if end.error_code else "no reason given"
            told = f"its admission turn ended as {found.status} ({why})"
            return self._parts.redaction(told)[:500]
        return _shortcoming(end)

    def _refuse_late(self, record: Record) -> Record:
        if not self._is_late(record):
            return record
        self._parts.provider.interrupt(record.child)
        return self._refuse(record, f"its admission turn did not end in {ADMISSION_LIMIT} s")

    def _is_late(self, record: Record) -> bool:
        """Whether this step has taken too long; also where the clock was set back by as much."""
        since = from_text(record.run_since or record.updated_at)
        return abs(self._parts.clock.now() - since) >= ADMISSION_LIMIT * 1000

    def _deliver(self, record: Record) -> Record:
        reports = record.reports_to_gateway
        mission = Mission(
            task_key=record.task_key,
            role=record.role,
            checkout=record.checkout,
            content=json.loads(record.mission),
            capabilities=record.capabilities,
        )
        text = bind(mission, owner=record.owner, child=record.child, reports=reports)
        # No message before it says so, and none is posted in its place after it.
        marker = f'"childId":"{record.child}"'
        return self._say(record, marker, text, state="delivered", names="mission_run")

    def _refuse(self, record: Record, problem: str) -> Record:
        """The child does not begin; its owner is told, whether somebody waits for it or not."""
        self._parts.gates.shut(record.child)
        changes = {"problem": problem, "run_owed": False, "owed": None}
        return ends.refused(self._parts, record.model_copy(update=changes))

    def _save(self, record: Record, **changes: Any) -> Record:
        changed = record.model_copy(update=changes)
        return record if changed == record else self._parts.journal.save(changed)


def _shortcoming(end: RunEnd) -> str | None:
    """What an admission turn that has finished lacks."""
    if end.used_tools:
        return "it used a tool in its admission turn, which it was told not to"
    if _READY.fullmatch(end.answer.strip()) is None:
        return "it did not answer PROVIDER_READY in its admission turn"
    return None


def _told(record: Record) -> str:
    stages = {
        "begun": "making the conversation",
        "created": "starting the runtime",
        "admitting": "waiting for the admission turn",
        "admitted": "delivering the mission",
    }
    return record.problem or stages.get(record.state, record.state)
