"""Real git for the tests of checkouts: a host of repositories in a folder, and a log of calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.mirror import Workspace, mirror
from agent_bus.openhands.gateway.mission import Checkout

REPOSITORY = "octo/hello"
BRANCH = "agent/task-1"
FORBIDDEN = frozenset(
    (
        *("fetch", "clone", "pull", "push", "reset", "clean", "remove", "rm", "prune", "gc"),
        *("repack", "checkout", "switch", "restore", "stash", "branch", "merge", "rebase"),
        *("commit", "--force", "-f", "-B", "-d", "-D", "--delete", "--prune"),
    )
)
"""Words of a git command line that no call of the gateway's own may have."""
GIT = shutil.which("git") or "git"
"""The real one, whatever a test puts on the PATH."""
TESTS = UUID("9f0c2b0e-6f0a-4c55-9d9f-0d6b3a2f1c11")


def child(name: str = "one") -> UUID:
    return uuid5(TESTS, name)


def sh(*command: str | Path, folder: Path, check: bool = True) -> str:
    """Run a git as a person or a child would, with a clean configuration of its own."""
    done = subprocess.run(
        [GIT, *map(str, command)],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "3",
            "GIT_CONFIG_KEY_0": "user.name",
            "GIT_CONFIG_VALUE_0": "A Child",
            "GIT_CONFIG_KEY_1": "user.email",
            "GIT_CONFIG_VALUE_1": "child@example.com",
            "GIT_CONFIG_KEY_2": "protocol.file.allow",
            "GIT_CONFIG_VALUE_2": "always",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass(frozen=True)
class Sandbox:
    """A workspace with the mirror of one repository, and a wrapper of git that keeps a log."""

    folder: Path
    places: Workspace
    checkouts: Checkouts
    head: str

    @property
    def mirror(self) -> Path:
        return self.places.mirrors / "octo--hello.git"

    @property
    def upstream(self) -> Path:
        return self.folder / "host" / f"{REPOSITORY}.git"

    @property
    def wrapper(self) -> Path:
        return self.folder / "bin" / "git"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    def wanted(self, branch: str = BRANCH, head: str | None = None) -> Checkout:
        return Checkout(REPOSITORY, branch, self.head if head is None else head)

    def ensure(self, name: str = "one", branch: str = BRANCH) -> Path:
        return self.checkouts.ensure(child(name), self.wanted(branch))

    def tip(self, branch: str = BRANCH) -> str:
        return sh("rev-parse", "--verify", "-q", f"refs/heads/{branch}", folder=self.mirror)

    def configure(self, key: str, value: str) -> None:
        sh("config", "--add", key, value, folder=self.mirror)

    def wrap(self, script: str = "") -> None:
        """Put a git on the PATH that logs its arguments, does this, and is git then."""
        self.wrapper.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> '{self.folder}/argv'\n{script}\n"
            f'exec {GIT} "$@"\n'
        )
        self.wrapper.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """The arguments of each git that was run since the wrapper is there."""
        log = self.folder / "argv"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split() for line in lines]

    def program(self, name: str = "evil") -> Path:
        """A program that leaves the canary behind; it passes its input on, as a filter does."""
        made = self.folder / name
        made.write_text(f"#!/bin/sh\necho {name} >> '{self.canary}'\ncat\n")
        made.chmod(0o755)
        return made


def make_upstream(folder: Path) -> str:
    """The repository on the host, with two commits; the id of the first."""
    upstream, work = folder / "host" / f"{REPOSITORY}.git", folder / "work"
    upstream.mkdir(parents=True)
    sh("init", "-q", "--bare", "-b", "main", folder=upstream)
    work.mkdir()
    sh("init", "-q", "-b", "main", folder=work)
    (work / "README.md").write_text("hello\n")
    (work / "data.txt").write_text("some data\n")
    (work / "docs").mkdir()
    (work / "docs" / "guide.md").write_text("read me\n")
    (work / ".gitignore").write_text("*.log\nbuild/\n")
    (work / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    sh("add", ".", folder=work)
    sh("commit", "-q", "-m", "first", folder=work)
    head = sh("rev-parse", "HEAD", folder=work)
    (work / "README.md").write_text("hello again\n")
    sh("commit", "-q", "-am", "second", folder=work)
    sh("tag", "-a", "v1", "-m", "one", folder=work)
    sh("push", "-q", str(upstream), "main", "main:feature", "v1", folder=work)
    return head


def make_person(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person whose own configuration leads the host's addresses into a folder."""
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[url "file://{folder}/host/"]\n\tinsteadOf = https://github.com/\n'
        '[protocol "file"]\n\tallow = always\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)


def make_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    head = make_upstream(folder)
    make_person(folder, monkeypatch)
    places = Workspace(folder / "workspace")
    mirror(REPOSITORY, places)
    (folder / "bin").mkdir()
    made = Sandbox(folder, places, Checkouts(places, folder / "locks"), head)
    made.wrap()
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return made
