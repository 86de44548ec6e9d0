"""Modules beside these tests can be imported by name; tests are no package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

pytest.register_assert_rewrite("provider_conformance")

from scene import Scene, scene  # noqa: E402 - it stands beside this file


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    """A gateway's bus, mirror and played agent server, with a clock in hand."""
    with scene(tmp_path) as made:
        yield made
