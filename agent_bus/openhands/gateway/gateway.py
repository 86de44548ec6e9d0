"""Gateway: all that front ends may call.

    with Gateway.open(settings.load(), gateway_settings.load()) as gateway:
        gateway.create_child(gateway.identity_caller("conductor"), …)

It acts on the bus as the reserved identity `openhands`, for callers whom the transport has
named. Every method is synchronous, safe to call from several threads and processes, and
raises the errors of `agent_bus.errors` alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Self
from uuid import UUID

from agent_bus.bus import Bus
from agent_bus.clock import Clock, SystemClock
from agent_bus.errors import NotPermitted
from agent_bus.names import AgentName
from agent_bus.openhands.gateway import capability, children
from agent_bus.openhands.gateway.agent_server import AgentServer
from agent_bus.openhands.gateway.caller import Caller
from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.creation import Created, Creation
from agent_bus.openhands.gateway.gates import Gates
from agent_bus.openhands.gateway.intents import Intents
from agent_bus.openhands.gateway.journal import Journal, Record
from agent_bus.openhands.gateway.parts import Parts, Pauses
from agent_bus.openhands.gateway.provider import Provider
from agent_bus.openhands.gateway.reconciliation import Reconciliation, Round
from agent_bus.openhands.gateway.redaction import Redaction
from agent_bus.openhands.gateway.reports import Accepted, Reports
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.openhands.gateway.signing import SigningKeys
from agent_bus.openhands.gateway.steering import Steered, Steering
from agent_bus.reading import storage_errors
from agent_bus.settings import Settings

CREATE_SECONDS = 45.0
"""How long `create_child` waits for the mission to be delivered: clients give up after 60."""


class Gateway:
    """Children on an agent server, for the Mains of one bus."""

    def __init__(self, parts: Parts) -> None:
        self.bus = parts.bus
        self.settings = parts.settings
        self.journal = parts.journal
        self.parts = parts
        self._server: AgentServer | None = None
        self._intents = Intents(parts.folder, parts.clock)
        self._creation = Creation(parts)
        self._steering = Steering(parts)
        self._reports = Reports(parts)
        self._reconciliation = Reconciliation(parts, self._intents, self._creation)

    @classmethod
    @storage_errors()
    def open(
        cls,
        settings: Settings,
        gateway_settings: GatewaySettings,
        *,
        provider: Provider | None = None,
        clock: Clock | None = None,
        pauses: Pauses | None = None,
    ) -> Self:
        """Open the gateway of a bus; its key and its folders are made where they are missing.

        Raises NoBus, ConfigurationError, UnsafePermissions and StorageError.
        """
        ticking = clock or SystemClock()
        bus = Bus.open_gateway(settings, clock=ticking)
        signing = SigningKeys(settings.keys, ticking, gateway_settings.secret)
        signing.ensure()
        folder = bus.store.make(*children.FOLDERS)
        server = None
        if provider is None:
            provider = server = AgentServer(
                gateway_settings.url, gateway_settings.api_key, gateway_settings.public_url
            )
        opened = cls(
            Parts(
                bus=bus,
                folder=folder,
                settings=gateway_settings,
                journal=Journal(folder, ticking),
                provider=provider,
                checkouts=Checkouts(gateway_settings, folder.path),
                gates=Gates(gateway_settings.gates),
                signing=signing,
                redaction=Redaction(gateway_settings.api_key, gateway_settings.secret),
                clock=ticking,
                pauses=pauses or Pauses(),
            )
        )
        opened._server = server
        return opened

    # -- who calls

    def caller(self, token: object) -> Caller:
        """Whom a capability names. Raises InvalidCapability, for every reason the same."""
        return capability.caller(self.parts.signing.verify(token))

    def identity_caller(self, name: AgentName) -> Caller:
        """A bus identity, which is a Main."""
        return Caller.of_identity(self.bus.file.bus, name)

    def steering_caller(self, record: Record, name: AgentName) -> Caller:
        """Who may stop and resume a child at the command line: its owner, or an admin for it.

        Raises NotPermitted.
        """
        own = self.identity_caller(name)
        if own.subject == record.owner:
            return own
        if name not in self.bus.admins:
            raise NotPermitted(
                f"child {record.child} belongs to {record.owner_box}, and {name} is no admin"
            )
        return Caller(record.owner, record.owner, own.task_key, own.role, own.actions)

    # -- the six tools

    def create_child(
        self,
        caller: Caller,
        *,
        task_key: object,
        role: object,
        mission: object,
        capabilities: object = None,
        wait: float = CREATE_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Created:
        """Hand a mission to a child of its own. See `Creation.create`."""
        return self._creation.create(
            caller,
            task=task_key,
            role=role,
            mission=mission,
            capabilities=capabilities,
            wait=wait,
            progress=progress,
        )

    def send_to_parent(
        self, caller: Caller, *, result: object, kind: object = None, message_key: object = None
    ) -> Accepted:
        """A child's result, or what it needs, into its owner's box."""
        return self._reports.result(caller, result=result, kind=kind, key=message_key)

    def request_user_decision(
        self, caller: Caller, *, question: object, options: object
    ) -> Accepted:
        """A child's question, into the queue of approvals."""
        return self._reports.question(caller, question=question, options=options)

    def publish_navigation_links(self, caller: Caller, *, links: object) -> Accepted:
        """A child's links, into its owner's box."""
        return self._reports.links(caller, links=links)

    def cancel_mission(
        self, caller: Caller, *, target: object, task_key: object, message_key: object = None
    ) -> Steered:
        """Stop one's own child. See `Steering.cancel`."""
        steered = self._steering.cancel(caller, target=target, task=task_key, key=message_key)
        self._reconciliation.hurry()
        return steered

    def resume_mission(
        self,
        caller: Caller,
        *,
        target: object,
        task_key: object,
        message_key: object,
        context: object,
    ) -> Steered:
        """Set one's own child to work again. See `Steering.resume`."""
        return self._steering.resume(
            caller, target=target, task=task_key, key=message_key, context=context
        )

    # -- ends

    def signal(self, child: UUID, source: str) -> None:
        """A sign that a run of a child has ended. See `Reconciliation.signal`."""
        self._reconciliation.signal(child, source)

    def reconcile(self) -> Round:
        """One round over all children. Raises StorageError."""
        return self._reconciliation.round()

    def run_in_background(
        self, warn: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Reconcile for as long as the `with` lasts. `warn` gets a line for each new problem."""
        return self._reconciliation.running(warn)

    # -- looking

    def children(self) -> list[Record]:
        """All children whose records can be read, the newest last."""
        return children.all_of(self.journal)[0]

    def child(self, text: str, owner: UUID | None = None) -> Record:
        """A child that a person names. See `children.pick`."""
        return children.pick(self.children(), text, owner)

    def close(self) -> None:
        """Let go of what is held open; a provider that was handed in stays as it is."""
        self.parts.closing.set()
        if self._server is not None:
            self._server.close()
        self._intents.close()
        self.journal.close()
        self.parts.folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
