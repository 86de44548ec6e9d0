"""Worktrees of children: made exactly, judged strictly, never repaired; git runs nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from git_sandbox import BRANCH, FORBIDDEN, GIT, REPOSITORY, Sandbox, child, make_sandbox, sh

from agent_bus.errors import Busy, CheckoutRefused, InvalidMission
from agent_bus.openhands.gateway import mirror
from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.mirror import Workspace
from agent_bus.openhands.gateway.mission import Checkout


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A mirror to check out from. After each test: git was told nothing that it must not be."""
    made = make_sandbox(tmp_path, monkeypatch)
    yield made
    for call in made.calls():
        assert not FORBIDDEN & set(call), call
    assert not made.canary.exists(), made.canary.read_text()


def refused(action: Callable[[], object], *words: str) -> str:
    """The text of a refusal: one line, without a path of this machine."""
    with pytest.raises(CheckoutRefused) as caught:
        action()
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert "/tmp" not in text
    assert "workspace" not in text
    return text


def listing(folder: Path) -> dict[str, bytes | str | None]:
    """Everything below a folder, without following links."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        else:
            found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("folder", [".agents/plugins", ".openhands/plugins"])
def test_plugins_for_the_agent_server_are_refused(sandbox: Sandbox, folder: str) -> None:
    """It would hand its own keys to what stands there. Also those that git ignores."""
    path = sandbox.ensure()
    (path / folder).mkdir(parents=True)
    (path / folder / ".gitignore").write_text("*\n")
    for exact in (True, False):
        refused(
            lambda exact=exact: sandbox.checkouts.validate(  # type: ignore[misc]
                child(), sandbox.wanted(), exact=exact
            ),
            folder,
        )


# -- making


def test_a_worktree_is_made_on_its_branch_at_its_commit(sandbox: Sandbox) -> None:
    path = sandbox.ensure()

    assert path == sandbox.places.worktrees / f"child-{child()}"
    assert path == sandbox.checkouts.worktree(child())
    assert sh("rev-parse", "HEAD", folder=path) == sandbox.head
    assert sh("branch", "--show-current", folder=path) == BRANCH
    assert sh("status", "--porcelain", folder=path) == ""
    assert (path / "README.md").read_text() == "hello\n"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    # It follows no branch of the remote, so that a plain push of the child goes nowhere.
    assert sh("config", "--get-regexp", "^branch", folder=path, check=False) == ""


def test_asking_again_gives_the_same_worktree(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    before = listing(sandbox.folder / "workspace")

    assert sandbox.ensure() == path
    assert listing(sandbox.folder / "workspace") == before


def test_a_branch_that_the_remote_has_is_no_obstacle(sandbox: Sandbox) -> None:
    """The mirror keeps the remote's branches apart from those of the children."""
    path = sandbox.ensure(branch="feature")

    assert sh("rev-parse", "HEAD", folder=path) == sandbox.head


def test_without_a_mirror_nothing_is_made(sandbox: Sandbox) -> None:
    wanted = Checkout("octo/other", BRANCH, sandbox.head)

    refused(lambda: sandbox.checkouts.ensure(child(), wanted), "agent-bus openhands mirror octo/o")
    assert not sandbox.places.worktrees.exists()


@pytest.mark.parametrize(
    "repository", ["../x", "a/b/c", "a/", "/b", "a/..", "a/b.git", "a/b\n", "-x/-y", "ñ/①", "a"]
)
def test_a_repository_that_is_no_name_never_becomes_a_path(
    sandbox: Sandbox, repository: str
) -> None:
    with pytest.raises(InvalidMission):
        sandbox.checkouts.ensure(child(), Checkout(repository, BRANCH, sandbox.head))
    assert not sandbox.places.worktrees.exists()


@pytest.mark.parametrize(
    "branch",
    [
        *("-x", "-b", "-", "@", "@{-1}", "a@{b", "HEAD", "refs/heads/x", "x.lock", ".hid", ""),
        *("a..b", "a/../b", "../../etc", "/abs", "a//b", "x/", "x~1", "a^", "a:b", "a?b", "a*b"),
        *("a[b", "a\\b", "a b", "x\n", "é", "x" * 300),
    ],
)
def test_what_is_no_branch_makes_nothing(sandbox: Sandbox, branch: str) -> None:
    with pytest.raises((InvalidMission, CheckoutRefused)):
        sandbox.ensure(branch=branch)
    assert not sandbox.places.worktrees.exists()
    assert sh("for-each-ref", "refs/heads", "refs/agent-bus", folder=sandbox.mirror) == ""


# -- the mirror


def test_a_mirror_that_is_a_link_is_refused(sandbox: Sandbox) -> None:
    sandbox.mirror.rename(sandbox.folder / "elsewhere.git")
    sandbox.mirror.symlink_to(sandbox.folder / "elsewhere.git")

    refused(sandbox.ensure, f"the mirror of {REPOSITORY}", "symbolic link")


@pytest.mark.parametrize(
    "origin",
    [
        "https://github.com/octo/other.git",
        "https://gitlab.com/octo/hello.git",
        "http://github.com/octo/hello.git",
        "git://github.com/octo/hello.git",
        "https://user:secret@github.com/octo/hello.git",
        "https://github.com.evil.example/octo/hello.git",
        "https://evil.example/github.com/octo/hello.git",
        "git@github.com:octo/hello/../other",
        "git@evil.example:octo/hello.git",
        "ssh://evil@github.com/octo/hello.git",
        "https://github.com:octo/hello",
        "https://github.com/octo/hello.git\n",
        "/srv/octo/hello.git",
        "file:///srv/octo/hello.git",
        "ext::sh -c x octo/hello",
    ],
)
def test_an_origin_that_is_not_exactly_the_repository_is_refused(
    sandbox: Sandbox, origin: str
) -> None:
    sh("config", "remote.origin.url", origin, folder=sandbox.mirror)

    text = refused(sandbox.ensure, f"the mirror of {REPOSITORY}")
    assert "secret" not in text
    assert not sandbox.places.worktrees.exists()


@pytest.mark.parametrize(
    "origin",
    [
        "https://github.com/octo/hello",
        "https://GitHub.com/Octo/Hello.git",
        "git@github.com:octo/hello.git",
        "git@github.com:octo/hello",
        "ssh://git@github.com/octo/hello.git",
    ],
)
def test_each_usual_form_of_the_origin_is_taken(sandbox: Sandbox, origin: str) -> None:
    sh("config", "remote.origin.url", origin, folder=sandbox.mirror)

    assert sandbox.ensure().is_dir()


def test_two_origins_are_refused(sandbox: Sandbox) -> None:
    sandbox.configure("remote.origin.url", "https://github.com/octo/hello")

    refused(sandbox.ensure, "not one origin")


def test_another_host_is_taken_where_it_is_named(sandbox: Sandbox) -> None:
    sh("config", "remote.origin.url", "git@git.example.com:octo/hello", folder=sandbox.mirror)
    places = Workspace(sandbox.places.folder, ("github.com", "git.example.com"))

    refused(sandbox.ensure, "not one origin")
    assert Checkouts(places, sandbox.folder / "locks").ensure(child(), sandbox.wanted()).is_dir()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("url.https://evil.example/.insteadOf", "https://github.com/"),
        ("include.path", "/tmp/evil-config"),
        ("includeIf.gitdir:/tmp/.path", "/tmp/evil-config"),
        ("core.worktree", "/tmp"),
        ("core.fsmonitor", "/tmp/evil"),
        ("core.sshCommand", "/tmp/evil"),
        ("core.gitProxy", "/tmp/evil"),
        ("core.excludesFile", "/tmp/evil"),
        ("core.attributesFile", "/tmp/evil"),
        ("core.alternateRefsCommand", "/tmp/evil"),
        ("filter.evil.clean", "/tmp/evil"),
        ("filter.evil.smudge", "/tmp/evil"),
        ("filter.evil.process", "/tmp/evil"),
        ("diff.external", "/tmp/evil"),
        ("diff.evil.command", "/tmp/evil"),
        ("diff.evil.textconv", "/tmp/evil"),
        ("merge.evil.driver", "/tmp/evil"),
        ("credential.helper", "!/tmp/evil"),
        ("credential.https://github.com.helper", "!/tmp/evil"),
        ("http.sslVerify", "false"),
        ("protocol.ext.allow", "always"),
        ("remote.origin.uploadpack", "/tmp/evil"),
        ("remote.origin.vcs", "ext"),
        ("remote.origin.promisor", "true"),
        ("extensions.partialClone", "origin"),
        ("hook.evil.command", "/tmp/evil"),
        ("fetch.bundleURI", "https://evil.example/"),
    ],
)
def test_a_configuration_that_could_mislead_git_is_refused_unread(
    sandbox: Sandbox, key: str, value: str
) -> None:
    """Both before a worktree is made and for one that stands; only `git config` has run."""
    sandbox.ensure()
    done = len(sandbox.calls())
    sandbox.configure(key, value)

    for name in ("one", "two"):
        text = refused(lambda name=name: sandbox.ensure(name), "configuration")
        assert "evil.example" not in text
    assert [call for call in sandbox.calls()[done:] if "config" not in call] == []


def test_what_children_and_their_tools_configure_is_no_obstacle(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    for key, value in (
        ("user.email", "child@example.com"),
        ("branch.agent/task-1.remote", "origin"),
        ("remote.origin.gh-resolved", "base"),
        ("core.hooksPath", str(sandbox.folder / ".husky")),
        ("submodule.dep.url", "https://github.com/octo/dep"),
        ("lfs.repositoryformatversion", "0"),
        ("gc.auto", "0"),
    ):
        sh("config", key, value, folder=path)
    assert sandbox.ensure() == path

    # It brings per-worktree settings with it, for the mirror as well.
    sh("sparse-checkout", "set", "build", folder=path)
    assert not (path / "docs").exists()
    assert (sandbox.mirror / "config.worktree").exists()
    assert (sandbox.ensure("two", "agent/task-2") / "docs" / "guide.md").is_file()
    assert sandbox.checkouts.validate(child(), sandbox.wanted(), exact=False) == path
    refused(sandbox.ensure, "hides", "docs/guide.md")


def test_a_worktree_with_harmful_settings_of_its_own_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    sh("sparse-checkout", "set", "/*", "--no-cone", folder=path)
    sh("config", "--worktree", "core.fsmonitor", str(sandbox.program()), folder=path)

    refused(sandbox.ensure, "the worktree of child", "core.fsmonitor")
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "core.fsmonitor")


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: (path / "HEAD").unlink(),
        lambda path: (path / "HEAD").write_text("nonsense\n"),
        lambda path: (path / "config").unlink(),
        lambda path: (path / "config").write_text("[core\n"),
        lambda path: (path / "commondir").write_text("/tmp\n"),
        lambda path: sh("config", "core.bare", "false", folder=path),
        lambda path: path.chmod(0o777),
    ],
)
def test_a_mirror_that_is_damaged_or_open_is_refused(
    sandbox: Sandbox, harm: Callable[[Path], object]
) -> None:
    harm(sandbox.mirror)

    refused(sandbox.ensure, f"the mirror of {REPOSITORY}")


def test_a_mirror_that_is_a_file_or_an_empty_folder_is_refused(sandbox: Sandbox) -> None:
    sandbox.mirror.rename(sandbox.folder / "aside.git")
    sandbox.mirror.write_text("")
    refused(sandbox.ensure, "no folder")
    sandbox.mirror.unlink()
    sandbox.mirror.mkdir()
    refused(sandbox.ensure, "no bare repository")


# -- what stands there already


def test_what_stands_in_the_place_is_refused_and_not_touched(sandbox: Sandbox) -> None:
    path = sandbox.checkouts.worktree(child())
    target = sandbox.ensure("other", "agent/other")
    (target / "mine.txt").write_text("precious\n")
    for make in (
        lambda: path.symlink_to(target),
        lambda: path.symlink_to(sandbox.folder / "nowhere"),
        lambda: path.write_text("a file\n"),
        path.mkdir,
        lambda: (path.mkdir(), (path / "notes").write_text("mine\n")),
        lambda: (path.mkdir(), (path / ".git").mkdir()),
        lambda: (path.mkdir(), (path / ".git").symlink_to(target / ".git")),
        lambda: (path.mkdir(), (path / ".git").write_text("gitdir: /nowhere\n")),
        lambda: (path.mkdir(), (path / ".git").write_bytes((target / ".git").read_bytes())),
        lambda: sh("init", "-q", str(path), folder=sandbox.folder),
        lambda: sh("clone", "-q", sandbox.upstream, path, folder=sandbox.folder),
    ):
        make()
        before = listing(sandbox.places.folder)

        refused(sandbox.ensure, f"the worktree of child {child()}")
        assert listing(sandbox.places.folder) == before
        path.rename(sandbox.folder / f"aside-{len(list(sandbox.folder.iterdir()))}")
    assert not (sandbox.folder / "nowhere").exists()


def test_a_worktree_of_another_mirror_is_refused(sandbox: Sandbox) -> None:
    other = sandbox.places.mirrors / "octo--other.git"
    sh("clone", "-q", "--bare", sandbox.upstream, other, folder=sandbox.folder)
    path = sandbox.checkouts.worktree(child())
    sh("worktree", "add", "-q", "-b", BRANCH, path, sandbox.head, folder=other)

    refused(sandbox.ensure, f"no worktree of the mirror of {REPOSITORY}")


def test_a_worktree_that_was_moved_here_is_refused(sandbox: Sandbox) -> None:
    sandbox.ensure("other").rename(sandbox.checkouts.worktree(child()))

    refused(sandbox.ensure, "another place")


def test_a_worktree_on_another_branch_or_commit_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    refused(lambda: sandbox.ensure(branch="agent/else"), "not on the branch agent/else")
    tip = sh("rev-parse", "refs/remotes/origin/main", folder=sandbox.mirror)
    refused(
        lambda: sandbox.checkouts.ensure(child(), sandbox.wanted(head=tip)), "at another commit"
    )
    sh("checkout", "-q", "--detach", folder=path)
    refused(sandbox.ensure, "not on the branch")
    assert sandbox.tip() == sandbox.head


# -- commit and branch


@pytest.mark.parametrize("which", ["absent", "tree", "tag", "blob"])
def test_a_head_that_is_no_commit_of_the_mirror_is_refused(sandbox: Sandbox, which: str) -> None:
    named = {"tree": f"{sandbox.head}^{{tree}}", "tag": "v1", "blob": f"{sandbox.head}:README.md"}
    found = named.get(which)
    head = "1" * 40 if found is None else sh("rev-parse", found, folder=sandbox.upstream)

    refused(
        lambda: sandbox.checkouts.ensure(child(), sandbox.wanted(head=head)),
        "openhands mirror octo/hello" if which == "absent" else "must be a commit",
    )
    assert sh("for-each-ref", "refs/heads", folder=sandbox.mirror) == ""


def test_a_branch_that_exists_is_refused_and_not_moved(sandbox: Sandbox) -> None:
    """Also where it is at the very commit: nobody knows whose it is."""
    tip = sh("rev-parse", "refs/remotes/origin/main", folder=sandbox.mirror)
    for at in (tip, sandbox.head):
        sh("update-ref", f"refs/heads/{BRANCH}", at, folder=sandbox.mirror)

        refused(sandbox.ensure, BRANCH, "a branch that is not there yet")
        assert sandbox.tip() == at
        assert not sandbox.checkouts.worktree(child()).exists()


def test_a_branch_of_another_child_is_refused(sandbox: Sandbox) -> None:
    sandbox.ensure()

    refused(lambda: sandbox.ensure("two"), BRANCH)
    refused(lambda: sandbox.ensure("two", "agent"), "agent")
    assert not sandbox.checkouts.worktree(child("two")).exists()


# -- cleanliness


@pytest.mark.parametrize(
    "soil",
    [
        lambda path: (path / "new.py").write_text("x\n"),
        lambda path: (path / "README.md").write_text("other\n"),
        lambda path: (path / "README.md").unlink(),
        lambda path: (path / "README.md").chmod(0o755),
        lambda path: (path / "new.py").symlink_to("README.md"),
        lambda path: ((path / "new.py").write_text("x\n"), sh("add", "new.py", folder=path)),
        lambda path: sh("rm", "-q", "--cached", "README.md", folder=path),
        lambda path: sh("init", "-q", "nested", folder=path),
        lambda path: ((path / "sub").mkdir(), (path / "sub" / "deep").write_text("x")),
    ],
)
def test_a_dirty_worktree_is_refused_and_stays_as_it_is(
    sandbox: Sandbox, soil: Callable[[Path], object]
) -> None:
    path = sandbox.ensure()
    soil(path)
    before = listing(path)

    refused(sandbox.ensure)
    assert listing(path) == before


@pytest.mark.parametrize("mark", ["--skip-worktree", "--assume-unchanged"])
def test_a_change_that_git_was_told_to_overlook_is_found(sandbox: Sandbox, mark: str) -> None:
    path = sandbox.ensure()
    sh("update-index", mark, "README.md", folder=path)
    (path / "README.md").write_text("other\n")
    assert sh("status", "--porcelain", folder=path) == ""

    refused(sandbox.ensure, "README.md")
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "README.md")


def test_files_that_a_setting_or_the_shared_list_hides_are_found(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    (path / "new.py").write_text("x\n")
    sh("config", "status.showUntrackedFiles", "no", folder=path)
    assert sh("status", "--porcelain", folder=path) == ""
    refused(sandbox.ensure, "new.py")

    sh("config", "--unset", "status.showUntrackedFiles", folder=path)
    (sandbox.mirror / "info").mkdir(exist_ok=True)
    (sandbox.mirror / "info" / "exclude").write_text("new.py\n")
    assert sh("status", "--porcelain", folder=path) == ""
    refused(sandbox.ensure, "new.py")


def test_a_change_that_keeps_size_and_time_is_found(sandbox: Sandbox) -> None:
    """core.trustctime and core.checkStat can make git overlook it."""
    path = sandbox.ensure()
    before = (path / "README.md").stat()
    (path / "README.md").write_text("HELLO\n")
    os.utime(path / "README.md", ns=(before.st_atime_ns, before.st_mtime_ns))

    refused(sandbox.ensure, "README.md")


def test_files_that_gitignore_names_are_no_dirt(sandbox: Sandbox) -> None:
    """Starting a runtime makes some, and `git status` calls such a tree clean too."""
    path = sandbox.ensure()
    (path / "server.log").write_text("x\n")
    (path / "build").mkdir()
    (path / "build" / "out.bin").write_text("x\n")
    (path / ".venv").mkdir()
    (path / ".venv" / ".gitignore").write_text("*\n")

    assert sandbox.ensure() == path
    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path


def test_a_touched_file_is_no_dirt(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    os.utime(path / "README.md", ns=(1, 1))

    assert sandbox.ensure() == path
    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path


def test_a_filled_submodule_is_refused_before_its_configuration_counts(sandbox: Sandbox) -> None:
    work = sandbox.folder / "work"
    sh("submodule", "--quiet", "add", sandbox.upstream, "dep", folder=work)
    sh("commit", "-q", "-m", "dep", folder=work)
    head = sh("rev-parse", "HEAD", folder=work)
    sh("push", "-q", sandbox.upstream, "main", folder=work)
    sh("fetch", "-q", sandbox.upstream, "main", folder=sandbox.mirror)
    wanted = sandbox.wanted(head=head)
    path = sandbox.checkouts.ensure(child(), wanted)
    assert list((path / "dep").iterdir()) == []

    sh("clone", "-q", sandbox.upstream, "dep", folder=path)
    sh("config", "filter.evil.clean", str(sandbox.program()), folder=path / "dep")
    (path / "dep" / "data.txt").write_text("other\n")
    refused(lambda: sandbox.checkouts.ensure(child(), wanted), "submodule", "dep")
    refused(lambda: sandbox.checkouts.revalidate(child(), wanted), "submodule", "dep")


def test_an_unfinished_merge_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    sh("merge", "-q", "--no-ff", "--no-commit", "-s", "ours", "origin/main", folder=path)

    refused(sandbox.ensure, "MERGE_HEAD")


# -- nothing else runs


def test_no_hook_of_the_mirror_runs(sandbox: Sandbox) -> None:
    hooks = sandbox.mirror / "hooks"
    hooks.mkdir(exist_ok=True)
    names = ("post-checkout", "post-index-change", "reference-transaction", "post-merge")
    for name in names:
        (hooks / name).symlink_to(sandbox.program())
    sandbox.configure("core.hooksPath", str(hooks))

    path = sandbox.ensure()
    sh("update-ref", "-d", f"refs/heads/{BRANCH}", folder=sandbox.mirror, check=False)
    sandbox.canary.unlink(missing_ok=True)  # that git was the child's own
    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path
    assert sandbox.tip() == sandbox.head


def test_the_canary_sings_where_git_is_not_hardened(sandbox: Sandbox) -> None:
    """The tests around this one would find a program that runs."""
    hooks = sandbox.mirror / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-checkout").symlink_to(sandbox.program())
    sh("worktree", "add", "-q", sandbox.folder / "w", sandbox.head, folder=sandbox.mirror)
    assert sandbox.canary.read_text() == "evil\n"
    sandbox.canary.unlink()


@pytest.mark.parametrize(
    "key",
    [
        *("core.fsmonitor", "core.pager", "pager.status", "pager.diff", "diff.external"),
        *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv"),
        *("diff.evil.command", "alias.status", "alias.diff", "alias.worktree", "core.editor"),
    ],
)
def test_no_program_that_the_configuration_names_runs(sandbox: Sandbox, key: str) -> None:
    """Whether it is refused or has no effect: it never runs, not on a changed file either."""
    path = sandbox.ensure()
    program = str(sandbox.program())
    sandbox.configure(key, f"!{program}" if key.startswith("alias") else program)
    (path / "data.txt").write_text("SOME DATA\n")

    for action in (
        lambda: sandbox.ensure("two", "agent/two"),
        lambda: sandbox.checkouts.validate(child(), sandbox.wanted(), exact=False),
        sandbox.ensure,
        lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()),
    ):
        try:
            action()
        except CheckoutRefused:
            continue


def test_the_environment_of_the_gateway_reaches_no_git(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, str(sandbox.program()))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    monkeypatch.setenv("OPENHANDS_API_KEY", "secret-key")
    sandbox.wrap(f"env >> '{sandbox.folder}/environment'")

    sandbox.ensure()
    assert "secret-key" not in (sandbox.folder / "environment").read_text()


# -- a child that has worked


def test_a_child_that_has_worked_is_validated_less_strictly(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    (path / "README.md").write_text("work\n")
    sh("commit", "-q", "-am", "work", folder=path)
    (path / "new.py").write_text("x\n")

    assert sandbox.checkouts.validate(child(), sandbox.wanted(), exact=False) == path
    refused(lambda: sandbox.checkouts.validate(child(), sandbox.wanted(), exact=True))
    refused(sandbox.ensure)
    refused(
        lambda: sandbox.checkouts.validate(child(), sandbox.wanted("agent/else"), exact=False),
        "not on the branch",
    )


def test_validating_makes_nothing(sandbox: Sandbox) -> None:
    refused(lambda: sandbox.checkouts.validate(child(), sandbox.wanted(), exact=False))
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()))
    assert not sandbox.places.worktrees.exists()


# -- after the runtime has started


def test_nothing_happens_to_a_worktree_that_is_right(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    before = listing(sandbox.places.folder)

    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path
    assert listing(sandbox.places.folder) == before
    assert sum("update-ref" in call for call in sandbox.calls()) == 1  # when it was made


def test_a_branch_that_was_lost_is_put_back(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    sh("update-ref", "-d", f"refs/heads/{BRANCH}", folder=sandbox.mirror)

    refused(sandbox.ensure)
    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path
    assert sandbox.tip() == sandbox.head


def test_a_branch_that_was_moved_is_put_back(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    tip = sh("rev-parse", "refs/remotes/origin/main", folder=sandbox.mirror)
    sh("update-ref", f"refs/heads/{BRANCH}", tip, folder=sandbox.mirror)

    assert sandbox.checkouts.revalidate(child(), sandbox.wanted()) == path
    assert sandbox.tip() == sandbox.head


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_a_branch_is_not_put_back_under_changed_files(
    sandbox: Sandbox, lost: bool, staged: bool
) -> None:
    path = sandbox.ensure()
    (path / "README.md").write_text("other\n")
    if staged:
        sh("add", "README.md", folder=path)
        (path / "README.md").write_text("hello\n")
    if lost:
        sh("update-ref", "-d", f"refs/heads/{BRANCH}", folder=sandbox.mirror)

    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "differs")
    assert sh("for-each-ref", "refs/heads", folder=sandbox.mirror) == "" or not lost


def test_a_head_that_was_switched_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    sh("checkout", "-q", "-b", "agent/other", folder=path)
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "not on the branch")
    sh("checkout", "-q", "--detach", folder=path)
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "not on the branch")
    sh("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}", folder=path)
    sh("symbolic-ref", f"refs/heads/{BRANCH}", "refs/heads/agent/other", folder=path)
    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "not on the branch")


def test_an_untracked_file_after_the_start_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.ensure()
    (path / "new.py").write_text("x\n")

    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "new.py")


def test_a_branch_that_moves_while_it_is_put_back_is_not_overwritten(sandbox: Sandbox) -> None:
    """The old value is given: somebody else's commit of the last moment is not lost."""
    sandbox.ensure()
    tip = sh("rev-parse", "refs/remotes/origin/main", folder=sandbox.mirror)
    ref = f"refs/heads/{BRANCH}"
    sh("update-ref", "-d", ref, folder=sandbox.mirror)
    sandbox.wrap(
        f'case "$*" in *update-ref*) {GIT} -C {sandbox.mirror} update-ref {ref} {tip};; esac'
    )

    refused(lambda: sandbox.checkouts.revalidate(child(), sandbox.wanted()), "cannot be put back")
    assert sandbox.tip() == tip


# -- cut off, and at once


def test_what_was_cut_off_before_the_worktree_is_made_later(sandbox: Sandbox) -> None:
    sandbox.wrap('case "$*" in *"worktree add"*) exit 137;; esac')
    refused(sandbox.ensure, "cannot be made")
    assert sandbox.tip() == sandbox.head
    refused(lambda: sandbox.ensure("two"), BRANCH)

    sandbox.wrap()
    assert sandbox.ensure().is_dir()


def test_a_worktree_that_is_half_made_is_named_with_what_a_person_does(sandbox: Sandbox) -> None:
    path = sandbox.checkouts.worktree(child())
    half = f"{GIT} -C {sandbox.mirror} worktree add -q --lock --reason initializing"
    sandbox.wrap(
        f'case "$*" in *"worktree add"*) {half} --no-checkout {path} {BRANCH}; exit 9;; esac'
    )
    refused(sandbox.ensure, "cannot be made")

    sandbox.wrap()
    text = refused(sandbox.ensure, "being made, or its making was cut off")
    assert not (path / "README.md").exists()
    command = text.partition("a person runs git ")[2].partition(" in the mirror")[0]
    sh(*command.split(), folder=sandbox.mirror)
    assert sandbox.ensure() == path
    assert (path / "README.md").exists()


def test_a_worktree_that_was_only_registered_is_refused(sandbox: Sandbox) -> None:
    sandbox.ensure().rename(sandbox.folder / "gone")

    refused(sandbox.ensure, "cannot be made", "registered")


def test_a_git_that_hangs_is_ended_and_gone_on_with(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.wrap('case "$*" in *"worktree add"*) sleep 600 & wait;; esac')
    with monkeypatch.context() as patch:
        patch.setattr("agent_bus.openhands.gateway.checkout.ADD_SECONDS", 0.5)
        refused(sandbox.ensure, "was not done within")

    sandbox.wrap()
    assert sandbox.ensure().is_dir()


def test_twenty_children_of_one_mirror_at_once(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(lambda n: sandbox.ensure(f"c{n}", f"agent/c{n}"), range(20)))

    assert len(set(made)) == 20
    for number, path in enumerate(made):
        assert sh("branch", "--show-current", folder=path) == f"agent/c{number}"


def test_one_child_many_times_at_once(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: sandbox.ensure(), range(8)))

    assert made == {sandbox.checkouts.worktree(child())}
    assert sum("add" in call for call in sandbox.calls()) == 1


ENSURE = """
import sys
from pathlib import Path
from uuid import UUID
from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.mirror import Workspace
from agent_bus.openhands.gateway.mission import Checkout

workspace, locks, child, branch, head = sys.argv[1:]
checkouts = Checkouts(Workspace(Path(workspace)), Path(locks))
print("ready", flush=True)
sys.stdin.readline()
print(checkouts.ensure(UUID(child), Checkout("octo/hello", branch, head)), flush=True)
"""


def test_processes_share_a_child_and_a_mirror(
    sandbox: Sandbox, start: Callable[..., object]
) -> None:
    """Two for one child, and three more of other children, begun together."""
    names = ["one", "one", "two", "three", "four"]
    processes = [
        start(
            ENSURE,
            *(sandbox.places.folder, sandbox.folder / "locks", child(name), f"agent/{name}"),
            sandbox.head,
            PATH=os.environ["PATH"],
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process, name in zip(processes, names, strict=True):
        out, err = process.communicate(timeout=120)
        assert out.strip() == str(sandbox.checkouts.worktree(child(name))), err
    assert sum("add" in call for call in sandbox.calls()) == 4


def test_a_process_that_is_killed_leaves_what_can_be_gone_on_with(
    sandbox: Sandbox, start: Callable[..., object]
) -> None:
    """Its git goes on to the end; the next call finds the worktree whole."""
    gate = sandbox.folder / "gate"
    os.mkfifo(gate)
    sandbox.wrap(f'case "$*" in *"worktree add"*) echo > {gate}; cat {gate} > /dev/null;; esac')
    process = start(
        ENSURE,
        *(sandbox.places.folder, sandbox.folder / "locks", child(), BRANCH, sandbox.head),
        PATH=os.environ["PATH"],
    )
    process.stdin.write("\n")
    process.stdin.flush()
    gate.read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    gate.write_text("go on\n")

    sandbox.wrap()
    for _ in range(600):
        try:
            assert sandbox.ensure().is_dir()
            return
        except CheckoutRefused:
            continue
    pytest.fail("the worktree never was whole")


def test_who_waits_too_long_is_told_so_without_a_path(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_bus.openhands.gateway.checkout.ADD_SECONDS", 0.05)
    (sandbox.folder / "locks").mkdir(exist_ok=True)
    what = f"the worktree of child {child()}"
    with (
        mirror.lock(sandbox.folder / "locks", "worktree", what),
        pytest.raises(Busy, match=f"^{what} is being used by another process: try again$"),
    ):
        sandbox.ensure()


def test_a_lock_that_cannot_be_had_is_told_without_a_path(sandbox: Sandbox) -> None:
    what = f"the worktree of child {child()}"
    locks = sandbox.folder / "locks"
    locks.mkdir(exist_ok=True)
    with mirror.lock(locks, "worktree", what):
        (lock,) = locks.iterdir()
    lock.unlink(missing_ok=True)
    lock.mkdir()

    refused(sandbox.ensure, what, "cannot be locked")
