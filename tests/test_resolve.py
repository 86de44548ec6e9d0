"""Which bus: every layout that git offers, and every way in which git cannot say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_bus import git
from agent_bus.errors import AgentBusError, ConfigurationError, NoBus
from agent_bus.files import Folder
from agent_bus.git import recorded, repository
from agent_bus.resolve import Address, address, mark, open_bus, read_bus_file
from agent_bus.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
BUS_ID = "01kbbbbbbbbbbbbbbbbbbbbbbb"
CONTENT: dict[str, Any] = {
    "format": 1,
    "bus": BUS_ID,
    "project": "/x/app",
    "admins": ["conductor", "user"],
    "created_at": "2026-11-30T12:00:00.000Z",
}


@pytest.fixture(autouse=True)
def _own_git_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def run_git(*arguments: str | Path, at: Path) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=at, check=True, capture_output=True, timeout=60
    )
    return os.fsdecode(done.stdout)


def make_repository(path: Path) -> Path:
    path.mkdir(parents=True)
    run_git("init", "-q", at=path)
    run_git("commit", "-q", "--allow-empty", "-m", "first", at=path)
    return path


def settings_at(tmp_path: Path, project: Path | None) -> Settings:
    return Settings(data=tmp_path / "data", keys=tmp_path / "keys", project=project)


def find(tmp_path: Path, project: Path | None) -> Address:
    return address(settings_at(tmp_path, project))


def one_bus(tmp_path: Path, *places: Path) -> Address:
    found = [find(tmp_path, place) for place in places]
    assert len(set(found)) == 1, found
    return found[0]


def refusal(tmp_path: Path, project: Path | None) -> str:
    with pytest.raises(NoBus) as caught:
        open_bus(settings_at(tmp_path, project))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()
    return str(caught.value)


def script(folder: Path, text: str) -> Path:
    """A `git` of one's own, in a folder for PATH."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "git").chmod(0o755)
    return folder


def make_bus(path: Path, **changes: Any) -> Path:
    for folder in (path, path / "messages"):
        folder.mkdir(mode=0o700, parents=True)
    (path / "bus.json").write_text(json.dumps(CONTENT | changes) + "\n")
    return path


def test_one_address_from_everywhere_in_a_repository(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    deep = app / "a" / "b" / "c"
    deep.mkdir(parents=True)
    run_git("worktree", "add", "-q", tmp_path / "beside", at=app)
    run_git("worktree", "add", "-q", app / "trees" / "within", at=app)
    (tmp_path / "beside" / "sub").mkdir()
    found = one_bus(
        tmp_path,
        app,
        deep,
        app / ".git",
        app / ".git" / "objects",
        tmp_path / "beside",
        tmp_path / "beside" / "sub",
        app / "trees" / "within",
        app / ".git" / "worktrees" / "beside",
    )
    assert found.project == app
    assert found.common == app / ".git"
    assert found.path.parent == tmp_path / "data" / "buses"
    assert found.path.name.startswith("app-")
    assert found.how == f"git common directory of {app}"


def test_the_working_directory_counts_where_no_project_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_repository(tmp_path / "app")
    (app / "sub").mkdir()
    monkeypatch.chdir(app / "sub")
    assert find(tmp_path, None) == find(tmp_path, app)


def test_a_project_given_beats_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = make_repository(tmp_path / "app"), make_repository(tmp_path / "other")
    monkeypatch.chdir(other)
    assert find(tmp_path, app).project == app
    assert find(tmp_path, Path("../app")).project == app


def test_a_hidden_bare_repository_with_worktrees_beside_it(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source")
    project = tmp_path / "project"
    project.mkdir()
    run_git("clone", "-q", "--bare", source, project / ".bare", at=tmp_path)
    (project / ".git").write_text("gitdir: ./.bare\n")
    for name in ("one", "two"):
        run_git("worktree", "add", "-q", project / name, at=project)
    found = one_bus(tmp_path, project, project / ".bare", project / "one", project / "two")
    assert found.path.name.startswith("project-")
    assert found.project == project / ".bare"


def test_a_bare_repository_with_worktrees_outside(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source")
    bare = tmp_path / "tool.git"
    run_git("clone", "-q", "--bare", source, bare, at=tmp_path)
    run_git("worktree", "add", "-q", tmp_path / "trees" / "one", at=bare)
    found = one_bus(tmp_path, bare, bare / "objects", tmp_path / "trees" / "one")
    assert found.path.name.startswith("tool-")
    assert found.path.parent == tmp_path / "data" / "buses"


def test_a_bare_clone_called_dot_git(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source")
    project = tmp_path / "project"
    project.mkdir()
    run_git("clone", "-q", "--bare", source, ".git", at=project)
    run_git("worktree", "add", "-q", project / "one", at=project)
    assert one_bus(tmp_path, project, project / ".git", project / "one").project == project


def test_a_submodule_has_its_own_bus_shared_with_its_worktrees(tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    above = make_repository(tmp_path / "above")
    run_git("submodule", "--quiet", "add", library, "lib", at=above)
    run_git("worktree", "add", "-q", tmp_path / "lib-tree", at=above / "lib")
    below = one_bus(tmp_path, above / "lib", tmp_path / "lib-tree", above / ".git/modules/lib")
    assert below.path.name.startswith("lib-")
    assert below.common == above / ".git" / "modules" / "lib"
    assert below.path not in (find(tmp_path, above).path, find(tmp_path, library).path)


def test_a_separate_git_directory(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source")
    clone = ("clone", "-q", "--separate-git-dir", tmp_path / "store", source, tmp_path / "work")
    run_git(*clone, at=tmp_path)
    run_git("worktree", "add", "-q", tmp_path / "tree", at=tmp_path / "work")
    found = one_bus(tmp_path, tmp_path / "work", tmp_path / "store", tmp_path / "tree")
    assert found.project == tmp_path / "store"


def test_links_lead_to_one_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_repository(tmp_path / "real" / "app")
    (app / "sub").mkdir()
    (tmp_path / "parent").symlink_to(tmp_path / "real")
    (tmp_path / "inner").symlink_to(app / "sub")
    found = one_bus(tmp_path, app, tmp_path / "parent" / "app", tmp_path / "inner")
    monkeypatch.chdir(tmp_path / "parent" / "app")
    monkeypatch.setenv("PWD", str(tmp_path / "parent" / "app"))
    assert find(tmp_path, None) == found


def test_a_linked_git_directory_is_the_one_it_leads_to(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / ".git").symlink_to(app / ".git")
    one_bus(tmp_path, app, tmp_path / "view")


@pytest.mark.parametrize(
    "names",
    [("GIT_DIR",), ("GIT_DIR", "GIT_WORK_TREE"), ("GIT_INDEX_FILE",), ("GIT_COMMON_DIR",)],
    ids="+".join,
)
def test_git_variables_do_not_lead_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    app, other = make_repository(tmp_path / "app"), make_repository(tmp_path / "other")
    plain = tmp_path / "plain"
    plain.mkdir()
    values = {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / ".git" / "index",
        "GIT_COMMON_DIR": other / ".git",
    }
    for name in names:
        monkeypatch.setenv(name, str(values[name]))
    assert find(tmp_path, app).project == app
    assert find(tmp_path, plain).common is None


def test_a_ceiling_in_the_environment_hides_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_repository(tmp_path / "app")
    (app / "sub").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(app))
    assert find(tmp_path, app / "sub").project == app


def test_from_a_pre_commit_hook_in_a_linked_worktree(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    run_git("worktree", "add", "-q", tmp_path / "tree", at=app)
    program = tmp_path / "ask.py"
    program.write_text(
        "import os, pathlib\n"
        "from agent_bus.resolve import address\n"
        "from agent_bus.settings import Settings\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "found = address(Settings(data=here / 'data', keys=here / 'keys'))\n"
        "(here / 'answer').write_text(f\"{found.path}\\n{os.environ['GIT_INDEX_FILE']}\")\n"
    )
    hook = app / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' '{program}'\n")
    hook.chmod(0o755)
    run_git("commit", "-q", "--allow-empty", "-m", "second", at=tmp_path / "tree")
    path, index = (tmp_path / "answer").read_text().split("\n")
    assert Path(path) == find(tmp_path, app).path
    assert index  # the hook did run under git's own variables


def test_without_a_repository_the_directory_itself_counts(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    found = find(tmp_path, plain)
    assert (found.project, found.common) == (plain, None)
    assert found.how == f"directory {plain} (no repository)"
    assert find(tmp_path, plain / "sub").path != found.path


def test_git_is_missing_though_a_repository_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_repository(tmp_path / "app")
    (app / "sub").mkdir()
    run_git("worktree", "add", "-q", tmp_path / "tree", at=app)
    run_git("clone", "-q", "--bare", app, tmp_path / "tool.git", at=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "home"))
    for place in (app, app / "sub", app / ".git", tmp_path / "tree", tmp_path / "tool.git"):
        assert "git is not on the PATH" in refusal(tmp_path, place)


def test_git_is_missing_and_no_repository_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    before = find(tmp_path, plain)
    monkeypatch.setenv("PATH", str(tmp_path / "home"))
    assert find(tmp_path, plain) == before


@pytest.mark.skipif(not AS_ROOT, reason="only root can give a repository to another user")
def test_a_foreign_repository_is_refused_in_the_words_of_git(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    for path in (app, app / ".git"):
        os.chown(path, 65534, 65534)
    text = refusal(tmp_path, app)
    assert "git refuses" in text
    assert "dubious ownership" in text
    assert "safe.directory" in text


@pytest.mark.parametrize("content", ["gitdir: /nowhere/at/all\n", "no pointer\n"])
def test_a_broken_pointer_is_told_apart(tmp_path: Path, content: str) -> None:
    tree = make_repository(tmp_path / "above") / "tree"
    tree.mkdir()
    (tree / ".git").write_text(content)
    assert "points to a repository that is not there" in refusal(tmp_path, tree)


def test_the_worktree_of_a_repository_that_moved(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    run_git("worktree", "add", "-q", tmp_path / "tree", at=app)
    app.rename(tmp_path / "moved")
    assert "git worktree repair" in refusal(tmp_path, tmp_path / "tree")
    run_git("worktree", "repair", tmp_path / "tree", at=tmp_path / "moved")
    one_bus(tmp_path, tmp_path / "moved", tmp_path / "tree")


def test_a_damaged_repository_is_not_taken_for_none(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    (app / ".git" / "HEAD").unlink()
    assert "damaged" in refusal(tmp_path, app)


def test_a_dangling_link_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / ".git").symlink_to(tmp_path / "gone")
    assert "damaged" in refusal(tmp_path, tmp_path / "app")


def test_an_empty_git_folder_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "app" / ".git").mkdir(parents=True)
    assert find(tmp_path, tmp_path / "app").common is None


def test_other_refusals_carry_the_words_of_git(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    (app / ".git" / "config").write_text("[core\n")
    assert "bad config line" in refusal(tmp_path, app)


def test_a_deleted_working_directory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working directory cannot be used" in refusal(tmp_path, None)
    gone.mkdir()
    assert "the working directory cannot be used" in refusal(tmp_path, None)


def test_a_project_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "missing", tmp_path / "file"):
        assert str(place) in refusal(tmp_path, place)


def test_a_git_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_repository(tmp_path / "app")
    pid_file = tmp_path / "pid"
    hanging = script(tmp_path / "bin", f"sleep 600 &\necho $! >'{pid_file}'\nwait")
    monkeypatch.setenv("PATH", str(hanging), prepend=os.pathsep)
    monkeypatch.setattr(git, "_SECONDS", 1.0)
    assert "did not answer" in refusal(tmp_path, app)
    pid, deadline = int(pid_file.read_text()), time.monotonic() + 60
    while _lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        # The state follows the name in parentheses; an ended child waits for init as Z.
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "answer", ["true", "echo", "echo .git", "echo /nowhere/at/all", "echo /etc/passwd"]
)
def test_an_answer_that_is_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    app = make_repository(tmp_path / "app")
    monkeypatch.setenv("PATH", str(script(tmp_path / "bin", answer)), prepend=os.pathsep)
    assert "which is no folder" in refusal(tmp_path, app)


def test_an_old_git_answers_relative_to_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_repository(tmp_path / "app")
    (app / "sub").mkdir()
    before = find(tmp_path, app)
    old = script(tmp_path / "bin", 'echo "$2"\necho ../.git')
    monkeypatch.setenv("PATH", str(old), prepend=os.pathsep)
    assert find(tmp_path, app / "sub") == before


def test_a_git_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_repository(tmp_path / "app")
    broken = script(tmp_path / "bin", "")
    (broken / "git").write_text("#!/nowhere/sh\n")
    monkeypatch.setenv("PATH", str(broken))
    assert "git cannot be started" in refusal(tmp_path, app)


def test_a_git_in_the_project_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative entry of PATH means the caller's directory, not the one that is asked about."""
    app = make_repository(tmp_path / "app")
    script(app / "bin", f"touch '{tmp_path}/run'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin", prepend=os.pathsep)
    assert find(tmp_path, app).project == app
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name",
    [
        b"line\nbreak\n",
        b"caf\xe9",
        "проект ✓".encode(),
        b"-dash",
        b"..twice",
        b"a'b\"c d",
        b"x" * 255,
    ],
    ids=ascii,
)
def test_odd_names(tmp_path: Path, name: bytes) -> None:
    app = make_repository(tmp_path / os.fsdecode(name))
    (app / "sub").mkdir()
    found = one_bus(tmp_path, app, app / "sub")
    assert found.project == app
    assert found.path.name.isascii()
    assert len(found.path.name) <= 61
    recorded(app).encode()
    assert str(found.path) in refusal(tmp_path, app)


def test_a_path_of_three_hundred_characters(tmp_path: Path) -> None:
    app = make_repository(tmp_path.joinpath(*["n" * 60] * 5))
    assert find(tmp_path, app / ".git").project == app


def test_names_that_look_alike_share_no_bus(tmp_path: Path) -> None:
    names = ["x/app", "y/app", "my.app", "my-app", "my app", "my_app", "App", "app.git", "app-"]
    found = [find(tmp_path, make_repository(tmp_path / name)) for name in names]
    assert len({place.path for place in found}) == len(names)


def test_a_relative_data_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="XDG_DATA_HOME"):
        address(Settings(data=Path("data"), keys=tmp_path / "keys", project=tmp_path))


def test_repository_of_a_folder_and_of_none(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    assert repository(app) == git.Repository(app / ".git", app)
    assert repository(tmp_path) is None


def test_no_bus_at_the_address(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    text = refusal(tmp_path, app)
    where = find(tmp_path, app)
    assert str(where.path) in text
    assert where.how in text
    assert "agent-bus init" in text


def test_a_folder_without_messages_is_no_bus(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    (bus / "messages").rmdir()
    settings = Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=bus)
    with pytest.raises(NoBus, match="AGENT_MSG_BUS"):
        open_bus(settings)


def test_a_file_at_the_address_is_no_bus(tmp_path: Path) -> None:
    (tmp_path / "bus").touch()
    settings = Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=tmp_path / "bus")
    with pytest.raises(NoBus, match="Not a directory"):
        open_bus(settings)


def test_a_bus_named_outright_asks_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where git is missing, not in another's repository, not in a folder that is gone."""
    bus, gone = make_bus(tmp_path / "bus"), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.setenv("PATH", str(script(tmp_path / "bin", f"touch '{tmp_path}/run'")))
    for place in (make_folder(tmp_path / "app" / ".git").parent, None):
        monkeypatch.chdir(gone)
        if place is None:
            gone.rmdir()
        settings = Settings(
            data=tmp_path / "data",
            keys=tmp_path / "keys",
            bus=bus,
            project=place,
            bus_variable="ASTRA_AGENT_BUS",
        )
        root, file, where = open_bus(settings)
        with root:
            assert root.path == bus
        assert file.bus == BUS_ID
        assert (where.path, where.how, where.common) == (bus, "ASTRA_AGENT_BUS", None)
    assert not (tmp_path / "run").exists()


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_bus_file_is_read_as_written(tmp_path: Path) -> None:
    with Folder.open(make_bus(tmp_path / "bus")) as root:
        file = read_bus_file(root)
    assert (file.format, file.bus, file.project) == (1, BUS_ID, "/x/app")
    assert file.admins == ("conductor", "user")
    assert file.created_at == CONTENT["created_at"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf" + json.dumps(CONTENT).encode(),
        json.dumps(CONTENT)[:-1].encode(),
        json.dumps(CONTENT).replace('"project"', '"bus": 1, "project"').encode(),
        *(json.dumps(CONTENT | {"format": value}).encode() for value in (2, "1", 1.0, True, None)),
        *(
            json.dumps({key: value for key, value in CONTENT.items() if key != name}).encode()
            for name in CONTENT
        ),
        json.dumps(CONTENT | {"more": 1}).encode(),
        json.dumps(CONTENT | {"bus": BUS_ID.upper()}).encode(),
        json.dumps(CONTENT | {"bus": 1}).encode(),
        json.dumps(CONTENT | {"project": None}).encode(),
        json.dumps(CONTENT | {"project": "\udcff"}).encode(),
        json.dumps(CONTENT | {"admins": "conductor"}).encode(),
        json.dumps(CONTENT | {"admins": ["Conductor"]}).encode(),
        json.dumps(CONTENT | {"admins": [{}]}).encode(),
        json.dumps(CONTENT | {"created_at": "2026-02-30T12:00:00.000Z"}).encode(),
        b"[" * 50_000,
        b" " * 70_000,
    ],
    ids=lambda content: ascii(content[:60]),
)
def test_bus_file_of_another_form_is_refused(tmp_path: Path, content: bytes) -> None:
    bus = make_bus(tmp_path / "bus")
    (bus / "bus.json").write_bytes(content)
    with Folder.open(bus) as root, pytest.raises(ConfigurationError) as caught:
        read_bus_file(root)
    assert str(bus / "bus.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_format_says_so(tmp_path: Path) -> None:
    with (
        Folder.open(make_bus(tmp_path / "bus", format=2)) as root,
        pytest.raises(ConfigurationError, match="format '2', this program knows 1"),
    ):
        read_bus_file(root)


def test_a_bus_without_its_file_or_with_a_link_in_its_place(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    (bus / "bus.json").rename(tmp_path / "elsewhere")
    settings = Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=bus)
    with pytest.raises(ConfigurationError, match="No such file"):
        open_bus(settings)
    (bus / "bus.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is a link"):
        open_bus(settings)


def test_the_mark_of_a_repository(tmp_path: Path) -> None:
    common = make_repository(tmp_path / "app") / ".git"
    assert mark(common) is None
    (common / "agent-bus").write_text(BUS_ID + "\n")
    assert mark(common) == BUS_ID
    common.chmod(0o775)  # as under umask 002, which git leaves to the user
    assert mark(common) == BUS_ID


@pytest.mark.parametrize("content", ["", "\n", BUS_ID[:-1], f"{BUS_ID}\n\n", "x" * 999, "é"])
def test_a_mark_that_is_no_id_is_not_taken_for_none(tmp_path: Path, content: str) -> None:
    common = make_repository(tmp_path / "app") / ".git"
    (common / "agent-bus").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        mark(common)
    assert str(common / "agent-bus") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mark_that_is_a_folder_or_a_link(tmp_path: Path) -> None:
    common = make_repository(tmp_path / "app") / ".git"
    (common / "agent-bus").mkdir()
    with pytest.raises(AgentBusError):
        mark(common)
    (common / "agent-bus").rmdir()
    (common / "agent-bus").symlink_to(tmp_path / "nothing")
    with pytest.raises(AgentBusError):
        mark(common)
