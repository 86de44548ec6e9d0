"""Bare mirrors: the repositories that the worktrees of the children come from.

    <workspace>/mirrors/<owner>--<name>.git

A person makes and fetches them with `agent-bus openhands mirror`, and nobody else: nothing
that a child or a Main asks for reaches the network. What the remote has stands under
refs/remotes/origin/, so that no fetch ever touches a branch of a child (refs/heads/).

All children of a repository share its mirror and can write in it, above all its
configuration. So it is judged before each use, by reading its files: git runs what a
configuration names (filters, helpers), and believes it about what has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from agent_bus.errors import AgentBusError, CheckoutRefused, UsageError
from agent_bus.files import Folder, make_folders
from agent_bus.openhands.gateway import git
from agent_bus.openhands.gateway.locking import held
from agent_bus.openhands.gateway.mission import repository as repository_name
from agent_bus.openhands.gateway.settings import GIT_HOSTS, WORKSPACE

FETCH_SECONDS = 3600.0
REFSPEC = "+refs/heads/*:refs/remotes/origin/*"

Protocols = Literal["https", "ssh"]

# What git itself, common tools and the work of a child write into a configuration, and what
# makes nothing run that the gateway does. Everything else is refused: git gets new settings
# with each release. core.hooksPath (husky sets it) is overridden on every call.
_HARMLESS = re.compile(
    r"""
      core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|abbrev|editor
        |precomposeunicode|symlinks|sharedrepository|autocrlf|eol|safecrlf|quotepath|pager
        |(loose)?compression|bigfilethreshold|commentchar|whitespace|preloadindex|hookspath
        |untrackedcache|multipackindex|commitgraph|longpaths|sparsecheckout(cone)?|protecthfs|protectntfs
        |deltabasecachelimit|packedgit\w+)
    | extensions\.(noop|preciousobjects|refstorage|relativeworktrees|worktreeconfig)
    | remote\..+\.(url|pushurl|fetch|push|mirror|prune|prunetags|tagopt|skipdefaultupdate
        |skipfetchall|followremotehead|gh-resolved)
    | fetch\.(prune|prunetags|parallel|output|writecommitgraph|showforcedupdates)
    | diff\.(?!external$)[a-z]+ | merge\.[a-z]+
    | (branch|submodule|lfs|user|author|committer|alias|gpg)\..+
    | (advice|color|column|commit|feature|gc|gui|index|init|interactive|log|maintenance|pack
        |pager|pull|push|rebase|repack|rerere|stash|status|tag|versionsort|worktree)\..+
    """,
    re.VERBOSE,
)
_NAMED = r"([\w.-]+/[\w.-]+?)(?:\.git)?"
_ADDRESS = re.compile(
    rf"(?:https://|ssh://git@)([\w.-]+(?::\d+)?)/{_NAMED}|git@([\w.-]+):{_NAMED}",
    re.ASCII | re.IGNORECASE,
)
_OVER_BRANCHES = re.compile(r"\+?refs/[^:]*:refs/(?:heads/.*|\*)")
_TRUE = ("true", "yes", "on", "1")


class Places(Protocol):
    """Where mirrors and worktrees are; `GatewaySettings` and `Workspace` say it."""

    @property
    def mirrors(self) -> Path:
        """The folder of the mirrors."""

    @property
    def worktrees(self) -> Path:
        """The folder of the worktrees."""

    @property
    def git_hosts(self) -> tuple[str, ...]:
        """The hosts, in lower case, on which the origin of a mirror may be."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Places, for who needs no agent server."""

    folder: Path = WORKSPACE
    git_hosts: tuple[str, ...] = GIT_HOSTS

    @property
    def mirrors(self) -> Path:
        """The folder of the mirrors."""
        return self.folder / "mirrors"

    @property
    def worktrees(self) -> Path:
        """The folder of the worktrees."""
        return self.folder / "delivery"


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """A mirror that is up to date."""

    path: Path
    created: bool
    refs: int
    """How many branches of the remote it knows."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A mirror as it lies there."""

    name: str
    repository: str | None
    """owner/name, or None if its origin is none that is accepted."""
    problem: str | None
    """Why no worktree can come from it, or what a fetch by other means would break."""


# -- judging one


def mirror_path(places: Places, repository: str) -> Path:
    """Where the mirror of owner/name is. Raises InvalidMission if that is no such name."""
    owner, _, name = repository_name(repository).partition("/")
    return places.mirrors / f"{owner}--{name}.git"


def of(repository: str) -> str:
    """How a mirror is called in an error."""
    return f"the mirror of {repository}"


def examine(places: Places, repository: str) -> Path:
    """The mirror of owner/name, if it is one and safe to use. Raises CheckoutRefused."""
    path, what = mirror_path(places, repository), of(repository)
    if not os.path.lexists(path):
        raise CheckoutRefused(
            f"there is no mirror of {repository}: a person makes it with "
            f"agent-bus openhands mirror {repository}"
        )
    origin = _judged(path, what, places.git_hosts)
    if origin.lower() != repository.lower():
        raise CheckoutRefused(f"{what} is one of {origin}: a person sets it aside")
    return path


def check_folder(path: Path, what: str) -> None:
    """Raise CheckoutRefused unless this is a folder of this user, no link, closed to others."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise CheckoutRefused(f"{what} cannot be read ({error.strerror})") from None
    if stat.S_ISLNK(status.st_mode):
        raise CheckoutRefused(f"{what} is a symbolic link: it must be the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise CheckoutRefused(f"{what} is no folder: a person sets aside what is there")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise CheckoutRefused(f"{what} belongs to another user than the gateway runs as")
    if status.st_mode & stat.S_IWOTH:
        raise CheckoutRefused(f"{what} can be written by everybody: run chmod o-w on it")


def check_configuration(file: Path, what: str) -> list[tuple[str, str]]:
    """The settings of a configuration file, if each is harmless; none if there is no file.

    Raises CheckoutRefused. Reading it runs nothing and follows no include.
    """
    if not os.path.lexists(file):
        return []
    if not stat.S_ISREG(os.lstat(file).st_mode):
        raise CheckoutRefused(f"{what} has a configuration that is no regular file")
    question = ("config", "--list", "--null", "--no-includes", "--file", str(file))
    answer = git.run(question, what=what)
    if answer.code != 0:
        raise CheckoutRefused(f"{what} has a configuration that git cannot read")
    entries = os.fsdecode(answer.output).split("\0")[:-1]
    settings = [(key, value) for key, _, value in (entry.partition("\n") for entry in entries)]
    for key, _ in settings:
        if _HARMLESS.fullmatch(key) is None:
            raise CheckoutRefused(
                f"{what} has {_shown(key)} in its configuration, with which git could run "
                "another program or be misled: a person removes it"
            )
    return settings


def _shown(key: str) -> str:
    # What stands between may be a path, or anything.
    section, _, rest = key.partition(".")
    middle, _, variable = rest.rpartition(".")
    text = f"{section}.*.{variable}" if middle else key
    return text if text.isprintable() else ascii(text)


def _judged(path: Path, what: str, hosts: tuple[str, ...]) -> str:
    """The owner/name that a mirror's origin has."""
    check_folder(path, what)
    if os.path.lexists(path / "commondir") or not _has_parts(path):
        raise CheckoutRefused(f"{what} is no bare repository: a person sets it aside")
    settings = check_configuration(path / "config", what)
    settings += check_configuration(path / "config.worktree", what)
    bare = [value for key, value in settings if key == "core.bare"]
    answer = git.run(("rev-parse", "--is-bare-repository"), what=what, repository=path)
    if bare[-1:] == [] or bare[-1].lower() not in _TRUE or answer.line != "true":
        raise CheckoutRefused(f"{what} is no bare repository: a person sets it aside")
    origins = [value for key, value in settings if key == "remote.origin.url"]
    found = origin_of(origins[0], hosts) if len(origins) == 1 else None
    if found is None:
        # Not shown: it may hold a credential.
        raise CheckoutRefused(
            f"{what} has not one origin like https://{hosts[0]}/OWNER/REPO or "
            f"git@{hosts[0]}:OWNER/REPO: a person sets it"
        )
    return found


def _has_parts(path: Path) -> bool:
    regular = all(
        os.path.lexists(path / name) and stat.S_ISREG(os.lstat(path / name).st_mode)
        for name in ("HEAD", "config")
    )
    folders = ("objects", "refs", "worktrees")
    return regular and not any(os.path.islink(path / name) for name in folders)


def origin_of(url: str, hosts: tuple[str, ...]) -> str | None:
    """owner/name of an address in one of the three accepted forms, or None."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return None
    host, repository = (part for part in found.groups() if part is not None)
    return repository if host.lower() in hosts else None


# -- the person's verb


def mirror(
    repository: str,
    places: Places,
    *,
    url: str | None = None,
    protocol: Protocols = "https",
    prompt: bool = False,
    seconds: float = FETCH_SECONDS,
) -> MirrorResult:
    """Make the mirror of owner/name, or fetch it.

    `url` is its origin where it is not the usual one on the first host; `prompt` lets git ask
    for a password at the terminal. It uses the person's own git configuration, credential
    helpers and agents. A first fetch that is interrupted leaves nothing under the mirror's
    name, and goes on from what it has when it is begun again.
    Raises InvalidMission, UsageError, Busy, and CheckoutRefused with git's reason.
    """
    path, what = mirror_path(places, repository), of(repository)
    address = url or _usual(repository, places.git_hosts[0], protocol)
    if (origin_of(address, places.git_hosts) or "").lower() != repository.lower():
        raise UsageError(
            f"this is no address of {repository} on {' or '.join(places.git_hosts)}: give "
            f"https://HOST/{repository}.git or git@HOST:{repository}.git, and name another host in "
            "AGENT_BUS_OPENHANDS_GIT_HOSTS"
        )
    with _opened(places.mirrors) as folder, lock(folder.path, "fetch", what):
        created = not os.path.lexists(path)
        if created:
            work = folder.path / f".making-{path.name}"
            _begin(folder, work, address, what)
        else:
            work = examine(places, repository)
        _fetch(work, what, prompt=prompt, seconds=seconds)
        if created:
            folder.move_folder(work.name, folder, path.name)
        return MirrorResult(path, created, _refs(path, what))


@contextmanager
def lock(folder: Path, kind: str, what: str, seconds: float = 10) -> Iterator[None]:
    """Hold the lock of a kind on a mirror or worktree.

    Raises Busy and CheckoutRefused, which name no path.
    """
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    path = folder / f".{kind}-{name}.lock"
    with held(path, seconds, what, busy="being used", failed=CheckoutRefused):
        yield


def _usual(repository: str, host: str, protocol: Protocols) -> str:
    begin = f"https://{host}/" if protocol == "https" else f"ssh://git@{host}/"
    return f"{begin}{repository}.git"


@contextmanager
def _opened(path: Path) -> Iterator[Folder]:
    try:
        with make_folders(path) as folder:
            yield folder
    except OSError as error:
        raise CheckoutRefused(f"the folder of the mirrors is not usable: {error}") from None


def _begin(folder: Folder, work: Path, address: str, what: str) -> None:
    """A repository without content, or one that an interrupted fetch has left behind."""
    folder.make(work.name).close()
    check_configuration(work / "config", what)
    config = ("config", "--replace-all", "--file", str(work / "config"))
    for step in (
        ("init", "--quiet", "--bare", "--template=", str(work)),
        (*config, "remote.origin.url", address),
        (*config, "remote.origin.fetch", REFSPEC),
    ):
        done = git.run(step, what=what, network=True)
        if done.code != 0:
            raise CheckoutRefused(f"{what} cannot be made: {done.complaint}")


def _fetch(path: Path, what: str, *, prompt: bool, seconds: float) -> None:
    # --refmap=: not by the refspecs of the configuration, which may reach the branches.
    done = git.run(
        (
            *("fetch", "--quiet", "--no-prune", "--refmap=", "--no-recurse-submodules"),
            *("--no-auto-maintenance", "--no-write-fetch-head", "origin", REFSPEC),
        ),
        what=what,
        repository=path,
        seconds=seconds,
        network=True,
        prompt=prompt,
    )
    if done.code != 0:
        raise CheckoutRefused(f"{what} cannot be fetched: {done.complaint}")


def _refs(path: Path, what: str) -> int:
    question = ("for-each-ref", "--format", "x", "refs/remotes/origin/")
    return len(git.run(question, what=what, repository=path).output.split())


# -- all of them


def mirrors(places: Places) -> list[MirrorState]:
    """All mirrors, and what is wrong with each, for people. Changes nothing."""
    try:
        names = sorted(os.listdir(places.mirrors))
    except FileNotFoundError:
        return []
    wanted = (name for name in names if name.endswith(".git") and not name.startswith("."))
    return [_state(places, name) for name in wanted]


def _state(places: Places, name: str) -> MirrorState:
    path, what = places.mirrors / name, f"the mirror {ascii(name)[1:-1]}"
    try:
        repository = _judged(path, what, places.git_hosts)
        settings = check_configuration(path / "config", what)
        if mirror_path(places, repository).name.lower() != name.lower():
            return MirrorState(name, repository, f"{what} has the origin {repository}: rename it")
    except AgentBusError as error:
        return MirrorState(name, None, str(error))
    if any(_overwrites(key, value) for key, value in settings):
        return MirrorState(
            name,
            repository,
            f"a plain git fetch in {what} would overwrite the branches of children: run in it "
            f"git config --replace-all remote.origin.fetch '{REFSPEC}'",
        )
    return MirrorState(name, repository, None)


def _overwrites(key: str, value: str) -> bool:
    if key == "remote.origin.mirror":
        return value.lower() in (*_TRUE, "")
    return key == "remote.origin.fetch" and _OVER_BRANCHES.fullmatch(value) is not None
