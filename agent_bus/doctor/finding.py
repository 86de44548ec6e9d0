"""What the doctor has to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, or that is good to know.

    `error`: a part of the promise does not hold for what stands there; `warning`: somebody
    should look; `note`: harmless.
    """

    code: str
    """Stable, for programs: `bad-signature`, `loose-mode` …"""
    severity: Severity
    path: str
    """Where. What cannot be printed is escaped."""
    message: str
    """One line: what it is, and what to do."""
    repairable: bool = False
    """Whether `repair` mends it."""
    repaired: str | None = None
    """What this run did about it: where it was moved to, the mode that was set, the folder made."""


def is_content(findings: Iterable[Finding]) -> bool:
    """Whether no error is left."""
    return not any(one.severity == "error" and one.repaired is None for one in findings)
