"""Options and fixtures of the tests with real hosts. `scripts/test-hosts` gives the options.

They are collected only where this folder or a file in it is named, since they need programs
that are no part of the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    # The modules beside this one; tests are no package.
    sys.path.insert(0, str(HERE))

from desk import Desk  # noqa: E402
from hosts import HOSTS, Host  # noqa: E402
from model_api import ModelApi  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("hosts").addoption(
        "--host",
        action="append",
        choices=tuple(HOSTS),
        help="a host that is installed and to be tested; may be given several times",
    )


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    named = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "host" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("hosts")
        names = [name for name in HOSTS if mark is None or name in mark.args]
        metafunc.parametrize("host", [HOSTS[name] for name in names], ids=names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--host") or list(HOSTS)
    left_out = [item for item in items if not _is_for(item, chosen)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_for(item: pytest.Item, chosen: list[str]) -> bool:
    host = item.callspec.params.get("host") if isinstance(item, pytest.Function) else None
    return not isinstance(host, Host) or host.name in chosen


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts(*names): the hosts that a test is for")


@pytest.fixture
def model() -> Iterator[ModelApi]:
    """The model behind the host."""
    with ModelApi() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, model: ModelApi, host: Host) -> Iterator[Desk]:
    """A machine on which the host is led to the model, and not yet connected to the bus."""
    made = Desk(tmp_path, model.url)
    host.arrange(made)
    made.variables = host.variables(made)
    yield made
    made.end_processes()
