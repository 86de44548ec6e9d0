"""What a child's hooks read: its gate, and the token of its Stop hook.

    <workspace>/.agent-bus/<child>/open            while it is missing, every tool is blocked
    <workspace>/.agent-bus/<child>/completion      the header line that carries the token, 0600

They stand outside the worktree, in folders of this user. A child that runs as the same user
could open its own gate all the same: the gate keeps a well-meaning agent from working in a
checkout that is not right yet, it is no sandbox.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from uuid import UUID

from agent_bus.files import Folder, make_folders
from agent_bus.reading import storage_errors

_OPEN, _COMPLETION = "open", "completion"


class Gates:
    """The gates of all children of a workspace. All methods raise StorageError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder

    def gate(self, child: UUID) -> Path:
        """The file whose presence opens the tools of a child."""
        return self._path / str(child) / _OPEN

    @storage_errors()
    def write_token(self, child: UUID, token: str) -> Path:
        """Put the header line of the Stop hook there, and return its path."""
        with self._folder(child) as folder:
            folder.replace(_COMPLETION, f"Authorization: Bearer {token}\n".encode("ascii"))
        return self._path / str(child) / _COMPLETION

    @storage_errors()
    def prepare(self, child: UUID) -> None:
        """Make the folder of a gate that is shut."""
        self._folder(child).close()

    @storage_errors()
    def open(self, child: UUID) -> None:
        """Open the tools of a child; durable on return."""
        with self._folder(child) as folder, contextlib.suppress(FileExistsError):
            folder.create(_OPEN, b"")
            folder.sync()

    @storage_errors()
    def shut(self, child: UUID) -> None:
        """Block the tools of a child; durable on return."""
        with self._folder(child) as folder, contextlib.suppress(FileNotFoundError):
            folder.unlink(_OPEN)
            folder.sync()

    def is_open(self, child: UUID) -> bool:
        """Whether the tools of a child are open."""
        return self.gate(child).exists()

    def _folder(self, child: UUID) -> Folder:
        with make_folders(self._path) as gates:
            return gates.make(str(child))
