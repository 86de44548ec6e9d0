"""How long to search: a short run in a sample, a long one by hand (`scripts/fuzz`)."""

from __future__ import annotations

import hypothesis
import pytest

SHORT, LONG = 150, 5_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption("--examples", type=int, help="how many inputs to try in each test")


def pytest_configure(config: pytest.Config) -> None:
    exhaustive = config.getoption("--exhaustive", default=False)
    examples = config.getoption("--examples") or (LONG if exhaustive else SHORT)
    hypothesis.settings.register_profile(
        "fuzz",
        deadline=None,
        database=None,
        max_examples=examples,
        print_blob=True,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.data_too_large,
        ],
    )
    hypothesis.settings.load_profile("fuzz")
