"""The one way in which the gateway runs git: hardened, and only for what is listed here.

The repositories that it looks at can be written by the children, so nothing that stands in
one may decide what runs: hooks, the file system monitor and lazy fetches are turned off for
every call, configuration of the user and of the system is not read, and no transport is
allowed. Filters cannot be turned off from outside; `mirror.py` refuses a repository that
configures one before anything here could run it.

Two lists say what may be run. With `network`, which is for the person's verb alone, a mirror
may be made and fetched, with the person's own configuration. Nothing here can push, reset,
clean, remove or prune.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent_bus.errors import CheckoutRefused
from agent_bus.openhands.gateway.settings import git_environment

OUTPUT = 1 << 26
"""Bytes that a git may say: a list of all files of a large repository fits in."""

_ALWAYS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    # Each of these can make a changed file look unchanged.
    "core.ignoreStat=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.fileMode=true",
    "core.sparseCheckout=false",
    "core.autocrlf=false",
    "diff.autoRefreshIndex=true",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
)
_NETWORK = ("protocol.https.allow=always", "protocol.ssh.allow=always")

_READS = (
    ("cat-file", "-t"),
    ("check-ref-format", "--branch"),
    ("config", "--list", "--null", "--no-includes", "--file"),
    ("diff", "--quiet", "--no-ext-diff", "--no-textconv"),
    ("for-each-ref", "--format"),
    ("ls-files",),
    ("rev-parse",),
    ("status", "--porcelain=v2"),
    ("symbolic-ref", "--quiet", "HEAD"),
)
_MAKES = (("worktree", "add", "--quiet"), ("update-ref", "--stdin"))
_PERSONS = (
    ("init", "--quiet", "--bare", "--template="),
    ("config", "--replace-all", "--file"),
    ("fetch", "--quiet", "--no-prune", "--refmap="),
)
_REF_COMMANDS = re.compile(rb"(?:(?:create|update|verify) [^\n]+\n|option no-deref\n)*")
_REASONS = ("fatal: ", "error: ")
_PATHS = re.compile(r"(?<![\w:/.-])/[^\s'\"]*")
_USERS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Result:
    """How a git ended."""

    code: int
    output: bytes
    complaint: str
    """What it said on stderr, in one line, without absolute paths and credentials."""

    @property
    def line(self) -> str:
        """The output as one line of text."""
        return os.fsdecode(self.output.removesuffix(b"\n"))


def run(
    arguments: Sequence[str],
    *,
    what: str,
    folder: Path | None = None,
    repository: Path | None = None,
    given: bytes = b"",
    seconds: float = 10,
    network: bool = False,
    prompt: bool = False,
) -> Result:
    """Run a git that is on the lists. A code other than 0 is an answer and no error.

    `folder` is where it works; `repository` is the git folder, which otherwise git finds from
    `folder`; `what` names both in an error, since a path may not. `prompt` leaves git the
    terminal. Raises CheckoutRefused: not on the lists, no git, more than OUTPUT bytes of
    output, not done in `seconds`.
    """
    if not permitted(arguments, given, network=network):
        raise CheckoutRefused(f"git {' '.join(arguments[:2])} is nothing that is run on {what}")
    environment = git_environment(person=network)
    if prompt:
        environment["GIT_TERMINAL_PROMPT"] = "1"
    argv = [_git(environment), *_options(folder, repository, network=network), *arguments]
    process = _started(argv, environment, what, talks=bool(given), alone=not prompt)
    readers = [_Reader(pipe, OUTPUT) for pipe in (process.stdout, process.stderr) if pipe]
    try:
        for reader in readers:
            reader.start()
        _feed(process, given)
        code = process.wait(seconds)
    except BaseException as error:
        _end(process, alone=not prompt)
        for reader in readers:
            reader.let_go()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CheckoutRefused(
                f"git {arguments[0]} on {what} was not done within {seconds:.0f} s and was "
                "ended: look why, then try again"
            ) from None
        if isinstance(error, (OSError, RuntimeError)):  # no thread or no pipe is to be had
            raise CheckoutRefused(
                f"git {arguments[0]} on {what} was ended ({error}): try again"
            ) from None
        raise
    for reader in readers:
        # A credential helper may stay behind as a daemon, with git's stderr in its hands.
        reader.join(timeout=5)
    if readers[0].is_full:
        raise CheckoutRefused(f"git {arguments[0]} on {what} said more than {OUTPUT} bytes")
    return Result(code, bytes(readers[0].data), _complaint(bytes(readers[1].data)))


def permitted(arguments: Sequence[str], given: bytes = b"", *, network: bool = False) -> bool:
    """Whether these arguments are on the lists, and what is given to them changes refs only."""
    words = tuple(arguments)
    if words[:1] == ("symbolic-ref",) and len(words) > 3:
        return False  # it would write
    if words[:2] == ("worktree", "add") and any(word.startswith("-") for word in words[3:]):
        return False  # such as --force
    lists = (_READS, _MAKES, _PERSONS if network else ())
    listed = any(words[: len(entry)] == entry for entries in lists for entry in entries)
    return listed and _REF_COMMANDS.fullmatch(given) is not None


def _git(environment: dict[str, str]) -> str:
    found = shutil.which("git", path=environment["PATH"])
    if found is None:
        raise CheckoutRefused("git is not on the PATH of the gateway: install it")
    return os.path.abspath(found)


def _options(folder: Path | None, repository: Path | None, *, network: bool) -> list[str]:
    options = ["--no-pager", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs"]
    for setting in (*_ALWAYS, *(_NETWORK if network else ())):
        options += ["-c", setting]
    if folder is not None:
        options += ["-C", os.fspath(folder)]
    if repository is not None:
        options.append(f"--git-dir={repository}")
    if folder is not None and repository is not None:
        options.append(f"--work-tree={folder}")
    return options


def _started(
    argv: list[str], environment: dict[str, str], what: str, *, talks: bool, alone: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            # Nobody's repository: a git that is given none finds none.
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=alone,
        )
    except OSError as error:
        raise CheckoutRefused(f"git cannot be started on {what} ({error.strerror})") from None


def _feed(process: subprocess.Popen[bytes], given: bytes) -> None:
    # Less than a pipe holds, so that it cannot block.
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(given)


class _Reader(threading.Thread):
    """Reads a pipe to its end and keeps a bounded part."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self.data = bytearray()
        self.is_full = False

    def let_go(self) -> None:
        """Close the pipe, if nobody has begun to read it."""
        if self.ident is None:
            self._pipe.close()

    def run(self) -> None:
        with self._pipe:
            while piece := self._pipe.read(1 << 16):
                room = self._limit - len(self.data)
                self.data += piece[:room]
                self.is_full |= len(piece) > room


def _end(process: subprocess.Popen[bytes], *, alone: bool) -> None:
    # The first signal lets git take its lock files and half-made worktrees away.
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with contextlib.suppress(ProcessLookupError):
            if alone and hasattr(os, "killpg"):
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)


def _complaint(said: bytes) -> str:
    lines = [" ".join(line.split()) for line in os.fsdecode(said).splitlines()]
    # Progress and the words of a server come before it.
    first = next((at for at, line in enumerate(lines) if line.startswith(_REASONS)), 0)
    text = " ".join(line for line in lines[first:] if line) or "no reason given"
    for reason in _REASONS:
        text = text.removeprefix(reason)
    text = _PATHS.sub("…", _USERS.sub("//", text))[:240]
    return text if text.isprintable() else ascii(text)
