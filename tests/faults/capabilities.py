"""What this machine lets a fault test do. Each is tried, never guessed from a name.

A probe returns nothing if the capability is there, and else raises `Missing` with one line
that says what is wrong and what to do.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FOREIGN = os.geteuid() + 1
"""A user that this process is not."""
_SECONDS = 60
_LIBRARIES = ("/usr/lib", "/usr/local/lib", "/usr/lib64", "/lib")


class Missing(Exception):
    """A capability is not there; the text says why."""


@functools.cache
def why_missing(name: str) -> str | None:
    """Why a capability is not there, or None if it is. Raises KeyError for an unknown one."""
    probe = PROBES[name]
    try:
        probe()
    except Missing as missing:
        return f"{name}: {missing}"
    return None


def library(name: str) -> Path:
    """The path of a library for LD_PRELOAD. Raises Missing."""
    for root in _LIBRARIES:
        for path in sorted(Path(root).glob(f"**/{name}")):
            return path
    raise Missing(f"{name} is not installed")


def without_privileges() -> list[str]:
    """The words before a command that make file modes count for it: root passes over them."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def in_user_namespace(*settings: str) -> list[str]:
    """The words before a command that run it with limits of its own: `NAME=VALUE` in
    /proc/sys/user.
    """
    writes = "; ".join(
        f"echo {value} > /proc/sys/user/{name}"
        for name, value in (setting.split("=") for setting in settings)
    )
    return ["unshare", "-Ur", "sh", "-ec", f'{writes}; exec "$@"', "sh"]


def _run(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    if shutil.which(words[0]) is None:
        raise Missing(f"{words[0]} is not installed")
    done = subprocess.run(
        words,
        capture_output=True,
        timeout=_SECONDS,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Missing(f"{words[0]} failed: {complaint[-1]}")
    return done.stdout.decode(errors="replace")


def _ptrace() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        inject = "inject=write:error=EIO:when=1"
        program = "import os\ntry: os.write(2, b'x')\nexcept OSError as e: print(e.errno)"
        words = ["strace", "-f", "--seccomp-bpf", "-o", str(log), "-e", "trace=write"]
        said = _run([*words, "-e", inject, sys.executable, "-S", "-c", program])
        if said.strip() != "5":
            raise Missing("strace injects no errors here")


def _mount() -> None:
    if os.geteuid() != 0:
        raise Missing("mounting needs root")
    with tempfile.TemporaryDirectory() as folder:
        # In a namespace of its own, so that the probe leaves nothing behind.
        _run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder])


def _file_system(kind: str, mebibytes: int) -> None:
    if os.geteuid() != 0:
        raise Missing("mounting needs root")
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        with image.open("wb") as file:
            file.truncate(mebibytes << 20)
        _run([f"mkfs.{kind}", "-q", str(image)])
        _run(["unshare", "--mount", "mount", "-t", kind, "-o", "loop", str(image), folder])


def _preload(name: str, env: Mapping[str, str], program: str, wanted: str) -> None:
    said = _run([sys.executable, "-S", "-c", program], {"LD_PRELOAD": str(library(name)), **env})
    if said.strip() != wanted:
        raise Missing(f"{name} has no effect here")


def _eatmydata() -> None:
    # A pipe cannot be flushed, but who does not flush does not notice.
    program = (
        "import os\ntry: os.fsync(os.pipe()[0])\nexcept OSError: print('flushed')\n"
        "else: print('ate')"
    )
    _preload("libeatmydata.so", {}, program, "ate")


def _faketime() -> None:
    env = {"FAKETIME": "@2001-01-01 00:00:00", "TZ": "UTC"}
    program = "import time; print(time.gmtime().tm_year)"
    _preload("libfaketime.so.1", env, program, "2001")


def _userns() -> None:
    _run([*in_user_namespace("max_inotify_watches=1", "max_inotify_instances=1"), "true"])


def _chattr() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.touch()
        _run(["chattr", "+i", str(path)])
        _run(["chattr", "-i", str(path)])


def _chown() -> None:
    with tempfile.NamedTemporaryFile() as file:
        try:
            os.chown(file.name, FOREIGN, -1)
        except OSError as error:
            raise Missing(f"a file cannot be given away ({error.strerror}): needs root") from None


def _mknod() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "device", 0o20600, os.makedev(1, 3))
        except OSError as error:
            raise Missing(f"no device can be made ({error.strerror}): needs root") from None


def _modes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "closed"
        path.touch(mode=0)
        program = "import sys\ntry: open(sys.argv[1])\nexcept PermissionError: print('refused')"
        words = [*without_privileges(), sys.executable, "-S", "-c", program, str(path)]
        if _run(words).strip() != "refused":
            raise Missing("a process without privileges passes over file modes")


def _git() -> None:
    _run(["git", "--version"])


PROBES: dict[str, Callable[[], None]] = {
    "ptrace": _ptrace,
    "mount": _mount,
    "ext4": functools.partial(_file_system, "ext4", 24),
    "xfs": functools.partial(_file_system, "xfs", 300),
    "btrfs": functools.partial(_file_system, "btrfs", 110),
    "eatmydata": _eatmydata,
    "faketime": _faketime,
    "userns": _userns,
    "chattr": _chattr,
    "chown": _chown,
    "mknod": _mknod,
    "modes": _modes,
    "git": _git,
}
