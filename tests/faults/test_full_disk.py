"""No space, no inodes, a read-only mount, immutable folders and files.

Whatever is done to a bus that cannot be written is refused and changes nothing that counts,
or is done; when there is room again a repetition completes it. What lies there can be
listed, read and verified all the time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disks import copy_tree, remount, small
from looking import BODY, Outcome, ailments, attempt, bus
from operations import OPERATIONS, repeat

from agent_bus.sending import Draft

pytestmark = pytest.mark.timeout(900)

Hurdle = Callable[[Path], contextlib.AbstractContextManager[object]]
_PAGE = 4096


def judged(operation: str, origin: Path, root: Path, ident: str, hurdle: Hurdle) -> list[str]:
    """Try an operation with something in its way, and again without: what is wrong."""
    copy_tree(origin, root)
    act = OPERATIONS[operation].ready(root, ident, None)
    with hurdle(root):
        outcome = attempt(act)
        wrong = [f"{outcome.text}"] if outcome.code == "raw" else []
        if operation != "init":
            wrong += still_readable(root)
    wrong += OPERATIONS[operation].check(root, ident, outcome)
    wrong += repeat(OPERATIONS[operation], root, ident, outcome)
    return [f"{operation} ({outcome.code}): {what}" for what in (*wrong, *ailments(root))]


def still_readable(root: Path) -> list[str]:
    """Looking at a bus must work whatever may be written."""
    for look in (
        lambda: bus(root, "bob").inbox(),
        lambda: bus(root).log(),
        lambda: bus(root).status(),
    ):
        outcome = attempt(lambda look=look: str(look()))  # type: ignore[misc]
        if outcome.code != "ok":
            return [f"it cannot be looked at: {outcome}"]
    return []


@contextlib.contextmanager
def no_more_than(free: int, root: Path) -> Iterator[None]:
    """Leave this many bytes on the disk."""
    filler = root.parent / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(fd, bytes(_PAGE)):
            pass
    os.ftruncate(fd, max(0, os.fstat(fd).st_size - free))
    os.close(fd)
    yield
    filler.unlink()


@contextlib.contextmanager
def no_more_files_than(free: int, root: Path) -> Iterator[None]:
    """Leave this many inodes on the disk."""
    fillers = root.parent / "fillers"
    fillers.mkdir()
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (fillers / str(number)).touch()
    for path in sorted(fillers.iterdir())[:free]:
        path.unlink()
    yield
    for path in fillers.iterdir():
        path.unlink()
    fillers.rmdir()


@contextlib.contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Mount it so that nothing can be written."""
    remount(root.parent, "ro")
    try:
        yield
    finally:
        remount(root.parent, "rw")


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    """What root may not change either."""
    subprocess.run(["chattr", "+i", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_full_disk(operation: str, tmp_path: Path, exhaustive: bool) -> None:
    ident = OPERATIONS[operation].prepare(tmp_path / "origin")
    wrong = []
    with small(tmp_path / "small", "size=2m") as disk:
        for pages in range(0, 24, 1 if exhaustive else 3):
            hurdle: Hurdle = lambda root, free=pages * _PAGE: no_more_than(free, root)  # type: ignore[misc]  # noqa: E731
            found = judged(operation, tmp_path / "origin", disk / "bus", ident, hurdle)
            wrong += [f"{pages} pages free: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_inodes(operation: str, tmp_path: Path, exhaustive: bool) -> None:
    ident = OPERATIONS[operation].prepare(tmp_path / "origin")
    wrong = []
    with small(tmp_path / "small", "nr_inodes=300") as disk:
        for inodes in range(24 if exhaustive else 7):
            hurdle: Hurdle = lambda root, free=inodes: no_more_files_than(free, root)  # type: ignore[misc]  # noqa: E731
            found = judged(operation, tmp_path / "origin", disk / "bus", ident, hurdle)
            wrong += [f"{inodes} inodes free: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_read_only_mount(operation: str, tmp_path: Path) -> None:
    ident = OPERATIONS[operation].prepare(tmp_path / "origin")
    with small(tmp_path / "small", "size=8m") as disk:
        wrong = judged(operation, tmp_path / "origin", disk / "bus", ident, read_only)
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("chattr")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_immutable_folders_and_files(operation: str, tmp_path: Path) -> None:
    origin, root = tmp_path / "origin", tmp_path / "bus"
    ident = OPERATIONS[operation].prepare(origin)
    wrong = []
    for path in (origin, *sorted(origin.rglob("*"))):
        part = path.relative_to(origin)
        hurdle: Hurdle = lambda root, part=part: immutable(root / part)  # type: ignore[misc]  # noqa: E731
        wrong += [f"{part}: {what}" for what in judged(operation, origin, root, ident, hurdle)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("mount")
def test_what_was_sent_before_can_be_read_on_a_full_disk(tmp_path: Path) -> None:
    ident = OPERATIONS["archive"].prepare(tmp_path / "origin")
    with small(tmp_path / "small", "size=2m") as disk:
        root = disk / "bus"
        copy_tree(tmp_path / "origin", root)
        with no_more_than(0, root):
            stored = bus(root, "bob").read(ident)
            assert stored.judged.message is not None
            assert stored.judged.message.body == BODY
            refused = attempt(lambda: bus(root, "alice").send_one("bob", Draft(body=BODY)).id)
    assert refused.code == "not-delivered"
    assert refused.text.endswith("free some space"), refused


@pytest.mark.needs("mount")
def test_a_send_without_room_says_what_to_do(tmp_path: Path) -> None:
    OPERATIONS["send"].prepare(tmp_path / "origin")
    with small(tmp_path / "small", "size=8m") as disk:
        root = disk / "bus"
        copy_tree(tmp_path / "origin", root)
        act = OPERATIONS["send"].ready(root, "", None)
        with read_only(root):
            outcome: Outcome = attempt(act)
    assert outcome.code == "not-delivered"
    assert "allow this process to write there" in outcome.text
