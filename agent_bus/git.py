"""What git says of a folder: which repository it belongs to.

Four outcomes that must not be mixed up: a repository, none, a repository that git cannot or
will not use, and no git although a repository is there. Only the second is an answer to go
on with; the others are errors with a text each.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agent_bus.errors import NoBus
from agent_bus.settings import child_environment

_SECONDS = 5.0
_QUESTION = ("rev-parse", "--path-format=absolute", "--git-common-dir")
_NAME_IT = "or name the bus with AGENT_MSG_BUS"


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository. Both paths are absolute, with links resolved."""

    common: Path
    """Git's common directory."""
    project: Path
    """The folder that stands for the repository; rule 3 of resolve.py."""


def repository(start: Path) -> Repository | None:
    """The repository that an existing folder belongs to, or None if it is in none.

    Raises NoBus, with a text for each: there is no git but a repository; git refuses (its
    own words, such as a foreign owner); the pointer to the repository leads nowhere; git
    does not answer in time.
    """
    environment = child_environment()
    git = shutil.which("git", path=environment.get("PATH"))
    if git is None:
        _refuse_hidden(start, "git is not on the PATH: install it")
        return None
    code, output, complaint = _ask(os.path.abspath(git), start, environment)
    if code == 0:
        return _repository(start, output)
    words = _one_line(complaint)
    if words.lower().startswith("not a git repository (or any"):
        _refuse_hidden(start, "git finds none, so it is damaged: repair it")
        return None
    if words.lower().startswith(("not a git repository:", "invalid gitfile format")):
        raise NoBus(
            f"{shown(start)} points to a repository that is not there ({words}): run git "
            f"worktree repair in the repository, or repair the submodule, {_NAME_IT}"
        )
    raise NoBus(f"git refuses {shown(start)} ({words}): follow its advice, {_NAME_IT}")


def tracks(path: Path) -> bool:
    """Whether git tracks a file, or will not say. False where there is no git or repository."""
    environment = child_environment()
    git = shutil.which("git", path=environment.get("PATH"))
    if git is None or not path.parent.is_dir():
        return False
    question = ("ls-files", "--error-unmatch", "--", path.name)
    code, _, complaint = _ask(os.path.abspath(git), path.parent, environment, question)
    words = os.fsdecode(complaint).lower()
    return code == 0 or not words.startswith(("error: pathspec", "fatal: not a git repository"))


def recorded(project: Path) -> str:
    r"""A path as bus.json records it: bytes that are no UTF-8 become `\xNN`."""
    return os.fsencode(project).decode("utf-8", "backslashreplace")


def shown(path: Path) -> str:
    """A path for a message of one line."""
    text = recorded(path)
    return text if text.isprintable() else ascii(text)


def quoted(path: Path) -> str:
    """A path as a word of a shell command, in one line."""
    return shlex.quote(recorded(path)) if str(path).isprintable() else "THAT-FOLDER"


def _ask(
    git: str, start: Path, environment: dict[str, str], question: tuple[str, ...] = _QUESTION
) -> tuple[int, bytes, bytes]:
    try:
        process = subprocess.Popen(
            [git, *question],
            cwd=start,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise NoBus(
            f"git cannot be started in {shown(start)} ({error.strerror}): mend it, {_NAME_IT}"
        ) from None
    with process:
        try:
            output, complaint = process.communicate(timeout=_SECONDS)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise NoBus(
                    f"git did not answer in {shown(start)} within {_SECONDS:.0f} s: "
                    f"look why, {_NAME_IT}"
                ) from None
            raise
    return process.returncode, output, complaint


def _end(process: subprocess.Popen[bytes]) -> None:
    # `git` may be a wrapper whose child holds the pipes: end the whole session.
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _repository(start: Path, output: bytes) -> Repository:
    # Git before 2.31 does not know the option, prints it, and answers relative to the start.
    answer = output.removeprefix(_QUESTION[1].encode() + b"\n")
    path = os.fsdecode(answer.removesuffix(b"\n"))
    fits = "\0" not in path and (os.path.isabs(path) or (answer != output and path))
    common = Path(os.path.realpath(start / path if fits else start))
    if not fits or not os.path.isdir(common):
        raise NoBus(
            f"git names {path!a} as the common directory of {shown(start)}, which is no "
            f"folder: find out with git rev-parse --git-common-dir, {_NAME_IT}"
        )
    return Repository(common, common.parent if common.name == ".git" else common)


def _refuse_hidden(start: Path, reason: str) -> None:
    """Raise NoBus with the reason if a repository can be seen from here without git."""
    device = start.stat().st_dev
    for folder in (start, *start.parents):
        if folder.stat().st_dev != device:
            return  # Git does not look beyond a mount point either.
        if _holds_repository(folder):
            raise NoBus(f"{shown(folder)} is or holds a git repository, but {reason}, {_NAME_IT}")


def _holds_repository(folder: Path) -> bool:
    entry = folder / ".git"
    if os.path.isdir(entry):
        # Sandboxes mount an empty one where there is none.
        with contextlib.suppress(OSError):
            return bool(os.listdir(entry))
        return True
    bare = os.path.isfile(folder / "HEAD") and os.path.isdir(folder / "refs")
    pointer = os.path.isfile(entry) or os.path.islink(entry)
    return pointer or (bare and os.path.isdir(folder / "objects"))


def _one_line(complaint: bytes) -> str:
    words = " ".join(os.fsdecode(complaint).removeprefix("fatal: ").split())[:400]
    return words if words.isprintable() else ascii(words)
