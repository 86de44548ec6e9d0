"""Whatever somebody puts into a bus: nothing blocks, nothing is shown as a message, what is
valid behind it is delivered, the doctor finds it, and a repair moves it aside and deletes
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import capabilities
import pytest
from looking import bus
from processes import environment, python, python_path, wait_until

from agent_bus import doctor
from agent_bus.clock import SystemClock
from agent_bus.errors import AgentBusError
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

Thing = Callable[[Path, Path], None]
"""Puts something hostile at a path; the second path is a valid message elsewhere."""
ROOT = os.geteuid() == 0
PLACES = ("messages/bob/new", "messages/bob/cur", "messages/bob/archive/{month}")
OTHERS = {
    "approvals": "{id}.request",
    "sent/alice": "{hash}",
    "agents/bob": "{id}.json",
    "messages/bob/tmp": "{id}.0123abcd",
    "messages": "zed",
    "messages/bob": "new.old",
}


def _socket(path: Path, _: Path) -> None:
    # The path may be longer than a socket's name may be.
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def _folder(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def _sparse(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def _torn(path: Path, valid: Path) -> None:
    path.write_bytes(valid.read_bytes()[:-30])


def _foreign(path: Path, valid: Path) -> None:
    path.write_bytes(valid.read_bytes())
    os.chown(path, capabilities.FOREIGN, -1)


def _with_mode(mode: int) -> Thing:
    def put(path: Path, valid: Path) -> None:
        path.write_bytes(valid.read_bytes())
        path.chmod(mode)

    return put


THINGS: dict[str, Thing] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: os.mknod(path, 0o20666, os.makedev(1, 5)),
    "socket": _socket,
    "link": lambda path, valid: path.symlink_to(valid),
    "dangling link": lambda path, _: path.symlink_to("/nowhere/at/all"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to a folder": lambda path, valid: path.symlink_to(valid.parent),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "folder": _folder,
    "1 GiB": _sparse,
    "foreign owner": _foreign,
    "copy": _with_mode(0o600),
    "empty": lambda path, _: path.touch(),
    "torn": _torn,
}
NEEDS = {"device": "mknod", "foreign owner": "chown"}
KINDS = [
    pytest.param(kind, marks=[pytest.mark.needs(NEEDS[kind])] if kind in NEEDS else [])
    for kind in THINGS
]


class Scene:
    """A bus with a valid message before and one after the hostile thing."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.bus = root / "bus"
        TemporaryBus("alice", "bob", folder=root)
        clock = SystemClock()
        self.before = self.send("before")
        self.ident = clock.new_id()
        self.elsewhere = bus(root, "bob").send_one("alice", Draft(body="another's")).id
        self.valid = self.bus / "messages/alice/new" / f"{self.elsewhere}.msg"
        bus(root, "bob").read(self.send("done"), archive=True)
        self.month = next((self.bus / "messages/bob/archive").iterdir()).name

    def send(self, text: str) -> str:
        """A valid message, with a key: its sender has a folder in sent."""
        return bus(self.root, "alice").send_one("bob", Draft(body=text), key=text).id

    def put(self, kind: str, place: str, name: str) -> Path:
        """Put a hostile thing somewhere."""
        words = {"id": self.ident, "month": self.month, "hash": "0" * 64}
        path = self.bus / place.format(**words) / name.format(**words)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        THINGS[kind](path, self.valid)
        return path

    def tree(self) -> dict[str, tuple[int, int, int]]:
        """All names below the bus, with what stands there."""
        found = {}
        for path in self.bus.rglob("*"):
            status = path.lstat()
            found[str(path.relative_to(self.bus))] = status.st_ino, status.st_mode, status.st_size
        return found

    def inodes(self) -> set[int]:
        """What exists, under whatever name."""
        return {inode for inode, _, _ in self.tree().values()}

    def use(self) -> None:
        """All that a recipient does, with the thing in its way."""
        with bus(self.root, "bob").watch(warn=lambda _: None) as watching:
            after = self.send("after")
            shown = [s.place.id for s in watching.next(timeout=60).messages]
        assert shown == [after]
        bob = bus(self.root, "bob")
        listed = {str(s.place.id): s.judged for s in bob.inbox(limit=100).messages}
        assert listed[self.before].ok
        assert listed[after].ok
        for stored in (*bob.inbox(limit=100).messages, *bob.log(limit=100).messages, *bob.verify()):
            assert stored.place.id != self.ident or stored.judged.message is None
        with contextlib.suppress(AgentBusError):
            assert bob.read(self.ident).judged.message is None
        with contextlib.suppress(AgentBusError):
            bob.archive(self.ident)
        assert bob.read(self.before).judged.ok
        assert bob.read(after, archive=True).judged.ok
        bob.status()
        bus(self.root, "conductor").pending()

    def examine(self, *, repair: bool = False) -> list[doctor.Finding]:
        """The doctor's findings that are more than a note."""
        found = doctor.examine(bus(self.root), repair=repair)
        return [finding for finding in found if finding.severity != "note"]

    def heal(self, thing: str) -> None:
        """The doctor finds it, and its repair moves aside and deletes nothing; twice is once."""
        before = self.tree()
        found = self.examine()
        assert any(thing in finding.path for finding in found), found
        assert self.tree() == before, "looking has changed something"
        inodes = self.inodes()
        self.examine(repair=True)
        assert self.inodes() >= inodes, "something was deleted"
        once = self.tree()
        again = doctor.examine(bus(self.root), repair=True)
        assert not [finding for finding in again if finding.repaired], again
        assert self.tree() == once
        assert doctor.is_content(doctor.examine(bus(self.root)))
        assert all(stored.judged.ok for stored in bus(self.root).verify())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_file_among_the_messages(kind: str, place: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    path = scene.put(kind, place, "{id}.msg")
    scene.use()
    scene.heal(path.stem)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", OTHERS)
def test_a_hostile_file_elsewhere_in_the_bus(kind: str, place: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    path = scene.put(kind, place, OTHERS[place])
    scene.use()
    found = scene.examine()
    # A plain file that nobody reads harms nothing.
    if place not in ("messages/bob/tmp", "agents/bob") or kind not in ("copy", "empty", "torn"):
        assert any(path.name in finding.path for finding in found), found
        scene.heal(path.name)
    assert scene.send("and then") in {s.place.id for s in bus(scene.root, "bob").inbox().messages}


@pytest.mark.parametrize(
    "part", ["messages/bob/new", "messages/bob/cur", "messages/bob", "sent/alice"]
)
@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_link_in_place_of_a_folder_is_not_followed(
    part: str, target: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path / "root")
    real = tmp_path / "elsewhere"
    (scene.bus / part).rename(real)
    (scene.bus / part).symlink_to(tmp_path / target)
    outside = sorted(str(p) for p in real.rglob("*"))
    with pytest.raises(AgentBusError) as refused:
        scene.send("through the link")
    assert refused.value.code in ("not-delivered", "storage")
    for act in (lambda: bus(scene.root, "bob").inbox(), lambda: bus(scene.root).status()):
        try:
            act()
        except AgentBusError as error:
            assert error.code == "storage"  # noqa: PT017
    assert sorted(str(p) for p in real.rglob("*")) == outside
    found = scene.examine()
    assert any(Path(part).name in finding.path for finding in found), found
    scene.examine(repair=True)
    assert doctor.is_content(doctor.examine(bus(scene.root)))
    assert sorted(str(p) for p in real.rglob("*")) == outside
    assert scene.send("and then") in {s.place.id for s in bus(scene.root, "bob").inbox().messages}


@pytest.mark.parametrize(
    "name",
    [
        b"x" * 255,
        b"0" * 251 + b".msg",
        b"\xff\xfe.msg",
        b"a\nb.msg",
        b"\x1b[2J.msg",
        b".hidden.msg",
        b"-rf.msg",
        "\u202egsm.msg".encode(),
        b"01KBBBBBBBBBBBBBBBBBBBBBBB.msg",
    ],
)
def test_a_hostile_name(name: bytes, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    path = Path(os.fsdecode(os.path.join(os.fsencode(scene.bus / "messages/bob/new"), name)))
    path.write_bytes(scene.valid.read_bytes())
    scene.use()
    inode = path.lstat().st_ino
    before = scene.tree()
    found = [one for one in scene.examine() if one.severity == "error"]
    assert found
    assert all(one.path.isprintable() and one.message.isprintable() for one in found)
    assert scene.tree() == before
    scene.examine(repair=True)
    assert inode in scene.inodes()
    assert not path.exists()
    assert doctor.is_content(doctor.examine(bus(scene.root)))


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o620])
def test_a_loose_mode_is_closed(mode: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    path = scene.bus / "messages/bob/new" / f"{scene.before}.msg"
    path.chmod(mode)
    assert any(scene.before in finding.path for finding in scene.examine())
    scene.examine(repair=True)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not scene.examine(repair=True)
    assert bus(scene.root, "bob").read(scene.before).judged.ok


READING = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from looking import bus
from agent_bus import doctor
from pathlib import Path
root = Path(sys.argv[2])
bob = bus(root, "bob")
listed = {s.place.id: s.judged.outcome for s in bob.inbox().messages}
found = [f.path for f in doctor.examine(bob) if f.severity == "error"]
doctor.examine(bob, repair=True)
left = [f.path for f in doctor.examine(bob) if f.severity == "error"]
print(json.dumps([listed, found, left]))
"""


@pytest.mark.needs("modes")
def test_an_unreadable_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    path = scene.bus / "messages/bob/new" / f"{scene.ident}.msg"
    _with_mode(0)(path, scene.valid)
    done = subprocess.run(
        [
            *capabilities.without_privileges(),
            *(*python(), "-c", READING, json.dumps(python_path()), str(scene.root)),
        ],
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    listed, found, left = json.loads(done.stdout)
    assert listed == {scene.before: "ok", scene.ident: "malformed"}
    assert any(scene.ident in entry for entry in found)
    assert left == []


STATES = ("messages/bob/new", "messages/bob/cur", "messages/bob/archive/{month}")


@pytest.mark.parametrize("rubbish", [b"", b"agent-bus/1 rubbish\n", None])
@pytest.mark.parametrize(("there", "stranger"), [*itertools.permutations(STATES, 2)])
def test_what_stands_under_the_id_of_another_destroys_nothing(
    there: str, stranger: str, rubbish: bytes | None, tmp_path: Path
) -> None:
    """Also a folder (None): a move must look at what is in its way before it lets go."""
    scene = Scene(tmp_path / "root")
    ident = scene.before
    for state, step in zip(STATES, ("new", "read", "archive"), strict=True):
        if step != "new":
            bus(scene.root, "bob").read(ident, archive=step == "archive")
        if state == there:
            break
    valid = scene.bus / there.format(month=scene.month) / f"{ident}.msg"
    content = valid.read_bytes()
    path = scene.bus / stranger.format(month=scene.month) / f"{ident}.msg"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if rubbish is None:
        path.mkdir()
    else:
        path.write_bytes(rubbish)
        path.chmod(0o600)
    inodes = scene.inodes()
    for act in (
        lambda: bus(scene.root, "bob").read(ident),
        lambda: bus(scene.root, "bob").archive(ident),
    ):
        for _ in range(2):
            with contextlib.suppress(AgentBusError):
                act()
            assert scene.inodes() >= inodes, "something was deleted"
    scene.examine(repair=True)
    scene.examine(repair=True)
    assert doctor.is_content(doctor.examine(bus(scene.root)))
    assert scene.inodes() >= inodes, "something was deleted"
    kept = [
        p for p in scene.bus.rglob(f"{ident}.msg*") if p.is_file() and p.read_bytes() == content
    ]
    assert kept
    assert bus(scene.root, "bob").read(ident).judged.ok


def test_prune_removes_what_it_judged_and_no_stranger_under_its_id(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root")
    bus(scene.root, "bob").read(scene.before, archive=True)
    path = scene.bus / "messages/bob/new" / f"{scene.before}.msg"
    path.write_bytes(b"rubbish")
    wait_until(lambda: bus(scene.root).prune(archived=0).removed > 0, "a millisecond has passed")
    assert path.read_bytes() == b"rubbish"
    assert scene.before not in {s.place.id for s in bus(scene.root).verify() if s.judged.ok}
