"""The worktree of a child: made once, judged each time, and otherwise left alone.

    <workspace>/delivery/child-<uuid>

It comes from the bare mirror of the mission's repository (`mirror.py`), on a branch of its
own, at exactly the commit that the mission names. What is there already is taken only if it
is exactly that; it is never repaired, cleaned, moved or reused for another child, and nothing
is ever fetched. Errors name things as "the mirror of owner/name" and "the worktree of child
<uuid>": a child may read them.

Clean means: no tracked file differs from the commit or is marked to be overlooked, and no
other file is there but those that a .gitignore file names. Such files may be there, since
starting a runtime makes some. A file that only the mirror's info/exclude hides counts as dirt:
all children share that list, and no commit holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from agent_bus.errors import CheckoutRefused
from agent_bus.files import Folder, UnfitFile, make_folders
from agent_bus.openhands.gateway import git, mirror
from agent_bus.openhands.gateway.mission import Checkout
from agent_bus.openhands.gateway.mission import branch as branch_name

ADD_SECONDS = 300.0
"""Long enough for a large repository: what is cut off here, a person has to remove."""

_ABSENT = "0" * 40
_SUBMODULE = "160000"
_POINTER_LIMIT = 4096
# An agent server takes MCP servers and hooks from these, and lets them read its own keys.
_PLUGINS = (".agents/plugins", ".openhands/plugins")
# Git leaves these while something is going on, or after it was cut off.
_UNFINISHED = (
    *("index.lock", "HEAD.lock", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG"),
    *("rebase-merge", "rebase-apply", "sequencer"),
)


@dataclass(frozen=True, slots=True)
class _Tree:
    """A worktree whose files all point where they should, and whose git is safe to run."""

    path: Path
    admin: Path
    """Its own folder in the mirror's `worktrees`."""
    what: str

    def ask(self, *question: str) -> git.Result:
        """Run a git in it. The git folder is given, so that no pointer is followed again."""
        return git.run(
            question,
            what=self.what,
            folder=self.path,
            repository=self.admin,
            seconds=60,
        )

    def head_branch(self) -> str:
        """The full name of the branch that HEAD is on, or "" if it is on none."""
        return self.ask("symbolic-ref", "--quiet", "HEAD").line

    def commit(self, revision: str) -> str:
        """The id that a revision stands for, or "" if it stands for nothing."""
        answer = self.ask("rev-parse", "--verify", "--quiet", revision)
        return answer.line if answer.code == 0 else ""


class Checkouts:
    """The worktrees of all children. Processes and threads may share them.

    `locks` is a folder of the gateway's own. All methods raise CheckoutRefused, with
    everything left as it was found, and Busy if another process works on the same child.
    """

    def __init__(self, places: mirror.Places, locks: Path) -> None:
        self._places = places
        self._locks = locks

    def worktree(self, child: UUID) -> Path:
        """Where the worktree of a child is, or would be."""
        return self._places.worktrees / f"child-{child}"

    def ensure(self, child: UUID, checkout: Checkout) -> Path:
        """The worktree of a child, exactly as its mission says; made if nothing is there."""
        with self._held(child):
            # A link that leads nowhere is something that is there.
            if not os.path.lexists(self.worktree(child)):
                self._provision(child, checkout)
            return self._validated(child, checkout, exact=True).path

    def validate(self, child: UUID, checkout: Checkout, *, exact: bool) -> Path:
        """The worktree of a child, which must be there.

        Not `exact` is for a child that has worked: it is on its branch, in its own worktree
        of the right mirror, wherever that branch and the files have got to.
        """
        with self._held(child):
            return self._validated(child, checkout, exact=exact).path

    def revalidate(self, child: UUID, checkout: Checkout) -> Path:
        """The same as exact `validate`, for when the runtime of a child has started.

        Starting it can lose the branch (a fetch that prunes) or move it. If HEAD is still on
        the branch, and files and index are those of the commit, the branch is put back.
        """
        with self._held(child):
            tree = self._inspected(child, checkout)
            _check_branch(tree, checkout)
            _check_commit(tree.admin, tree.what, checkout)
            _check_marks(tree)
            for which in ((), ("--cached",)):
                _check_same(tree, checkout, *which)
            _restore(tree, checkout)
            return self._validated(child, checkout, exact=True).path

    @contextmanager
    def _held(self, child: UUID) -> Iterator[None]:
        with self._writing():
            make_folders(self._locks).close()
        with mirror.lock(self._locks, "worktree", _called(child), ADD_SECONDS):
            try:
                yield
            except OSError as error:
                raise CheckoutRefused(
                    f"{_called(child)}, or its mirror, cannot be looked at ({error.strerror})"
                ) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckoutRefused(
                f"the folder of the worktrees is not usable ({error.strerror})"
            ) from None

    # -- making it

    def _provision(self, child: UUID, checkout: Checkout) -> None:
        source, what = mirror.examine(self._places, checkout.repository), _called(child)
        branch = branch_name(checkout.branch)
        mirrored = mirror.of(checkout.repository)
        form = git.run(("check-ref-format", "--branch", branch), what=mirrored, repository=source)
        if form.line != branch:
            raise CheckoutRefused(f"git takes {branch[:80]!a} for no name of a branch")
        _check_commit(source, mirrored, checkout)
        with self._writing():
            make_folders(self._places.worktrees).close()
        with mirror.lock(self._locks, "mirror", mirrored, ADD_SECONDS):
            _claim(source, mirrored, child, checkout)
            path = os.path.realpath(self._places.worktrees) + f"/child-{child}"
            done = git.run(
                ("worktree", "add", "--quiet", path, branch),
                what=mirrored,
                repository=source,
                seconds=ADD_SECONDS,
            )
        if done.code != 0:
            raise CheckoutRefused(f"{what} cannot be made: {done.complaint}")

    # -- judging it

    def _validated(self, child: UUID, checkout: Checkout, *, exact: bool) -> _Tree:
        tree = self._inspected(child, checkout)
        _check_branch(tree, checkout)
        _check_plugins(tree)
        if exact:
            if tree.commit("HEAD") != checkout.head_sha:
                raise CheckoutRefused(f"{tree.what} is at another commit than the mission says")
            _check_marks(tree)
            _check_clean(tree)
        return tree

    def _inspected(self, child: UUID, checkout: Checkout) -> _Tree:
        path, what = self.worktree(child), _called(child)
        mirror.check_folder(path, what)
        source = mirror.examine(self._places, checkout.repository)
        real = Path(os.path.realpath(path))
        admin = _admin(real, Path(os.path.realpath(source)), what, checkout)
        if os.path.lexists(admin / "locked") and _line(admin, "locked") == "initializing":
            raise CheckoutRefused(
                f"{what} is being made, or its making was cut off: try again; if that does not "
                f"help, a person runs git worktree remove --force --force child-{child} in "
                f"{mirror.of(checkout.repository)}"
            )
        mirror.check_configuration(admin / "config.worktree", what)
        top = git.run(("rev-parse", "--show-toplevel"), what=what, folder=real)
        if top.code != 0 or top.line != str(real):
            raise CheckoutRefused(f"{what} is none to git: a person sets it aside")
        return _Tree(path, admin, what)


def _called(child: UUID) -> str:
    return f"the worktree of child {child}"


def _claim(source: Path, what: str, child: UUID, checkout: Checkout) -> None:
    """Make the branch, together with a ref that says for whom it was made.

    So a worktree whose making was cut off after this can be made later: a branch that is
    there is refused unless this child's claim stands beside it, both still at the commit.
    """
    head, branch = checkout.head_sha, f"refs/heads/{checkout.branch}"
    claim = f"refs/agent-bus/child-{child}/{checkout.branch}"
    question = ("for-each-ref", "--format", "%(refname) %(objectname)", branch, claim)
    known = git.run(question, what=what, repository=source).line.splitlines()
    if {f"{branch} {head}", f"{claim} {head}"} <= set(known):
        return
    commands = f"create {branch} {head}\nupdate {claim} {head}\n".encode("ascii")
    done = git.run(("update-ref", "--stdin"), what=what, repository=source, given=commands)
    if done.code != 0:
        raise CheckoutRefused(
            f"the branch {checkout.branch} cannot be made in {what} ({done.complaint}): give "
            "the mission the name of a branch that is not there yet"
        )


def _admin(path: Path, source: Path, what: str, checkout: Checkout) -> Path:
    """A worktree's folder in the mirror, if both point at each other."""
    foreign = f"{what} is no worktree of {mirror.of(checkout.repository)}"
    aside = "a person sets aside what is there"
    pointer = _line(path, ".git")
    if pointer is None or not pointer.startswith("gitdir: "):
        raise CheckoutRefused(f"{foreign}: {aside}")
    admin = Path(os.path.normpath(path / pointer.removeprefix("gitdir: ")))
    real = Path(os.path.realpath(admin))
    if real != source / "worktrees" / admin.name or not real.is_dir():
        raise CheckoutRefused(f"{foreign}: {aside}")
    back, common = _line(real, "gitdir"), _line(real, "commondir")
    if back is None or os.path.realpath(real / back) != str(path / ".git"):
        raise CheckoutRefused(f"{foreign}, which has another place for it: {aside}")
    if common is None or os.path.realpath(real / common) != str(source):
        raise CheckoutRefused(f"{foreign}: {aside}")
    return real


def _line(folder: Path, name: str) -> str | None:
    """The one line of a small regular file, or None if it is no such file."""
    try:
        with Folder.open(folder, shared=True) as opened:
            return os.fsdecode(opened.read(name, _POINTER_LIMIT)).removesuffix("\n")
    except (OSError, UnfitFile):
        return None


def _check_branch(tree: _Tree, checkout: Checkout) -> None:
    if tree.head_branch() != f"refs/heads/{checkout.branch}":
        raise CheckoutRefused(f"{tree.what} is not on the branch {checkout.branch}")


def _check_plugins(tree: _Tree) -> None:
    for folder in _PLUGINS:
        if os.path.lexists(tree.path / folder):
            raise CheckoutRefused(
                f"{tree.what} has {folder}: an agent server would give what stands there its own "
                "keys; take it out of the repository first"
            )


def _check_commit(repository: Path, what: str, checkout: Checkout) -> None:
    head = checkout.head_sha
    answer = git.run(("cat-file", "-t", head), what=what, repository=repository)
    if answer.code != 0:
        raise CheckoutRefused(
            f"{mirror.of(checkout.repository)} does not have the commit {head}: a person "
            f"fetches it with agent-bus openhands mirror {checkout.repository}"
        )
    if answer.line != "commit":
        raise CheckoutRefused(f"{head} is a {answer.line}, and headSha must be a commit")


def _check_marks(tree: _Tree) -> None:
    """Refuse files that git was told to overlook, and submodules that are filled."""
    listing = tree.ask("ls-files", "-v", "--stage", "-z")
    if listing.code != 0:
        raise CheckoutRefused(f"{tree.what} has no index that git can read")
    for entry in os.fsdecode(listing.output).split("\0")[:-1]:
        # "H 100644 <object> 0<tab>path"; other letters are skip-worktree, assume-unchanged
        # (in lower case) and unmerged.
        about, _, name = entry.partition("\t")
        if not about.startswith("H "):
            raise CheckoutRefused(f"{tree.what} hides the state of {_name(name)} from git")
        if about[2:].startswith(_SUBMODULE) and os.path.lexists(tree.path / name / ".git"):
            # Its own configuration would count, and nobody has judged it.
            raise CheckoutRefused(f"{tree.what} has a filled submodule {_name(name)}")


def _check_same(tree: _Tree, checkout: Checkout, *which: str) -> None:
    question = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
    answer = tree.ask(*question, *which, checkout.head_sha, "--")
    if answer.code != 0:
        raise CheckoutRefused(
            f"{tree.what} differs from the commit that the mission says, although nothing was "
            "to be changed yet: a person looks at it"
        )


def _check_clean(tree: _Tree) -> None:
    left = [name for name in _UNFINISHED if os.path.lexists(tree.admin / name)]
    if left:
        raise CheckoutRefused(f"{tree.what} is in the middle of something: git has {left[0]}")
    status = tree.ask(
        *("status", "--porcelain=v2", "-z", "--untracked-files=all", "--no-renames"),
        "--ignore-submodules=dirty",
    )
    others = tree.ask(*("ls-files", "--others", "-z", "--exclude-per-directory=.gitignore"))
    if status.code != 0 or others.code != 0:
        raise CheckoutRefused(f"{tree.what} cannot be judged by git: {status.complaint}")
    # One entry each; of a changed file, its name comes after seven or more fields.
    changed = [entry.split(" ", 8)[-1] for entry in _entries(status) if entry[:1] in "12u"]
    dirt = [*changed, *_entries(others), *_entries(status)]
    if dirt:
        raise CheckoutRefused(f"{tree.what} is not clean, it has for example {_name(dirt[0])}")


def _entries(answer: git.Result) -> list[str]:
    return os.fsdecode(answer.output).split("\0")[:-1]


def _name(path: str) -> str:
    return ascii(path)[:100]


def _restore(tree: _Tree, checkout: Checkout) -> None:
    """Put the branch at the commit, unless it is there or somebody moves it meanwhile."""
    branch, head = f"refs/heads/{checkout.branch}", checkout.head_sha
    old = tree.commit(branch)
    if old == head:
        return
    commands = f"option no-deref\nupdate {branch} {head} {old or _ABSENT}\n"
    done = git.run(
        ("update-ref", "--stdin"),
        what=tree.what,
        folder=tree.path,
        repository=tree.admin,
        given=commands.encode("ascii"),
    )
    if done.code != 0:
        raise CheckoutRefused(
            f"the branch of {tree.what} cannot be put back at the commit: {done.complaint}"
        )
