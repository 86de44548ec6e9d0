"""Modules beside these tests can be imported by name; tests are no package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

pytest.register_assert_rewrite("provider_conformance")
