"""The only module that writes to disk.

A `Folder` is an open directory. Names below it are single components (`names` made them),
each step is taken relative to the open descriptor and never follows a link, so that nothing
outside can be reached whatever somebody puts into a bus. Every function says which step is
durable. OSErrors carry the full path; what they mean to a user is decided above.

Windows has neither directory descriptors nor a directory fsync: there a folder is a path,
and the promise covers the death of a process only (docs/promise.md).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from agent_bus.access import UnfitFile, check_access, check_regular, read_all
from agent_bus.descriptors import Naming, dress, flush, is_torn, list_names, write_all
from agent_bus.errors import UnsafePermissions
from agent_bus.locks import hold, is_held

_AT = os.open in os.supports_dir_fd
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# A FIFO would hold its reader until somebody writes.
_READ = os.O_RDONLY | _NOFOLLOW | _CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC | _BINARY
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | _NOFOLLOW | _CLOEXEC | _BINARY
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOEXEC

__all__ = ["Folder", "UnfitFile", "make_folders"]


class Folder:
    """An open directory, and all that may be done in it. Close it, or use `with`."""

    __slots__ = ("_where", "fd")

    def __init__(self, fd: int | None, where: str) -> None:
        self.fd = fd
        self._where = where

    @property
    def path(self) -> Path:
        """Where it was opened; for people, since all steps go by the descriptor."""
        return Path(self._where)

    @classmethod
    def open(cls, path: Path, *, private: bool = False, shared: bool = False) -> Folder:
        """Open a folder by its path; links in the path are followed once, here.

        `private` refuses a folder that others may read, not only one they may change;
        `shared` is for a folder of another program, whose owner and mode are not judged.
        Raises OSError, and UnsafePermissions for a foreign or loose folder.
        """
        where = os.fspath(path) if _AT else os.path.realpath(path)
        folder = cls(os.open(where, _FOLDER) if _AT else None, where)
        return folder if shared else folder._checked(0o077 if private else 0o022)

    def child(self, name: str, *, shared: bool = False) -> Folder:
        """Open a folder in this one. Raises OSError: ENOENT, ENOTDIR, ELOOP for a link.

        Owner and mode are judged as in `open`.
        """
        with self._naming(name):
            if self.fd is None:
                if not stat.S_ISDIR(os.lstat(self.path / name).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                return Folder(None, os.path.join(self._where, name))
            fd = os.open(name, _FOLDER | _NOFOLLOW, dir_fd=self.fd)
        folder = Folder(fd, f"{self._where}/{name}")
        return folder if shared else folder._checked(0o022)

    def descend(self, *names: str) -> Folder:
        """Open a folder several levels down. Raises OSError."""
        here = self.child(names[0])
        for name in names[1:]:
            with here:
                here = here.child(name)
        return here

    def make(self, name: str) -> Folder:
        """Make a folder (0700), or open the one that is there. Durable on return."""
        with self._naming(name), contextlib.suppress(FileExistsError):
            os.mkdir(self._at(name), 0o700, dir_fd=self.fd)
        made = self.child(name)
        try:
            made.sync()
            # Also where it existed: its maker may not have come this far.
            self.sync()
        except BaseException:
            made.close()
            raise
        return made

    def names(self) -> list[str]:
        """All names in this folder, in no order."""
        with self._naming(""):
            return os.listdir(self.path) if self.fd is None else list_names(self.fd)

    def status(self, name: str) -> os.stat_result | None:
        """What stands under a name (a link is not followed), or None if nothing does."""
        try:
            with self._naming(name):
                return os.stat(self._at(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def has_folder(self, name: str) -> bool:
        """Whether a name is that of a folder, and no link."""
        status = self.status(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_in_place(self) -> bool:
        """Whether its path still leads to this very folder, and nobody else may change it."""
        try:
            there, here = os.stat(self._where, follow_symlinks=False), self.own_status()
            check_access(here, self._where, 0o022)
        except (OSError, UnsafePermissions):
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def own_status(self) -> os.stat_result:
        """The status of this folder itself."""
        with self._naming(""):
            return os.stat(self.path if self.fd is None else self.fd)

    def read(self, name: str, limit: int, *, private: bool = False) -> bytes:
        """The bytes of a regular file of this user, at most `limit` of them.

        The file is opened once and judged on the descriptor. Raises UnfitFile if it is
        not such a file, OSError (FileNotFoundError if it is not there), and for a
        `private` one UnsafePermissions if others may read it.
        """
        with self._naming(name):
            try:
                fd = os.open(self._at(name), _READ, dir_fd=self.fd)
            except OSError as error:
                # ELOOP: a link. ENXIO: a socket, or a device without a driver.
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    raise UnfitFile("is a link or no regular file") from None
                raise
            try:
                status = os.fstat(fd)
                if private:
                    check_access(status, os.path.join(self._where, name), 0o077)
                check_regular(status, limit)
                return read_all(fd, limit)
            finally:
                os.close(fd)

    def create(self, name: str, data: bytes) -> None:
        """Write a new file (0600) and flush it to disk; the name itself is not yet durable.

        Never replaces anything (EEXIST). On any error nothing is left under the name, and
        the failed descriptor is never flushed again: after a failed fsync a second one may
        report success with the data gone.
        """
        with self._naming(name):
            fd = os.open(self._at(name), _CREATE, 0o600, dir_fd=self.fd)
            try:
                try:
                    write_all(fd, data)
                    flush(fd)
                finally:
                    os.close(fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(self._at(name), dir_fd=self.fd)
                raise

    def put_new(self, name: str, data: bytes) -> None:
        """Create a file that appears whole, or not at all; never replaces one (EEXIST).

        The name is durable after `sync`.
        """
        temporary = f".{name}.{secrets.token_hex(4)}"
        self.create(temporary, data)
        try:
            self.link(temporary, self, name)
        finally:
            with contextlib.suppress(OSError):
                self.unlink(temporary)

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[BinaryIO]:
        """Write a new file (0600) piece by piece; on return it is whole and durable.

        On any error it does not appear. Never replaces one (EEXIST).
        """
        temporary = f".{name}.{secrets.token_hex(4)}"
        with self._naming(name):
            fd = os.open(self._at(temporary), _CREATE, 0o600, dir_fd=self.fd)
            try:
                with open(fd, "wb") as file:
                    yield file
                    file.flush()
                    flush(fd)
                self.link(temporary, self, name)
            finally:
                with contextlib.suppress(OSError):
                    self.unlink(temporary)
        self.sync()

    def link(self, name: str, into: Folder, new_name: str) -> None:
        """Give a file a second name, in another folder; never replaces one (EEXIST)."""
        with into._naming(new_name):
            os.link(
                self._at(name),
                into._at(new_name),
                src_dir_fd=self.fd,
                dst_dir_fd=into.fd,
                follow_symlinks=False,
            )

    def unlink(self, name: str) -> None:
        """Remove a name. Raises OSError."""
        with self._naming(name):
            os.unlink(self._at(name), dir_fd=self.fd)

    def move(self, name: str, into: Folder) -> None:
        """Link, flush, then unlink; where the target has the name already, only unlink.

        Never a rename: watchers hold back events behind one. The flush stands between so
        that a power cut cannot keep the second step and forget the first. A crash leaves
        both names, which readers understand. Where something else stands in the target,
        both stay. Raises FileNotFoundError if the file is in neither place.
        """
        try:
            self.link(name, into, name)
        except FileExistsError:
            if into.status(name) is None:
                raise
            if not self.has_same(name, into):
                return
        except FileNotFoundError:
            # Another process was quicker.
            if into.status(name) is None:
                raise
        into.sync()
        with contextlib.suppress(FileNotFoundError):
            self.unlink(name)

    def has_same(self, name: str, other: Folder, limit: int = 1 << 20) -> bool:
        """Whether a name in two folders is one file, or two with the same bytes."""
        ours, theirs = self.status(name), other.status(name)
        if ours is None or theirs is None:
            return ours is None and theirs is not None  # moved meanwhile
        if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
            return True
        try:
            return self.read(name, limit) == other.read(name, limit)
        except (UnfitFile, FileNotFoundError):
            return False

    def inodes(self) -> dict[int, str]:
        """Inode number to name, for finding the other names of a file."""
        with self._naming(""), os.scandir(self.path if self.fd is None else self.fd) as entries:
            return {entry.inode(): entry.name for entry in entries}

    def move_folder(self, name: str, into: Folder, new_name: str) -> None:
        """Rename anything, a folder too: only to set it aside. Durable on return."""
        with self._naming(name):
            os.rename(self._at(name), into._at(new_name), src_dir_fd=self.fd, dst_dir_fd=into.fd)
        into.sync()
        self.sync()

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder. Raises OSError."""
        with self._naming(name):
            os.rmdir(self._at(name), dir_fd=self.fd)

    def make_link(self, name: str, target: str) -> None:
        """Make a symbolic link: only to try whether one would be followed."""
        with self._naming(name):
            os.symlink(target, self._at(name), dir_fd=self.fd)

    def set_mode(self, name: str, mode: int) -> None:
        """Set the mode of a file or folder; `.` is this folder itself. No link is followed."""
        with self._naming(name):
            try:
                os.chmod(self._at(name), mode, dir_fd=self.fd, follow_symlinks=False)
            except (NotImplementedError, ValueError) as error:  # it cannot, or a link is there
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)) from error

    def replace(self, name: str, data: bytes, *, mode: int = 0o600, modified: int = 0) -> None:
        """Put a file in place of its predecessor (`modified` in ns, 0: now). Durable on return."""
        temporary = f".{name}.{secrets.token_hex(4)}"
        self.create(temporary, data)
        with self._naming(name):
            try:
                dress(self._at(temporary), self.fd, mode, modified)
                os.replace(
                    self._at(temporary), self._at(name), src_dir_fd=self.fd, dst_dir_fd=self.fd
                )
            except OSError:
                with contextlib.suppress(OSError):
                    self.unlink(temporary)
                raise
        self.sync()

    def append(self, name: str, line: bytes, *, durable: bool = False) -> None:
        """Add a line in one write, so that lines of several processes do not mix.

        It begins on a line of its own, also after a torn one; an empty line may come before it.
        """
        with self._naming(name):
            fd = os.open(self._at(name), _APPEND, 0o600, dir_fd=self.fd)
            try:
                write_all(fd, b"\n" + line if is_torn(fd) else line)
                if durable:
                    flush(fd)
            finally:
                os.close(fd)

    def touch(self, name: str) -> None:
        """Set a file's times to now."""
        with self._naming(name):
            if self.fd is None:
                os.utime(self.path / name)
            else:
                os.utime(name, dir_fd=self.fd, follow_symlinks=False)

    def hold(self, name: str, data: bytes) -> int:
        """Create a file and lock it; the lock lasts until the descriptor is closed.

        It appears whole and locked. No child inherits the descriptor, which is returned.
        """
        temporary = f".{name}.{secrets.token_hex(4)}"
        self.create(temporary, data)
        try:
            with self._naming(temporary):
                fd = os.open(self._at(temporary), _READ, dir_fd=self.fd)
            try:
                hold(fd)
                self.link(temporary, self, name)
            except BaseException:
                os.close(fd)
                raise
        finally:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
        return fd

    def is_held(self, name: str) -> bool:
        """Whether a living process holds the file that `hold` made."""
        try:
            with self._naming(name):
                fd = os.open(self._at(name), _READ, dir_fd=self.fd)
        except OSError:
            return False
        try:
            return is_held(fd)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Make the names in this folder durable. Raises OSError; never call it again then."""
        if self.fd is not None:
            with self._naming(""):
                flush(self.fd)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd is not None:
            fd, self.fd = self.fd, None
            # A folder holds nothing unwritten: an error here must not deny what was done.
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Of a folder that is kept open, and of one that an error has left behind.
        if self.fd is not None:
            with contextlib.suppress(OSError):
                self.close()

    def _checked(self, forbidden: int) -> Folder:
        try:
            check_access(self.own_status(), self._where, forbidden)
        except BaseException:
            self.close()
            raise
        return self

    def _at(self, name: str) -> str | Path:
        return self.path / name if self.fd is None else name

    def _naming(self, name: str) -> Naming:
        return Naming(self._where, name)


def make_folders(path: Path) -> Folder:
    """Make a folder and its missing parents, one level at a time, each 0700 and durable.

    `os.makedirs` would leave the parents to the umask. Returns the folder, open.
    Raises OSError.
    """
    real = Path(os.path.realpath(path))
    missing = []
    while not real.is_dir():
        missing.append(real.name)
        real = real.parent
    here = Folder(os.open(real, _FOLDER) if _AT else None, str(real))
    for name in reversed(missing):
        with here:
            here = here.make(name)
    return here
