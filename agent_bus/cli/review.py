"""`approvals`: the queue at a terminal: list, look, decide in place."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_bus.approvals import WITHDRAW, Request, earlier
from agent_bus.bus import Bus
from agent_bus.cli import passphrase, render
from agent_bus.cli.approvals import pending_approval
from agent_bus.cli.options import Shared, open_as, verb
from agent_bus.errors import AgentBusError

if TYPE_CHECKING:
    from rich.console import Console

_DECIDED = 50
"""So many decisions are looked at for the same question."""


@verb
def review(options: Shared) -> int:
    """Go through what waits for a decision: list, look, decide in place. For admins.

    In a pipe, and with --json, it lists as pending-approval does, and decides nothing.
    """
    if options.json or not (render.is_terminal() and _is_typed()):
        return pending_approval(**vars(options))
    from rich.console import Console

    desk = _Desk(open_as(options), Console(highlight=False, markup=False, emoji=False))
    try:
        while desk.offer():
            pass
    except EOFError:
        desk.console.print()
    return 0


@dataclass(frozen=True)
class _Desk:
    """A person at a terminal, and the queue. All that it prints was escaped."""

    bus: Bus
    console: Console

    def offer(self) -> bool:
        """Show the queue and one request of it. False once there is nothing more to do."""
        pending = self.bus.pending()
        if not pending:
            render.say("nothing waits for a decision")
            return False
        self._list(pending)
        number = self._number("Which one? (Enter ends) ", len(pending))
        if number is None:
            return False
        try:
            self._show(pending[number])
            self._decide(pending[number])
        except AgentBusError as error:
            # Somebody else may have been quicker; the queue shows what is left.
            render.say(str(error))
        return True

    def _list(self, pending: Sequence[Request]) -> None:
        self.console.print()
        head = ("", "asked at", "from", "options", "subject")
        render.table(
            head,
            (
                (
                    str(number),
                    request.message.sent_at,
                    request.message.sender,
                    " | ".join(request.options),
                    request.message.subject,
                )
                for number, request in enumerate(pending, 1)
            ),
        )

    def _show(self, request: Request) -> None:
        message = request.message
        self.console.print()
        until = f", expires at {message.expires_at}" if message.expires_at else ""
        self._say(f"{message.sender} asks {message.to} at {message.sent_at}{until}")
        self._say(f"id {message.id}, sha256 {request.sha256}", style="dim")
        self._frame(message.body, "question")
        if request.needs is not None:
            self._say(f"Only {request.needs} may decide this, with a sealed key.")
        if request.details is not None:
            self._frame(_readable(request.details), "details")
        for _, decision in earlier(request, self.bus.approvals.decided(_DECIDED)):
            why = f": {decision.reason}" if decision.reason else ""
            self._say(
                f"Asked before, in the same words: {decision.decision}, by {decision.by} "
                f"at {decision.decided_at}{why}",
                style="yellow",
            )

    def _decide(self, request: Request) -> None:
        own = request.message.sender == self.bus.identity
        options = (WITHDRAW,) if own else request.options
        if own:
            self._say("You have asked this yourself: all you can do is withdraw it.")
        for number, option in enumerate(options, 1):
            self._say(f"  {number}  {' '.join(option.split())}")
        chosen = self._number("Decide? (Enter goes back) ", len(options))
        if chosen is None:
            return
        reason = self._line("Reason? (Enter for none) ") or None
        option = options[chosen]
        if self._line(f"{option} for good? (y/N) ").lower() not in ("y", "yes"):
            self._say("Nothing was decided.")
            return
        passphrase.unlock(self.bus)
        decided = self.bus.decide(request.message.id, option, reason=reason, sha256=request.sha256)
        decision = decided.decision
        before = " before; that stands" if decided.repeated else ""
        self._say(f"Decided: {decision.decision}, by {decision.by}{before}", style="green")

    def _number(self, question: str, last: int) -> int | None:
        """A choice from 1 to `last`, counted from 0; None for none."""
        while text := self._line(question):
            if text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= last:
                return int(text) - 1
            self._say(f"Give a number from 1 to {last}, or press Enter.")
        return None

    def _line(self, question: str) -> str:
        """What is typed, without space around it. Raises EOFError."""
        while True:
            asked = render.visible(question)
            typed = self.console.input(asked, markup=False, emoji=False).strip()
            try:
                typed.encode()
            except UnicodeEncodeError:
                self._say("That was no UTF-8; type it again.")
            else:
                return typed

    def _frame(self, text: str, title: str) -> None:
        """Text of somebody else, in a frame that it cannot leave."""
        from rich.panel import Panel
        from rich.text import Text

        shown = Text(render.visible(text, keep="\n\t"))
        self.console.print(Panel(shown, title=title, title_align="left", border_style="dim"))

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(render.visible(text, keep="\n"), style=style, soft_wrap=True)


def _is_typed() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _readable(details: object) -> str:
    if isinstance(details, str):
        return details
    return json.dumps(details, ensure_ascii=False, indent=2)
