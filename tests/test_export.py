"""An export holds every message byte for byte, names what it left out, and holds no secret."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus import doctor
from agent_bus.bus import Bus
from agent_bus.errors import CannotCreate, UsageError
from agent_bus.export import export, fingerprint
from agent_bus.keyring import encode_secret
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock, TemporaryBus


@pytest.fixture
def bus(tmp_path: Path) -> TemporaryBus:
    """A bus with messages in every state, a keyed send, an approval and pruned ids."""
    here = tmp_path / "here"
    here.mkdir()
    clock = ManualClock()
    made = TemporaryBus("alice", "bob", folder=here, clock=clock)
    alice, bob = made.as_agent("alice"), made.as_agent("bob")
    bob.archive(alice.send_one("bob", Draft(body="pruned")).id)
    clock.advance(3600)
    made.as_agent("user").prune(archived=60)
    sent = [alice.send_one("bob", Draft(body=f"{n}"), key=f"key {n}").id for n in range(4)]
    bob.read(sent[0])
    bob.archive(sent[1])
    made.as_agent("conductor").decide(alice.request_approval("May I?").id, "approve")
    alice.keys.rotate(AgentName("alice"))
    return made


def unpack(archive: Path, into: Path) -> Path:
    """Unpack with tar itself; returns the folder that was in it."""
    into.mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", into], check=True)
    (folder,) = into.iterdir()
    return folder


def files(path: Path) -> dict[str, bytes]:
    found = (entry for entry in path.rglob("*") if entry.is_file())
    return {str(entry.relative_to(path)): entry.read_bytes() for entry in found}


def test_everything_is_in_it_byte_for_byte(bus: TemporaryBus, tmp_path: Path) -> None:
    done: list[int] = []
    exported = export(bus.as_agent("user"), tmp_path / "all.tar.gz", progress=done.append)
    assert exported.messages == sum(done) == 6
    assert exported.skipped == ()
    assert exported.bytes == (tmp_path / "all.tar.gz").stat().st_size
    folder = unpack(tmp_path / "all.tar.gz", tmp_path / "out")
    assert folder.name == f"agent-bus-{bus.as_agent('user').file.bus}"
    inside = files(folder)
    extra = {name: inside.pop(name) for name in ("MANIFEST", "keyrings.jsonl", "rotations.jsonl")}
    assert inside == files(bus.path)
    assert extra["rotations.jsonl"] == (bus.settings.keys / "rotations.jsonl").read_bytes()
    assert any(name.endswith("/pruned") for name in inside)


def test_the_manifest_is_one_for_sha256sum(bus: TemporaryBus, tmp_path: Path) -> None:
    export(bus.as_agent("user"), tmp_path / "all.tar.gz")
    folder = unpack(tmp_path / "all.tar.gz", tmp_path / "out")
    lines = (folder / "MANIFEST").read_text().splitlines()
    named = {line[66:]: line[:64] for line in lines}
    assert set(named) == set(files(folder)) - {"MANIFEST"}
    for name, digest in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_what_is_unpacked_is_private_and_can_be_used_as_a_bus(
    bus: TemporaryBus, tmp_path: Path
) -> None:
    export(bus.as_agent("user"), tmp_path / "all.tar.gz")
    assert stat.S_IMODE((tmp_path / "all.tar.gz").stat().st_mode) == 0o600
    folder = unpack(tmp_path / "all.tar.gz", tmp_path / "out")
    for entry in folder.rglob("*"):
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600)
    for name in ("MANIFEST", "keyrings.jsonl", "rotations.jsonl"):
        (folder / name).unlink()
    restored = Bus.open(replace(bus.settings, bus=folder), identity="bob", clock=bus.clock)
    assert restored.inbox().total == bus.as_agent("bob").inbox().total
    left = {f.code for f in doctor.examine(restored)}
    assert left <= {"not-durable", "network-file-system", "polling"}


def test_the_second_name_of_a_keyed_send_is_a_hard_link(bus: TemporaryBus, tmp_path: Path) -> None:
    export(bus.as_agent("user"), tmp_path / "all.tar.gz")
    folder = unpack(tmp_path / "all.tar.gz", tmp_path / "out")
    inodes = {path.stat().st_ino for path in folder.glob("messages/bob/**/*.msg")}
    assert all(path.stat().st_ino in inodes for path in folder.glob("sent/alice/*"))


def test_no_secret_is_in_it_in_any_form(bus: TemporaryBus, tmp_path: Path) -> None:
    opened = bus.as_agent("user")
    export(opened, tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as tar:
        content = b"\n".join(
            file.read() for entry in tar if (file := tar.extractfile(entry)) is not None
        )
    rings = [opened.keys.load(agent) for agent in opened.keys.agents()]
    keys = [key for ring in rings for key in ring.keys]
    assert len(keys) == 5
    for key in keys:
        assert key.secret not in content
        assert key.secret.hex().encode() not in content.lower()
        assert encode_secret(key.secret).encode() not in content
        assert fingerprint(key).encode() in content
        assert hashlib.sha256(key.secret).hexdigest().encode() not in content


def test_keyrings_are_described_by_fingerprints(bus: TemporaryBus, tmp_path: Path) -> None:
    opened = bus.as_agent("user")
    export(opened, tmp_path / "all.tar.gz")
    folder = unpack(tmp_path / "all.tar.gz", tmp_path / "out")
    lines = [json.loads(line) for line in (folder / "keyrings.jsonl").read_text().splitlines()]
    first, second = (line for line in lines if line["agent"] == "alice")
    assert (first["state"], second["state"]) == ("retired", "active")
    assert first["fingerprint"] != second["fingerprint"]
    assert set(second) == {"agent", "kid", "alg", "state", "created_at", "fingerprint"}
    assert set(first) == {*second, "retired_at"}


def test_hostile_things_are_left_out_and_named(bus: TemporaryBus, tmp_path: Path) -> None:
    new = bus.path / "messages/bob/new"
    names = [f"{bus.clock.new_id()}.msg" for _ in range(5)]
    (new / names[0]).symlink_to("/etc/passwd")
    os.mkfifo(new / names[1])
    (new / names[2]).mkdir()
    (new / names[3]).write_bytes(b"")
    os.truncate(new / names[3], 1 << 30)
    (new / names[4]).write_bytes(b"does not verify, and is kept as it is")
    (new / "two\nlines").write_bytes(b"x")
    (bus.path / "messages/carol").symlink_to(tmp_path)
    (bus.path / "sent/alice/odd").write_bytes(b"x")
    (bus.settings.keys / "dave.json").write_bytes(b"{}")
    exported = export(bus.as_agent("user"), tmp_path / "all.tar.gz")
    assert len(exported.skipped) == 8
    assert all(line.isprintable() for line in exported.skipped)
    named = "\n".join(exported.skipped)
    for name in (*names[:4], "two\\nlines", "carol", "odd", "dave.json"):
        assert name in named
    inside = files(unpack(tmp_path / "all.tar.gz", tmp_path / "out"))
    assert inside[f"messages/bob/new/{names[4]}"].startswith(b"does not")
    assert not any(name in " ".join(inside) for name in names[:4])


def test_an_existing_file_is_never_replaced(bus: TemporaryBus, tmp_path: Path) -> None:
    target = tmp_path / "taken.tar.gz"
    target.write_bytes(b"mine")
    with pytest.raises(CannotCreate, match="exists and is not replaced"):
        export(bus.as_agent("user"), target)
    target.unlink()
    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CannotCreate, match="exists and is not replaced"):
        export(bus.as_agent("user"), target)


def test_a_target_inside_the_bus_is_refused(bus: TemporaryBus) -> None:
    with pytest.raises(UsageError, match="inside the bus"):
        export(bus.as_agent("user"), bus.path / "messages" / "all.tar.gz")


def test_a_folder_that_is_not_there_is_an_error_of_one_line(
    bus: TemporaryBus, tmp_path: Path
) -> None:
    with pytest.raises(CannotCreate, match="nothing was exported: No such file"):
        export(bus.as_agent("user"), tmp_path / "missing" / "all.tar.gz")


def test_a_full_disk_leaves_nothing(bus: TemporaryBus, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small file system needs root")
    options = ["-t", "tmpfs", "-o", "size=4k", "tmpfs"]
    if subprocess.run([mount, *options, small], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        alice = bus.as_agent("alice")
        for _ in range(8):
            alice.send_one("bob", Draft(body=os.urandom(16_000).hex()))
        with pytest.raises(CannotCreate, match="free some space"):
            export(alice, small / "all.tar.gz")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


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
for stored in bob.inbox(limit=500).messages:
    alice.send_one("bob", Draft(body="late"), key=stored.place.id[:20])
    bob.read(stored.place.id)
    bob.archive(stored.place.id)
"""


@pytest.fixture
def busy(bus: TemporaryBus) -> Iterator[set[str]]:
    """A process that sends, reads and archives; gives the ids that were there before."""
    alice = bus.as_agent("alice")
    shutil.rmtree(bus.path / "messages/bob/archive")
    ids = {str(alice.send_one("bob", Draft(body=f"{n}")).id) for n in range(60)}
    process = subprocess.Popen(
        [sys.executable, "-c", SENDER, str(bus.path.parent)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield ids
    finally:
        process.kill()
        process.communicate()


def test_no_message_is_missed_while_the_bus_is_in_use(
    bus: TemporaryBus, busy: set[str], tmp_path: Path
) -> None:
    """Each export holds all that was there when it began, though the reader moves them."""
    for number in range(5):
        target = tmp_path / f"{number}.tar.gz"
        exported = export(bus.as_agent("user"), target)
        assert exported.skipped == ()
        folder = unpack(target, tmp_path / str(number))
        found = {path.stem for path in folder.glob("messages/bob/**/*.msg")}
        assert busy <= found
        subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST"], cwd=folder, check=True)
