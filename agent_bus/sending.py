"""From what a caller wants to say to signed messages in boxes.

All recipients are checked before the first write; then each is a delivery of its own with an
outcome of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agent_bus.clock import Clock, to_text
from agent_bus.delivery import RESERVED_KINDS, WAKE, Delivered, Delivery
from agent_bus.errors import (
    AgentBusError,
    InvalidMessage,
    NoSuchMessage,
    NotPermitted,
    UnknownRecipient,
    UsageError,
)
from agent_bus.filesystem import Durability, durability
from agent_bus.keys import KeyIndex, Keys
from agent_bus.names import (
    RESERVED,
    AgentName,
    MessageId,
    agent_name,
    is_message_id,
    kind_name,
    message_id,
)
from agent_bus.payload import (
    BODY_LIMIT,
    PRIORITIES,
    RECIPIENTS_LIMIT,
    SUBJECT_LIMIT,
    Message,
    Priority,
    is_one_line,
)
from agent_bus.presence import Presence
from agent_bus.store import Store

_KEY_LIMIT = 512
_LONGEST = 10 * 366 * 24 * 3600
"""Seconds after which a message may expire at most."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a sender wants to say, before it has an id. `expires_in` is in seconds."""

    body: str = ""
    subject: str = ""
    kind: str = "note"
    reply_to: str | None = None
    thread: str | None = None
    priority: str | None = None
    expires_in: int | None = None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message is in its recipient's box."""

    to: AgentName
    id: MessageId
    durability: Durability
    duplicate: bool
    attached: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message to one of several recipients did not arrive."""

    to: AgentName
    error: AgentBusError


class Sender:
    """Sends as one identity."""

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        keys: Keys,
        presence: Presence,
        clock: Clock,
        admins: Sequence[AgentName],
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._keys = keys
        self._presence = presence
        self._clock = clock
        self._admins = admins
        self._durability: Durability | None = None

    def send(
        self,
        sender: AgentName,
        to: Sequence[str],
        draft: Draft,
        *,
        key: str | None = None,
        force: bool = False,
    ) -> list[Receipt | Refusal]:
        """Deliver a draft to each recipient, in the order given.

        Raises UsageError, InvalidName, InvalidMessage, UnknownRecipient, and NotPermitted for
        a sealed sender, before anything is written; what happens afterwards is that
        recipient's outcome.
        """
        recipients = _names(to)
        keys = self._keys.index((sender, *recipients))
        if not force:
            self._require_known(recipients, keys)
        if draft.kind in RESERVED_KINDS:
            raise InvalidMessage(f"messages of kind {draft.kind} are made by their own verbs")
        _check_key(key)
        ring = keys.rings.get(sender)
        if ring is not None and ring.is_sealed:
            self._keys.signer(sender, ring)
        message = self.compose(sender, recipients, draft)
        first = self._deliver_one(message, recipients[0], key, keys)
        # A delivery takes its time on disk: for each further one the keys are looked at anew.
        return [first, *(self._deliver_one(message, name, key) for name in recipients[1:])]

    def wake(self, sender: AgentName, to: str, draft: Draft, key: str) -> Receipt:
        """Deliver a draft as a wake, also to a name that nobody here has.

        A conversation has a box and no key. Raises NotPermitted for any sender but the
        reserved one, and what `compose` and `deliver` raise.
        """
        if sender != RESERVED:
            raise NotPermitted(f"{sender} can wake nobody: only the gateway does, as {RESERVED}")
        _check_key(key)
        message = self.compose(sender, [agent_name(to)], replace(draft, kind=WAKE))
        return self.deliver(message, key)

    def compose(self, sender: AgentName, recipients: Sequence[AgentName], draft: Draft) -> Message:
        """A message to the first recipient. Raises InvalidName and InvalidMessage."""
        _check_text(draft)
        now = self._clock.now()
        reply_to = message_id(draft.reply_to) if draft.reply_to else None
        return Message(
            id=MessageId(self._clock.new_id()),
            bus=self._store.bus,
            sender=sender,
            to=recipients[0],
            sent_at=to_text(now),
            kind=kind_name(draft.kind),
            subject=draft.subject,
            body=draft.body,
            recipients=tuple(recipients) if len(recipients) > 1 else (),
            thread=self._thread(sender, reply_to, draft.thread),
            reply_to=reply_to,
            priority=_priority(draft.priority),
            expires_at=None if draft.expires_in is None else to_text(now + draft.expires_in * 1000),
            data=draft.data,
        )

    def deliver(self, message: Message, key: str | None, keys: KeyIndex | None = None) -> Receipt:
        """Deliver one composed message. Raises what `Delivery.deliver` raises.

        `keys` is a look at all keys that the caller has just taken.
        A key that has the form of an id is the id of an earlier try without a key, or
        becomes the id of this one, so that every retry can be made safe.
        """
        attached = self._presence.attached(message.to)
        done: Delivered | None = None
        if key is not None and is_message_id(key):
            message = replace(message, id=MessageId(key))
            done = self._delivery.sent_before(message)
        if done is None:
            keys = keys or self._keys.index([message.sender])
            signer = self._keys.signer(message.sender, keys.rings.get(message.sender))
            done = self._delivery.deliver(message, signer, key, keys=keys)
        if self._durability is None:
            self._durability = durability(self._store.root)
        return Receipt(message.to, done.id, self._durability, done.duplicate, attached)

    def _deliver_one(
        self,
        message: Message,
        recipient: AgentName,
        key: str | None,
        keys: KeyIndex | None = None,
    ) -> Receipt | Refusal:
        if recipient != message.to:
            message = replace(message, to=recipient, id=MessageId(self._clock.new_id()))
        try:
            return self.deliver(message, key, keys)
        except AgentBusError as error:
            return Refusal(recipient, error)

    def known(self) -> set[AgentName]:
        """The names that can be written to."""
        return self._keys.known() | set(self._admins)

    def _require_known(self, names: Sequence[AgentName], keys: KeyIndex) -> None:
        for name in names:
            if name == RESERVED:
                raise UnknownRecipient(
                    f"{name} reads no messages: it only says what children say. A child is "
                    "resumed with resume_mission, or agent-bus openhands resume"
                )
            if name not in keys.known and name not in self._admins:
                raise UnknownRecipient(_unknown(name, self.known()))

    def _thread(
        self, sender: AgentName, reply_to: MessageId | None, thread: str | None
    ) -> MessageId | None:
        """The given thread; else that of what is answered, or its id."""
        if thread is not None:
            return message_id(thread)
        if reply_to is None:
            return None
        boxes = dict.fromkeys((sender, *self._store.boxes()))
        found = (self._store.find(box, reply_to) for box in boxes)
        place = next(filter(None, found), None)
        try:
            answered = self._store.load(place.box, reply_to).judged.message if place else None
        except NoSuchMessage:
            answered = None
        return (answered.thread if answered else None) or reply_to


def _names(to: Sequence[str]) -> list[AgentName]:
    names = list(dict.fromkeys(agent_name(name) for name in to))
    if not 0 < len(names) <= RECIPIENTS_LIMIT:
        raise UsageError(f"a message goes to 1 to {RECIPIENTS_LIMIT} recipients")
    return names


def _check_key(key: str | None) -> None:
    if key is not None and (not is_one_line(key, _KEY_LIMIT) or not key):
        raise UsageError(f"an idempotency key is one line of 1 to {_KEY_LIMIT} characters")


def _check_text(draft: Draft) -> None:
    if not is_one_line(draft.subject):
        raise InvalidMessage(
            f"a subject is one line of at most {SUBJECT_LIMIT} characters: put the rest in the body"
        )
    size = len(draft.body.encode("utf-8", "surrogatepass"))
    if size > BODY_LIMIT:
        raise InvalidMessage(
            f"the body has {size} bytes, {BODY_LIMIT} is the limit: "
            "put it into a file and send its path"
        )
    if draft.expires_in is not None and not 0 < draft.expires_in <= _LONGEST:
        raise InvalidMessage("a message expires in a second at the earliest, in ten years at most")
    if not draft.body and not draft.subject:
        raise InvalidMessage("the message is empty: give a body or a subject")


def _priority(text: str | None) -> Priority | None:
    if text is not None and text not in PRIORITIES:
        raise UsageError(f"no priority: {text[:80]!a}; choose {', '.join(PRIORITIES)}")
    return cast("Priority | None", text)


def _unknown(name: AgentName, known: set[AgentName]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'nobody'}"
    return f"nobody here is called {name}: {hint} (force sends all the same)"
