"""The only module that writes: whole files or none, and never outside of its folder."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_bus.errors import Busy, UnsafePermissions
from agent_bus.files import Folder, UnfitFile, make_folders
from agent_bus.locks import locked

LIMIT = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with make_folders(tmp_path / "folder") as made:
        yield made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_is_created_for_this_user_alone(folder: Folder) -> None:
    folder.create("a", b"text")

    assert folder.read("a", LIMIT) == b"text"
    assert mode(folder.path / "a") == 0o600


def test_threads_that_list_one_folder_all_see_it_whole(folder: Folder) -> None:
    """A descriptor has one place in a listing, whoever reads on."""
    for number in range(40):
        (folder.path / str(number)).touch()
    lengths: set[int] = set()

    def look() -> None:
        for _ in range(300):
            lengths.add(len(folder.names()))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == {40}


def test_nothing_is_ever_created_over_something(folder: Folder) -> None:
    folder.create("a", b"first")
    (folder.path / "link").symlink_to("nowhere")
    for name in ("a", "link"):
        with pytest.raises(FileExistsError) as caught:
            folder.create(name, b"second")
        assert caught.value.filename == str(folder.path / name)
        with pytest.raises(FileExistsError):
            folder.put_new(name, b"second")
        with pytest.raises(FileExistsError):
            folder.link("a", folder, name)

    assert folder.read("a", LIMIT) == b"first"
    assert sorted(folder.names()) == ["a", "link"]


def test_a_file_that_could_not_be_written_whole_is_not_there(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A real limit: the kernel takes 1000 of 4000 bytes, then refuses the rest (EFBIG)."""
    code = """
import resource, signal, sys
from pathlib import Path
from agent_bus.files import Folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with Folder.open(Path(sys.argv[1])) as folder:
    for write in (folder.create, folder.put_new, folder.replace):
        try:
            write("a", b"x" * 4000)
        except OSError as error:
            print(error.errno, error.filename == str(folder.path / "a") or error.filename)
    print(folder.names())
"""
    done = run(code, tmp_path / "home")

    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == [str(errno.EFBIG)] * 3, lines
    assert lines[3] == "[]"


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "socket", "large", "dangling"])
def test_only_a_regular_file_of_bounded_size_is_read(folder: Folder, kind: str) -> None:
    path = folder.path / "x"
    if kind == "link":
        folder.create("target", b"text")
        path.symlink_to("target")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, folder_as_cwd(folder.path):
            listener.bind("x")
    else:
        path.write_bytes(b"a" * (LIMIT + 1))

    with pytest.raises(UnfitFile):
        folder.read("x", LIMIT)


class folder_as_cwd:  # noqa: N801
    """A socket's path has 107 bytes at most, so it is bound from within its folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.before = path, Path.cwd()

    def __enter__(self) -> None:
        os.chdir(self.path)

    def __exit__(self, *_: object) -> None:
        os.chdir(self.before)


def test_a_file_of_exactly_the_limit_is_read(folder: Folder) -> None:
    folder.create("a", b"a" * LIMIT)

    assert len(folder.read("a", LIMIT)) == LIMIT


def test_a_private_file_that_others_may_read_is_refused_with_what_mends_it(folder: Folder) -> None:
    folder.create("a", b"secret")
    (folder.path / "a").chmod(0o640)

    assert folder.read("a", LIMIT) == b"secret"
    with pytest.raises(UnsafePermissions, match=f"chmod 600 {folder.path}/a"):
        folder.read("a", LIMIT, private=True)


def test_a_loose_folder_is_refused_with_what_mends_it(folder: Folder) -> None:
    folder.make("inner").close()
    (folder.path / "inner").chmod(0o770)

    with pytest.raises(UnsafePermissions, match="chmod 700"):
        folder.child("inner")
    with pytest.raises(UnsafePermissions, match="chmod 700"):
        Folder.open(folder.path / "inner")
    (folder.path / "inner").chmod(0o750)
    folder.child("inner").close()
    with pytest.raises(UnsafePermissions):
        Folder.open(folder.path / "inner", private=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(folder: Folder) -> None:
    folder.make("inner").close()
    folder.create("a", b"text")
    os.chown(folder.path / "inner", 65534, 65534)
    os.chown(folder.path / "a", 65534, 65534)

    with pytest.raises(UnsafePermissions, match="belongs to user 65534"):
        folder.child("inner")
    with pytest.raises(UnfitFile, match="belongs to user 65534"):
        folder.read("a", LIMIT)


def test_below_an_open_folder_no_link_is_followed(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (folder.path / "inner").symlink_to(outside)

    for step in (folder.child, folder.make, folder.descend):
        with pytest.raises(OSError):
            step("inner")
    folder.make("deep").close()
    (folder.path / "deep" / "inner").symlink_to(outside)
    with pytest.raises(OSError):
        folder.descend("deep", "inner")
    assert not folder.has_folder("inner")


def test_the_root_itself_may_be_reached_through_a_link(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.path)
    with Folder.open(tmp_path / "link") as opened:
        opened.create("a", b"text")

    assert folder.read("a", LIMIT) == b"text"


def test_folders_are_made_one_at_a_time_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folders(tmp_path / "a" / "b" / "c").close()
    finally:
        os.umask(before)

    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    make_folders(tmp_path / "a" / "b" / "c").close()


def test_a_move_leaves_one_name_and_is_no_rename(folder: Folder) -> None:
    folder.create("a", b"text")
    before = folder.status("a")
    with folder.make("target") as target:
        folder.move("a", target)

        after = target.status("a")
        assert before is not None
        assert after is not None
        assert after.st_ino == before.st_ino
        assert folder.status("a") is None


def test_a_move_that_was_cut_short_is_completed(folder: Folder) -> None:
    folder.create("a", b"text")
    with folder.make("target") as target:
        folder.link("a", target, "a")
        folder.move("a", target)

        assert target.names() == ["a"]
        assert folder.status("a") is None
        folder.move("a", target)
        with pytest.raises(FileNotFoundError):
            folder.move("b", target)


def test_a_move_never_replaces_another_file(folder: Folder) -> None:
    folder.create("a", b"one")
    with folder.make("target") as target:
        target.create("a", b"other")
        folder.move("a", target)

        assert target.read("a", LIMIT) == b"other"


def test_one_value_replaces_its_predecessor_whole(folder: Folder) -> None:
    for value in (b"one", b"two" * 100):
        folder.replace("a", value)
        assert folder.read("a", LIMIT) == value
    assert folder.names() == ["a"]
    assert mode(folder.path / "a") == 0o600


def test_lines_of_many_threads_do_not_mix(folder: Folder) -> None:
    def add(number: int) -> None:
        for _ in range(50):
            folder.append("log", str(number).encode() * 90 + b"\n")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = [line for line in folder.read("log", 1 << 20).splitlines() if line]
    assert len(lines) == 400
    assert {len(set(line)) for line in lines} == {1}


def test_a_line_after_a_torn_one_begins_on_a_line_of_its_own(folder: Folder) -> None:
    (folder.path / "log").write_bytes(b"whole\ntor")
    (folder.path / "log").chmod(0o600)

    folder.append("log", b"next\n", durable=True)
    folder.append("log", b"last\n")

    assert folder.read("log", LIMIT) == b"whole\ntor\nnext\nlast\n"


def test_a_lock_ends_with_its_process(
    folder: Folder, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code = """
import sys
from pathlib import Path
from agent_bus.files import Folder
folder = Folder.open(Path(sys.argv[1]))
fd = folder.hold("alive", b"{}")
print("held", flush=True)
sys.stdin.read()
"""
    holder = start(code, folder.path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert folder.is_held("alive")
    holder.kill()
    holder.wait(timeout=60)

    assert not folder.is_held("alive")
    assert not folder.is_held("nothing")


def test_a_lock_that_another_holds_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), pytest.raises(Busy, match="lock is locked"), locked(path, timeout=0.05):
        pass
    with locked(tmp_path / "lock"):
        pass


def test_an_error_names_the_whole_path(folder: Folder) -> None:
    for act in (folder.unlink, folder.child, lambda name: folder.read(name, LIMIT)):
        with pytest.raises(FileNotFoundError) as caught:
            act("gone")
        assert caught.value.filename == str(folder.path / "gone")
    assert folder.status("gone") is None


def test_names_and_inodes(folder: Folder) -> None:
    folder.create("a", b"")
    folder.link("a", folder, "b")
    status = folder.status("a")

    assert status is not None
    assert sorted(folder.names()) == ["a", "b"]
    assert folder.inodes()[status.st_ino] in ("a", "b")


def test_setting_aside_moves_folders_too(folder: Folder) -> None:
    folder.make("x").close()
    with folder.make("bad") as bad:
        folder.move_folder("x", bad, "x.1")

    assert folder.names() == ["bad"]


def test_a_touched_file_is_new_and_a_link_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    os.utime(target, (1, 1))
    (folder.path / "link").symlink_to(target)
    folder.create("a", b"")
    os.utime(folder.path / "a", (1, 1))

    folder.touch("a")
    folder.touch("link")

    assert (folder.path / "a").stat().st_mtime > 1
    assert target.stat().st_mtime == 1


def test_a_folder_may_be_closed_twice(folder: Folder) -> None:
    opened = Folder.open(folder.path)
    opened.close()
    opened.close()


def test_a_folder_is_in_place_until_its_path_leads_elsewhere(folder: Folder) -> None:
    inner = folder.make("inner")
    assert inner.is_in_place()

    (folder.path / "inner").rename(folder.path / "moved")
    assert not inner.is_in_place()
    folder.make("inner").close()
    assert not inner.is_in_place()
    (folder.path / "inner").rmdir()
    (folder.path / "inner").symlink_to("moved")
    assert not inner.is_in_place()
    (folder.path / "inner").unlink()
    (folder.path / "moved").rename(folder.path / "inner")
    assert inner.is_in_place()
    (folder.path / "inner").chmod(0o777)
    assert not inner.is_in_place()
    inner.close()


def test_a_folder_that_nobody_closed_leaves_no_descriptor(folder: Folder) -> None:
    lost = folder.make("inner")
    fd = lost.fd
    assert fd is not None

    del lost

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
