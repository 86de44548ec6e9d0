"""Waiting: every message wakes every observer, whatever becomes of the events."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agent_bus
from agent_bus import arrivals
from agent_bus.arrivals import Arrivals, InotifySource, ObserverSource
from agent_bus.bus import Bus
from agent_bus.clock import Clock, SystemClock
from agent_bus.envelope import encode_message
from agent_bus.errors import NoBus, StorageError
from agent_bus.names import AgentName, MessageId, message_file
from agent_bus.payload import Message
from agent_bus.reading import Reader, Stored
from agent_bus.sending import Draft
from agent_bus.store import Store
from agent_bus.testing import ManualClock, TemporaryBus
from agent_bus.watch import Found, Watch

BOB = AgentName("bob")
LONG = 20.0
"""A guard against hanging, well below the interval under events: an event must have come."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is there on Linux alone")

PROGRAM = """
import sys
from pathlib import Path
from agent_bus.bus import Bus
from agent_bus.clock import SystemClock
from agent_bus.sending import Draft
from agent_bus.settings import Settings
from agent_bus.watch import Watch

root = Path(sys.argv[1])
settings = Settings(
    data=root / "data", keys=root / "keys", bus=root / "bus", project=root, poll=sys.argv[3] == "1"
)
bus = Bus.open(settings, identity=sys.argv[2])
"""
WATCHER = (
    PROGRAM
    + """
import json
warnings = []
with bus.watch(warn=warnings.append) as watch:
    print(json.dumps({"mode": watch.mode, "why": watch.why, "warnings": warnings}), flush=True)
    while True:
        found = watch.next(timeout=60)
        print(json.dumps([one.place.id for one in found.messages]), flush=True)
"""
)
SENDER = (
    PROGRAM
    + """
import time
print(flush=True)
for line in sys.stdin:
    time.sleep(float(line))
    print(bus.send_one("bob", Draft(body="hello")).id, flush=True)
"""
)


class Program:
    """A process that speaks in lines."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(agent_bus.__file__).parents[1])},
        )

    def read(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line.strip()

    def write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        with self.process:  # closes the pipes and waits
            pass


class JumpingClock(SystemClock):
    """The machine's clocks, the wall clock set off by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset


class CountingStore(Store):
    """A store that counts its listings."""

    listings = 0

    def unread(self, box: AgentName) -> list[MessageId]:
        self.listings += 1
        return super().unread(box)


@pytest.fixture(params=[False, True], ids=["events", "polling"])
def poll(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[TemporaryBus]:
    with TemporaryBus("alice", "bob", folder=tmp_path) as made:
        yield made


@pytest.fixture
def alice(home: TemporaryBus) -> Bus:
    return home.as_agent("alice")


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def watching(home: TemporaryBus, warnings: list[str]) -> Iterator[Callable[..., Watch]]:
    """Makes watches of bob's box and closes them."""
    with contextlib.ExitStack() as stack:

        def make(
            poll: bool = False, *, clock: Clock | None = None, store: Store | None = None
        ) -> Watch:
            ticking = clock or home.clock
            where = store or home.as_agent("bob").store
            if clock:
                where = Store(where.root, where.bus, where.keys, ticking)
            return stack.enter_context(
                Watch(where, BOB, poll=poll, clock=ticking, warn=warnings.append)
            )

        yield make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a watcher or a sender in a process of its own."""
    started: list[Program] = []

    def make(script: str, agent: str, poll: bool = False, *around: str) -> Program:
        command = (sys.executable, "-c", script, str(tmp_path), agent, str(int(poll)))
        started.append(Program(*around, *command))
        return started[-1]

    yield make
    for program in started:
        program.end()


def send(alice: Bus, body: str = "hello", **fields: object) -> MessageId:
    return alice.send_one("bob", Draft(body=body, **fields)).id  # type: ignore[arg-type]


def ids(found: Found) -> list[MessageId]:
    return [stored.place.id for stored in found.messages]


def is_task(stored: Stored) -> bool:
    return stored.judged.message is not None and stored.judged.message.kind == "task"


def message_bytes(alice: Bus, ident: str | None = None) -> tuple[MessageId, bytes]:
    """A signed message to bob that nobody has delivered."""
    message = Message(
        id=MessageId(ident or alice.clock.new_id()),
        bus=alice.file.bus,
        sender=AgentName("alice"),
        to=BOB,
        sent_at="2026-11-30T12:00:00.000Z",
        body="x" * 5000,
    )
    return message.id, encode_message(message, alice.keys.load(message.sender).signing_key())


def new_folder(home: TemporaryBus) -> Path:
    return home.path / "messages" / "bob" / "new"


def in_background(call: Callable[[], Found]) -> tuple[threading.Thread, list[Found]]:
    found: list[Found] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def finish(thread: threading.Thread, found: list[Found]) -> Found:
    thread.join(60)
    return found[0]


# -- what a wait gives


def test_a_message_that_came_before_the_first_wait_is_given_at_once(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    """The cursor is taken when the watch is made, not when it is first asked."""
    watch = watching(poll)
    ident = send(alice)

    found = watch.next(timeout=LONG)

    assert ids(found) == [ident]
    assert not found.timed_out
    assert found.messages[0].judged.message
    assert found.messages[0].judged.message.body == "hello"


def test_a_message_is_given_once(alice: Bus, watching: Callable[..., Watch], poll: bool) -> None:
    watch = watching(poll)
    first = send(alice)
    assert ids(watch.next(timeout=LONG)) == [first]
    second = send(alice)

    assert ids(watch.next(timeout=LONG)) == [second]
    assert watch.next(timeout=0).timed_out


def test_looking_moves_nothing(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    watch = watching()
    ident = send(alice)
    watch.next(timeout=LONG)

    assert home.as_agent("bob").store.unread(BOB) == [ident]


def test_what_lay_there_before_is_counted_and_given_when_asked_for(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    old = [send(alice) for _ in range(3)]
    watch = watching(poll)
    assert watch.unread_before_start == 3
    assert watch.next(timeout=0.05).timed_out

    new = send(alice)
    assert ids(watch.next(timeout=LONG)) == [new]
    assert ids(watch.next(timeout=LONG, include_existing=True)) == old
    assert watch.next(timeout=0, include_existing=True).timed_out

    assert watch.unread_before_start == 3
    home.as_agent("bob").read(old[0])
    assert watch.unread_before_start == 2


def test_a_limit_leaves_the_rest_for_the_next_wait(
    alice: Bus, watching: Callable[..., Watch]
) -> None:
    sent = [send(alice) for _ in range(2)]
    watch = watching()
    sent += [send(alice) for _ in range(3)]

    got: list[MessageId] = []
    for remaining in (4, 3, 2, 1, 0):
        found = watch.next(timeout=0, limit=1, include_existing=True)
        assert found.remaining == remaining
        got += ids(found)
    assert got == sent


def test_what_is_left_is_counted_without_what_is_bad(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    """ "More" must mean that the next wait has something."""
    watch = watching()
    first = send(alice)
    bad, data = message_bytes(alice)
    (new_folder(home) / message_file(bad)).write_bytes(data[:-5] + b"....\n")

    found = watch.next(timeout=0, limit=1)

    assert ids(found) == [first]
    assert found.remaining == 0


def test_what_another_wait_got_or_will_get_is_not_left(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    """Whichever of the two is first: the next wait has nothing, and nobody was told else."""
    watch = watching(poll)
    arrived = threading.Event()
    everything = in_background(lambda: watch.next(timeout=LONG, accept=lambda _: arrived.is_set()))
    one = in_background(
        lambda: watch.next(timeout=LONG, accept=lambda _: arrived.is_set(), limit=1)
    )
    while len(watch._waiting) < 2:
        time.sleep(0.01)
    sent = [send(alice) for _ in range(3)]
    arrived.set()
    watch.wake()

    assert ids(finish(*everything)) == sent
    limited = finish(*one)
    assert (ids(limited), limited.remaining) == (sent[:1], 0)
    assert watch.next(timeout=0).timed_out


def test_a_wait_that_looks_on_leaves_bad_files_to_others(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], warnings: list[str]
) -> None:
    watch = watching()
    ident, data = message_bytes(alice)
    (new_folder(home) / message_file(ident)).write_bytes(data.replace(b"xxxx", b"xxxy", 1))

    assert watch.next(timeout=0, accept=lambda _: False, takes=False).bad == ()
    assert len(warnings) == 1
    found = watch.next(timeout=0)
    assert [one.place.id for one in found.bad] == [ident]
    watch.give_back(found)
    assert [one.place.id for one in watch.next(timeout=0).bad] == [ident]
    assert watch.next(timeout=0).bad == ()
    assert len(warnings) == 1


def test_a_filter_does_not_consume_what_it_refuses(
    alice: Bus, watching: Callable[..., Watch]
) -> None:
    watch = watching()
    note, task = send(alice), send(alice, kind="task")

    found = watch.next(timeout=LONG, accept=is_task)
    assert ids(found) == [task]
    assert found.remaining == 0
    assert watch.next(timeout=0, accept=is_task).timed_out
    assert ids(watch.next(timeout=0)) == [note]


def test_a_refused_message_is_not_read_again_at_each_look(
    alice: Bus, watching: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[MessageId] = []
    load = Reader.load

    def counted(reader: Reader, ident: MessageId) -> Stored | None:
        loads.append(ident)
        return load(reader, ident)

    monkeypatch.setattr(Reader, "load", counted)
    watch = watching()
    refused = [send(alice, expires_in=3600), send(alice)]
    loads.clear()
    for _ in range(5):
        assert watch.next(timeout=0, accept=lambda _: False).timed_out

    assert sorted(loads) == refused
    assert ids(watch.next(timeout=0)) == refused


def test_messages_too_many_to_keep_are_read_again(
    alice: Bus, watching: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_bus.verdicts._KEPT_BYTES", 3000)
    watch = watching()
    sent = [send(alice) for _ in range(5)]
    assert watch.next(timeout=0, accept=lambda _: False).timed_out

    assert watch._verdicts._weight <= 3000
    assert ids(watch.next(timeout=0)) == sent


def test_a_message_that_is_read_meanwhile_is_not_announced(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    watch = watching()
    ident = send(alice)
    home.as_agent("bob").read(ident)

    assert watch.next(timeout=0).timed_out


def test_an_archiving_that_a_crash_cut_short_is_not_announced(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    """The id stands in new and in the archive: it counts as archived."""
    watch = watching()
    ident = send(alice)
    data = (new_folder(home) / message_file(ident)).read_bytes()
    home.as_agent("bob").archive(ident)
    (new_folder(home) / message_file(ident)).write_bytes(data)

    assert watch.next(timeout=0).timed_out


# -- time


def test_a_wait_that_times_out_consumes_nothing(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    assert watch.next(timeout=0.05) == Found(timed_out=True)
    ident = send(alice)

    assert ids(watch.next(timeout=0)) == [ident]


def test_a_cancelled_wait_ends_at_once_and_consumes_nothing(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    cancelled = threading.Event()
    thread, found = in_background(lambda: watch.next(timeout=60, cancelled=cancelled))
    time.sleep(0.05)
    cancelled.set()
    watch.wake()
    assert finish(thread, found).messages == ()

    ident = send(alice)
    assert watch.next(timeout=LONG, cancelled=cancelled).messages == ()
    assert ids(watch.next(timeout=0)) == [ident]


def test_what_is_given_back_is_given_to_the_next_wait(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    """The client had gone by the time its answer was ready."""
    watch = watching(poll)
    ident = send(alice)
    found = watch.next(timeout=LONG)
    watch.give_back(found)

    assert ids(watch.next(timeout=0)) == [ident]


def test_closing_ends_every_wait(watching: Callable[..., Watch], poll: bool) -> None:
    watch = watching(poll)
    waits = [in_background(lambda: watch.next(timeout=60)) for _ in range(3)]
    time.sleep(0.05)
    watch.close()
    watch.close()

    assert all(finish(*wait).timed_out for wait in waits)


def test_a_jump_of_the_wall_clock_changes_no_budget(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    """Eight hours forwards and two back, in the middle of a wait."""
    clock = JumpingClock()
    watch = watching(poll, clock=clock)
    for hours in (8, -2):
        thread, found = in_background(lambda: watch.next(timeout=60))
        time.sleep(0.05)
        clock.offset += hours * 3_600_000
        ident = send(alice)
        assert ids(finish(thread, found)) == [ident]
    clock.offset += 3_600_000
    assert watch.next(timeout=0.05).timed_out


def test_after_a_jump_everything_is_judged_anew(alice: Bus, watching: Callable[..., Watch]) -> None:
    clock = JumpingClock()
    watch = watching(clock=clock)
    ident = send(alice, expires_in=3600)
    assert watch.next(timeout=0, accept=lambda _: False).timed_out

    clock.offset = 8 * 3_600_000
    assert watch.next(timeout=0) == Found(timed_out=True)
    clock.offset = 0
    assert ids(watch.next(timeout=0)) == [ident]


def test_a_message_that_expires_while_it_is_kept_is_not_given(
    home: TemporaryBus, warnings: list[str]
) -> None:
    clock = ManualClock()
    store = home.as_agent("bob").store
    held = Store(store.root, store.bus, store.keys, clock)
    alice = Bus.open(home.settings, identity="alice", clock=clock)
    with Watch(held, BOB, poll=True, clock=clock, warn=warnings.append) as watch:
        expiring, lasting = send(alice, expires_in=60), send(alice)
        assert watch.next(timeout=0, accept=lambda _: False).timed_out

        clock.advance(3600)
        assert ids(watch.next(timeout=0)) == [lasting]
        # Skipped, and no failure.
        assert warnings == []
        assert expiring in store.unread(BOB)


def test_a_clock_held_in_hand_does_not_make_a_wait_endless(
    home: TemporaryBus, warnings: list[str], poll: bool
) -> None:
    store = home.as_agent("bob").store
    with Watch(store, BOB, poll=poll, clock=ManualClock(), warn=warnings.append) as watch:
        assert watch.next(timeout=0.05).timed_out


# -- several at once


def test_all_waits_of_one_process_get_the_next_message(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    """They share one subscription, and each of them was waiting for it."""
    watch = watching(poll)
    waits = [in_background(lambda: watch.next(timeout=60)) for _ in range(4)]
    time.sleep(0.1)
    ident = send(alice)

    assert [ids(finish(*wait)) for wait in waits] == [[ident]] * 4
    assert watch.next(timeout=0).timed_out


def test_a_wait_with_a_filter_does_not_keep_a_message_from_another(
    alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    picky = in_background(lambda: watch.next(timeout=60, accept=is_task))
    open_ = in_background(lambda: watch.next(timeout=60))
    time.sleep(0.05)
    note = send(alice)
    assert ids(finish(*open_)) == [note]
    task = send(alice, kind="task")
    assert ids(finish(*picky)) == [task]


def test_two_watches_of_one_identity_both_see_everything(
    alice: Bus, watching: Callable[..., Watch], start: Callable[..., Program], poll: bool
) -> None:
    """In one process and in two."""
    others = [start(WATCHER, "bob", poll) for _ in range(2)]
    assert [json.loads(other.read())["mode"] for other in others] == [
        "polling" if poll else "events"
    ] * 2
    watches = [watching(poll), watching(poll)]

    for _ in range(3):
        ident = send(alice)
        assert [ids(watch.next(timeout=LONG)) for watch in watches] == [[ident]] * 2
        assert [json.loads(other.read()) for other in others] == [[ident]] * 2


def test_a_burst_of_two_hundred_reaches_everybody_whole(
    alice: Bus, watching: Callable[..., Watch], start: Callable[..., Program], poll: bool
) -> None:
    other, watch = start(WATCHER, "bob", poll), watching(poll)
    other.read()
    with ThreadPoolExecutor(4) as senders:
        sent = sorted(senders.map(lambda n: send(alice, str(n)), range(200)))

    for read in (lambda: ids(watch.next(timeout=LONG)), lambda: json.loads(other.read())):
        got: list[MessageId] = []
        while len(got) < 200:
            some = read()
            assert some
            got += some
        assert sorted(got) == sent


# -- nothing is lost


def test_no_message_falls_between_a_look_and_the_sleep(
    watching: Callable[..., Watch], start: Callable[..., Program], poll: bool
) -> None:
    """Sent from another process after a random pause, while a wait begins."""
    sender, watch = start(SENDER, "alice"), watching(poll)
    sender.read()
    dice = random.Random(7)
    for _ in range(5 if poll else 150):
        sender.write(f"{dice.uniform(0, 0.02):.4f}")
        time.sleep(dice.uniform(0, 0.02))
        found = watch.next(timeout=LONG)
        assert ids(found) == [sender.read()]


def test_a_message_with_an_earlier_id_that_arrives_later_is_given(
    alice: Bus, watching: Callable[..., Watch], home: TemporaryBus, poll: bool
) -> None:
    """A sender that was slow, or whose clock is behind."""
    watch = watching(poll)
    early, data = message_bytes(alice)
    late = send(alice)
    assert ids(watch.next(timeout=LONG)) == [late]
    assert early < late

    thread, found = in_background(lambda: watch.next(timeout=LONG))
    temporary = new_folder(home).parent / "tmp" / "slow"
    temporary.write_bytes(data)
    os.link(temporary, new_folder(home) / message_file(early))

    assert ids(finish(thread, found)) == [early]


def test_a_restarted_watch_loses_nothing(
    alice: Bus, start: Callable[..., Program], watching: Callable[..., Watch], poll: bool
) -> None:
    """Killed at any moment; what it did not show is unread, and counted by the next one."""
    sent = []
    for _ in range(4):
        watcher = start(WATCHER, "bob", poll)
        watcher.read()
        sent.append(send(alice))
        watcher.end()
        sent.append(send(alice))
    watch = watching(poll)

    assert watch.unread_before_start == len(sent)
    assert ids(watch.next(timeout=0, include_existing=True)) == sent


def test_a_send_right_after_a_read_wakes(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch, bob = watching(poll), home.as_agent("bob")
    for _ in range(3 if poll else 10):
        ident = send(alice)
        assert ids(watch.next(timeout=LONG)) == [ident]
        thread, found = in_background(lambda: watch.next(timeout=LONG))
        bob.read(ident)
        answer = send(alice)
        assert ids(finish(thread, found)) == [answer]


# -- however a file gets there


@pytest.mark.parametrize("how", ["link", "rename", "copy", "write", "slowly", "foreign rename"])
def test_every_way_in_which_a_file_may_appear(
    home: TemporaryBus,
    alice: Bus,
    watching: Callable[..., Watch],
    warnings: list[str],
    poll: bool,
    how: str,
) -> None:
    """A whole file is given once; one that is being written is neither given nor called bad."""
    watch = watching(poll)
    thread, found = in_background(lambda: watch.next(timeout=LONG))
    time.sleep(0.05)
    ident, data = message_bytes(alice)
    outside, new = home.path.parent / "outside", new_folder(home)
    target = new / message_file(ident)
    outside.write_bytes(data)
    if how == "link":
        os.link(outside, target)
    elif how == "rename":
        outside.rename(target)
    elif how == "copy":
        shutil.copy(outside, target)
    elif how == "write":
        target.write_bytes(data)
    elif how == "slowly":
        with target.open("wb", buffering=0) as file:
            for part in (data[:30], data[30:300], data[300:-1], data[-1:]):
                file.write(part)
                time.sleep(0.3)
    else:  # rsync: a name of its own in the same folder, then a rename
        hidden = new / f".{message_file(ident)}.x7Yq"
        hidden.write_bytes(data)
        hidden.rename(target)

    assert ids(finish(thread, found)) == [ident]
    assert watch.next(timeout=0).timed_out
    assert warnings == []


def test_a_copy_that_stops_half_way_is_named_and_given_when_it_is_whole(
    home: TemporaryBus,
    alice: Bus,
    watching: Callable[..., Watch],
    warnings: list[str],
    poll: bool,
) -> None:
    watch = watching(poll)
    ident, data = message_bytes(alice)
    with (new_folder(home) / message_file(ident)).open("wb", buffering=0) as file:
        file.write(data[:400])
        found = watch.next(timeout=1.5)
        assert [one.judged.outcome for one in found.bad] == ["bad-signature"]
        thread, later = in_background(lambda: watch.next(timeout=LONG))
        time.sleep(0.05)
        file.write(data[400:])

    assert ids(finish(thread, later)) == [ident]
    assert len(warnings) == 1


@linux
@pytest.mark.parametrize("what", ["new", "box"])
def test_a_box_that_is_removed_and_made_anew(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], poll: bool, what: str
) -> None:
    watch = watching(poll)
    for _ in range(2):
        thread, found = in_background(lambda: watch.next(timeout=LONG))
        time.sleep(0.05)
        shutil.rmtree(new_folder(home) if what == "new" else new_folder(home).parent)
        time.sleep(0.05)
        ident = send(alice)
        assert ids(finish(thread, found)) == [ident]
        # And it is subscribed again.
        thread, found = in_background(lambda: watch.next(timeout=LONG))
        again = send(alice)
        assert ids(finish(thread, found)) == [again]
    assert watch.mode == ("polling" if poll else "events")


def test_a_folder_that_is_moved_away_and_made_anew(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    thread, found = in_background(lambda: watch.next(timeout=LONG))
    time.sleep(0.05)
    new_folder(home).rename(home.path.parent / "aside")
    ident = send(alice)

    assert ids(finish(thread, found)) == [ident]


@linux
def test_a_bus_that_is_moved_away_or_replaced_ends_the_sleep(
    home: TemporaryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells nothing of that to whoever watches a folder below."""
    monkeypatch.setattr(arrivals, "_STAT_INTERVAL", 0.05)
    source = Arrivals(new_folder(home), poll=False, warn=print)
    try:
        aside = home.path.with_name("aside")
        assert not source.wait(0.2)
        home.path.rename(aside)
        assert source.wait(LONG)
        shutil.copytree(aside, home.path)
        assert source.wait(LONG)
        source.renew()
        assert not source.wait(0.2)
    finally:
        source.close()


def test_a_box_that_does_not_exist_yet(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], poll: bool
) -> None:
    shutil.rmtree(new_folder(home).parent)
    watch = watching(poll)
    assert watch.unread_before_start == 0
    thread, found = in_background(lambda: watch.next(timeout=LONG))
    time.sleep(0.05)
    ident = send(alice)

    assert ids(finish(thread, found)) == [ident]


def test_a_bus_that_is_gone_is_an_error_and_not_an_endless_wait(
    home: TemporaryBus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    shutil.rmtree(home.path)

    with pytest.raises(NoBus):
        watch.next(timeout=60)


def test_a_file_in_place_of_the_folder_is_an_error_of_one_line(
    home: TemporaryBus, watching: Callable[..., Watch], poll: bool
) -> None:
    watch = watching(poll)
    new_folder(home).rmdir()
    new_folder(home).write_text("in the way")

    with pytest.raises(StorageError, match="cannot be watched") as raised:
        watch.next(timeout=60)
    assert "\n" not in str(raised.value)


# -- bad files


def test_bad_files_are_named_once_and_hide_nothing(
    home: TemporaryBus,
    alice: Bus,
    watching: Callable[..., Watch],
    warnings: list[str],
    poll: bool,
) -> None:
    """Altered, misfiled, empty, a FIFO, a dangling link, an odd name; the next one comes."""
    watch, new = watching(poll), new_folder(home)
    names = [MessageId(alice.clock.new_id()) for _ in range(6)]
    data = message_bytes(alice, names[0])[1]
    (new / message_file(names[0])).write_bytes(data.replace(b"xxxx", b"xxxy", 1))
    (new / message_file(names[1])).write_bytes(data)
    (new / message_file(names[2])).write_bytes(b"")
    os.mkfifo(new / message_file(names[3]))
    (new / message_file(names[4])).symlink_to("nowhere")
    (new / message_file(names[5])).mkdir()
    (Path(os.fsdecode(os.fsencode(new) + b"/\xff\xfe.msg"))).write_bytes(b"\xff")
    good = send(alice)

    found = watch.next(timeout=LONG)
    assert ids(found) == [good]
    rest = watch.next(timeout=0.2)

    bad = {one.place.id: one.judged.outcome for one in (*found.bad, *rest.bad)}
    assert bad == dict(zip(names, ["bad-signature", "misfiled", *["malformed"] * 4], strict=True))
    assert watch.next(timeout=0.1) == Found(timed_out=True)
    assert len(warnings) == 6
    assert all("\n" not in line for line in warnings)
    assert all(any(name in line for line in warnings) for name in names)


def test_a_message_whose_key_arrives_later_is_given_then(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch], warnings: list[str]
) -> None:
    watch = watching()
    keyring, aside = home.settings.keys / "alice.json", home.settings.keys / "aside"
    ident = send(alice)
    keyring.rename(aside)
    assert [one.judged.outcome for one in watch.next(timeout=0).bad] == ["unknown-key"]

    aside.rename(keyring)
    assert ids(watch.next(timeout=0)) == [ident]
    assert len(warnings) == 1


def test_a_key_that_is_revoked_takes_its_kept_messages_with_it(
    alice: Bus, watching: Callable[..., Watch]
) -> None:
    watch = watching()
    send(alice)
    assert watch.next(timeout=0, accept=lambda _: False).timed_out
    alice.keys.revoke(AgentName("alice"), alice.keys.load(AgentName("alice")).keys[0].kid)

    found = watch.next(timeout=0)
    assert found.messages == ()
    assert [one.judged.outcome for one in found.bad] == ["revoked-key"]


# -- looks that can be spared


def test_a_scan_does_not_wake_itself(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    """Neither listing nor reading is an arrival; nor is what a reader moves away."""
    bob = home.as_agent("bob")
    store = CountingStore(home.path, bob.store.bus, bob.keys, home.clock)
    watch = watching(store=store)
    read = [send(alice) for _ in range(5)]
    watch.next(timeout=LONG)
    time.sleep(0.3)  # the last events of the sends
    store.listings = 0
    thread, found = in_background(lambda: watch.next(timeout=1.5, accept=lambda _: False))
    for ident in read:
        bob.read(ident, archive=True)
    bob.inbox()

    assert finish(thread, found).timed_out
    assert store.listings <= 2  # at the beginning and at the end


def test_a_quiet_old_folder_is_not_listed_again_and_again(
    home: TemporaryBus, alice: Bus, watching: Callable[..., Watch]
) -> None:
    bob = home.as_agent("bob")
    store = CountingStore(home.path, bob.store.bus, bob.keys, home.clock)
    watch = watching(True, store=store)
    os.utime(new_folder(home), (1_000_000, 1_000_000))
    store.listings = 0
    assert watch.next(timeout=2.5).timed_out
    assert store.listings == 1

    thread, found = in_background(lambda: watch.next(timeout=LONG))
    time.sleep(0.05)
    ident = send(alice)
    assert ids(finish(thread, found)) == [ident]


def test_a_folder_that_changed_just_now_is_listed_at_each_look(
    home: TemporaryBus, watching: Callable[..., Watch]
) -> None:
    """The times of files are coarse: a second change may leave the same time."""
    bob = home.as_agent("bob")
    store = CountingStore(home.path, bob.store.bus, bob.keys, home.clock)
    watch = watching(True, store=store)
    future = time.time() + 60
    os.utime(new_folder(home), (future, future))
    store.listings = 0

    assert watch.next(timeout=1.5).timed_out
    assert store.listings >= 2


# -- when events fail


@linux
@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ("max_inotify_instances", "fs.inotify.max_user_instances"),
        ("max_inotify_watches", "fs.inotify.max_user_watches"),
    ],
)
def test_used_up_limits_of_inotify_lead_to_polling(
    alice: Bus, start: Callable[..., Program], limit: str, named: str
) -> None:
    """With one line that names the limit."""
    around = ("unshare", "-Ur", "sh", "-c", f'echo 0 > /proc/sys/user/{limit} && exec "$@"', "sh")
    try:
        probe = subprocess.run([*around, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode:
        pytest.skip(f"no user namespaces here: {probe.stderr.decode(errors='replace').strip()}")
    watcher = start(WATCHER, "bob", False, *around)
    opening = json.loads(watcher.read())

    assert opening["mode"] == "polling"
    assert named in opening["why"]
    assert len(opening["warnings"]) == 1
    assert named in opening["warnings"][0]
    ident = send(alice)
    assert json.loads(watcher.read()) == [ident]


def test_a_file_system_without_events_is_polled(
    alice: Bus,
    watching: Callable[..., Watch],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrivals, "eventless", lambda _: "9p")
    watch = watching()

    assert watch.mode == "polling"
    assert "9p" in watch.why
    assert len(warnings) == 1
    ident = send(alice)
    assert ids(watch.next(timeout=LONG)) == [ident]


def test_polling_on_demand_warns_of_nothing(
    watching: Callable[..., Watch], warnings: list[str]
) -> None:
    watch = watching(True)

    assert (watch.mode, bool(watch.why)) == ("polling", True)
    assert warnings == []


@linux
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_events_that_dies_is_replaced(
    alice: Bus,
    watching: Callable[..., Watch],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a wait; and where it keeps dying, polling takes over."""
    watch = watching()
    for deaths in range(1, 4):
        source = watch._arrivals._source
        assert isinstance(source, InotifySource)

        def fail(_: object) -> None:
            raise RuntimeError("a fault on purpose")

        monkeypatch.setattr(source, "on_event", fail)
        thread, found = in_background(lambda: watch.next(timeout=LONG))
        time.sleep(0.05)
        ident = send(alice)
        assert ids(finish(thread, found)) == [ident]
        watch.next(timeout=0)
        assert watch.mode == ("events" if deaths < 3 else "polling")
    assert len(warnings) == 1
    ident = send(alice)
    assert ids(watch.next(timeout=LONG)) == [ident]


@linux
def test_an_overflow_of_the_kernels_queue_loses_nothing(
    home: TemporaryBus,
    alice: Bus,
    watching: Callable[..., Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if queue > 50_000:
        pytest.skip(f"the kernel's queue holds {queue} events here")
    watch = watching()
    overflow = threading.Event()
    source = watch._arrivals._source
    assert isinstance(source, InotifySource)
    monkeypatch.setattr(source, "on_queue_overflow", overflow.set)
    with watch._arrivals._changed:  # the thread of events waits for this lock
        junk = new_folder(home) / "junk"
        for number in range(queue + 8000):
            if number % 1000 == 0:
                Path(f"{junk}{number}").touch()
                first = f"{junk}{number}"
            else:
                os.link(first, f"{junk}{number}")
        for name in new_folder(home).iterdir():
            name.unlink()  # which is no event here
        ident = send(alice)
    thread, found = in_background(lambda: watch.next(timeout=LONG))

    assert ids(finish(thread, found)) == [ident]
    again = send(alice)
    assert ids(watch.next(timeout=LONG)) == [again]
    assert overflow.wait(LONG)


# -- the sources of events


@linux
def test_the_kernel_is_asked_for_arrivals_alone(watching: Callable[..., Watch]) -> None:
    """No opens, reads, deletions or moves out: a scan and a reader cause those."""
    before = kernel_masks()
    watching()
    (mask,) = [mask for mask in kernel_masks() if mask not in before] or kernel_masks()[-1:]

    # create, moved to, close after writing; deletion and move of the folder itself
    assert mask & 0xFFF == 0x100 | 0x80 | 0x8 | 0x400 | 0x800


def kernel_masks() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path("/proc/self/fdinfo", name).read_text().splitlines():
                if line.startswith("inotify"):
                    fields = dict(field.split(":", 1) for field in line.split() if ":" in field)
                    found.append(int(fields["mask"], 16))
    return found


@linux
def test_waits_share_one_subscription_and_closing_gives_it_back(
    alice: Bus, watching: Callable[..., Watch]
) -> None:
    before = len(kernel_masks())
    watch = watching()
    waits = [in_background(lambda: watch.next(timeout=60)) for _ in range(3)]
    time.sleep(0.05)
    assert len(kernel_masks()) == before + 1
    send(alice)
    for wait in waits:
        finish(*wait)
    watch.close()

    assert len(kernel_masks()) == before


@pytest.mark.parametrize("kind", [InotifySource, ObserverSource])
def test_a_source_tells_of_arrivals_and_of_its_end(
    tmp_path: Path, kind: Callable[[Path, Callable[[], None]], InotifySource | ObserverSource]
) -> None:
    if kind is InotifySource and sys.platform != "linux":
        pytest.skip("inotify is there on Linux alone")
    folder, outside = tmp_path / "new", tmp_path / "outside"
    folder.mkdir()
    outside.touch()
    woken = threading.Event()
    source = kind(folder, woken.set)
    try:
        for number, appear in enumerate((os.link, os.rename)):
            woken.clear()
            appear(outside, folder / str(number))
            assert woken.wait(LONG)
        shutil.rmtree(folder)
        guard = time.monotonic() + LONG
        while source.alive and time.monotonic() < guard:
            time.sleep(0.01)
        assert not source.alive
        assert not source.died
    finally:
        source.stop()


@pytest.mark.parametrize("kind", [InotifySource, ObserverSource])
def test_a_source_on_a_folder_that_is_missing_fails_and_leaves_no_thread(
    tmp_path: Path, kind: Callable[[Path, Callable[[], None]], object]
) -> None:
    if sys.platform != "linux":
        pytest.skip("other systems answer otherwise")
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        kind(tmp_path / "nowhere", lambda: None)

    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_arrivals_can_be_waited_for_without_a_watch(tmp_path: Path, poll: bool) -> None:
    """What happened after the count was taken ends the sleep, also if it was before it."""
    hints = Arrivals(tmp_path, poll=poll, warn=lambda _: None)
    try:
        seen = hints.count
        assert not hints.wait(0.01, seen)
        hints.wake()
        assert hints.wait(LONG, seen)
        assert not hints.wait(0.01)
    finally:
        hints.close()
    assert hints.wait(LONG)
    hints.renew()
    assert hints.closed
