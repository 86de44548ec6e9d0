"""Options, marks and fixtures of the fault tests. `scripts/faults` gives the options."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    # The modules beside this one; tests are no package.
    sys.path.insert(0, str(HERE))

import capabilities  # noqa: E402
from operations import OPERATIONS  # noqa: E402
from processes import ROOT, SOURCE, Processes  # noqa: E402
from tracing import Task, run  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption(
        "--exhaustive", action="store_true", help="every point and every error, not a sample"
    )
    group.addoption(
        "--require",
        default="",
        metavar="NAME,…",
        help="capabilities whose absence is a failure and no reason to skip; 'all' for every one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): capabilities that the test asks for")
    unknown = _required(config) - capabilities.PROBES.keys()
    if unknown:
        known = ", ".join(capabilities.PROBES)
        raise pytest.UsageError(f"--require: no capability {min(unknown)!r}; there are {known}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            ask_for(item.config, name)


def ask_for(config: pytest.Config, name: str) -> None:
    """Skip the running test if a capability is missing, or fail it where it is required."""
    why = capabilities.why_missing(name)
    if why is None:
        return
    if name in _required(config):
        pytest.fail(f"required, and not there: {why}", pytrace=False)
    pytest.skip(why)


def _required(config: pytest.Config) -> set[str]:
    names = {name.strip() for name in config.getoption("--require").split(",") if name.strip()}
    return set(capabilities.PROBES) if "all" in names else names


@pytest.fixture(scope="session", autouse=True)
def _still_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes run a copy of the package, so that nobody who edits the tree meanwhile
    disturbs the counts, and find it compiled.
    """
    base = tmp_path_factory.getbasetemp()
    shutil.copytree(
        ROOT / "agent_bus",
        base / "source" / "agent_bus",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SOURCE, str(base / "source"))
        patch.setenv("PYTHONPYCACHEPREFIX", str(base / "compiled"))
        root = base / "compiling"
        run(Task("init", root, OPERATIONS["init"].prepare(root)))
        yield


@pytest.fixture
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether everything is to be tried, or a sample."""
    return bool(request.config.getoption("--exhaustive"))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes, and ends each of them by its id."""
    started = Processes(tmp_path)
    yield started
    started.end()
