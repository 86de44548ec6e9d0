"""What a file system can hold of the promise is tried, and said in words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_bus.errors import CannotCreate
from agent_bus.filesystem import durability, eventless, kind, probe

NAMES = ["hard-links", "exclusive", "modes", "folder-flush", "no-follow"]
NAMES += ["events", "locks", "case", "durability"]


def test_a_usual_folder_holds_the_promise_and_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"x")
    found = probe(tmp_path)
    assert [one.name for one in found] == NAMES
    lacking = {one.name for one in found if not one.ok}
    assert lacking <= {"durability", "events", "locks"}
    assert ("durability" in lacking) == (durability(tmp_path) == "process")
    assert all(one.detail.isprintable() and len(one.detail) > 20 for one in found)
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("where", ["missing", "file"])
def test_where_nothing_can_be_made_is_an_error_of_one_line(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CannotCreate, match="nothing can be tried"):
        probe(tmp_path / where)
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs whose name holds a space, a backslash and a letter that is not ASCII."""
    path = tmp_path / "a b\\c é"
    path.mkdir()
    command = shutil.which("mount")
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or command is None:
        pytest.skip("mounting needs root")
    line = [command, "-t", "tmpfs", "-o", "size=1m", "tmpfs", os.fspath(path)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_mount_point_is_recognised_whatever_it_is_called(mount: Path) -> None:
    assert kind(mount) == "tmpfs"
    assert kind(mount / "below" / "it") == "tmpfs"
    assert kind(mount.parent) != "" or not Path("/proc/self/mountinfo").exists()
    assert eventless(mount) is None


def test_memory_is_not_called_durable(mount: Path) -> None:
    assert durability(mount) == "process"
    lacking = {one.name: one.detail for one in probe(mount) if not one.ok}
    assert "tmpfs" in lacking["durability"]
    assert "no power cut" in lacking["durability"]


def test_a_mount_over_another_one_counts(mount: Path) -> None:
    line = ["mount", "--bind", os.fspath(mount.parent), os.fspath(mount)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be bound here")
    try:
        assert kind(mount) == kind(mount.parent)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_read_only_mount_is_an_error_of_one_line(mount: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    with pytest.raises(CannotCreate, match="Read-only"):
        probe(mount)


PROBE = """
import sys
from pathlib import Path
from agent_bus.filesystem import probe
for one in probe(Path(sys.argv[1])):
    print(one.name, one.ok, one.detail)
"""


def test_used_up_inotify_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    """In a user namespace of its own, where the limit is lowered for nobody else."""
    unshare = shutil.which("unshare")
    limit = Path("/proc/sys/user/max_inotify_instances")
    if unshare is None or not limit.exists():
        pytest.skip("no user namespaces here")
    script = f"echo 0 > {limit} && exec '{sys.executable}' -c '{PROBE}' '{tmp_path}'"
    command = [unshare, "-Ur", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "unshare" in done.stderr or "cannot create" in done.stderr:
        pytest.skip("no user namespaces allowed here")
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines) == NAMES, done.stderr
    assert lines["events"].startswith("False waits look once a second instead")
    assert lines["hard-links"].startswith("True")
    assert os.listdir(tmp_path) == []
