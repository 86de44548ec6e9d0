"""A state machine over a whole bus, held against a plain model of what it promises."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent_bus.errors import Conflict, NotDelivered
from agent_bus.names import AgentName, MessageId, message_file, month_of, sent_file
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

AGENTS = ("alice", "bob")
TOLERANCE = 300
LATER = {"new": "read", "read": "archived"}


@dataclass
class Entry:
    """What the model knows of one message."""

    sender: str
    to: str
    body: str
    made: int
    expires: int | None = None
    state: str = "new"
    """new, read, archived, pruned, replayed (a pruned copy was put back), or remembered: in
    sent/ alone."""
    altered: bool = False
    copy: bytes = b""


class BusMachine(RuleBasedStateMachine):
    """Sends, retries, reads, archives, prunes, crashes and tampers."""

    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        # In memory where that is possible: here it is the logic that is tried, not the disk.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="agent-bus-machine-", dir=memory))
        self.clock = ManualClock()
        self.made = TemporaryBus(*AGENTS, folder=self.folder, clock=self.clock)
        self.buses = {name: self.made.as_agent(name) for name in AGENTS}
        self.model: dict[MessageId, Entry] = {}
        self.keys: dict[tuple[str, str, str], MessageId] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # -- sending

    @rule(
        target=messages,
        sender=st.sampled_from(AGENTS),
        to=st.sampled_from(AGENTS),
        body=st.sampled_from("xyz"),
        lives=st.sampled_from([None, 3600]),
    )
    def send(self, sender: str, to: str, body: str, lives: int | None) -> MessageId:
        receipt = self.buses[sender].send_one(to, Draft(body=body, expires_in=lives))

        assert receipt.id not in self.model
        assert not receipt.duplicate
        return self.remember(receipt.id, sender, to, body, lives)

    @rule(
        target=messages,
        sender=st.sampled_from(AGENTS),
        to=st.sampled_from(AGENTS),
        body=st.sampled_from("xy"),
        key=st.sampled_from(["k", "l"]),
        lives=st.sampled_from([None, 3600]),
    )
    def send_keyed(self, sender: str, to: str, body: str, key: str, lives: int | None) -> object:
        first = self.keys.get((sender, to, key))
        draft = Draft(body=body, expires_in=lives)
        if first is None:
            receipt = self.buses[sender].send_one(to, draft, key=key)
            assert not receipt.duplicate
            self.keys[sender, to, key] = receipt.id
            return self.remember(receipt.id, sender, to, body, lives)
        entry = self.model[first]
        if entry.body != body:
            with pytest.raises(Conflict):
                self.buses[sender].send_one(to, draft, key=key)
        elif entry.state == "remembered" and self.is_over(entry):
            with pytest.raises(NotDelivered):
                self.buses[sender].send_one(to, draft, key=key)
        else:
            receipt = self.buses[sender].send_one(to, draft, key=key)
            assert (receipt.id, receipt.duplicate) == (first, True)
            if entry.state == "remembered":
                entry.state = "new"
        return multiple()

    @rule(ident=messages, same=st.booleans())
    def retry_by_id(self, ident: MessageId, same: bool) -> None:
        entry = self.model[ident]
        if entry.state == "remembered" or entry.altered or entry.state == "replayed":
            return
        draft = Draft(body=entry.body if same else entry.body + "!")
        if same:
            receipt = self.buses[entry.sender].send_one(entry.to, draft, key=ident)
            assert (receipt.id, receipt.duplicate) == (ident, True)
        else:
            with pytest.raises(Conflict):
                self.buses[entry.sender].send_one(entry.to, draft, key=ident)

    # -- the recipient

    @rule(ident=messages)
    def read(self, ident: MessageId) -> None:
        entry = self.model[ident]
        if entry.state in ("remembered", "pruned"):
            return
        stored = self.buses[entry.to].read(ident)
        if entry.altered or entry.state == "replayed":
            assert stored.judged.message is None
            return
        assert stored.judged.message is not None
        assert stored.judged.message.body == entry.body
        assert stored.judged.outcome == ("expired" if self.is_over(entry) else "ok")
        entry.state = "read" if entry.state == "new" else entry.state

    @rule(ident=messages)
    def archive(self, ident: MessageId) -> None:
        entry = self.model[ident]
        if entry.state in ("new", "read", "archived"):
            self.buses[entry.to].archive(ident)
            entry.state = "archived"

    @rule(archived=st.booleans(), read=st.booleans())
    def prune(self, archived: bool, read: bool) -> None:
        chosen = {"archived": archived, "read": read}
        gone = [
            entry
            for entry in self.model.values()
            if chosen.get(entry.state) and entry.made < self.clock.now() and not entry.altered
        ]
        done = self.buses["alice"].prune(archived=0 if archived else None, read=0 if read else None)
        assert done.removed == len(gone)
        for entry in gone:
            entry.state = "pruned"

    # -- what goes wrong

    @rule(ident=messages)
    def die_in_a_move(self, ident: MessageId) -> None:
        """The link of the next step was made; the unlink of this one never came."""
        entry = self.model[ident]
        if entry.state in LATER and not entry.altered:
            source = self.path(ident, entry.state)
            entry.state = LATER[entry.state]
            target = self.path(ident, entry.state)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target.parent.parent.chmod(0o700)
            os.link(source, target)

    @rule(key=st.sampled_from(["k", "l"]), sender=st.sampled_from(AGENTS))
    def die_in_a_send(self, key: str, sender: str) -> None:
        """A keyed send came as far as the link into sent/, and not to the one into new."""
        ident = self.keys.get((sender, "bob", key))
        if ident is not None:
            entry = self.model[ident]
            if entry.state == "new" and not entry.altered and self.links(ident) == 2:
                self.path(ident, "new").unlink()
                entry.state = "remembered"

    @rule(ident=messages)
    def put_back(self, ident: MessageId) -> None:
        entry = self.model[ident]
        if entry.state == "pruned":
            self.path(ident, "new").write_bytes(entry.copy)
            entry.state = "replayed"

    @rule(ident=consumes(messages), at=st.integers(0, 10_000))
    def alter(self, ident: MessageId, at: int) -> None:
        entry = self.model[ident]
        names = list((self.made.path / "messages").rglob(message_file(ident)))
        if entry.state not in ("new", "read", "archived") or len(names) != 1:
            return
        data = bytearray(entry.copy)
        data[at % len(data)] ^= 1 << at % 8
        names[0].unlink()
        names[0].write_bytes(bytes(data))
        entry.altered = True

    @rule(seconds=st.sampled_from([1, 600, 4000, 40 * 24 * 3600]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.keys)
    @rule(sender=st.sampled_from(AGENTS))
    def rotate(self, sender: str) -> None:
        self.buses[sender].keys.rotate(AgentName(sender))

    # -- what always holds

    @invariant()
    def every_box_holds_what_the_model_says(self) -> None:
        for name in AGENTS:
            states = ("new", "read", "archived")
            store = self.buses[name].store
            found = {
                stored.place.id: (stored.place.state, stored.judged.outcome)
                for stored in store.load_all(store.places(AgentName(name), states))  # type: ignore[arg-type]
            }
            expected = {
                ident: (
                    "new" if entry.state == "replayed" else entry.state,
                    self.outcome(entry, found.get(ident, ("", ""))[1]),
                )
                for ident, entry in self.model.items()
                if entry.to == name and entry.state not in ("pruned", "remembered")
            }
            assert found == expected

    @invariant()
    def the_inbox_is_what_is_not_archived_oldest_first(self) -> None:
        for name in AGENTS:
            shown = [stored.place.id for stored in self.buses[name].inbox(limit=500).messages]
            assert shown == sorted(
                ident
                for ident, entry in self.model.items()
                if entry.to == name and entry.state in ("new", "read", "replayed")
            )

    @invariant()
    def nothing_is_left_in_tmp(self) -> None:
        assert not any((self.made.path / "messages").glob("*/tmp/*"))

    # -- parts

    def remember(
        self, ident: MessageId, sender: str, to: str, body: str, lives: int | None
    ) -> MessageId:
        expires = None if lives is None else self.clock.now() + lives * 1000
        copy = self.path_in(to, ident, "new").read_bytes()
        self.model[ident] = Entry(sender, to, body, self.clock.now(), expires, copy=copy)
        return ident

    def is_over(self, entry: Entry) -> bool:
        return entry.expires is not None and self.clock.now() > entry.expires + TOLERANCE * 1000

    def outcome(self, entry: Entry, found: str) -> str:
        if entry.altered:
            # Which rule fails depends on the bit; that one does is what matters.
            assert found not in ("ok", "expired")
            return found
        if entry.state == "replayed":
            return "replayed"
        return "expired" if self.is_over(entry) else "ok"

    def links(self, ident: MessageId) -> int:
        return self.path(ident, "new").stat().st_nlink

    def path(self, ident: MessageId, state: str) -> Path:
        return self.path_in(self.model[ident].to, ident, state)

    def path_in(self, to: str, ident: MessageId, state: str) -> Path:
        part = {"new": "new", "read": "cur"}.get(state, f"archive/{month_of(ident)}")
        return self.made.path / "messages" / to / part / message_file(ident)


def test_a_bus_does_what_the_model_says() -> None:
    run_state_machine_as_test(
        BusMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


def test_the_model_finds_a_second_message_under_one_key() -> None:
    """The machine must be able to fail: what a send remembers is taken away by hand."""
    machine = BusMachine()
    try:
        machine.send_keyed("alice", "bob", "x", "k", None)
        (machine.made.path / "sent" / "alice" / sent_file(AgentName("bob"), "k")).unlink()
        with pytest.raises(AssertionError):
            machine.send_keyed("alice", "bob", "x", "k", None)
    finally:
        machine.teardown()
