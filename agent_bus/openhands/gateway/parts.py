"""What the parts of the gateway work with; made once by `Gateway.open`."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from agent_bus.bus import Bus
from agent_bus.clock import Clock
from agent_bus.files import Folder
from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.gates import Gates
from agent_bus.openhands.gateway.identifiers import conversation_box
from agent_bus.openhands.gateway.journal import Journal, Record
from agent_bus.openhands.gateway.provider import Provider
from agent_bus.openhands.gateway.redaction import Redaction
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.openhands.gateway.signing import SigningKeys


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long is waited between two looks, in seconds. Tests make them short."""

    poll: float = 0.3
    """Between two looks at an admission turn, or at a run that was interrupted."""
    settle_finished: float = 0.05
    """What the server says of an end is believed when it says it twice, so far apart."""
    settle: float = 0.2
    """Likewise of an error, whose event may come after its status."""
    settle_paused: float = 2.0
    """Likewise of a pause: an ACP agent is paused for a moment while it ends."""
    lost: float = 30.0
    """How long the server must not know a conversation until it counts as lost."""
    stop: float = 10.0
    """How long a run may take to stop after it was interrupted."""

    def before_believing(self, status: str) -> float:
        """How long is waited until an end is looked at once more."""
        special = {"finished": self.settle_finished, "paused": self.settle_paused}
        return special.get(status, self.settle)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Parts:
    """The bus as `openhands`, the journal, and all that has an effect elsewhere."""

    bus: Bus
    folder: Folder
    """`<bus>/openhands/gateway`."""
    settings: GatewaySettings
    journal: Journal
    provider: Provider
    checkouts: Checkouts
    gates: Gates
    signing: SigningKeys
    redaction: Redaction
    clock: Clock
    pauses: Pauses = field(default_factory=Pauses)
    closing: threading.Event = field(default_factory=threading.Event)
    """Set at the end: whoever waits for a child waits no longer."""

    def owner_conversation_of(self, record: Record) -> bool:
        """Whether the owner is an OpenHands conversation, which can be written to as well."""
        return record.owner_box == conversation_box(record.owner)
