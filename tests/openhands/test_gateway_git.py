"""How the gateway runs git: what it may, in which environment, and how it ends."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from git_sandbox import sh

from agent_bus.errors import CheckoutRefused, ConfigurationError
from agent_bus.openhands.gateway import git
from agent_bus.openhands.gateway.settings import git_environment, git_hosts_of, load

WHAT = "the mirror of octo/hello"
READ = ("rev-parse", "--is-bare-repository")


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is found in git's place."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "git"


def put(wrapper: Path, script: str) -> None:
    wrapper.write_text(f"#!/bin/sh\n{script}\n")
    wrapper.chmod(0o755)


# -- what may be run


@pytest.mark.parametrize(
    "arguments",
    [
        ("fetch", "origin"),
        ("fetch", "--quiet", "--no-prune", "--refmap=", "origin"),
        ("clone", "https://github.com/o/r"),
        ("init", "--quiet", "--bare", "--template=", "x"),
        ("pull",),
        ("push", "origin"),
        ("reset", "--hard"),
        ("clean", "-fdx"),
        ("checkout", "-f"),
        ("gc",),
        ("prune",),
        ("remote", "remove", "origin"),
        ("remote", "prune", "origin"),
        ("branch", "-D", "x"),
        ("worktree", "remove", "x"),
        ("worktree", "prune"),
        ("worktree", "add", "x"),
        ("worktree", "add", "--quiet", "--force", "x", "y"),
        ("worktree", "add", "--quiet", "x", "-f"),
        ("update-ref", "-d", "refs/heads/x"),
        ("update-ref", "refs/heads/x", "HEAD"),
        ("symbolic-ref", "--quiet", "HEAD", "refs/heads/x"),
        ("symbolic-ref", "HEAD", "refs/heads/x"),
        ("config", "--replace-all", "--file", "x", "core.bare", "false"),
        ("config", "core.bare", "false"),
        ("submodule", "update"),
        ("-c", "x=y", "status"),
        ("daemon",),
        (),
    ],
)
def test_what_is_not_on_the_lists_is_not_run(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert not git.permitted(arguments)
    with pytest.raises(CheckoutRefused, match="nothing that is run on the mirror of octo/hello"):
        git.run(arguments, what=WHAT, folder=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("push", "origin"),
        ("fetch", "--prune"),
        ("fetch", "origin"),
        ("clone", "x"),
        ("pull",),
        ("reset",),
        ("remote", "add", "origin", "x"),
        ("gc",),
        ("worktree", "remove", "x"),
    ],
)
def test_the_person_gets_no_more_than_a_mirror(arguments: tuple[str, ...]) -> None:
    assert not git.permitted(arguments, network=True)


@pytest.mark.parametrize(
    ("given", "may"),
    [
        (b"create refs/heads/x 1\nupdate refs/agent-bus/y 1\n", True),
        (b"option no-deref\nupdate refs/heads/x 1 2\n", True),
        (b"delete refs/heads/x\n", False),
        (b"create refs/heads/x 1\ndelete refs/heads/y\n", False),
        (b"symref-update refs/heads/x refs/heads/y\n", False),
        (b"create refs/heads/x 1", False),
    ],
)
def test_refs_are_made_and_moved_and_never_deleted(given: bytes, may: bool) -> None:
    assert git.permitted(("update-ref", "--stdin"), given) is may


def test_only_the_mirrors_module_asks_for_the_network() -> None:
    package = Path(git.__file__).parents[2]
    users = {
        path.name
        for path in package.rglob("*.py")
        if re.search(r"\bnetwork=True", path.read_text()) and "git.run" in path.read_text()
    }

    assert users == {"mirror.py"}


# -- its environment


def test_git_gets_a_fixed_environment(
    wrapper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_CONFIG_COUNT", "GIT_TRACE", "OPENHANDS_API_KEY", "LANG", "TERM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("EVEX_MESSAGING_SECRET", "hush")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    put(wrapper, "env; echo; pwd; cat")
    said = git.run(READ, what=WHAT).output.decode()
    variables = dict(line.split("=", 1) for line in said.partition("\n\n")[0].splitlines())
    for name in ("PWD", "SHLVL", "_", "OLDPWD"):
        variables.pop(name, None)  # the shell's own

    assert variables == {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_COMMITTER_EMAIL": "agent-bus@localhost",
        "GIT_COMMITTER_NAME": "agent-bus",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",
    }
    assert said.endswith("\n/\n")  # at work nowhere, with nothing to read


def test_the_persons_git_keeps_what_reaches_a_private_repository() -> None:
    env = {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "SSH_AUTH_SOCK": "/agent",
        "https_proxy": "http://proxy",
        "GH_TOKEN": "t",
        "OPENHANDS_API_KEY": "secret",
        "EVEX_MESSAGING_SECRET": "secret",
        "AGENT_MSG_AS": "user",
        "GIT_DIR": "/elsewhere",
        "GIT_WORK_TREE": "/elsewhere",
    }
    given = git_environment(env, person=True)

    kept = ("PATH", "HOME", "SSH_AUTH_SOCK", "https_proxy", "GH_TOKEN")
    assert {name: given[name] for name in kept} == {name: env[name] for name in kept}
    assert "secret" not in given.values()
    assert not {"GIT_DIR", "GIT_WORK_TREE", "AGENT_MSG_AS", "GIT_CONFIG_NOSYSTEM"} & set(given)
    assert given["GIT_TERMINAL_PROMPT"] == "0"


def test_no_configuration_but_the_repositorys_own_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tbare = nonsense\n[broken\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    sh("init", "-q", "--bare", "x.git", folder=tmp_path)

    assert git.run(READ, what=WHAT, repository=tmp_path / "x.git").line == "true"


def test_a_transport_is_never_used(tmp_path: Path) -> None:
    """Not even where the person's verb is: only https and ssh are."""
    sh("init", "-q", "--bare", "x.git", folder=tmp_path)
    fetch = ("fetch", "--quiet", "--no-prune", "--refmap=")
    for url in (f"file://{tmp_path}/x.git", "ext::true", "git://127.0.0.1/x", "http://127.0.0.1/x"):
        answer = git.run(
            (*fetch, url), what=WHAT, repository=tmp_path / "x.git", network=True, seconds=30
        )
        assert answer.code != 0
        assert "not allowed" in answer.complaint


# -- its end


def test_a_git_that_does_not_end_is_ended_with_its_children(wrapper: Path, tmp_path: Path) -> None:
    put(
        wrapper,
        f"trap '' TERM\nsleep 600 &\nprintf '%s\\n' $! $$ > {tmp_path}/pids\nwait\nwait",
    )
    with pytest.raises(CheckoutRefused, match=f"^git rev-parse on {WHAT} was not done within 1 s"):
        git.run(READ, what=WHAT, seconds=1)

    for pid in (tmp_path / "pids").read_text().split():
        until = time.monotonic() + 30
        while lives(pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert not lives(pid)


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_endless_output_is_bounded(wrapper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "OUTPUT", 1000)
    put(wrapper, "head -c 1000 /dev/zero; head -c 9000000 /dev/zero >&2")
    assert len(git.run(READ, what=WHAT).output) == 1000

    put(wrapper, "head -c 9000000 /dev/zero")
    with pytest.raises(CheckoutRefused, match="said more than 1000 bytes"):
        git.run(READ, what=WHAT)


def test_without_a_thread_it_is_ended_and_said(
    wrapper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of this user's processes, as Python raises it."""
    put(wrapper, f"printf '%s\\n' $$ > {tmp_path}/pids\nexec sleep 600")

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(git._Reader, "start", start)
    with pytest.raises(CheckoutRefused, match=r"was ended \(can't start new thread\): try again"):
        git.run(READ, what=WHAT)
    pids = tmp_path / "pids"
    assert not pids.exists() or not lives(pids.read_text().strip() or "0")


def test_no_git_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckoutRefused, match="git is not on the PATH"):
        git.run(READ, what=WHAT)


def test_a_git_that_cannot_be_started_is_an_error(wrapper: Path) -> None:
    wrapper.write_text("#!/nonexistent/interpreter\n")
    wrapper.chmod(0o755)
    with pytest.raises(CheckoutRefused, match=f"git cannot be started on {WHAT}"):
        git.run(READ, what=WHAT)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("fatal: cannot open '/srv/x/y.git'", "cannot open '…'"),
        ("remote: welcome\nfatal: no\nway", "no way"),
        ("error: https://bot:pw@github.com/o/r failed", "https://github.com/o/r failed"),
        ("fatal: refs/heads/x is no /abs/path", "refs/heads/x is no …"),
        ("", "no reason given"),
        ("fatal: \x1b[31mred", r"'\x1b[31mred'"),
        ("fatal: " + "x" * 9999, "x" * 240),
    ],
)
def test_what_git_says_is_shown_without_paths_and_passwords(
    wrapper: Path, tmp_path: Path, said: str, shown: str
) -> None:
    (tmp_path / "said").write_text(said)
    put(wrapper, f"cat '{tmp_path}/said' >&2; exit 128")
    answer = git.run(READ, what=WHAT)

    assert (answer.code, answer.complaint) == (128, shown)


def test_what_is_given_reaches_git(tmp_path: Path) -> None:
    sh("init", "-q", "--bare", "x.git", folder=tmp_path)
    answer = git.run(
        ("update-ref", "--stdin"),
        what=WHAT,
        repository=tmp_path / "x.git",
        given=b"create refs/heads/x 1111111111111111111111111111111111111111\n",
    )
    assert answer.code != 0  # no such object


# -- which hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ("github.com",)),
        ("GitHub.com", ("github.com",)),
        ("github.com, git.example.com:8443", ("github.com", "git.example.com:8443")),
    ],
)
def test_the_hosts_are_those_of_the_variable(text: str, hosts: tuple[str, ...]) -> None:
    env = {"AGENT_BUS_OPENHANDS_GIT_HOSTS": text}
    assert git_hosts_of(env) == hosts
    named = env | {"OPENHANDS_URL": "http://127.0.0.1:8000", "OPENHANDS_API_KEY": "k"}
    assert load(named).git_hosts == hosts


@pytest.mark.parametrize("text", [",", "github.com,", "https://github.com", "a b", "x/y", "é.com"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="AGENT_BUS_OPENHANDS_GIT_HOSTS"):
        git_hosts_of({"AGENT_BUS_OPENHANDS_GIT_HOSTS": text})
