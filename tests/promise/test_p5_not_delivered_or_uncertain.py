"""P5: if `send` raises NotDelivered, nothing became visible.

If the outcome is unknown it raises DeliveryUncertain, which names the key to retry with. The
faults here are real ones: a full disk, a limit, an immutable folder, errors of system calls.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

Send = Callable[..., dict[str, Any]]
Strace = Callable[..., tuple[str, ...]]
Tree = Callable[[Path], dict[str, bytes]]


def visible(made: TemporaryBus) -> dict[str, bytes]:
    """What any reader could see: boxes without tmp, and the queue."""
    places = [*(made.path / "messages").glob("*/[nca]*"), made.path / "approvals"]
    return {
        str(path): path.read_bytes()
        for place in places
        for path in place.rglob("*")
        if path.is_file()
    }


def test_on_a_full_disk_nothing_was_sent_and_once_there_is_space_it_is(
    small_disk: Path, send: Send
) -> None:
    with TemporaryBus("alice", "bob", folder=small_disk) as made:
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        before = visible(made)
        for verb, key in (("send", ""), ("send", "k"), ("ask", "q")):
            refused = send("bob", "x" * 9000, key=key, verb=verb, at=made)
            assert refused["error"] == "not-delivered"
            assert "No space left on device" in refused["text"]
            assert "free some space" in refused["text"]
        assert visible(made) == before
        assert list((made.path / "messages" / "bob" / "tmp").iterdir()) == []

        ballast.unlink()
        assert send("bob", "x" * 9000, key="k", at=made)["duplicate"] is False


def test_a_short_write_and_then_a_refusal_leave_nothing(
    bus: TemporaryBus, run: Callable[..., subprocess.CompletedProcess[str]], tree: Tree
) -> None:
    """RLIMIT_FSIZE: the kernel takes 1000 bytes, then says EFBIG."""
    code = """
import resource, signal
from agent_bus.bus import Bus
from agent_bus.errors import NotDelivered
from agent_bus.sending import Draft
from agent_bus.settings import load
settings = load()
bus = Bus.open(settings, identity=settings.identity)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for key in (None, "k"):
    try:
        bus.send_one("bob", Draft(body="x" * 4000), key=key)
    except NotDelivered as error:
        print(error)
"""
    before = tree(bus.path)
    done = run(code, AGENT_MSG_AS="alice", **bus.environment)

    assert done.stdout.count("File too large") == 2, done
    assert tree(bus.path) == before


def test_where_nobody_may_write_nothing_was_sent(
    bus: TemporaryBus, send: Send, tree: Tree, immutable: Callable[[Path], None]
) -> None:
    immutable(bus.path / "messages" / "bob" / "tmp")
    before = tree(bus.path)

    refused = send("bob", "x")

    assert refused["error"] == "not-delivered"
    assert tree(bus.path) == before


@pytest.mark.parametrize("verb", ["send", "ask"])
def test_where_the_box_takes_no_name_nothing_was_sent(
    bus: TemporaryBus, send: Send, immutable: Callable[[Path], None], verb: str
) -> None:
    """tmp can be written, new cannot: the last step before the message is visible fails."""
    for name in ("bob", "conductor"):
        immutable(bus.path / "messages" / name / "new")
    before = visible(bus)

    assert send("bob", "x", verb=verb)["error"] == "not-delivered"
    assert send("bob", "x", key="k", verb=verb)["error"] == "not-delivered"
    assert visible(bus) == before
    assert not list((bus.path / "messages").glob("*/tmp/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_on_a_read_only_file_system_nothing_was_sent(bus: TemporaryBus, send: Send) -> None:
    path = str(bus.path)
    mounted = subprocess.run(
        ["mount", "--bind", path, path], capture_output=True, check=False, timeout=60
    )
    if mounted.returncode != 0:
        pytest.skip("this process may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True, timeout=60)
        refused = send("bob", "x")
        assert refused["error"] == "not-delivered"
        assert "allow this process to write there" in refused["text"]
        assert bus.as_agent("bob").inbox().total == 0
    finally:
        subprocess.run(["umount", path], check=True, timeout=60)


@pytest.mark.parametrize(
    ("call", "error", "number"),
    # The first write is the process's own "ready".
    [("write", "EIO", 2), ("fsync", "EIO", 1), ("linkat", "EMLINK", 1), ("linkat", "EIO", 1)],
)
def test_an_error_before_the_link_means_that_nothing_was_sent(
    bus: TemporaryBus, send: Send, strace: Strace, call: str, error: str, number: int
) -> None:
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}")
    before = visible(bus)

    answer = send("bob", "x", wrap=strace(*inject))

    assert answer["error"] == "not-delivered"
    assert visible(bus) == before
    assert list((bus.path / "messages" / "bob" / "tmp").iterdir()) == []


def test_a_flush_of_the_queue_that_fails_takes_the_request_out_of_the_queue(
    bus: TemporaryBus, send: Send, strace: Strace
) -> None:
    inject = ("-e", "trace=fsync", "-e", "inject=fsync:error=EIO")
    before = visible(bus)

    answer = send("", "x?", verb="ask", wrap=strace("-P", str(bus.path / "approvals"), *inject))

    assert answer["error"] == "not-delivered"
    assert visible(bus) == before
    assert bus.as_agent("conductor").pending() == []


@pytest.mark.parametrize("key", ["", "k"])
def test_a_flush_of_the_box_that_fails_is_uncertain_and_names_the_key(
    bus: TemporaryBus, send: Send, strace: Strace, key: str
) -> None:
    """The message is visible, perhaps not on disk: a retry with the key makes no second one."""
    new = bus.path / "messages" / "bob" / "new"
    inject = ("-P", str(new), "-e", "trace=fsync", "-e", "inject=fsync:error=EIO")

    uncertain = send("bob", "x", key=key, wrap=strace(*inject))

    assert uncertain["error"] == "delivery-uncertain"
    assert uncertain["key"] in uncertain["text"]
    [path] = new.iterdir()
    assert uncertain["key"] == (key or path.stem)
    still = send("bob", "x", key=uncertain["key"], wrap=strace(*inject))
    assert still["error"] == "delivery-uncertain"  # a receipt would promise what no flush did
    again = send("bob", "x", key=uncertain["key"])
    assert (again["id"], again["duplicate"]) == (path.stem, True)
    assert [entry.name for entry in new.iterdir()] == [path.name]
    assert bus.as_agent("bob").read(path.stem).judged.ok


def test_a_failed_flush_is_never_tried_again_on_the_same_file(
    bus: TemporaryBus, send: Send, strace: Strace, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    inject = ("-e", "trace=fsync", "-e", "inject=fsync:error=EIO")
    send("bob", "x", wrap=strace("-y", *inject, output=trace))

    flushed = [line.partition("fsync(")[2] for line in trace.read_text().splitlines()]
    files = [line.partition(">")[0] for line in flushed if "<" in line]
    assert files
    assert len(files) == len(set(files))


def test_a_name_that_cannot_be_removed_from_tmp_does_not_undo_the_sending(
    bus: TemporaryBus, send: Send, strace: Strace
) -> None:
    inject = ("-e", "trace=unlinkat", "-e", "inject=unlinkat:error=EIO")
    answer = send("bob", "x", wrap=strace(*inject))

    assert bus.as_agent("bob").read(answer["id"]).judged.ok
    assert len(list((bus.path / "messages" / "bob" / "tmp").iterdir())) == 1


def test_a_box_that_is_replaced_beneath_a_sender_gets_what_is_sent_afterwards(
    bus: TemporaryBus,
) -> None:
    """Somebody sets a box aside and makes it anew; the sender may hold the old one open."""
    alice = bus.as_agent("alice")
    first = alice.send_one("bob", Draft(body="x")).id
    box = bus.path / "messages" / "bob"
    box.rename(box.with_name("bob.aside"))

    second = alice.send_one("bob", Draft(body="y")).id

    assert [path.stem for path in (box / "new").iterdir()] == [second]
    assert [path.stem for path in (bus.path / "messages/bob.aside/new").iterdir()] == [first]
    (box / "new").rename(box / "old")
    third = alice.send_one("bob", Draft(body="z")).id
    assert [path.stem for path in (box / "new").iterdir()] == [third]
