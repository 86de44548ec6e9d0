"""Files of the user that are not ours: read whole, replaced whole, with a copy beside them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from agent_bus.access import UnfitFile
from agent_bus.errors import AgentBusError, Busy, ConfigurationError, NotPermitted
from agent_bus.files import Folder, make_folders
from agent_bus.git import tracks

Outcome = Literal["written", "unchanged", "removed"]

BACKUP = ".before-agent-bus"
"""What is added to the name of the copy of a file as it was before the last change."""
_LIMIT = 32 * 1024 * 1024


def read(path: Path) -> bytes | None:
    """What a file holds, or None if there is none. Raises OSError and ConfigurationError."""
    real = Path(os.path.realpath(path))
    try:
        with Folder.open(real.parent, shared=True) as folder:
            return folder.read(real.name, _LIMIT)
    except FileNotFoundError:
        return None
    except UnfitFile as error:
        raise ConfigurationError(f"{path} {error}") from None


def change(path: Path, edit: Callable[[bytes | None], bytes | None]) -> Outcome:
    """Replace a file by what `edit` makes of it; None removes it. The mode stays as it was.

    A new file and its folders are the user's alone. Raises what `edit` raises, with the path
    before it; NotPermitted for a file that git tracks, since it would reach other worktrees
    and people; Busy where somebody else changes it now; OSError.
    """
    real = Path(os.path.realpath(path))
    old = read(real)
    try:
        new = edit(old)
    except AgentBusError as error:
        raise type(error)(f"{path}: {error}") from None
    if new == old:
        return "unchanged"
    if tracks(real):
        raise NotPermitted(
            f"{path} is tracked by git (or git will not say), and what belongs to one machine "
            "would reach every clone: put it where it is not tracked, by hand"
        )
    with make_folders(real.parent) as folder:
        status = folder.status(real.name)
        mode = stat.S_IMODE(status.st_mode) if status else 0o600
        if read(real) != old:
            raise Busy(f"{path} was changed by another program just now: try again")
        if new is None:
            folder.unlink(real.name)
            with contextlib.suppress(FileNotFoundError):
                folder.unlink(real.name + BACKUP)
            return "removed"
        if old is not None:
            folder.replace(real.name + BACKUP, old, mode=mode)
        folder.replace(real.name, new, mode=mode)
    return "written"


def backup_of(path: Path) -> Path:
    """Where the copy of a file stands."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + BACKUP)
