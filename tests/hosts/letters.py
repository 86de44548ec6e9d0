"""What Bob sends to Alice in these tests, so that it can be recognised wherever it appears."""

from __future__ import annotations

from dataclasses import dataclass, field

from model_api import Asked

from agent_bus.bus import Bus
from agent_bus.sending import Draft

BODY = "this body stands in no note"


@dataclass(slots=True)
class Letters:
    """Messages by the moment for which they come."""

    bob: Bus
    ids: dict[str, str] = field(default_factory=dict)

    def send(self, moment: str, *, is_urgent: bool = False) -> None:
        """Send one that names its moment."""
        priority = "urgent" if is_urgent else "normal"
        draft = Draft(subject=f"for the {moment}", body=BODY, priority=priority)
        self.ids[moment] = self.bob.send_one("alice", draft).id

    def named_in(self, asked: Asked) -> set[str]:
        """Of which the model was told when it was asked."""
        assert BODY not in asked.everything
        return {moment for moment, ident in self.ids.items() if ident in asked.text}
