"""The moments at which a host runs a hook, and the form in which it takes an answer.

Claude Code and Codex have the same form (both were run). Gemini CLI names the moments
differently and rejects an end with `deny`. In none of them is exit code 2 needed: what is
wanted stands in the JSON, and 2 stays what it means to a host, "block".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Moment = Literal["session", "prompt", "tool", "stop"]

_CLAUDE: dict[str, Moment] = {
    "SessionStart": "session",
    "UserPromptSubmit": "prompt",
    "PostToolUse": "tool",
    "Stop": "stop",
}
_GEMINI: dict[str, Moment] = {
    "SessionStart": "session",
    "BeforeAgent": "prompt",
    "AfterTool": "tool",
    "AfterAgent": "stop",
}
EVENTS = {"claude": _CLAUDE, "codex": _CLAUDE, "gemini": _GEMINI}
"""Host to the host's own names of the moments."""
REWAKE = "rewake"
"""The background hook of Claude Code, which is no moment but a wait."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a hook."""

    host: str
    event: str
    """In the host's own words."""
    moment: Moment

    def context(self, text: str) -> dict[str, Any]:
        """Text that the model is to read."""
        return {"hookSpecificOutput": {"hookEventName": self.event, "additionalContext": text}}

    def refuse_to_stop(self, reason: str) -> dict[str, Any]:
        """The turn goes on, with the reason as what the model is told."""
        return {"decision": "deny" if self.host == "gemini" else "block", "reason": reason}

    def tell_user(self, text: str) -> dict[str, Any]:
        """Text for the person at the screen."""
        return {"systemMessage": text}


def call(host: str, event: str) -> Call | None:
    """The call that these words name, or None."""
    moment = EVENTS.get(host, {}).get(event)
    return None if moment is None else Call(host, event, moment)
