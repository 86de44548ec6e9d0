"""Signs that a run has ended, on disk before anybody is answered.

    <bus>/openhands/gateway/intents/<child>.<ulid>

A file says that somebody has to look at that child. Who looks lists them first, then looks,
then removes those that it had listed: a sign that comes in between stays for the next look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from uuid import UUID

from agent_bus.clock import Clock
from agent_bus.errors import Busy
from agent_bus.files import Folder
from agent_bus.reading import storage_errors

_MOST = 64
"""Signs of one child that may wait; one would do, the others come from a storm."""


class Intents:
    """The signs of one bus. All methods raise StorageError."""

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self._folder = folder.make("intents")
        self._clock = clock

    @storage_errors()
    def add(self, child: UUID, source: str, visible: Callable[[], None] = lambda: None) -> None:
        """Note that somebody has to look at a child; durable on return. Raises Busy.

        `visible` is called as soon as it can be seen: who looks need not wait for the disk.
        """
        if len(self._of(child)) >= _MOST:
            raise Busy(f"{_MOST} signs of child {child} wait already: come again in a while")
        name = f"{child}.{self._clock.new_id()}"
        try:
            # All that counts is the name, which the folder's flush makes durable.
            self._folder.append(name, source.encode() + b"\n")
        except OSError:
            # On a full disk the name may be there, and each retry would leave one more.
            with contextlib.suppress(OSError):
                self._folder.unlink(name)
            raise
        visible()
        self._folder.sync()

    @storage_errors()
    def pending(self) -> dict[UUID, list[str]]:
        """The signs that wait, by child."""
        found: dict[UUID, list[str]] = {}
        for name in sorted(self._folder.names()):
            with contextlib.suppress(ValueError):
                found.setdefault(UUID(name.partition(".")[0]), []).append(name)
        return found

    @storage_errors()
    def remove(self, names: Iterable[str]) -> None:
        """These were heeded."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._folder.unlink(name)

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()

    def _of(self, child: UUID) -> list[str]:
        return [name for name in self._folder.names() if name.startswith(f"{child}.")]
