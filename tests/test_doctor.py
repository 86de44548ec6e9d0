"""The doctor finds what is wrong, changes nothing unasked, and repairs without losing a byte."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_bus import doctor
from agent_bus.bus import Bus
from agent_bus.doctor import Finding
from agent_bus.envelope import encode_decision, encode_message
from agent_bus.errors import IdentityMissing, TimedOut
from agent_bus.keyring import Key
from agent_bus.names import AgentName, MessageId, month_of, sent_file
from agent_bus.payload import Decision, Message
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus

ALICE, BOB = AgentName("alice"), AgentName("bob")
OF_THE_MACHINE = {"not-durable", "network-file-system", "polling"}
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
FORTY_HOURS = 40 * 3600


@pytest.fixture
def bus(tmp_path: Path, clock: ManualClock) -> TemporaryBus:
    """Alice and bob on a bus whose clock stands still, at the time that new files have."""
    here = tmp_path / "here"
    here.mkdir()
    return TemporaryBus("alice", "bob", folder=here, clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time.time_ns() // 1_000_000)


def look(bus: TemporaryBus, *, repair: bool = False) -> list[Finding]:
    found = doctor.examine(bus.as_agent("user"), repair=repair)
    return [finding for finding in found if finding.code not in OF_THE_MACHINE]


def codes(bus: TemporaryBus, *, repair: bool = False) -> list[str]:
    return sorted(finding.code for finding in look(bus, repair=repair))


def only(bus: TemporaryBus, code: str) -> Finding:
    """The one finding there is, which has this code."""
    findings = look(bus)
    assert [finding.code for finding in findings] == [code], findings
    return findings[0]


def tree(path: Path) -> dict[str, tuple[object, ...]]:
    """All that there is to know of a folder."""
    seen: dict[str, tuple[object, ...]] = {}
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files, "."):
            entry = os.path.join(parent, name)
            found = os.lstat(entry)
            seen[entry] = (found.st_ino, found.st_mode, found.st_uid, found.st_size)
            seen[entry] += (found.st_mtime_ns, found.st_ctime_ns, found.st_nlink)
    return seen


def repaired(bus: TemporaryBus) -> None:
    """Repair, and hold it to what it promises."""
    before = {entry[0] for entry in tree(bus.path).values()}
    assert doctor.is_content(look(bus, repair=True))
    after = tree(bus.path)
    assert before <= {entry[0] for entry in after.values()}, "something was deleted"
    assert doctor.is_content(look(bus, repair=True))
    assert tree(bus.path) == after, "the second repair changed something"
    left = look(bus)
    assert doctor.is_content(left)
    assert not [finding for finding in left if finding.repairable]


def advance(bus: TemporaryBus, seconds: float) -> None:
    assert isinstance(bus.clock, ManualClock)
    bus.clock.advance(seconds)


def month(bus: TemporaryBus) -> str:
    return month_of(MessageId(bus.clock.new_id()))


def send(bus: TemporaryBus, body: str = "hello", key: str | None = None) -> MessageId:
    return bus.as_agent("alice").send_one("bob", Draft(body=body), key=key).id


def ask(bus: TemporaryBus, expires_in: int | None = None) -> MessageId:
    return bus.as_agent("alice").request_approval("May I?", expires_in=expires_in).id


def path_of(bus: TemporaryBus, ident: MessageId, where: str = "new") -> Path:
    return bus.path / "messages" / "bob" / where / f"{ident}.msg"


def fresh(bus: TemporaryBus) -> Path:
    """A path that a message could have."""
    return path_of(bus, MessageId(bus.clock.new_id()))


def message(bus: Bus, /, **changes: object) -> Message:
    fields: dict[str, object] = {
        "id": bus.clock.new_id(),
        "bus": bus.file.bus,
        "sender": ALICE,
        "to": BOB,
        "sent_at": "2026-11-30T12:00:00.000Z",
    }
    return Message(**(fields | changes))  # type: ignore[arg-type]


def signed(
    bus: TemporaryBus, signer: str = "alice", key: Key | None = None, /, **changes: object
) -> Path:
    """Put a file of one's own making into bob's box."""
    opened = bus.as_agent("alice")
    key = key or opened.keys.load(AgentName(signer)).signing_key()
    path = fresh(bus)
    write(path, encode_message(message(opened, **({"id": path.stem} | changes)), key))
    return path


def write(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.write_bytes(data)
    return path


# -- a bus that is well


def test_a_bus_in_daily_use_has_no_findings(bus: TemporaryBus) -> None:
    first, second, third = (send(bus, str(number), key=f"k{number}") for number in range(3))
    reader = bus.as_agent("bob")
    reader.read(first)
    reader.archive(second)
    request = ask(bus)
    bus.as_agent("conductor").decide(request, "approve")
    assert look(bus) == []
    reader.archive(third)
    advance(bus, 3600)
    bus.as_agent("user").prune(archived=60)
    assert look(bus) == []


def test_expired_messages_are_no_finding(bus: TemporaryBus) -> None:
    bus.as_agent("alice").send_one("bob", Draft(body="soon", expires_in=1))
    advance(bus, 3600)
    assert look(bus) == []


def test_looking_changes_nothing(bus: TemporaryBus) -> None:
    ask(bus)
    send(bus, key="k")
    for make in HOSTILE.values():
        make(fresh(bus))
    os.chmod(bus.path / "messages" / "bob" / "cur", 0o777)
    write(bus.path / "approvals" / f"{bus.clock.new_id()}.decision", b"no")
    before = tree(bus.path), tree(bus.settings.keys)
    assert not doctor.is_content(look(bus))
    assert (tree(bus.path), tree(bus.settings.keys)) == before


def test_progress_counts_what_was_looked_at(bus: TemporaryBus) -> None:
    for number in range(5):
        send(bus, str(number))
    done: list[int] = []
    doctor.examine(bus.as_agent("user"), progress=done.append)
    assert sum(done) >= 5


# -- hostile things


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def dangling(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def folder(path: Path) -> None:
    path.mkdir()


def closed_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0)


def gigabyte(path: Path) -> None:
    write(path, b"")
    os.truncate(path, 1 << 30)


def long_name(path: Path) -> None:
    write(path.with_name("n" * 255), b"x")


def odd_name(path: Path) -> None:
    write(path.with_name("two\nlines \x1b[31m\u202e.msg"), b"x")


def no_utf8(path: Path) -> None:
    write(path.with_name(os.fsdecode(b"\xff\xfe.msg")), b"x")


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a path may be too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s.msg")
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


def foreign_file(path: Path) -> None:
    os.chown(write(path, b"x"), 12345, 12345)


def foreign_folder(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, 12345)


def garbage(path: Path) -> None:
    write(path, b"\x00\xff" * 100)


def empty(path: Path) -> None:
    write(path, b"")


MAKERS: tuple[Callable[[Path], None], ...] = (
    fifo,
    link,
    dangling,
    folder,
    closed_folder,
    gigabyte,
    long_name,
    odd_name,
    no_utf8,
)
MAKERS += (unix_socket, garbage, empty)
OF_ROOT = (device, foreign_file, foreign_folder)
HOSTILE: dict[str, Callable[[Path], None]] = {
    make.__name__: make for make in (*MAKERS, *(OF_ROOT if ROOT else ()))
}
EVERYTHING = (
    *(make.__name__ for make in MAKERS),
    *(
        pytest.param(
            make.__name__, marks=pytest.mark.skipif(not ROOT, reason="only root can make it")
        )
        for make in OF_ROOT
    ),
)


@pytest.mark.parametrize("where", ["new", "cur", "archive", "tmp"])
@pytest.mark.parametrize("what", EVERYTHING)
def test_hostile_things_in_a_box_are_found_and_moved_aside(
    bus: TemporaryBus, what: str, where: str
) -> None:
    good = send(bus)
    reader = bus.as_agent("bob")
    reader.archive(send(bus))
    inside = f"archive/{month(bus)}" if where == "archive" else where
    HOSTILE[what](path_of(bus, MessageId(bus.clock.new_id()), inside))
    harmless = where == "tmp" and what in ("long_name", "odd_name", "no_utf8", "garbage", "empty")
    findings = look(bus)
    assert len(findings) == (0 if harmless else 1), findings
    for finding in findings:
        assert finding.severity == "error"
        assert finding.repairable
        assert finding.message.isprintable()
        assert finding.path.isprintable()
    repaired(bus)
    left = len(os.listdir(bus.path / "messages/bob" / inside))
    assert left == {"new": 1, "cur": 0, "archive": 1, "tmp": harmless}[where]
    assert reader.read(good).judged.ok


@pytest.mark.parametrize(
    "where", ["", "messages", "messages/bob", "sent", "sent/alice", "approvals", "agents"]
)
@pytest.mark.parametrize("what", ["fifo", "link", "dangling", "gigabyte", "no_utf8"])
def test_hostile_things_anywhere_else_are_found(bus: TemporaryBus, what: str, where: str) -> None:
    send(bus, key="k")
    HOSTILE[what](bus.path / where / "01kbb0000000000000000000zz.msg")
    findings = look(bus)
    assert len(findings) == 1, findings
    if findings[0].repairable:
        assert findings[0].severity == "error"
        repaired(bus)
        moved = [*bus.path.glob("bad/*"), *bus.path.glob("*/bad/*"), *bus.path.glob("*/*/bad/*")]
        assert len(moved) == 1
    else:
        assert (where, findings[0].code) == ("", "unknown-entry")


@pytest.mark.parametrize(
    "part",
    [
        "messages/bob",
        "messages/bob/new",
        "messages/bob/archive",
        "messages/bob/bad",
        "messages/bob/journal",
        "sent/alice",
        "sent",
        "agents/bob",
        "agents",
        "approvals/bad",
        "approvals",
        "bad",
        "cache",
    ],
)
def test_a_link_in_place_of_a_folder_is_not_followed(
    bus: TemporaryBus, part: str, tmp_path: Path
) -> None:
    send(bus, key="k")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / "file", b"not ours", 0o644)
    path = bus.path / part
    if path.exists():
        path.rename(tmp_path / "taken")
    path.symlink_to(elsewhere)
    before = tree(elsewhere)
    assert "link" in codes(bus)
    assert doctor.is_content(look(bus, repair=True))
    assert doctor.is_content(look(bus))
    assert tree(elsewhere) == before
    assert not os.path.islink(path)
    assert path.exists() or part not in ("agents", "sent", "approvals")


def test_many_hostile_things_hide_nothing_from_each_other(bus: TemporaryBus) -> None:
    good = [send(bus, str(number)) for number in range(5)]
    for make in HOSTILE.values():
        make(fresh(bus))
    assert len(look(bus)) == len(HOSTILE)
    kept = {ident: path_of(bus, ident).lstat() for ident in good}
    repaired(bus)
    for ident, before in kept.items():
        after = path_of(bus, ident).lstat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(os.listdir(bus.path / "messages/bob/bad")) == len(HOSTILE)
    assert bus.as_agent("bob").inbox().total == len(good)


@given(data=st.binary(max_size=600), name=st.sampled_from(["id", "journal", "x.msg", "pruned"]))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_content_makes_it_fail(bus: TemporaryBus, data: bytes, name: str) -> None:
    box = bus.path / "messages/bob"
    bus.as_agent("bob").archive(send(bus))
    path = {
        "id": fresh(bus),
        "journal": box / "journal",
        "x.msg": box / "new/x.msg",
        "pruned": box / "archive" / month(bus) / "pruned",
    }[name]
    write(path, data)
    look(bus)
    repaired(bus)
    shutil.rmtree(box / "bad", ignore_errors=True)
    path.unlink(missing_ok=True)


# -- what a message file can be


def altered(bus: TemporaryBus) -> Path:
    path = path_of(bus, send(bus))
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    return path


def torn(bus: TemporaryBus) -> Path:
    path = path_of(bus, send(bus))
    os.truncate(path, 50)
    return path


def misaddressed(bus: TemporaryBus) -> Path:
    return signed(bus, to=AgentName("user"))


def of_another_bus(bus: TemporaryBus) -> Path:
    return signed(bus, bus="01kbb0000000000000000000zz")


def renamed(bus: TemporaryBus) -> Path:
    return path_of(bus, send(bus)).rename(fresh(bus))


def impersonated(bus: TemporaryBus) -> Path:
    return signed(bus, "bob")


def unknown(bus: TemporaryBus) -> Path:
    return signed(bus, "", Key("0" * 16, b"s" * 32, "active", "2026-11-30T12:00:00.000Z"))


def revoked(bus: TemporaryBus) -> Path:
    path = path_of(bus, send(bus))
    keys = bus.as_agent("alice").keys
    keys.rotate(ALICE)
    keys.revoke(ALICE, keys.load(ALICE).keys[0].kid)
    return path


def put_back(bus: TemporaryBus) -> Path:
    ident = send(bus)
    path = path_of(bus, ident)
    data = path.read_bytes()
    bus.as_agent("bob").archive(ident)
    advance(bus, 3600)
    assert bus.as_agent("user").prune(archived=60).removed == 1
    return write(path, data)


OUTCOMES: dict[str, Callable[[TemporaryBus], Path]] = {
    "bad-signature": altered,
    "malformed": torn,
    "wrong-recipient": misaddressed,
    "wrong-bus": of_another_bus,
    "misfiled": renamed,
    "wrong-sender": impersonated,
    "unknown-key": unknown,
    "revoked-key": revoked,
    "replayed": put_back,
}


@pytest.mark.parametrize("outcome", [*OUTCOMES])
def test_every_outcome_is_found_and_moved_aside(bus: TemporaryBus, outcome: str) -> None:
    path = OUTCOMES[outcome](bus)
    data, inode = path.read_bytes(), path.stat().st_ino
    finding = only(bus, outcome)
    assert (finding.path, finding.severity, finding.repairable) == (str(path), "error", True)
    repaired(bus)
    moved = next((bus.path / "messages/bob/bad").iterdir())
    assert (moved.read_bytes(), moved.stat().st_ino) == (data, inode)


def test_a_lost_keyring_makes_nothing_go_away(bus: TemporaryBus, tmp_path: Path) -> None:
    """With the keyring back, the messages count again: so they must stay where they are."""
    ident = send(bus, key="k")
    request = ask(bus)
    bus.as_agent("conductor").decide(request, "approve")
    for agent in ("alice", "conductor"):
        ring = bus.settings.keys / f"{agent}.json"
        before = ring.rename(tmp_path / f"{agent}.json")
        found = look(bus, repair=True)
        assert {"unknown-key", "key-missing"} <= {finding.code for finding in found}
        assert not any(finding.repaired for finding in found)
        assert f"restore the keyring of {agent}" in " ".join(f.message for f in found)
        before.rename(ring)
    assert path_of(bus, ident).exists()
    assert look(bus) == []


def test_a_keyring_that_cannot_be_read_makes_nothing_go_away(bus: TemporaryBus) -> None:
    ident = send(bus)
    ring = bus.settings.keys / "alice.json"
    ring.write_bytes(b"{")
    (bus.settings.keys / "rotations.jsonl").unlink()
    found = look(bus, repair=True)
    assert {"bad-keyring", "unknown-key"} <= {finding.code for finding in found}
    assert path_of(bus, ident).exists()


def test_keys_of_another_place_make_nothing_go_away(bus: TemporaryBus, tmp_path: Path) -> None:
    ident = send(bus)
    other = tmp_path / "other"
    other.mkdir()
    with TemporaryBus("stranger", folder=other) as strangers:
        for admin in ("user", "conductor"):
            (strangers.settings.keys / f"{admin}.json").unlink()
        shutil.rmtree(bus.settings.keys)
        shutil.copytree(strangers.settings.keys, bus.settings.keys)
    opened = Bus.open(bus.settings, clock=bus.clock)
    found = doctor.examine(opened, repair=True)
    assert "check AGENT_MSG_KEYS" in " ".join(finding.message for finding in found)
    assert path_of(bus, ident).exists()


def test_without_usable_keys_the_rest_is_examined(bus: TemporaryBus) -> None:
    send(bus, key="k")
    ask(bus)
    fifo(fresh(bus))
    opened = bus.as_agent("user")
    bus.settings.keys.chmod(0o755)
    found = [f.code for f in doctor.examine(opened) if f.code not in OF_THE_MACHINE]
    assert sorted(found) == ["no-file", "unsafe-keys"]


def test_an_interrupted_move_is_a_note_and_the_later_place_counts(bus: TemporaryBus) -> None:
    ident = send(bus)
    path = path_of(bus, ident)
    os.link(path, path_of(bus, ident, "cur"))
    finding = only(bus, "two-states")
    assert (finding.severity, finding.path, finding.repairable) == ("note", str(path), True)
    repaired(bus)
    assert not path.exists()
    assert bus.as_agent("bob").read(ident).place.state == "read"


def test_of_two_states_a_bad_later_one_goes_and_the_earlier_one_counts(bus: TemporaryBus) -> None:
    ident = send(bus)
    write(path_of(bus, ident, "cur"), b"forged")
    assert only(bus, "malformed").path == str(path_of(bus, ident, "cur"))
    repaired(bus)
    assert bus.as_agent("bob").read(ident).judged.ok


def test_one_id_in_two_boxes_is_a_warning(bus: TemporaryBus) -> None:
    ident = send(bus)
    opened = bus.as_agent("alice")
    twin = message(opened, id=ident, to=AgentName("user"))
    path = bus.path / "messages/user/new" / f"{ident}.msg"
    write(path, encode_message(twin, opened.keys.load(ALICE).signing_key()))
    assert only(bus, "id-in-two-boxes").severity == "warning"


def test_a_message_in_the_archive_of_another_month_is_found(bus: TemporaryBus) -> None:
    ident = send(bus)
    bus.as_agent("bob").archive(ident)
    archive = bus.path / "messages/bob/archive"
    (archive / month(bus)).rename(archive / "2001-01")
    assert only(bus, "misfiled").severity == "error"
    repaired(bus)


def test_no_message_is_moved_because_it_cannot_be_read_now(bus: TemporaryBus) -> None:
    """A mode that is closed to the owner is opened; the file stays."""
    ident = send(bus)
    path = path_of(bus, ident)
    path.chmod(0)
    assert only(bus, "unreadable").severity == "error"
    repaired(bus)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bus.as_agent("bob").read(ident).judged.ok


CLOSED = """
import sys
from pathlib import Path
from agent_bus import doctor
from agent_bus.bus import Bus
from agent_bus.settings import Settings
root = Path(sys.argv[1])
bus = Bus.open(Settings(data=root / "data", keys=root / "keys", bus=root / "bus", project=root))
for repair in (False, True, True):
    found = doctor.examine(bus, repair=repair)
    print(*sorted(f.code for f in found if f.code not in sys.argv[2:]))
    print(doctor.is_content(found))
"""


def test_without_the_rights_of_root_closed_things_are_found_and_mended(bus: TemporaryBus) -> None:
    send(bus)
    path_of(bus, send(bus)).chmod(0)
    closed_folder(fresh(bus))
    (bus.path / "messages/bob/cur").chmod(0)
    command = [sys.executable, "-c", CLOSED, str(bus.path.parent), *OF_THE_MACHINE]
    if ROOT:
        if not (setpriv := shutil.which("setpriv")):
            pytest.skip("root passes every mode, and there is no setpriv to change that")
        command[:0] = [setpriv, "--bounding-set=-dac_override,-dac_read_search"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    codes = "no-file unreadable unreadable"
    assert done.stdout.splitlines() == [codes, "False", codes, "True", "set-aside", "True"]


# -- modes


@pytest.mark.parametrize(
    ("part", "mode", "severity"),
    [
        ("", 0o755, "warning"),
        ("messages", 0o777, "error"),
        ("messages/bob", 0o750, "warning"),
        ("messages/bob/new", 0o770, "error"),
        ("messages/bob/tmp", 0o755, "warning"),
        ("messages/bob/journal", 0o666, "error"),
        ("approvals", 0o777, "error"),
        ("sent/alice", 0o755, "warning"),
        ("agents", 0o777, "error"),
        ("bus.json", 0o644, "warning"),
        ("MESSAGE", 0o644, "warning"),
        ("REQUEST", 0o660, "error"),
    ],
)
def test_loose_modes_are_found_and_closed(
    bus: TemporaryBus, part: str, mode: int, severity: str
) -> None:
    opened = bus.as_agent("user")
    names = {"MESSAGE": f"messages/bob/new/{send(bus)}.msg"}
    names["REQUEST"] = f"approvals/{ask(bus)}.request"
    bus.as_agent("bob").archive(send(bus, key="k"))
    path = bus.path / names.get(part, part)
    path.chmod(mode)
    found = [one for one in doctor.examine(opened) if one.code == "loose-mode"]
    assert {one.severity for one in found} == {severity}
    assert str(path) in [one.path for one in found]
    assert doctor.is_content(doctor.examine(opened, repair=True))
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert look(bus) == []


def test_the_mode_of_a_file_outside_the_bus_is_not_changed(
    bus: TemporaryBus, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside", b"mine", 0o644)
    for name in (fresh(bus).name, "loose.msg"):
        os.link(outside, bus.path / "messages/bob/new" / name)
    os.link(outside, bus.path / "messages/bob/journal")
    look(bus, repair=True)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert codes(bus) == ["loose-mode", "set-aside", "torn-line"]


# -- what a crash leaves


def test_what_a_crash_left_in_tmp_is_a_warning_once_it_is_old(bus: TemporaryBus) -> None:
    path = write(bus.path / "messages/bob/tmp" / f"{bus.clock.new_id()}.0123abcd", b"half")
    assert look(bus) == []
    os.utime(path, times=(time.time() - FORTY_HOURS,) * 2)
    assert only(bus, "leftover").severity == "warning"


@pytest.mark.parametrize("name", ["journal", "pruned"])
def test_torn_and_foreign_lines_are_told(bus: TemporaryBus, name: str) -> None:
    box = bus.path / "messages/bob"
    bus.as_agent("bob").archive(send(bus))
    path = box / "journal" if name == "journal" else box / "archive" / month(bus) / "pruned"
    write(path, b"2026-11-30T12:00:00.000Z re")
    assert only(bus, "torn-line").severity == "note"
    path.write_bytes(b"what is this\n\xff\n")
    assert "2 lines" in only(bus, "foreign-lines").message


def test_a_keyed_send_that_was_cut_short_is_named_and_can_be_completed(bus: TemporaryBus) -> None:
    ident = send(bus, key="k")
    path = path_of(bus, ident)
    path.unlink()
    finding = only(bus, "send-unfinished")
    assert finding.severity == "note"
    assert ident in finding.message
    assert send(bus, key="k") == ident
    assert look(bus) == []


def test_an_entry_in_sent_that_does_not_verify_is_moved_aside(bus: TemporaryBus) -> None:
    opened = bus.as_agent("alice")
    send(bus, key="k")
    sent = bus.path / "sent/alice"
    write(sent / sent_file(BOB, "a"), b"forged")
    os.link(path_of(bus, send(bus)), sent / "short")
    of_bob = encode_message(message(opened, sender=BOB), opened.keys.load(BOB).signing_key())
    write(sent / sent_file(BOB, "b"), of_bob)
    assert codes(bus) == ["malformed", "unknown-entry", "wrong-sender"]
    repaired(bus)
    assert len(os.listdir(sent)) == 1
    assert len(os.listdir(bus.path / "bad")) == 3


# -- approvals


def decide(
    bus: TemporaryBus, request: MessageId, signer: str = "conductor", /, **changes: object
) -> Path:
    """Write a decision by hand."""
    opened = bus.as_agent(signer)
    fields: dict[str, object] = {
        "request": request,
        "request_sha256": opened.approvals.request(request).sha256,
        "bus": opened.file.bus,
        "decision": "approve",
        "by": AgentName(signer),
        "decided_at": "2026-11-30T12:00:00.000Z",
    }
    key = opened.keys.load(AgentName(signer)).signing_key()
    data = encode_decision(Decision(**(fields | changes)), key)  # type: ignore[arg-type]
    return write(bus.path / "approvals" / f"{request}.decision", data)


@pytest.mark.parametrize(
    ("by", "changes", "why"),
    [
        ("conductor", {"decision": "perhaps"}, "no option"),
        ("conductor", {"request_sha256": "0" * 64}, "another content"),
        ("conductor", {"bus": "01kbb0000000000000000000zz"}, "another bus"),
        ("conductor", {"by": "user"}, "in the name of user"),
        ("conductor", {"decided_at": "2999-01-01T00:00:00.000Z"}, "after the request"),
        ("bob", {}, "no admin"),
        ("alice", {}, "by the requester itself"),
    ],
)
def test_a_decision_that_does_not_count_is_moved_aside(
    bus: TemporaryBus, by: str, changes: dict[str, object], why: str
) -> None:
    request = ask(bus, expires_in=3600)
    decide(bus, request, by, **changes)
    finding = only(bus, "invalid-decision")
    assert why in finding.message
    assert finding.severity == "error"
    repaired(bus)
    assert bus.as_agent("conductor").decide(request, "deny").decision.decision == "deny"
    assert os.listdir(bus.path / "approvals/bad")


def test_a_forged_decision_and_one_of_nothing_are_moved_aside(bus: TemporaryBus) -> None:
    request = ask(bus)
    path = decide(bus, request)
    path.write_bytes(path.read_bytes().replace(b"approve", b"deny"))
    write(bus.path / "approvals" / f"{bus.clock.new_id()}.decision", b"")
    assert codes(bus) == ["invalid-decision", "no-request"]
    repaired(bus)
    assert bus.as_agent("user").pending()


def test_a_decision_whose_message_is_missing_is_named_and_can_be_completed(
    bus: TemporaryBus,
) -> None:
    request = ask(bus)
    decide(bus, request)
    finding = only(bus, "decision-not-delivered")
    assert finding.severity == "warning"
    assert f"decide {request} approve" in finding.message
    bus.as_agent("conductor").decide(request, "approve")
    assert look(bus) == []


def test_strays_in_the_queue_are_moved_aside(bus: TemporaryBus) -> None:
    queue = bus.path / "approvals"
    os.link(path_of(bus, ident := send(bus)), queue / f"{ident}.request")
    write(queue / f"{bus.clock.new_id()}.request", b"forged")
    write(queue / "notes.txt", b"x")
    left = write(queue / f".{ident}.decision.0123abcd", b"half")
    assert codes(bus) == ["malformed", "malformed", "unknown-entry"]
    os.utime(left, times=(time.time() - FORTY_HOURS,) * 2)
    assert codes(bus) == ["leftover", "malformed", "malformed", "unknown-entry"]
    repaired(bus)
    assert len(os.listdir(queue / "bad")) == 4
    assert path_of(bus, ident).exists()


def test_a_request_must_stand_in_the_queue_and_in_a_box(bus: TemporaryBus) -> None:
    request = ask(bus)
    box = bus.path / "messages/conductor/new" / f"{request}.msg"
    queued = bus.path / "approvals" / f"{request}.request"
    queued.unlink()
    assert only(bus, "request-not-queued").severity == "warning"
    os.link(box, queued)
    box.unlink()
    assert only(bus, "request-without-message").severity == "warning"


def test_a_request_that_was_pruned_and_put_back_is_moved_aside(bus: TemporaryBus) -> None:
    request = ask(bus)
    bus.as_agent("conductor").decide(request, "approve")
    bus.as_agent("conductor").archive(request)
    data = (bus.path / "approvals" / f"{request}.request").read_bytes()
    advance(bus, 3600)
    assert bus.as_agent("user").prune(archived=60).removed == 1
    write(bus.path / "approvals" / f"{request}.request", data)
    assert only(bus, "replayed").severity == "error"
    repaired(bus)


# -- keys


def test_what_is_wrong_with_keyrings_is_named(bus: TemporaryBus) -> None:
    keys = bus.settings.keys
    (keys / "bob.json").chmod(0o644)
    write(keys / "carol.json", b"{}")
    write(keys / "notes.txt", b"x")
    shutil.copy(keys / "alice.json", keys / "dave.json")
    data = (keys / "dave.json").read_bytes()
    (keys / "dave.json").write_bytes(data.replace(b'"alice"', b'"dave"'))
    found = look(bus)
    bad = [finding.path for finding in found if finding.code == "bad-keyring"]
    assert bad == [str(keys / "bob.json"), str(keys / "carol.json")]
    assert "chmod 600" in next(f.message for f in found if f.path == bad[0])
    assert {"duplicate-key", "unknown-entry", "rotation-missing"} <= {f.code for f in found}
    before = tree(keys)
    look(bus, repair=True)
    assert tree(keys) == before


def test_an_agent_without_an_active_key_is_named_unless_it_was_retired(bus: TemporaryBus) -> None:
    keys = bus.as_agent("alice").keys
    keys.revoke(ALICE, keys.load(ALICE).keys[0].kid)
    keys.retire_agent(BOB)
    found = {finding.code: finding for finding in look(bus)}
    assert set(found) == {"no-active-key", "box-without-key"}
    assert "keys rotate alice" in found["no-active-key"].message
    assert "bob" in found["box-without-key"].message


def test_an_agent_that_was_retired_and_is_back_has_a_whole_history(bus: TemporaryBus) -> None:
    keys = bus.as_agent("alice").keys
    keys.retire_agent(BOB)
    keys.rotate(BOB)
    assert codes(bus) == []


def test_the_history_of_keys_is_compared_with_the_keyrings(bus: TemporaryBus) -> None:
    history = bus.settings.keys / "rotations.jsonl"
    whole = history.read_bytes()
    history.write_bytes(whole + b'{"at": "2026')
    assert only(bus, "torn-line").severity == "note"
    history.write_bytes(whole + b'{"at": "2026\n' + whole)
    assert only(bus, "foreign-lines").severity == "warning"
    history.write_bytes(b"".join(whole.splitlines(keepends=True)[1:]))
    assert only(bus, "rotation-missing").path == str(bus.settings.keys / "alice.json")


def test_an_admin_without_a_key_is_a_note(bus: TemporaryBus) -> None:
    (bus.settings.keys / "conductor.json").unlink()
    assert codes(bus) == ["admin-without-key", "key-missing"]


def test_a_bus_without_keys_is_told_so(bus: TemporaryBus) -> None:
    opened = bus.as_agent("user")
    shutil.rmtree(bus.settings.keys)
    assert "no-keys" in [finding.code for finding in doctor.examine(opened, repair=True)]


# -- the rest of the bus


def test_attached_processes_are_notes_and_a_second_server_is_a_warning(bus: TemporaryBus) -> None:
    opened = bus.as_agent("alice")
    with ExitStack() as stack:
        stack.enter_context(opened.presence.attach(ALICE, "watch"))
        stack.enter_context(opened.presence.attach(ALICE, "mcp"))
        assert codes(bus) == ["attached", "attached"]
        stack.enter_context(opened.presence.attach(ALICE, "mcp", mode="polling"))
        found = look(bus)
        assert [finding.code for finding in found].count("attached") == 3
        severities = {finding.code: finding.severity for finding in doctor.examine(opened)}
        assert severities["second-server"] == "warning"
        assert severities["polling"] == "note"
    assert look(bus) == []


def test_why_waits_poll_is_told(bus: TemporaryBus) -> None:
    opened = Bus.open(replace(bus.settings, poll=True))
    found = [finding for finding in doctor.examine(opened) if finding.code == "polling"]
    assert [finding.severity for finding in found] == ["note"]
    assert "AGENT_BUS_POLL=1" in found[0].message


def test_unknown_things_in_the_bus_folder_are_named_and_left(bus: TemporaryBus) -> None:
    write(bus.path / "README", b"mine")
    (bus.path / "newer-part").mkdir()
    assert codes(bus, repair=True) == ["unknown-entry", "unknown-entry"]
    assert (bus.path / "README").exists()


def test_the_folders_of_adapters_may_hold_what_they_like_but_links(bus: TemporaryBus) -> None:
    state = bus.path / "terminal" / "deep" / "er"
    for folder_ in (state.parent.parent, state.parent, state):
        folder_.mkdir(0o700)
    write(state / "big", b"x" * 600_000)
    unix_socket(state / "any")
    assert look(bus) == []
    link(state / "out")
    (state / "loose").mkdir(0o755)
    assert codes(bus) == ["link", "loose-mode"]
    repaired(bus)


def test_missing_parts_are_named(bus: TemporaryBus) -> None:
    (bus.path / "messages/bob/cur").rmdir()
    assert only(bus, "missing-part").severity == "note"
    queue = bus.path / "approvals"
    shutil.rmtree(queue)
    found = [finding for finding in look(bus) if finding.severity == "error"]
    assert [(f.code, f.path, f.repairable) for f in found] == [("missing-part", str(queue), True)]
    repaired(bus)
    assert stat.S_IMODE(queue.stat().st_mode) == 0o700


def test_a_repository_that_names_no_bus_or_another_is_told(tmp_path: Path) -> None:
    (tmp_path / "mark").mkdir()
    with TemporaryBus("alice", folder=tmp_path / "mark") as bus:
        opened = bus.as_agent("user")
        opened.address = replace(opened.address, common=tmp_path)
        assert "no-mark" in [finding.code for finding in doctor.examine(opened)]
        write(tmp_path / "agent-bus", f"{bus.clock.new_id()}\n".encode())
        assert "wrong-mark" in [finding.code for finding in doctor.examine(opened)]


def test_what_cannot_be_moved_is_said_with_the_reason(bus: TemporaryBus) -> None:
    chattr = shutil.which("chattr")
    if not ROOT or not chattr:
        pytest.skip("only root can make a file that cannot be moved")
    path = write(fresh(bus), b"x")
    if subprocess.run([chattr, "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        finding = next(finding for finding in look(bus, repair=True))
        assert (finding.repairable, finding.repaired) == (False, None)
        assert "cannot be moved aside: Operation not permitted" in finding.message
    finally:
        subprocess.run([chattr, "-i", path], check=True)
    repaired(bus)


SENDER = """
import sys
from pathlib import Path
from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.settings import Settings
root = Path(sys.argv[1])
settings = Settings(data=root / "data", keys=root / "keys", bus=root / "bus", project=root)
alice = Bus.open(settings, identity="alice")
bob = Bus.open(settings, identity="bob")
print("ready", flush=True)
number = 0
while True:
    ident = alice.send_one("bob", Draft(body="x"), key=f"{sys.argv[2]} {number}").id
    bob.read(ident)
    bob.archive(ident)
    number += 1
"""


@pytest.fixture
def senders(bus: TemporaryBus) -> Iterator[None]:
    """Two processes that send, read and archive as fast as they can."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SENDER, str(bus.path.parent), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.usefixtures("senders")
def test_a_bus_in_use_is_examined_and_repaired_without_harm(bus: TemporaryBus) -> None:
    for repair in (False, True) * 5:
        found = look(bus, repair=repair)
        assert {finding.code for finding in found} <= {"two-states", "send-unfinished", "set-aside"}


def test_the_keys_of_the_gateway_are_in_their_place(bus: TemporaryBus) -> None:
    file = bus.settings.keys / "gateway.json"
    file.write_text('{"keys": [], "revoked": []}')
    file.chmod(0o600)

    assert codes(bus) == []


# -- ping


@pytest.mark.parametrize("poll", [False, True])
def test_ping_goes_through_the_watch_and_leaves_nothing_unread(tmp_path: Path, poll: bool) -> None:
    (tmp_path / "ping").mkdir()
    with TemporaryBus("alice", folder=tmp_path / "ping") as bus:
        alice = Bus.open(replace(bus.settings, poll=poll), identity="alice")
        found = doctor.ping(alice)
        assert found.mode in (("polling",) if poll else ("events", "polling"))
        assert bool(found.why) == (found.mode == "polling")
        assert found.sent_ms > 0
        assert found.wake_ms > 0
        assert alice.inbox().total == 0
        assert len(alice.log().messages) == 1
        assert [f for f in doctor.examine(alice) if f.severity == "error"] == []


def test_ping_needs_an_identity(bus: TemporaryBus) -> None:
    with pytest.raises(IdentityMissing):
        doctor.ping(Bus.open(bus.settings))


def test_ping_that_nobody_notices_is_an_error_and_is_archived(bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    with pytest.raises(TimedOut, match="not noticed in 0 s"):
        doctor.ping(Bus.open(replace(bus.settings, poll=True), identity="alice"), timeout=0)
    assert alice.inbox().total == 0


# -- the gateway


def test_a_wake_of_anybody_but_the_gateway_is_named_and_stays(
    bus: TemporaryBus, false_wake: Any
) -> None:
    ident = false_wake(bus, "bob")

    found = only(bus, "doubted-wake")

    assert found.severity == "warning"
    assert found.path == str(path_of(bus, ident))
    assert "signed by alice" in found.message
    assert "do not act on it" in found.message
    before = tree(bus.path)
    look(bus, repair=True)
    assert tree(bus.path) == before


def test_the_gateway_and_the_boxes_of_conversations_are_as_they_should_be(
    bus: TemporaryBus,
) -> None:
    gateway = bus.as_gateway()
    gateway.wake("bob", Draft(body="x"), key="k")
    gateway.wake("openhands-0b54cd32-0e1f-5f0a-9c0b-0123456789ab", Draft(body="x"), key="k")
    bus.as_agent("user").decide(gateway.request_approval("Which?").id, "approve")

    assert codes(bus) == []
