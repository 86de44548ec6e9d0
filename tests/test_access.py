"""What is let in from disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_bus.access import UnfitFile, check_access, check_regular, read_all
from agent_bus.errors import UnsafePermissions


def test_a_loose_mode_is_refused_and_the_command_that_mends_it_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    path.chmod(0o604)

    check_access(path.stat(), path, 0o022)
    with pytest.raises(UnsafePermissions, match=f"mode 0604.*chmod 600 {path}"):
        check_access(path.stat(), path, 0o077)


def test_a_folder_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(UnfitFile, match="no regular file"):
        check_regular(tmp_path.stat(), 10)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 20)
    for limit, fits in ((20, True), (19, False), (5, False)):
        fd = os.open(path, os.O_RDONLY)
        try:
            if fits:
                assert len(read_all(fd, limit)) == 20
            else:
                with pytest.raises(UnfitFile):
                    read_all(fd, limit)
        finally:
            os.close(fd)
