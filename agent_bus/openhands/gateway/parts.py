"""What the parts of the gateway work with; made once by `Gateway.open`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agent_bus.bus import Bus
from agent_bus.clock import Clock
from agent_bus.files import Folder
from agent_bus.names import AgentName
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
    settle: float = 0.2
    """What the server says of an end is believed when it says it twice, so far apart."""
    settle_paused: float = 2.0
    """Likewise of a pause: an ACP agent is paused for a moment while it ends."""
    lost: float = 30.0
    """How long the server must not know a conversation until it counts as lost."""
    stop: float = 10.0
    """How long a run may take to stop after it was interrupted."""

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

    def owner_conversation_of(self, record: Record) -> bool:
        """Whether the owner is an OpenHands conversation, which can be written to as well."""
        return record.owner_box == conversation_box(record.owner)

    def known(self) -> list[AgentName]:
        """The names of this bus."""
        return self.bus.known()
