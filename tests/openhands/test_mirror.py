"""The person's verb: it makes and fetches mirrors, and never touches a child's branch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from git_sandbox import (
    BRANCH,
    REPOSITORY,
    Sandbox,
    child,
    make_person,
    make_sandbox,
    make_upstream,
    sh,
)

from agent_bus.errors import Busy, CheckoutRefused, InvalidMission, UsageError
from agent_bus.openhands.gateway import mirror as module
from agent_bus.openhands.gateway.checkout import Checkouts
from agent_bus.openhands.gateway.mirror import Workspace, mirror, mirrors, origin_of
from agent_bus.openhands.gateway.mission import Checkout


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace without mirrors, and a host with one repository."""
    make_upstream(tmp_path)
    make_person(tmp_path, monkeypatch)
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    made = make_sandbox(tmp_path, monkeypatch)
    yield made
    assert not made.canary.exists(), made.canary.read_text()


def refs(path: Path) -> dict[str, str]:
    lines = sh("for-each-ref", "--format=%(refname) %(objectname)", folder=path).splitlines()
    return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}


def advance(sandbox: Sandbox, *refspecs: str) -> str:
    """A new commit on the host's main, pushed as well wherever the refspecs say."""
    work = sandbox.folder / "work"
    sh("commit", "-q", "--allow-empty", "-m", "more", folder=work)
    sh("push", "-q", "--force", sandbox.upstream, "main", *refspecs, folder=work)
    return sh("rev-parse", "HEAD", folder=work)


def test_a_mirror_is_made_whole_and_private(places: Workspace) -> None:
    made = mirror(REPOSITORY, places)

    assert made.path == places.mirrors / "octo--hello.git"
    assert made.created
    assert made.refs == 2
    assert set(refs(made.path)) == {
        *("refs/remotes/origin/main", "refs/remotes/origin/feature", "refs/tags/v1")
    }
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert sh("config", "remote.origin.url", folder=made.path) == (
        "https://github.com/octo/hello.git"
    )
    assert sh("config", "--get-all", "remote.origin.fetch", folder=made.path) == module.REFSPEC
    assert sh("rev-parse", "--is-bare-repository", folder=made.path) == "true"
    assert not (made.path / "hooks").exists()
    assert sorted(entry.name for entry in places.mirrors.glob("[!.]*")) == ["octo--hello.git"]


def test_a_second_call_fetches(sandbox: Sandbox) -> None:
    new = advance(sandbox, "main:new")
    made = mirror(REPOSITORY, sandbox.places)

    assert not made.created
    assert made.refs == 3
    assert refs(sandbox.mirror)["refs/remotes/origin/main"] == new
    assert refs(sandbox.mirror)["refs/remotes/origin/new"] == new


def test_a_fetch_never_touches_the_branch_of_a_child(sandbox: Sandbox) -> None:
    """Not with the refspec of a `git clone --mirror` either, and with pruning configured."""
    path = sandbox.ensure()
    sandbox.ensure("two", "feature")
    before = {name: to for name, to in refs(sandbox.mirror).items() if "remotes" not in name}
    sandbox.configure("remote.origin.fetch", "+refs/*:refs/*")
    sandbox.configure("remote.origin.mirror", "true")
    sandbox.configure("remote.origin.prune", "true")
    sandbox.configure("fetch.prune", "true")
    advance(sandbox, "main:feature", f"main:{BRANCH}")

    mirror(REPOSITORY, sandbox.places)
    after = {name: to for name, to in refs(sandbox.mirror).items() if "remotes" not in name}
    assert after == before
    assert sandbox.ensure() == path


def test_a_branch_that_the_remote_no_longer_has_stays_known(sandbox: Sandbox) -> None:
    """A mission may name its commit."""
    sh("branch", "-q", "-D", "feature", folder=sandbox.upstream)

    assert mirror(REPOSITORY, sandbox.places).refs == 2


def test_a_remote_without_content_can_be_mirrored(places: Workspace, tmp_path: Path) -> None:
    sh("init", "-q", "--bare", str(tmp_path / "host/octo/empty.git"), folder=tmp_path)

    assert mirror("octo/empty", places).refs == 0


def test_a_remote_that_does_not_answer_leaves_no_mirror(places: Workspace) -> None:
    with pytest.raises(CheckoutRefused, match=r"^the mirror of octo/none cannot be fetched: "):
        mirror("octo/none", places)
    assert not (places.mirrors / "octo--none.git").exists()
    assert mirrors(places) == []


def test_an_interrupted_first_fetch_is_gone_on_with(places: Workspace, tmp_path: Path) -> None:
    """Nothing stands under the mirror's name before all is there."""
    hanging = tmp_path / "ssh"
    hanging.write_text("#!/bin/sh\nsleep 600\n")
    hanging.chmod(0o755)
    with (tmp_path / "home" / ".gitconfig").open("a") as file:
        file.write(f"[core]\n\tsshCommand = {hanging}\n")
    with pytest.raises(CheckoutRefused, match="was not done within 1 s"):
        mirror(REPOSITORY, places, protocol="ssh", seconds=1)
    assert mirrors(places) == []

    made = mirror(REPOSITORY, places)
    assert made.created
    assert sh("config", "--get-all", "remote.origin.url", folder=made.path).startswith("https:")
    assert [state.problem for state in mirrors(places)] == [None]


def test_what_stands_half_made_is_judged_before_it_is_used(
    places: Workspace, tmp_path: Path
) -> None:
    half = places.mirrors / ".making-octo--hello.git"
    half.mkdir(parents=True, mode=0o700)
    sh("init", "-q", "--bare", folder=half)
    sh("config", "core.sshCommand", str(tmp_path / "evil"), folder=half)

    with pytest.raises(CheckoutRefused, match=r"core\.sshcommand"):
        mirror(REPOSITORY, places)


@pytest.mark.parametrize("name", ["../x", "a/b/c", "a/", "a", "-x/y", "a/b.git", "a/..", ""])
def test_what_is_no_repository_makes_nothing(places: Workspace, name: str) -> None:
    with pytest.raises(InvalidMission):
        mirror(name, places)
    assert not places.mirrors.exists()


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/octo/other.git",
        "https://evil.example/octo/hello.git",
        "https://token@github.com/octo/hello.git",
        "file:///srv/octo/hello.git",
        "--upload-pack=evil",
        "ext::sh -c evil",
    ],
)
def test_an_address_of_something_else_makes_nothing(places: Workspace, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        mirror(REPOSITORY, places, url=url)
    assert "token" not in str(caught.value)
    assert "AGENT_BUS_OPENHANDS_GIT_HOSTS" in str(caught.value)
    assert not places.mirrors.exists()


def test_another_host_is_fetched_where_it_is_named(places: Workspace, tmp_path: Path) -> None:
    with (tmp_path / "home" / ".gitconfig").open("a") as file:
        file.write(f'[url "file://{tmp_path}/host/"]\n\tinsteadOf = ssh://git@git.example.com/\n')
    there = Workspace(places.folder, ("git.example.com",))

    assert mirror(REPOSITORY, there, protocol="ssh").created
    assert sh("config", "remote.origin.url", folder=there.mirrors / "octo--hello.git") == (
        "ssh://git@git.example.com/octo/hello.git"
    )
    with pytest.raises(CheckoutRefused, match="not one origin"):
        mirror(REPOSITORY, places)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.sshCommand", "/evil"),
        ("credential.helper", "!/evil"),
        ("remote.origin.uploadpack", "/evil"),
        ("url.ext::/evil .insteadOf", "https://github.com/"),
        ("http.proxy", "http://evil.example"),
        ("core.alternateRefsCommand", "/evil"),
        ("include.path", "/evil"),
    ],
)
def test_what_a_child_has_configured_does_not_meet_the_persons_credentials(
    sandbox: Sandbox, key: str, value: str
) -> None:
    sandbox.configure(key, value.replace("/evil", str(sandbox.program())))

    with pytest.raises(CheckoutRefused, match="configuration"):
        mirror(REPOSITORY, sandbox.places)
    assert not any("fetch" in call for call in sandbox.calls())


def test_no_hook_of_the_mirror_runs_in_a_fetch(sandbox: Sandbox) -> None:
    hooks = sandbox.mirror / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-fetch", "pre-auto-gc", "post-update"):
        (hooks / name).symlink_to(sandbox.program())
    advance(sandbox)

    assert not mirror(REPOSITORY, sandbox.places).created


def test_two_persons_at_once_wait_for_each_other(
    places: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(REPOSITORY, places)
    real = module.lock
    monkeypatch.setattr(module, "lock", lambda *words: real(*words, seconds=0.05))
    with (
        real(places.mirrors, "fetch", f"the mirror of {REPOSITORY}"),
        pytest.raises(Busy, match=f"^the mirror of {REPOSITORY} is being used"),
    ):
        mirror(REPOSITORY, places)


def test_a_password_in_the_persons_own_rewriting_is_not_shown(
    places: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "home" / ".gitconfig").write_text(
        '[url "https://bot:hunter2@127.0.0.1:9/"]\n\tinsteadOf = https://github.com/\n'
    )
    with pytest.raises(CheckoutRefused, match="cannot be fetched") as caught:
        mirror(REPOSITORY, places)
    assert "hunter2" not in str(caught.value)


def test_the_mirrors_are_listed_with_what_is_wrong(sandbox: Sandbox) -> None:
    folder = sandbox.places.mirrors
    sh("clone", "-q", "--bare", sandbox.mirror, folder / "octo--odd.git", folder=folder)
    sh("clone", "-q", "--bare", sandbox.mirror, folder / "octo--moved.git", folder=folder)
    sh(
        *("config", "remote.origin.url", "git@github.com:octo/hello"),
        folder=folder / "octo--moved.git",
    )
    (folder / "octo--link.git").symlink_to(sandbox.mirror)
    (folder / "notes.txt").write_text("mine\n")
    sandbox.configure("remote.origin.fetch", "+refs/*:refs/*")

    found = {
        state.name: (state.repository, state.problem or "") for state in mirrors(sandbox.places)
    }
    assert sorted(found) == [f"octo--{name}.git" for name in ("hello", "link", "moved", "odd")]
    assert found["octo--hello.git"][0] == "octo/hello"
    assert "would overwrite the branches of children" in found["octo--hello.git"][1]
    assert "symbolic link" in found["octo--link.git"][1]
    assert "has the origin octo/hello: rename it" in found["octo--moved.git"][1]
    assert "not one origin" in found["octo--odd.git"][1]


def test_a_good_mirror_has_no_problem(sandbox: Sandbox) -> None:
    assert mirrors(sandbox.places) == [module.MirrorState("octo--hello.git", "octo/hello", None)]


def test_a_workspace_without_mirrors_lists_none(tmp_path: Path) -> None:
    assert mirrors(Workspace(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        ("https://github.com/o/r", "o/r"),
        ("https://github.com/o/r.js.git", "o/r.js"),
        ("git@github.com:o/r.git", "o/r"),
        ("ssh://git@github.com/o/r", "o/r"),
        ("https://ghe.example:8443/o/r", "o/r"),
        ("https://github.com:8443/o/r", None),
        ("git@ghe.example:8443:o/r", None),
        ("https://github.com/o", None),
        ("https://github.com/o/r/x", None),
        ("https://github.com//r", None),
        ("git@github.com/o/r", None),
        ("github.com:o/r", None),
        (" https://github.com/o/r", None),
        ("https://github.com/o/r?x", None),
        ("", None),
    ],
)
def test_an_origin_has_one_of_three_forms(url: str, repository: str | None) -> None:
    assert origin_of(url, ("github.com", "ghe.example:8443")) == repository


def test_a_mirror_of_the_person_serves_children(places: Workspace, tmp_path: Path) -> None:
    """From nothing to a worktree, with the two calls that a person and a gateway make."""
    made = mirror(REPOSITORY, places)
    head = refs(made.path)["refs/remotes/origin/feature"]

    path = Checkouts(places, tmp_path / "locks").ensure(
        child(), Checkout(REPOSITORY, "fix/1", head)
    )
    assert (path / "README.md").is_file()
