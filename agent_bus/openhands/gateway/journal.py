"""What the gateway remembers of each child: one file, changed under one lock.

    <bus>/openhands/gateway/children/<child>.json      the record, replaced as a whole
    <bus>/openhands/gateway/locks/<child>.lock         held while it is changed

The record is written before each step that has an effect elsewhere, and after it. So a crash
leaves a record that says what may have happened, and the next process finds out whether it
did before it does it again. Nothing is ever inferred from a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_bus.clock import Clock, to_text
from agent_bus.errors import Busy, NoSuchChild, StorageError
from agent_bus.files import Folder, UnfitFile
from agent_bus.locks import locked
from agent_bus.names import AgentName
from agent_bus.openhands.gateway.caller import Role
from agent_bus.reading import reason, storage_errors

State = Literal[
    "begun", "created", "admitting", "admitted", "delivered", "ended", "cancelled", "refused"
]
"""begun: the mission is accepted. created: its conversation is there, idle. admitting: the
admission turn was asked for. admitted: the checkout was right afterwards, tools are open.
delivered: the mission is in the conversation. ended: the owner was woken. cancelled: by the
owner. refused: the admission failed; asking again tries again."""
EndStatus = Literal["finished", "error", "stuck", "paused", "lost", "overdue", "cancelled"]
UNSTARTED: tuple[State, ...] = ("begun", "created", "admitting", "admitted")
LIVING: tuple[State, ...] = (*UNSTARTED, "delivered")
OWN_SERVER = "agent_bus"
"""The name under which a child finds the gateway's tools."""
_LIMIT = 4 << 20
_SUFFIX = ".json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class End(_Model):
    """One end of a run, for which the owner was woken once."""

    run: str
    """The id of the user message that began the run."""
    number: int
    """How often this run had ended before: a run that was paused can end once more."""
    status: EndStatus
    wake: str
    """The id of the wake in the owner's box."""
    at: str


class Question(_Model):
    """A decision that a child has asked for."""

    key: str
    request: str
    """The id of the approval request."""
    decision: str | None = None
    """What became of it; None while it waits."""


class Note(_Model):
    """What was said under a message key: the same again is a repeat, another a conflict."""

    sha256: str
    id: str | None = None
    """The id of the message that came of it; None: it may not have arrived yet."""
    ends: int = 0
    """How many ends there were: a report belongs to the run after them."""


class Letter(_Model):
    """A user message for a conversation that must get there, once."""

    to: UUID
    """The conversation: the child's, or its owner's."""
    marker: str
    """Text that this message alone contains: it is looked for before anything is posted."""
    text: str
    """Empty once it is done."""
    state: Literal["owed", "saved", "done", "gone"] = "owed"
    """saved: it is there, and a run has to be started. gone: there is no such conversation."""


class Record(_Model):
    """A child."""

    format: Literal[1] = 1
    child: UUID
    owner: UUID
    """The Main that it reports to."""
    owner_box: AgentName
    task_key: str
    role: Role
    repository: str
    branch: str
    head_sha: str
    capabilities: tuple[str, ...] = ()
    mission: str
    """The mission as JSON text, as the owner gave it."""
    mission_sha256: str
    state: State
    created_at: str
    updated_at: str
    problem: str | None = None
    """Why it does not go on, for people."""
    issued_at: int
    """When its capability was issued, in seconds since 1970."""
    servers: dict[str, str] = {}
    """The MCP servers that it was given, name and URL."""
    attempt: int = 1
    """Which admission this is."""
    admission_run: str | None = None
    mission_run: str | None = None
    owed: str | None = None
    """A marker of a message that may have been posted: look for it before posting it again."""
    run_owed: bool = False
    """A message was saved without room for a run: start one, and never post it again."""
    run_since: str | None = None
    """Since when the present run is known to go on."""
    seen: str | None = None
    """The status at the last look."""
    seen_since: str | None = None
    """Since when it has been that."""
    reopened: bool = False
    """It was seen at work after its last end."""
    ends: tuple[End, ...] = ()
    notes: dict[str, Note] = {}
    questions: tuple[Question, ...] = ()
    letters: tuple[Letter, ...] = ()

    @property
    def message_key(self) -> str:
        """The stable key under which the owner recognises this child's ends."""
        return f"terminal:{self.child}:{self.task_key}"

    @property
    def last_end(self) -> End | None:
        """The newest end."""
        return self.ends[-1] if self.ends else None

    @property
    def reports_to_gateway(self) -> bool:
        """Whether it was given the gateway's tools."""
        return OWN_SERVER in self.servers

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done until somebody asks for something or gives a sign."""
        waiting = any(question.decision is None for question in self.questions)
        owed = any(letter.state in ("owed", "saved") for letter in self.letters)
        at_rest = self.state in ("cancelled", "refused") or (
            self.last_end is not None and self.last_end.status == "finished"
        )
        return at_rest and self.state not in LIVING and not (waiting or owed or self.run_owed)

    def with_note(self, key: str, note: Note) -> Record:
        """The same with one note more, or another."""
        return self.model_copy(update={"notes": {**self.notes, key: note}})

    def with_letter(self, letter: Letter) -> Record:
        """The same with one letter more; a letter with this marker stays as it is."""
        if any(other.marker == letter.marker for other in self.letters):
            return self
        return self.model_copy(update={"letters": (*self.letters, letter)})


class Journal:
    """The records of one bus."""

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self._children = folder.make("children")
        self._locks = folder.make("locks")
        self._clock = clock

    @contextlib.contextmanager
    def changing(self, child: UUID, timeout: float = 10.0) -> Iterator[None]:
        """Hold the lock of a child. Not re-entrant. Raises Busy."""
        try:
            held = contextlib.ExitStack()
            held.enter_context(locked(self._locks.path / f"{child}.lock", timeout))
        except Busy:
            # Whoever hears of it may be a child: no path.
            raise Busy(f"child {child} is being seen to by another process: try again") from None
        with held:
            yield

    def find(self, child: UUID) -> Record | None:
        """The record of a child, or None. Raises StorageError if it is no record."""
        try:
            return Record.model_validate_json(self._children.read(f"{child}{_SUFFIX}", _LIMIT))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(reason(error)) from error
        except (ValidationError, UnfitFile) as error:
            raise StorageError(
                f"the record of child {child} cannot be used ({_first_line(error)}): "
                "agent-bus openhands doctor says more"
            ) from None

    def load(self, child: UUID) -> Record:
        """The record of a child. Raises NoSuchChild and StorageError."""
        found = self.find(child)
        if found is None:
            raise NoSuchChild(f"no child {child} in the journal of this bus")
        return found

    def save(self, record: Record) -> Record:
        """Put a record in place of its predecessor; durable on return. Hold the lock."""
        now = to_text(self._clock.now())
        saved = record.model_copy(update={"updated_at": now})
        with storage_errors():
            self._children.replace(
                f"{record.child}{_SUFFIX}", saved.model_dump_json(indent=1).encode() + b"\n"
            )
        return saved

    def stamp(self, child: UUID) -> int:
        """What changes whenever the record is saved; 0 if there is none."""
        with storage_errors():
            status = self._children.status(f"{child}{_SUFFIX}")
        return 0 if status is None else status.st_mtime_ns ^ status.st_ino

    def ids(self) -> list[UUID]:
        """All children, in no order that means anything."""
        with storage_errors():
            names = self._children.names()
        stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        return sorted(found for stem in stems if (found := _uuid(stem)) is not None)

    def close(self) -> None:
        """Let go of the folders."""
        self._children.close()
        self._locks.close()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
