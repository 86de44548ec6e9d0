"""The children of a bus, for whoever looks: asks no agent server and needs no credential."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from agent_bus.clock import Clock
from agent_bus.errors import AgentBusError, NoSuchChild, UsageError
from agent_bus.files import Folder
from agent_bus.openhands.gateway.journal import Journal, Record
from agent_bus.reading import storage_errors

FOLDERS = ("openhands", "gateway")
"""Where the gateway's own files stand below the bus."""
SHORTEST = 4
"""Characters of a part of an id that may name a child."""


def of_bus(path: Path, clock: Clock) -> tuple[list[Record], list[str]]:
    """The children of the bus in a folder, the newest last, and a line for each unfit record.

    Makes nothing where there is no gateway yet. Raises StorageError.
    """
    with storage_errors(), Folder.open(path, shared=True) as root, contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(root.descend(*FOLDERS))
            folder.child("children").close()
        except FileNotFoundError:
            return [], []
        journal = stack.enter_context(contextlib.closing(Journal(folder, clock)))
        return all_of(journal)


def all_of(journal: Journal) -> tuple[list[Record], list[str]]:
    """The records of a journal, the newest last, and a line for each that is unfit."""
    records, problems = [], []
    for child in journal.ids():
        try:
            found = journal.find(child)
        except AgentBusError as error:
            problems.append(str(error))
        else:
            records += [found] if found else []
    return sorted(records, key=lambda record: (record.created_at, record.child)), problems


def pick(records: Sequence[Record], text: str, owner: UUID | None = None) -> Record:
    """The child that a person names: by its id, a part of it that is unique, or its task key.

    Of several with one task key it is that of `owner`. Raises NoSuchChild, and UsageError
    where several fit.
    """
    wanted = text.lower()
    fits = [record for record in records if str(record.child) == wanted]
    fits = fits or [record for record in records if record.task_key == text]
    fits = [record for record in fits if record.owner == owner] or fits
    if not fits and len(wanted) >= SHORTEST:
        fits = [record for record in records if wanted in str(record.child)]
    if not fits:
        raise NoSuchChild(
            f"no child {text[:80]!a} on this bus: agent-bus openhands children --all lists them"
        )
    if len(fits) > 1:
        some = ", ".join(f"{record.child} ({record.owner_box})" for record in fits[:4])
        raise UsageError(f"{text[:80]!a} names {len(fits)} children, give the whole id: {some}")
    return fits[0]
