"""Delivery: how a message gets into a box. The promise is kept here.

Delivery, in this order: sign and verify the bytes in memory; create a file in tmp
exclusively, write all, flush, close; where the caller gave a key, link it into
sent/<sender>/ and flush that folder; hard-link into new, where an equal id is never
replaced; flush new; unlink the tmp name. There is no lock on the way. What fails before the
link into new was not delivered; what fails after it is uncertain, and the same key settles
it. A failed flush is never tried again on the same file.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from agent_bus import records
from agent_bus.clock import Clock
from agent_bus.envelope import FILE_LIMIT, sign_message
from agent_bus.errors import (
    BusFull,
    Conflict,
    DeliveryUncertain,
    InvalidMessage,
    NotDelivered,
    VerificationError,
)
from agent_bus.files import Folder, UnfitFile
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId, message_file, sent_file
from agent_bus.payload import Message
from agent_bus.reading import reason
from agent_bus.sealing import Signer
from agent_bus.store import Store

UNREAD_LIMIT = 10_000
RESERVED_PLACES = 100
"""Places above the limit that only wakes and approvals may take."""
_KEPT_BOXES = 16
APPROVAL_REQUEST = "approval_request"
WAKE = "wake"
RESERVED_KINDS = (WAKE, APPROVAL_REQUEST, "approval_decision")
"""Kinds that only their own verbs make."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a delivery. `duplicate`: the key had been used for the same message."""

    id: MessageId
    duplicate: bool


@dataclass(frozen=True, slots=True)
class _Box:
    """A recipient's box, kept open: several threads may be using it at once."""

    folder: Folder
    tmp: Folder
    new: Folder


class Delivery:
    """Puts messages into the boxes of a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._boxes: dict[AgentName, _Box] = {}
        self._counted: dict[AgentName, tuple[float, int]] = {}

    def deliver(
        self,
        message: Message,
        signer: Signer,
        key: str | None = None,
        *,
        keys: KeyIndex | None = None,
    ) -> Delivered:
        """Put a message into its recipient's box; on return it is durable there.

        `key` is the caller's idempotency key, `keys` a look at all keys that it has just
        taken. Raises InvalidMessage, BusFull, Conflict, NotDelivered (nothing became visible)
        and DeliveryUncertain (send again with its key).
        """
        data = sign_message(message, signer)
        try:
            self._require_ok(data, message, keys)
            return self._put(self._open(message.to), data, message, key)
        except BaseException as error:
            # A folder whose flush has failed is not flushed again: a second one may lie.
            self._boxes.pop(message.to, None)
            if isinstance(error, OSError):
                raise NotDelivered(f"nothing was sent: {reason(error)}") from error
            raise

    def _put(self, box: _Box, data: bytes, message: Message, key: str | None) -> Delivered:
        if key is None or not self._is_remembered(message, key):
            self._check_room(message, box.new)
        with _temporary(box.tmp, message.id, data) as name:
            if key is None:
                ident = message.id
                return self._publish(box.tmp, name, box.new, ident, ident, message.kind)
            return self._deliver_keyed(message, key, box, name)

    def _require_ok(self, data: bytes, message: Message, keys: KeyIndex | None) -> None:
        """Judge one's own bytes as a reader will."""
        own = self._store.judge(keys).data(data, message.to, message.id)
        if own.outcome == "malformed":
            raise InvalidMessage(own.detail)
        if not own.ok:
            raise NotDelivered(f"the message would not verify: {own.outcome}, {own.detail}")

    def _open(self, name: AgentName) -> _Box:
        """The recipient's box; the walk down to it is done again where it is not in place."""
        kept = self._boxes.get(name)
        if kept is None or not kept.new.is_in_place():
            folder = self._store.make_box(name)
            kept = _Box(folder, folder.child("tmp"), folder.child("new"))
            if len(self._boxes) >= _KEPT_BOXES:
                self._boxes.clear()
            self._boxes[name] = kept
        return kept

    def _deliver_keyed(self, message: Message, key: str, box: _Box, name: str) -> Delivered:
        remembered = sent_file(message.to, key)
        with self._store.make("sent", message.sender) as sent:
            try:
                box.tmp.link(name, sent, remembered)
                first = message
            except FileExistsError:
                first = self._first_send(sent, remembered, message, key)
            sent.sync()
            # By its id as well: a copied bus has lost which name in sent/ was whose.
            gone = records.pruned_under(
                box.folder, f"{message.sender}/{remembered}"
            ) or records.was_pruned(box.folder, first.id)
            if gone:
                # The first one was read, done and removed; it must not come back.
                if first is message:
                    sent.unlink(remembered)
                self._require_same(gone.content, message, key, gone.id)
                return Delivered(gone.id, duplicate=True)
            # Of several processes at once only the one whose file it is has no duplicate.
            duplicate = first is not message
            if self._store.find(message.to, first.id) is not None:
                self._flush(box.new, first.id, key)
                return Delivered(first.id, duplicate)
            self._require_alive(first, key)
            done = self._publish(sent, remembered, box.new, first.id, key, message.kind)
            return Delivered(done.id, duplicate=done.duplicate or duplicate)

    def _require_alive(self, first: Message, key: str) -> None:
        if self._store.judge().is_over(first):
            raise NotDelivered(
                f"the first try with the key {key!a} did not arrive and expired at "
                f"{first.expires_at}: use a new key"
            )

    def _first_send(self, sent: Folder, name: str, message: Message, key: str) -> Message:
        found = self._store.judge().file(sent, name, message.to, None)
        if found.message is None:
            raise VerificationError(
                f"{sent.path / name}, which remembers the key {key!a}, is {found.outcome} "
                f"({found.detail}): agent-bus doctor",
                outcome=found.outcome,
            )
        self._require_same(found.message.content_hash(), message, key, found.message.id)
        return found.message

    def _publish(
        self, source: Folder, name: str, new: Folder, ident: MessageId, key: str, kind: str
    ) -> Delivered:
        """Link into new and flush it: the moment at which a message is sent."""
        if kind == APPROVAL_REQUEST:
            with self._queued(source, name, ident):
                duplicate = self._link(source, name, new, ident, key)
        else:
            duplicate = self._link(source, name, new, ident, key)
        self._flush(new, ident, key)
        return Delivered(ident, duplicate)

    def _link(self, source: Folder, name: str, new: Folder, ident: MessageId, key: str) -> bool:
        """Give the file its name in the box. Returns whether a copy of it stood there."""
        target = message_file(ident)
        try:
            source.link(name, new, target)
        except OSError as error:
            ours, there = source.status(name), new.status(target)
            if ours is None or there is None:
                raise
            if ours.st_ino == there.st_ino:
                # A retry at the same time, or NFS, whose answer was lost.
                return False
            if error.errno != errno.EEXIST:
                raise
            self._require_equal(source, name, new, target, key)
            return True
        return False

    @contextlib.contextmanager
    def _queued(self, source: Folder, name: str, ident: MessageId) -> Iterator[None]:
        """Show a request in the queue before it is delivered, and not at all if it fails."""
        with self._store.open("approvals") as approvals:
            entry, made = f"{ident}.request", True
            try:
                source.link(name, approvals, entry)
            except FileExistsError:
                made = False
                self._require_equal(source, name, approvals, entry, ident)
            try:
                approvals.sync()
                yield
            except (OSError, Conflict):
                if made:
                    with contextlib.suppress(OSError):
                        approvals.unlink(entry)
                raise

    def _flush(self, new: Folder, ident: MessageId, key: str) -> None:
        try:
            new.sync()
        except OSError as error:
            raise DeliveryUncertain(
                f"{ident} is in the box, but perhaps not on disk ({reason(error)}): "
                f"send it again with the idempotency key {key}",
                key=key,
            ) from error

    def _require_equal(self, source: Folder, name: str, into: Folder, entry: str, key: str) -> None:
        try:
            equal = source.read(name, FILE_LIMIT) == into.read(entry, FILE_LIMIT)
        except UnfitFile:
            equal = False
        if not equal:
            raise Conflict(f"something else stands at {into.path / entry} (key {key!a})")

    def _require_same(self, content: str, message: Message, key: str, first: MessageId) -> None:
        if content != message.content_hash():
            raise Conflict(
                f"the key {key!a} was used for another message to {message.to} ({first}), "
                "which stays: use a new key for new content"
            )

    def sent_before(self, message: Message) -> Delivered | None:
        """Look for a message of this id in the box, or among what was removed from it.

        The key of a send without one is its id, so that a retry can find it. Raises
        Conflict if what is there differs.
        """
        try:
            with self._store.box(message.to) as box:
                gone = records.was_pruned(box, message.id)
                place = self._store.find(message.to, message.id)
        except FileNotFoundError:
            return None
        if gone:
            self._require_same(gone.content, message, message.id, message.id)
        elif place:
            found = self._store.load(place.box, place.id).judged.message
            self._require_same(found.content_hash() if found else "", message, *(message.id,) * 2)
            # The first try may have been uncertain; what this one promises must be on disk.
            with self._store.open("messages", message.to, "new") as new:
                self._flush(new, message.id, message.id)
        else:
            return None
        return Delivered(message.id, duplicate=True)

    def arrived(self, sender: AgentName, to: AgentName, key: str) -> bool:
        """Whether a keyed send came to its end: the message is in the box, or was there."""
        remembered = sent_file(to, key)
        try:
            with self._store.box(to) as box:
                if records.pruned_under(box, f"{sender}/{remembered}"):
                    return True
                with self._store.open("sent", sender) as sent:
                    found = self._store.judge().file(sent, remembered, to, None).message
                return found is not None and self._store.find(to, found.id) is not None
        except FileNotFoundError:
            return False

    def _is_remembered(self, message: Message, key: str) -> bool:
        try:
            with self._store.open("sent", message.sender) as sent:
                return sent.status(sent_file(message.to, key)) is not None
        except FileNotFoundError:
            return False

    def _check_room(self, message: Message, new: Folder) -> None:
        """Refuse to fill a box without end. A guard: counted at most once a second."""
        now = self._clock.monotonic()
        at, count = self._counted.get(message.to, (now - 2, 0))
        if not 0 <= now - at < 1:
            count = len(new.names())
            self._counted[message.to] = now, count
        limit = UNREAD_LIMIT + (RESERVED_PLACES if message.kind in RESERVED_KINDS else 0)
        if count >= limit:
            raise BusFull(
                f"the box of {message.to} holds {count} unread messages, {limit} is the limit: "
                f"let {message.to} read or archive some, then send again"
            )


@contextlib.contextmanager
def _temporary(tmp: Folder, ident: MessageId, data: bytes) -> Iterator[str]:
    # A suffix for each attempt, so that a retry never meets what a dead one left.
    name = f"{ident}.{secrets.token_hex(4)}"
    tmp.create(name, data)
    try:
        yield name
    finally:
        # If this fails the message is sent all the same; the sweep takes the name later.
        with contextlib.suppress(OSError):
            tmp.unlink(name)
