"""Bus: all that front ends and adapters may call.

    bus = Bus.open(settings.load(), identity=name)

A `Bus` is bound to one address and to at most one identity for its whole life. Every method
is synchronous, safe to call from several threads, and raises the errors of
`agent_bus.errors` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import agent_bus
from agent_bus import (
    approvals,
    create,
    doubts,
    history,
    mailbox,
    pulse,
    resolve,
    retention,
    sealing,
    settings,
    standing,
    unread,
)
from agent_bus.approvals import Approvals, Decided, Request
from agent_bus.clock import Clock, SystemClock
from agent_bus.delivery import APPROVAL_REQUEST, Delivery
from agent_bus.errors import (
    IdentityMissing,
    NoBus,
    NoSuchMessage,
    NotPermitted,
)
from agent_bus.history import Filter, Page
from agent_bus.keys import Keys
from agent_bus.names import RESERVED, AgentName, MessageId, agent_name, message_id
from agent_bus.payload import Message
from agent_bus.presence import Presence
from agent_bus.pulse import Pulse
from agent_bus.reading import Place, Stored, storage_errors
from agent_bus.resolve import Address, BusFile
from agent_bus.sending import Draft, Receipt, Refusal, Sender
from agent_bus.settings import Settings
from agent_bus.standing import AgentStatus, MessageStatus
from agent_bus.store import Store
from agent_bus.watch import Watch

ANYTHING = Filter()


class Bus:
    """One bus, seen by one identity or by nobody."""

    def __init__(self, address: Address, file: BusFile, settings_: Settings, clock: Clock) -> None:
        self.address = address
        self.file = file
        self.settings = settings_
        self.clock = clock
        self.keys = Keys(settings_.keys, clock)
        self.store = Store(address.path, file.bus, self.keys, clock)
        self.presence = Presence(address.path, clock, agent_bus.__version__)
        self._delivery = Delivery(self.store, clock)
        self._sender = Sender(
            self.store, self._delivery, self.keys, self.presence, clock, file.admins
        )
        self.approvals = Approvals(self.store, self._delivery, clock, file.admins)
        self._identity: AgentName | None = None
        self._moving = threading.Lock()

    @classmethod
    def open(
        cls,
        settings_: Settings | None = None,
        *,
        identity: str | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open the bus that the settings lead to, as an identity or as nobody.

        Fails closed: a bus that is not there is made only where AGENT_BUS_ALLOW_CREATE
        says so. Raises NoBus, ConfigurationError and IdentityMissing.
        """
        chosen = settings_ or settings.load()
        ticking = clock or SystemClock()
        try:
            root, file, address = resolve.open_bus(chosen)
        except NoBus:
            if not chosen.allow_create:
                raise
            if identity is not None:  # a refused start makes nothing
                name = settings.identity_of(identity, "the identity")
                Keys(chosen.keys, ticking).load(name)
            create.create(chosen, ticking)
            root, file, address = resolve.open_bus(chosen)
        root.close()
        bus = cls(address, file, chosen, ticking)
        if identity is not None:
            bus._identity = settings.identity_of(identity, "the identity")
            bus.keys.load(bus._identity).signing_key()
        return bus

    @classmethod
    @storage_errors()
    def open_gateway(cls, settings_: Settings | None = None, *, clock: Clock | None = None) -> Self:
        """Open the bus as `openhands`, with its key and its box made where they are missing.

        For the gateway alone: `open` refuses the name. Raises what `open` raises.
        """
        bus = cls.open(settings_, clock=clock)
        bus.keys.ensure(RESERVED)
        bus.store.make_box(RESERVED).close()
        bus._identity = RESERVED  # noqa: SLF001 - its own
        return bus

    # -- who

    @property
    def identity(self) -> AgentName:
        """Who this process is. Raises IdentityMissing if it is nobody."""
        if self._identity is None:
            raise IdentityMissing("this needs an identity: set AGENT_MSG_AS, or give --as NAME")
        return self._identity

    @property
    def admins(self) -> tuple[AgentName, ...]:
        """The admins of the bus, as far as this process's environment does not narrow them."""
        allowed = self.settings.admins
        return tuple(name for name in self.file.admins if allowed is None or name in allowed)

    @property
    def is_admin(self) -> bool:
        """Whether this process may see and decide approvals."""
        return self._identity is not None and self._identity in self.admins

    @storage_errors()
    def known(self) -> list[AgentName]:
        """The names that can be written to, sorted."""
        return sorted(self._sender.known())

    # -- a sealed name

    @property
    def is_locked(self) -> bool:
        """Whether a passphrase must be typed before this process can sign."""
        return self._identity is not None and self.keys.is_locked(self._identity)

    @storage_errors()
    def unlock(self, passphrase: str) -> None:
        """Open one's sealed key: for this process alone, and until it was idle for a while.

        Raises NotPermitted for another passphrase than the right one, ConfigurationError where
        the key is not the one that is pinned here.
        """
        sealing.harden()
        self.store.pins.ensure(self.keys.index())
        self.approvals.check_pin(self.identity, self.keys.load(self.identity).signing_key())
        self.keys.unlock(self.identity, passphrase)
        self._complete()

    # -- messages

    @storage_errors()
    def send(
        self, to: Sequence[str], draft: Draft, *, key: str | None = None, force: bool = False
    ) -> list[Receipt | Refusal]:
        """Send to each recipient. Raises before anything is written; see `Sender.send`."""
        return self._sender.send(self.identity, to, draft, key=key, force=force)

    def send_one(
        self, to: str, draft: Draft, *, key: str | None = None, force: bool = False
    ) -> Receipt:
        """Send to one recipient.

        Raises what `send` raises, and NotDelivered, DeliveryUncertain, Conflict, BusFull.
        """
        outcome = self.send([to], draft, key=key, force=force)[0]
        if isinstance(outcome, Refusal):
            raise outcome.error
        return outcome

    @storage_errors()
    def wake(self, to: str, draft: Draft, *, key: str) -> Receipt:
        """Send a message of kind `wake`, as the gateway alone can; the name need not be known.

        Raises NotPermitted for everybody else, and what `send_one` raises.
        """
        return self._sender.wake(self.identity, to, draft, key)

    @storage_errors()
    def doubt(self, message: Message) -> str | None:
        """Why a message that verifies is not to be believed all the same, or None.

        For lists there is `doubts.of_wake`, which reads no file.
        """
        return doubts.of_wake(message) or doubts.of_decision(message, self.approvals)

    @storage_errors()
    def inbox(
        self, wanted: Filter = ANYTHING, *, unread: bool = False, limit: int = 50, page: int = 1
    ) -> Page:
        """One's messages that are not archived, oldest first. Moves nothing."""
        return history.inbox(
            self.store, self.identity, wanted, unread=unread, limit=limit, page=page
        )

    @storage_errors()
    def log(self, wanted: Filter = ANYTHING, *, limit: int = 50, page: int = 1) -> Page:
        """All messages of the bus, newest first."""
        return history.log(self.store, wanted, limit=limit, page=page)

    @storage_errors()
    def thread(self, ident: str) -> list[Stored]:
        """The conversation of a message, oldest first. Part of an id will do."""
        return history.thread(self.store, self._resolve_anywhere(ident))

    @storage_errors()
    def read(self, ident: str, *, archive: bool = False) -> Stored:
        """A message of one's own box, which counts as read from now on.

        One's own sent messages, and for admins any message, can be read as well; they stay
        as they are. Part of an id will do. What does not verify comes back with its outcome
        and is not moved. Raises NoSuchMessage and UsageError.
        """
        with self._moving:
            stored = mailbox.read(self.store, self.identity, ident, archive=archive)
        return stored or self._read_elsewhere(ident, archive=archive)

    @storage_errors()
    def archive(self, ident: str) -> Place:
        """Acknowledge a message of one's own box, by its whole id.

        Raises NoSuchMessage, and VerificationError for what does not verify: it stays.
        """
        with self._moving:
            return mailbox.archive(self.store, self.identity, message_id(ident))

    @storage_errors()
    def watch(self, *, warn: Callable[[str], None]) -> Watch:
        """Begin to watch one's own box: the cursor is taken now."""
        self.store.make_box(self.identity).close()
        return Watch(
            self.store, self.identity, poll=self.settings.poll, clock=self.clock, warn=warn
        )

    # -- approvals

    @storage_errors()
    def request_approval(
        self,
        question: str,
        *,
        options: Sequence[str] = approvals.DEFAULT_OPTIONS,
        to: str | None = None,
        details: Any = None,
        expires_in: int | None = None,
        key: str | None = None,
        needs: str | None = None,
        about: str | None = None,
    ) -> Receipt:
        """Ask an admin, by default the first who is not oneself. Every admin sees it.

        `about` stands before the question in the subject. `needs` is a sealed name that alone may
        decide it. Raises UsageError if it is none.
        """
        subject, data = approvals.request_content(question, options, details, about)
        if needs is not None:
            to, data = to or needs, data | self.approvals.demand(agent_name(needs))
        draft = Draft(
            body=question, subject=subject, kind=APPROVAL_REQUEST, expires_in=expires_in, data=data
        )
        asked = self.approvals.addressee(self.identity, to)
        message = self._sender.compose(self.identity, [asked], draft)
        return self._sender.deliver(message, key)

    @storage_errors()
    def pending(self) -> list[Request]:
        """What waits for a decision, oldest first. Raises NotPermitted unless one is an admin."""
        if not self.is_admin:
            raise NotPermitted(f"{self.identity} is no admin {self._no_admin_here()}")
        return self.approvals.pending()

    @storage_errors()
    def decide(
        self, ident: str, decision: str, *, reason: str | None = None, sha256: str | None = None
    ) -> Decided:
        """Decide a request, by its whole id. See `Approvals.decide`."""
        return self.approvals.decide(
            message_id(ident),
            decision,
            by=self.identity,
            signer=self.keys.signer(self.identity),
            may_decide=self.is_admin,
            reason=reason,
            sha256=sha256,
        )

    # -- looking at the bus

    @storage_errors()
    def verify(
        self, ident: str | None = None, *, box: str | None = None, after: Place | None = None
    ) -> Iterator[Stored]:
        """Judge messages: one, those of a box, or all. Raises NoSuchMessage for an unknown one.

        `after` goes on behind a place where an earlier call was left.
        """
        if ident is not None:
            return history.copies(self.store, self._resolve_anywhere(ident))
        boxes = self.store.boxes()
        if box is not None:
            if agent_name(box) not in boxes:
                raise NoSuchMessage(f"{box} has no box on this bus")
            boxes = [agent_name(box)]
        return history.everything(self.store, boxes, after)

    @storage_errors()
    def count(self, box: str | None = None) -> int:
        """How many message files there are, for a progress bar."""
        boxes = self.store.boxes() if box is None else [agent_name(box)]
        return sum(len(self.store.states(name, ("new", "read", "archived"))) for name in boxes)

    @storage_errors()
    def status(self) -> list[AgentStatus]:
        """How each known agent stands."""
        names = sorted({*self.known(), *self.store.boxes()})
        return [standing.agent_status(self.store, self.presence, name) for name in names]

    @storage_errors()
    def message_status(self, ident: str) -> list[MessageStatus]:
        """What became of a message, for each box that has or had it; never its text.

        Part of an id will do. Raises NoSuchMessage.
        """
        whole = self._resolve_anywhere(ident)
        found = standing.message_status(self.store, self.presence, whole)
        if not found:
            raise NoSuchMessage(f"no message {whole} on this bus")
        return found

    @storage_errors()
    def unread_by_others(self) -> unread.Neglect:
        """Which of one's own messages nobody has read for longer than the settings allow."""
        return unread.unread_by_others(
            self.store,
            self.presence,
            self.identity,
            now=self.clock.now(),
            after=self.settings.unread_after,
        )

    @storage_errors()
    def prune(
        self,
        *,
        archived: int | None,
        read: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> retention.Pruning:
        """Remove old messages and keep their ids. Ages in seconds; see `retention.prune`."""
        return retention.prune(
            self.store, self.approvals, self.clock, archived=archived, read=read, progress=progress
        )

    @storage_errors()
    def pulse(self) -> Pulse:
        """How the bus looks from outside, to notice that something has changed."""
        return pulse.pulse(self.store, self.presence)

    # -- at start

    @storage_errors()
    def attend(self) -> None:
        """What a server of this identity does when it starts: its box, leftovers, notices."""
        me = self.identity
        self.store.make_box(me).close()
        self.store.sweep(me)
        self.store.pins.ensure(self.keys.index())
        self._complete()

    # -- parts

    def _complete(self) -> None:
        if self.is_admin and not self.is_locked:
            self.approvals.complete(self.identity, self.keys.signer(self.identity))

    def _read_elsewhere(self, ident: str, *, archive: bool) -> Stored:
        whole = self._resolve_anywhere(ident)
        for place in self.store.find_all(whole):
            stored = self.store.load(place.box, whole)
            if self.may_see(stored):
                if archive:
                    raise NotPermitted(
                        f"{whole} is in the box of {place.box}, who alone archives it"
                    )
                return stored
        raise NoSuchMessage(f"no message {ident} that {self.identity} received or sent")

    def _resolve_anywhere(self, ident: str) -> MessageId:
        return history.resolve(ident, lambda: history.ids(self.store, self.store.boxes()))

    def may_see(self, stored: Stored) -> bool:
        """Whether this identity may see the text of a message: its own, sent or received.

        Admins and nobody in particular may see any.
        """
        if self._identity is None or self.is_admin or stored.place.box == self._identity:
            return True
        message = stored.judged.message
        return message is not None and message.sender == self._identity

    def _no_admin_here(self) -> str:
        if self.identity in self.file.admins:
            return "in this process: AGENT_BUS_ADMIN_NAMES leaves it out"
        return f"of this bus: {', '.join(self.admins) or 'there is none'}"
