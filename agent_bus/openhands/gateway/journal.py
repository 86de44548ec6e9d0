"""What the gateway remembers of each child: one file, changed under one lock.

    <bus>/openhands/gateway/children/<child>.json      the record, replaced as a whole
    <bus>/openhands/gateway/locks/<child>.lock         held while it is changed

The record is written before each step that has an effect elsewhere, and after it. So a crash
leaves a record that says what may have happened, and the next process finds out whether it
did before it does it again. Nothing is ever inferred from a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_bus.clock import Clock, to_text
from agent_bus.errors import NoSuchChild, StorageError
from agent_bus.files import Folder, UnfitFile
from agent_bus.names import AgentName
from agent_bus.openhands.gateway.caller import Role
from agent_bus.openhands.gateway.locking import held
from agent_bus.openhands.gateway.mission import Checkout
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
RESUME = "RESUME "
"""How the keys of notes begin that are about what an owner said; the others are reports."""
CONVERSATION = "conversation"
"""What a child owes that may have been made already: its conversation."""
OWN_SERVER = "agent_bus"
"""The name under which a child finds the gateway's tools."""
MOST_DONE = 50
"""Letters that are done, and still remembered so that the same one is not written again."""
MOST_OWED = 100
"""Letters that wait for an owner's conversation; those before them stand in its box alone."""
MOST_NOTES = 500
"""Reports of a child that are remembered; what was said before those, the bus still knows."""
MOST_ANSWERED = 50
"""Questions that were answered and are still remembered."""
_LIMIT = 16 << 20
_SUFFIX = ".json"

Entry = TypeVar("Entry")


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
    missing_since: str | None = None
    """Since when the server does not know the conversation."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be done about it any more."""
        return self.state in ("done", "gone")


class Record(_Model):
    """A child."""

    format: Literal[1] = 1
    child: UUID
    owner: UUID
    """The Main that it reports to."""
    owner_box: AgentName
    server: str
    """The agent server that has its conversation, as the gateway that began it reaches it."""
    workspace: str
    """Where its worktree and its gate are."""
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
    """A marker of what may have been done: it is looked for before it is done again. It stands
    in a message, or it is `CONVERSATION`."""
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
    def checkout(self) -> Checkout:
        """The state of the repository that it begins with."""
        return Checkout(self.repository, self.branch, self.head_sha)

    @property
    def last_end(self) -> End | None:
        """The newest end."""
        return self.ends[-1] if self.ends else None

    @property
    def reports_to_gateway(self) -> bool:
        """Whether it was given the gateway's tools."""
        return OWN_SERVER in self.servers

    @property
    def owed_letters(self) -> tuple[Letter, ...]:
        """What has to be brought to a conversation now.

        What is for the child itself waits as long as it is not at its mission: a message would
        set a child to work that its owner has stopped.
        """
        is_held = self.state not in ("delivered", "ended")
        return tuple(
            letter
            for letter in self.letters
            if not letter.is_done and not (is_held and letter.to == self.child)
        )

    @property
    def waits_for_others(self) -> bool:
        """Whether a decision, or a conversation that is not open now, is waited for."""
        asked = any(question.decision is None for question in self.questions)
        return asked or bool(self.owed_letters)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done until somebody asks for something or gives a sign."""
        if self.state in LIVING or self.waits_for_others or self.run_owed:
            return False
        last = self.last_end
        return self.state != "ended" or (last is not None and last.status == "finished")

    def with_note(self, key: str, note: Note) -> Record:
        """The same with one note more, or another."""
        said = [old for old in self.notes if old != key and not old.startswith(RESUME)]
        forgotten = said[:-MOST_NOTES]
        kept = {old: self.notes[old] for old in self.notes if old not in forgotten}
        return self.model_copy(update={"notes": {**kept, key: note}})

    def with_letter(self, letter: Letter) -> Record:
        """The same with one letter more; a letter with this marker stays as it is."""
        if any(other.marker == letter.marker for other in self.letters):
            return self
        letters = _without_oldest(self.letters, lambda old: old.is_done, MOST_DONE)
        letters = _without_oldest(letters, self._is_owed_to_owner, MOST_OWED)
        return self.model_copy(update={"letters": (*letters, letter)})

    def _is_owed_to_owner(self, letter: Letter) -> bool:
        return not letter.is_done and letter.to == self.owner

    def with_question(self, question: Question) -> Record:
        """The same with one question more; a question with this request stays as it is."""
        if any(other.request == question.request for other in self.questions):
            return self
        asked = _without_oldest(self.questions, lambda old: old.decision is not None, MOST_ANSWERED)
        return self.model_copy(update={"questions": (*asked, question)})


def _without_oldest(
    entries: Sequence[Entry], may_go: Callable[[Entry], bool], most: int
) -> tuple[Entry, ...]:
    """The entries without the oldest of those that may go, so that `most` of these are left."""
    left = sum(map(may_go, entries)) - most
    kept = []
    for entry in entries:
        if left > 0 and may_go(entry):
            left -= 1
        else:
            kept.append(entry)
    return tuple(kept)


class Journal:
    """The records of one bus."""

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self._children = folder.make("children")
        self._locks = folder.make("locks")
        self._clock = clock

    @contextlib.contextmanager
    def changing(self, child: UUID, timeout: float = 10.0) -> Iterator[None]:
        """Hold the lock of a child. Not re-entrant. Raises Busy and StorageError."""
        path, what = self._locks.path / f"{child}.lock", f"child {child}"
        with held(path, timeout, what, busy="being seen to", failed=StorageError):
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
                f"the record of child {child} cannot be used ({_told(error)}): "
                "restore a backup of it, or move it away"
            ) from None

    def load(self, child: UUID) -> Record:
        """The record of a child. Raises NoSuchChild and StorageError."""
        found = self.find(child)
        if found is None:
            raise NoSuchChild(f"no child {child} in the journal of this bus")
        return found

    def save(self, record: Record) -> Record:
        """Put a record in place of its predecessor; durable on return. Hold the lock.

        Raises StorageError.
        """
        now = to_text(self._clock.now())
        saved = record.model_copy(update={"updated_at": now})
        data = saved.model_dump_json(indent=1).encode() + b"\n"
        if len(data) > _LIMIT:
            # It could not be read again, and its owner would never hear of its end.
            raise StorageError(f"the record of child {record.child} has grown too large")
        with storage_errors():
            self._children.replace(f"{record.child}{_SUFFIX}", data)
        return saved

    def stamp(self, child: UUID) -> int:
        """What changes whenever the record is saved; 0 if there is none."""
        with storage_errors():
            status = self._children.status(f"{child}{_SUFFIX}")
        return 0 if status is None else status.st_mtime_ns ^ status.st_ino

    def ids(self) -> list[UUID]:
        """All children, by their ids."""
        with storage_errors():
            names = self._children.names()
        stems = (name.removesuffix(_SUFFIX) for name in sorted(names) if name.endswith(_SUFFIX))
        return [found for stem in stems if (found := _uuid(stem)) is not None]

    def close(self) -> None:
        """Let go of the folders."""
        self._children.close()
        self._locks.close()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _told(error: ValidationError | UnfitFile) -> str:
    """What is wrong with a record, in a line and without its content."""
    if isinstance(error, UnfitFile):
        return f"it {error}"
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg'].lower()}" if where else "it is no JSON object of its form"
