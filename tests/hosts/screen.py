"""A program on a terminal: tmux draws it, and a test types and reads."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from desk import Desk

GUARD = 60.0
"""Seconds after which something that does not appear is not waited for any longer."""


class Screen:
    """One window of its own tmux. What runs in it ends with it, or with the desk."""

    def __init__(self, desk: Desk, *words: str, name: str | None = "alice") -> None:
        self._desk, self._words, self._name = desk, words, name
        self._socket = str(desk.temporary / f"tmux-{name}")

    def __enter__(self) -> Self:
        size = ("-x", "150", "-y", "50")
        self._tmux("new-session", "-d", *size, "-c", str(self._desk.project), *self._words)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tmux("kill-server", check=False)

    @property
    def text(self) -> str:
        """What stands on the screen; nothing once the program has ended."""
        return self._tmux("capture-pane", "-p", check=False)

    def wait_for(self, what: str) -> None:
        """Wait until this stands on the screen."""
        self.wait_until(lambda: what in self.text, what)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, in view of the screen."""
        until = time.monotonic() + GUARD
        while not holds():
            assert time.monotonic() < until, f"waited in vain: {what}\n{self.text}"
            time.sleep(0.1)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._tmux("send-keys", *keys)

    def choose(self, choice: str) -> None:
        """Go down a menu to a choice, and enter it."""

        def is_reached() -> bool:
            if re.search(rf"[›❯] \d\. {re.escape(choice)}", self.text):
                return True
            # A key that comes before the program listens is lost, so each is looked after.
            self.press("Down")
            time.sleep(0.3)
            return False

        self.wait_for(choice)
        self.wait_until(is_reached, choice)
        self.press("Enter")

    def type(self, text: str) -> None:
        """Type a line, see it on the screen, and enter it."""
        self._tmux("send-keys", "-l", text)
        self.wait_for(text)
        self.press("Enter")

    def _tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            env=self._desk.environment(self._name),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout
