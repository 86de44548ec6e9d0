"""The house: who may import whom, who may write, how large a part may grow."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "agent_bus"

MODULE_LINES = 420
"""About 400: what has grown beyond is two things."""
FUNCTION_LINES = 60
MEDIAN_LINES = 10

WRITERS = ("files.py", "descriptors.py")
OS_WRITES = frozenset(
    """
    link rename renames replace unlink remove removedirs mkdir makedirs rmdir symlink truncate
    ftruncate chmod fchmod lchmod chown fchown lchown utime mknod mkfifo fsync fdatasync
    pwrite writev sendfile copy_file_range setxattr removexattr
    """.split()  # noqa: SIM905
)
PATH_WRITES = frozenset(
    """
    write_text write_bytes symlink_to hardlink_to mkdir rmdir rename chmod lchmod
    """.split()  # noqa: SIM905
)
SHUTIL_READS = frozenset(["which", "get_terminal_size", "disk_usage"])
WRITE_FLAGS = frozenset(["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"])
CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "gmtime", "localtime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Each call as what it is called on (a plain name, or ""), and what is called."""
    for node in nodes(path):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            yield "", function.id, node
        elif isinstance(function, ast.Attribute):
            owner = function.value
            yield owner.id if isinstance(owner, ast.Name) else "?", function.attr, node


def is_write(owner: str, function: str, call: ast.Call) -> bool:
    """Whether a call writes to disk, as far as its text tells."""
    if owner == "os":
        return function in OS_WRITES or (function == "open" and opens_for_writing(call))
    if owner == "shutil":
        return function not in SHUTIL_READS
    if function == "open" and owner not in ("tarfile", "gzip", "zipfile"):
        return has_write_mode(call)
    return owner != "" and function in PATH_WRITES


def opens_for_writing(call: ast.Call) -> bool:
    if ast.unparse(call.args[0]) == "os.devnull":
        return False
    used = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    # Flags under a name of the module's own could be anything: only `files` has such.
    own = any(isinstance(node, ast.Name) and node.id.startswith("_") for node in ast.walk(call))
    return bool(used & WRITE_FLAGS) or own


def has_write_mode(call: ast.Call) -> bool:
    values = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [node.value for node in values if isinstance(node, ast.Constant)]
    return any(
        isinstance(mode, str)
        and re.fullmatch(r"[rwaxbt+]{1,4}", mode)
        and re.search("[wax+]", mode)
        for mode in modes
    )


def writes(path: Path) -> list[str]:
    return [
        f"{name_of(path)}:{call.lineno} {ast.unparse(call)[:60]}"
        for owner, function, call in calls(path)
        if is_write(owner, function, call)
    ]


def test_only_files_writes_to_disk() -> None:
    found = [line for path in modules() if name_of(path) not in WRITERS for line in writes(path)]

    assert found == []


def test_the_test_above_can_tell_what_writes() -> None:
    assert len(writes(PACKAGE / "files.py")) >= 12
    for text in (
        "os.open(p, os.O_WRONLY)",
        "os.open(p, _APPEND)",
        "open(p, 'w')",
        "open(p, mode='rb+')",
        "p.open('ab')",
        "Path(p).write_text('x')",
        "p.mkdir()",
        "shutil.copy(a, b)",
        "os.replace(a, b)",
    ):
        [(owner, function, call)] = calls_in(text)
        assert is_write(owner, function, call), text
    for text in ("os.open(p, os.O_RDONLY)", "open(p)", "open(p, 'rb')", "text.replace('a', 'b')"):
        [(owner, function, call)] = calls_in(text)
        assert not is_write(owner, function, call), text


def calls_in(text: str) -> list[tuple[str, str, ast.Call]]:
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Name):
        return [("", node.func.id, node)]
    assert isinstance(node.func, ast.Attribute)
    owner = node.func.value
    return [(owner.id if isinstance(owner, ast.Name) else "?", node.func.attr, node)]


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("filelock", {"locks.py"}),
        ("random", set()),
        # A bus for tests, and one for show, stand in folders that go away again.
        ("tempfile", {"testing.py", "cli/demo.py"}),
        ("platformdirs", {"settings.py"}),
        ("watchdog", {"arrivals.py", "filesystem.py"}),
    ],
)
def test_a_library_is_used_in_one_place(library: str, allowed: set[str]) -> None:
    users = {
        name_of(path)
        for path in modules()
        if any(name.split(".")[0] == library for name in imported(path))
    }

    assert users <= allowed


def test_ids_that_chance_makes_come_from_the_clock() -> None:
    """A UUID of a conversation is another program's id; one that is made here is computed."""
    makers = {"uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"}
    users = {name_of(path) for path in modules() if imported(path) & makers}

    # It plays the agent server, whose events have such ids.
    assert users <= {"openhands/gateway/testing.py"}


def test_the_environment_is_read_in_settings_alone() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        if path.name != "settings.py"
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names(node) & {"environ"})
    ]

    assert found == []


def names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def test_the_time_comes_from_the_clock_alone() -> None:
    found = [
        f"{name_of(path)}:{call.lineno} {ast.unparse(call)}"
        for path in modules()
        if name_of(path) != "clock.py"
        for owner, function, call in calls(path)
        if function in CLOCKS.get(owner, ())
    ]

    assert found == []


def test_modules_stay_small() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in modules()}

    assert {name: length for name, length in lengths.items() if length > MODULE_LINES} == {}


def functions() -> Iterator[tuple[str, int]]:
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1


def test_functions_stay_short() -> None:
    lengths = dict(functions())

    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES} == {}
    assert statistics.median(lengths.values()) < MEDIAN_LINES


def test_nothing_is_called_utils() -> None:
    unfit = re.compile("utils?|helpers?|managers?|common|misc")

    assert [name_of(path) for path in modules() if unfit.fullmatch(path.stem)] == []


def test_the_layers_hold() -> None:
    """The contracts stand in pyproject.toml, under [tool.importlinter]."""
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr


LINT = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True))
"""
