"""A new bus: made once, by however many; completed after a crash; taken over; begun anew."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bus.clock import SystemClock
from agent_bus.create import FOLDERS, Created, create
from agent_bus.errors import (
    AgentBusError,
    CannotCreate,
    ConfigurationError,
    NoBus,
    UnsafePermissions,
    UsageError,
)
from agent_bus.names import AgentName, is_message_id
from agent_bus.resolve import BusFile, address, mark, open_bus
from agent_bus.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
PROGRAM = """
import json, sys
from pathlib import Path
from agent_bus.clock import SystemClock
from agent_bus.create import create
from agent_bus.errors import AgentBusError
from agent_bus.resolve import open_bus
from agent_bus.settings import Settings
data, project, new = sys.argv[1:]
settings = Settings(data=Path(data), keys=Path(data) / "keys", project=Path(project))
sys.stdin.readline()
try:
    made = create(settings, SystemClock(), new=new == "new")
    root, file, where = open_bus(settings)
    print(json.dumps([file.bus, made.created, list(made.warnings)]))
except AgentBusError as error:
    print(json.dumps([error.code, str(error)]))
"""


@pytest.fixture(autouse=True)
def _own_git_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def run_git(*arguments: str | Path, at: Path) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(
        ["git", *identity, *arguments], cwd=at, check=True, capture_output=True, timeout=60
    )


def make_repository(path: Path) -> Path:
    path.mkdir(parents=True)
    run_git("init", "-q", at=path)
    run_git("commit", "-q", "--allow-empty", "-m", "first", at=path)
    return path


def settings_at(tmp_path: Path, project: Path) -> Settings:
    return Settings(data=tmp_path / "data", keys=tmp_path / "keys", project=project)


def named(tmp_path: Path, bus: Path, project: Path | None = None) -> Settings:
    return Settings(data=tmp_path / "data", keys=tmp_path / "keys", bus=bus, project=project)


def make(tmp_path: Path, project: Path, *, adopt: Path | None = None, new: bool = False) -> Created:
    return create(settings_at(tmp_path, project), SystemClock(), adopt=adopt, new=new)


def opened(settings: Settings) -> BusFile:
    root, file, _ = open_bus(settings)
    root.close()
    return file


def refused(tmp_path: Path, project: Path, *, adopt: Path | None = None, new: bool = False) -> str:
    """The text of a refusal that leaves the disk as it was."""
    before = snapshot(tmp_path)
    with pytest.raises(NoBus) as caught:
        make(tmp_path, project, adopt=adopt, new=new)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before
    return str(caught.value)


def open_refused(tmp_path: Path, project: Path) -> str:
    with pytest.raises(NoBus) as caught:
        open_bus(settings_at(tmp_path, project))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def leave_message(made: Created) -> Path:
    box = made.address.path / "messages" / "conductor"
    box.mkdir(mode=0o700)
    (box / "kept").touch()
    return Path("messages", "conductor", "kept")


def program(
    tmp_path: Path, project: Path, *, before: tuple[str, ...] = (), new: bool = False
) -> list[str]:
    words = [str(tmp_path / "data"), str(project), "new" if new else "plain"]
    return [*before, sys.executable, "-c", PROGRAM, *words]


def start(command: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def answer(process: subprocess.Popen[str]) -> list[object]:
    output, _ = process.communicate("\n", timeout=120)
    found = json.loads(output)
    assert isinstance(found, list)
    return found


def under_mode_bits() -> tuple[str, ...]:
    """A command prefix under which mode bits count, also for root."""
    if not AS_ROOT:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root ignores mode bits, and setpriv is not there to change that")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")


def test_what_is_made(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    old = os.umask(0)
    try:
        made = make(tmp_path, app)
    finally:
        os.umask(old)
    assert made.created
    assert made.warnings == ()
    bus = made.address.path
    assert {path.name for path in bus.iterdir()} == {"bus.json", *FOLDERS}
    for folder in (tmp_path / "data", bus.parent, bus, *(bus / name for name in FOLDERS)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (bus / "bus.json", app / ".git" / "agent-bus"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = json.loads((bus / "bus.json").read_bytes())
    assert list(written) == ["format", "bus", "project", "admins", "created_at"]
    assert (written["format"], written["project"]) == (1, str(app))
    assert written["admins"] == ["conductor", "user"]
    assert is_message_id(written["bus"])
    assert (app / ".git" / "agent-bus").read_text() == written["bus"] + "\n"
    assert opened(settings_at(tmp_path, app)) == made.file
    run_git("fsck", "--strict", at=app)


def test_a_second_call_changes_nothing(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    run_git("worktree", "add", "-q", tmp_path / "tree", at=app)
    first, before = make(tmp_path, app), snapshot(tmp_path)
    for place in (app, tmp_path / "tree", app / ".git"):
        again = make(tmp_path, place)
        assert again == replace(first, created=False)
    assert make(tmp_path, app, new=True) == replace(first, created=False)
    assert snapshot(tmp_path) == before


def test_a_directory_without_a_repository(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    made = make(tmp_path, plain)
    assert made.file.project == str(plain)
    assert opened(settings_at(tmp_path, plain)) == made.file
    assert list(plain.iterdir()) == []


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9\n")
    odd.mkdir()
    made = make(tmp_path, odd)
    assert opened(settings_at(tmp_path, odd)) == made.file
    assert made.file.project == f"{tmp_path}/caf\\xe9\n"


def test_admins_come_from_the_settings(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tmp_path)
    admins = (AgentName("lead"), AgentName("user"))
    assert create(replace(settings, admins=admins), SystemClock()).file.admins == admins
    assert create(settings, SystemClock()).file.admins == admins


def test_a_bus_that_nobody_could_administer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="AGENT_BUS_ADMIN_NAMES"):
        create(replace(settings_at(tmp_path, tmp_path), admins=()), SystemClock())
    assert not (tmp_path / "data").exists()


def test_many_at_once_make_one_bus(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    places = [app]
    for number in range(3):
        places.append(tmp_path / f"tree{number}")
        run_git("worktree", "add", "-q", places[-1], at=app)
    racers = [start(program(tmp_path, places[number % 4])) for number in range(20)]
    check_race(tmp_path, racers, app)


def test_many_at_once_begin_anew_with_one_bus(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    first = make(tmp_path, app)
    app.rename(tmp_path / "moved")
    racers = [start(program(tmp_path, tmp_path / "moved", new=True)) for _ in range(8)]
    assert check_race(tmp_path, racers, tmp_path / "moved") != first.file.bus


def check_race(tmp_path: Path, racers: list[subprocess.Popen[str]], app: Path) -> object:
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    found = [answer(racer) for racer in racers]
    assert {len(line) for line in found} == {3}, found
    assert len({line[0] for line in found}) == 1
    assert [line[1] for line in found].count(True) == 1
    where = address(settings_at(tmp_path, app))
    assert {path.name for path in where.path.iterdir()} == {"bus.json", *FOLDERS}
    left = [path for path in tmp_path.rglob(".*") if "bus" in path.name]
    assert left == []
    assert mark(app / ".git") == found[0][0]
    return found[0][0]


@pytest.mark.parametrize("last", range(6))
def test_a_crash_between_two_steps_is_completed(tmp_path: Path, last: int) -> None:
    """The states that the order of the steps allows, one after the other."""
    app = make_repository(tmp_path / "app")
    made = make(tmp_path, app)
    bus = made.address.path
    steps = [bus / "bus.json", app / ".git" / "agent-bus", *(bus / name for name in FOLDERS)]
    for path in steps[last:]:
        path.rmdir() if path.is_dir() else path.unlink()
    (bus / f".bus.json.{made.file.bus}").write_bytes(b'{"format"')
    (app / ".git" / f".agent-bus.{made.file.bus}").touch()
    if last < len(steps) - 1:
        assert "agent-bus init" in open_refused(tmp_path, app)
    again = make(tmp_path, app)
    assert again.created is (last == 0)
    assert again.file == made.file or last == 0
    assert opened(settings_at(tmp_path, app)) == again.file
    assert mark(app / ".git") == again.file.bus


def test_folders_that_a_backup_left_out_come_back(tmp_path: Path) -> None:
    made = make(tmp_path, tmp_path)
    (made.address.path / "sent").rmdir()
    make(tmp_path, tmp_path)
    assert (made.address.path / "sent").is_dir()


def test_messages_without_bus_file_are_left_alone(tmp_path: Path) -> None:
    made = make(tmp_path, tmp_path)
    (made.address.path / "bus.json").unlink()
    with pytest.raises(ConfigurationError, match="restore it from a backup"):
        make(tmp_path, tmp_path)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    trace = ("strace", "-qq", "-o", "/dev/null", "-e", "inject=linkat:error=EPERM")
    try:
        subprocess.run([*trace, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("strace cannot put a fault into a system call here")
    code, text = answer(start(program(tmp_path, app, before=trace)))
    assert code == "cannot-create"
    assert "no hard links" in str(text)
    assert not (tmp_path / "data").exists()
    assert mark(app / ".git") is None


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    app, data = make_repository(tmp_path / "app"), tmp_path / "data"
    data.mkdir(mode=0o500)
    code, text = answer(start(program(tmp_path, app, before=under_mode_bits())))
    data.chmod(0o700)
    assert code == "cannot-create"
    assert str(data) in str(text)
    assert list(data.iterdir()) == []


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path, tmp_path)
    made.address.path.chmod(0o770)
    with pytest.raises(UnsafePermissions, match="chmod 700"):
        make(tmp_path, tmp_path)


def test_a_group_writable_git_directory_is_fine(tmp_path: Path) -> None:
    """Under umask 002, the default of some systems, git makes it so."""
    app = make_repository(tmp_path / "app")
    (app / ".git").chmod(0o775)
    assert make(tmp_path, app).warnings == ()
    assert mark(app / ".git") is not None


def test_an_unwritable_git_directory_leaves_a_bus_with_a_warning(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    command = program(tmp_path, app, before=under_mode_bits())
    (app / ".git").chmod(0o500)
    try:
        bus, created, warnings = answer(start(command))
        assert created is True
        assert "cannot be written" in str(warnings)
        assert answer(start(command))[:2] == [bus, False]
    finally:
        (app / ".git").chmod(0o700)
    assert mark(app / ".git") is None
    # Where the mark could be written it must be there, and the warning says how.
    where = address(settings_at(tmp_path, app)).path
    assert str(where) in open_refused(tmp_path, app)
    assert make(tmp_path, app, adopt=where).file.bus == bus
    assert opened(settings_at(tmp_path, app)).bus == bus


def test_a_mark_that_cannot_be_replaced_refuses_to_begin_anew(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    make(tmp_path, app)
    app.rename(tmp_path / "moved")
    (tmp_path / "moved" / ".git").chmod(0o500)
    command = program(tmp_path, tmp_path / "moved", before=under_mode_bits(), new=True)
    before = snapshot(tmp_path / "data")
    try:
        assert answer(start(command))[0] == "cannot-create"
    finally:
        (tmp_path / "moved" / ".git").chmod(0o700)
    assert snapshot(tmp_path / "data") == before


def test_a_bus_named_outright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_repository(tmp_path / "app")
    monkeypatch.setenv("PATH", str(tmp_path / "home"))
    settings = named(tmp_path, tmp_path / "bus", app)
    made = create(settings, SystemClock())
    assert made.created
    assert made.address.path == tmp_path / "bus"
    assert made.file.project == str(app)
    assert opened(settings) == made.file
    assert mark(app / ".git") is None
    assert not create(settings, SystemClock()).created
    assert opened(named(tmp_path, tmp_path / "bus", tmp_path)) == made.file


def test_a_bus_named_outright_may_be_an_empty_folder_or_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "bus").symlink_to(tmp_path / "disk")
    create(named(tmp_path, tmp_path / "bus"), SystemClock())
    assert (tmp_path / "disk" / "messages").is_dir()


def test_a_bus_named_outright_needs_its_parent(tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="does not exist"):
        create(named(tmp_path, tmp_path / "missing" / "bus"), SystemClock())
    assert not (tmp_path / "missing").exists()


def test_a_folder_with_something_else_in_it_is_no_place_for_a_bus(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir(mode=0o700)
    (tmp_path / "full" / "letters.txt").touch()
    before = snapshot(tmp_path)
    with pytest.raises(CannotCreate, match="letters"):
        create(named(tmp_path, tmp_path / "full"), SystemClock())
    assert snapshot(tmp_path) == before


def test_requests_that_contradict_themselves(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make(tmp_path, tmp_path, adopt=tmp_path, new=True)
    for adopt, new in ((tmp_path, False), (None, True)):
        with pytest.raises(UsageError, match="AGENT_MSG_BUS"):
            create(named(tmp_path, tmp_path / "bus"), SystemClock(), adopt=adopt, new=new)


@pytest.mark.parametrize("by", ["bus", "project", "git directory", "relative path"])
def test_a_moved_repository_takes_its_bus_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    app, moved = make_repository(tmp_path / "app"), tmp_path / "moved"
    made = make(tmp_path, app)
    kept = leave_message(made)
    app.rename(moved)
    for text in (open_refused(tmp_path, moved), refused(tmp_path, moved)):
        assert f"init --adopt {made.address.path}" in text
        assert "init --new" in text
    monkeypatch.chdir(tmp_path)
    ways = {
        "bus": made.address.path,
        "project": app,
        "git directory": app / ".git",
        "relative path": Path("app"),
    }
    taken = make(tmp_path, moved, adopt=ways[by])
    assert not taken.created
    assert taken.file == replace(made.file, project=str(moved))
    assert taken.address == address(settings_at(tmp_path, moved))
    assert (taken.address.path / kept).is_file()
    assert not made.address.path.exists()
    assert opened(settings_at(tmp_path, moved)) == taken.file
    assert mark(moved / ".git") == made.file.bus


def test_a_link_left_at_the_old_place_changes_nothing(tmp_path: Path) -> None:
    app, moved = make_repository(tmp_path / "app"), tmp_path / "moved"
    made = make(tmp_path, app)
    app.rename(moved)
    app.symlink_to(moved)
    assert make(tmp_path, moved, adopt=app).file.bus == made.file.bus
    assert opened(settings_at(tmp_path, app)).bus == made.file.bus


def test_a_moved_bare_repository(tmp_path: Path) -> None:
    source, bare = make_repository(tmp_path / "source"), tmp_path / "tool.git"
    run_git("clone", "-q", "--bare", source, bare, at=tmp_path)
    made = make(tmp_path, bare)
    bare.rename(tmp_path / "other.git")
    taken = make(tmp_path, tmp_path / "other.git", adopt=bare)
    assert taken.file.bus == made.file.bus
    assert taken.address.path.name.startswith("other-")


def test_a_moved_directory_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    made = make(tmp_path, tmp_path / "plain")
    (tmp_path / "plain").rename(tmp_path / "moved")
    assert "agent-bus init" in open_refused(tmp_path, tmp_path / "moved")
    taken = make(tmp_path, tmp_path / "moved", adopt=tmp_path / "plain")
    assert taken.file.bus == made.file.bus


def test_a_moved_repository_may_begin_anew(tmp_path: Path) -> None:
    app, moved = make_repository(tmp_path / "app"), tmp_path / "moved"
    made = make(tmp_path, app)
    app.rename(moved)
    fresh = make(tmp_path, moved, new=True)
    assert fresh.created
    assert fresh.file.bus != made.file.bus
    assert mark(moved / ".git") == fresh.file.bus
    assert opened(settings_at(tmp_path, moved)) == fresh.file
    assert (made.address.path / "messages").is_dir()


@pytest.mark.parametrize("last", ["mark", "project"])
def test_a_crash_while_adopting_is_completed_by_the_same_command(tmp_path: Path, last: str) -> None:
    (tmp_path / "app").mkdir()
    made, moved = make(tmp_path, tmp_path / "app"), tmp_path / "moved"
    (tmp_path / "app").rename(moved)
    run_git("init", "-q", at=moved)
    (moved / ".git" / "agent-bus").write_text(made.file.bus + "\n")
    if last == "project":
        content = json.loads((made.address.path / "bus.json").read_bytes())
        (made.address.path / "bus.json").write_text(json.dumps(content | {"project": str(moved)}))
    taken = make(tmp_path, moved, adopt=tmp_path / "app")
    assert opened(settings_at(tmp_path, moved)) == taken.file
    assert taken.file.bus == made.file.bus


def test_a_copy_cannot_take_the_bus_of_its_original(tmp_path: Path) -> None:
    app, copy = make_repository(tmp_path / "app"), tmp_path / "copy"
    made = make(tmp_path, app)
    shutil.copytree(app, copy)
    assert made.file.bus in open_refused(tmp_path, copy)
    assert made.file.bus in refused(tmp_path, copy)
    assert "still the bus of the repository" in refused(tmp_path, copy, adopt=app)
    fresh = make(tmp_path, copy, new=True)
    assert fresh.file.bus != made.file.bus
    assert opened(settings_at(tmp_path, copy)) == fresh.file
    assert opened(settings_at(tmp_path, app)) == made.file


def test_a_clone_is_another_repository(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    made = make(tmp_path, app)
    run_git("clone", "-q", app, tmp_path / "clone", at=tmp_path)
    assert "agent-bus init to make one here" in open_refused(tmp_path, tmp_path / "clone")
    assert make(tmp_path, tmp_path / "clone").file.bus != made.file.bus


def test_a_new_repository_at_an_old_path_inherits_nothing(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    made = make(tmp_path, app)
    shutil.rmtree(app)
    make_repository(app)
    texts = (
        open_refused(tmp_path, app),
        refused(tmp_path, app),
        refused(tmp_path, app, new=True),
    )
    for text in texts:
        assert f"agent-bus init --adopt {made.address.path}" in text
    taken = make(tmp_path, app, adopt=made.address.path)
    assert taken.file == made.file
    assert opened(settings_at(tmp_path, app)) == made.file


def test_a_new_repository_at_an_old_path_may_have_a_new_bus(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    made = make(tmp_path, app)
    shutil.rmtree(app)
    make_repository(app)
    made.address.path.rename(tmp_path / "away")
    assert make(tmp_path, app).file.bus != made.file.bus


def test_a_repository_that_comes_after_the_bus_says_that_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    made = make(tmp_path, tmp_path / "app")
    run_git("init", "-q", at=tmp_path / "app")
    assert "does not name bus" in open_refused(tmp_path, tmp_path / "app")
    assert make(tmp_path, tmp_path / "app", adopt=tmp_path / "app").file == made.file
    assert opened(settings_at(tmp_path, tmp_path / "app")) == made.file


def test_another_repository_moved_to_the_same_path(tmp_path: Path) -> None:
    first, second = make_repository(tmp_path / "app"), make_repository(tmp_path / "other")
    one, two = make(tmp_path, first), make(tmp_path, second)
    first.rename(tmp_path / "gone")
    second.rename(first)
    for text in (open_refused(tmp_path, first), refused(tmp_path, first)):
        assert one.file.bus in text
        assert f"init --adopt {two.address.path}" in text
    assert "something stands at" in refused(tmp_path, first, adopt=two.address.path)
    assert "adopt that one" in refused(tmp_path, first, adopt=one.address.path)
    one.address.path.rename(tmp_path / "away")
    assert make(tmp_path, first, adopt=two.address.path).file.bus == two.file.bus
    # The first one's bus comes back from where it was put.
    assert make(tmp_path, tmp_path / "gone", adopt=tmp_path / "away").file.bus == one.file.bus


def test_a_bus_folder_moved_by_hand(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    made, moved = make(tmp_path, app), tmp_path / "moved"
    app.rename(moved)
    there = address(settings_at(tmp_path, moved)).path
    made.address.path.rename(there)
    for text in (open_refused(tmp_path, moved), refused(tmp_path, moved)):
        assert f"init --adopt {there}" in text
    assert make(tmp_path, moved, adopt=there).file.project == str(moved)
    assert opened(settings_at(tmp_path, moved)).bus == made.file.bus


def test_what_is_no_bus_cannot_be_adopted(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    (tmp_path / "data" / "buses" / "half").mkdir(parents=True)
    for old in (tmp_path / "nothing", tmp_path, tmp_path / "data" / "buses" / "half"):
        assert "is no bus" in refused(tmp_path, app, adopt=old)


def test_a_bus_of_another_repository_cannot_be_adopted(tmp_path: Path) -> None:
    app, moved = make_repository(tmp_path / "app"), tmp_path / "moved"
    other = make(tmp_path, tmp_path)
    make(tmp_path, app)
    app.rename(moved)
    assert "adopt that one" in refused(tmp_path, moved, adopt=other.address.path)


def test_a_damaged_mark_is_never_written_over(tmp_path: Path) -> None:
    app = make_repository(tmp_path / "app")
    made = make(tmp_path, app)
    (app / ".git" / "agent-bus").write_text("")
    before = snapshot(tmp_path)
    for adopt, new in ((None, False), (None, True), (made.address.path, False)):
        with pytest.raises(AgentBusError, match="agent-bus init --adopt"):
            make(tmp_path, app, adopt=adopt, new=new)
    assert snapshot(tmp_path) == before


def test_a_bus_on_another_file_system_is_not_moved(tmp_path: Path) -> None:
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    if not AS_ROOT or subprocess.run([*mount, disk, "true"], check=False, timeout=60).returncode:
        pytest.skip("only root can mount a second file system")
    code = (
        "import sys; from pathlib import Path; from agent_bus.clock import SystemClock\n"
        "from agent_bus.create import create; from agent_bus.errors import CannotCreate\n"
        "from agent_bus.settings import Settings\n"
        "here = Path(sys.argv[1]); (here / 'disk').chmod(0o700)\n"
        "old = Settings(data=here, keys=here, bus=here / 'disk' / 'bus', project=here)\n"
        "create(old, SystemClock())\n"
        "before = (old.bus / 'bus.json').read_bytes()\n"
        "try: create(Settings(data=here / 'data', keys=here, project=here), SystemClock(),\n"
        "            adopt=old.bus)\n"
        "except CannotCreate as error: print(error)\n"
        "assert (old.bus / 'bus.json').read_bytes() == before\n"
    )
    done = subprocess.run(
        [*mount, disk, sys.executable, "-c", code, tmp_path],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "on another file system" in done.stdout
    assert "cp -a" in done.stdout
    assert not (tmp_path / "data").exists()
