"""Fixtures of the tests with a real agent server. `scripts/test-openhands` runs them.

They are collected only where this folder or a file in it is named, since the server is no part
of the environment: AGENT_BUS_OPENHANDS_SERVER names the folder that it is installed in.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "openhands"):
    if str(folder) not in sys.path:
        # The modules there; tests are no package.
        sys.path.insert(0, str(folder))

pytest.register_assert_rewrite("provider_conformance", "scene", "desk")

from desk import Desk, desk as make_desk  # noqa: E402, I001
from model import Model  # noqa: E402
from server import Server, free_port, living_children  # noqa: E402


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    named = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured; nothing depends on it."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "measured" and report.when == "call":
                terminalreporter.write_line(f"{value} ({report.nodeid})")


@pytest.fixture(scope="session")
def program() -> Path:
    """The environment that the server is installed in."""
    found = Path(os.environ.get("AGENT_BUS_OPENHANDS_SERVER", ""))
    if not (found / "bin" / "python").exists():
        pytest.fail("no agent server is installed: run scripts/test-openhands", pytrace=False)
    return found


@pytest.fixture(scope="session")
def webhook_port() -> int:
    """Where the server sends its webhooks; nobody listens there, save for a test of them."""
    return free_port()


@pytest.fixture(scope="session")
def server(
    program: Path, webhook_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for all tests of a process."""
    webhooks = {
        "OH_WEBHOOKS_0_BASE_URL": f"http://127.0.0.1:{webhook_port}/webhooks",
        "OH_WEBHOOKS_0_EVENT_BUFFER_SIZE": "1",
        "OH_WEBHOOKS_0_FLUSH_DELAY": "0.5",
        "OH_WEBHOOKS_0_NUM_RETRIES": "0",
    }
    with Server(program, tmp_path_factory.mktemp("agent-server"), **webhooks) as running:
        yield running


@pytest.fixture
def model() -> Iterator[Model]:
    """The model behind the agents."""
    with Model() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, server: Server, model: Model) -> Iterator[Desk]:
    """A bus, a mirror and gateways beside the server."""
    with make_desk(tmp_path, server, model) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test ends the processes that it started; the server may have been started anew."""
    running = request.getfixturevalue("server")
    before = living_children()
    yield
    until = time.monotonic() + 10
    while (left := living_children() - before - {running.pid}) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"processes left behind: {sorted(left)}"
