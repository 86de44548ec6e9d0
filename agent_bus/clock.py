"""Time and ids: the only module that asks the system for either.

Times are whole milliseconds since 1970 (UTC) inside the program and RFC 3339 text with
three digits and `Z` on disk. Ids are ULIDs in lower case: 48 bits of time, for people and
for order within one process, and 80 random bits, which alone make them unique. Nothing is
ever delivered, skipped or replaced because of the time in an id.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

from agent_bus.errors import UsageError

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
# Python's own digits of base 32; `!` stands where ULIDs have none.
_TO_BASE32 = str.maketrans(_ALPHABET + "ilou", "0123456789abcdefghijklmnopqrstuv!!!!")
_RANDOM_BITS = 80
# Newer Pythons read 24:00 as the next day, which no other implementation has to know.
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d\.\d{3}Z", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9})(s|m|h|d)", re.ASCII)
_LAST = 253_402_300_799_999
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Clock(Protocol):
    """What the rest of the program asks for time; tests hold one in hand (`testing`)."""

    def now(self) -> int:
        """Milliseconds since 1970, UTC. May jump either way."""

    def monotonic(self) -> float:
        """Seconds that only grow, for time limits."""

    def new_id(self) -> str:
        """A ULID, larger than every earlier one of this clock."""


class SystemClock:
    """The machine's clocks. Ids stay in order even where the wall clock steps back."""

    def __init__(self) -> None:
        self._ids = IdSource()

    def now(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def new_id(self) -> str:
        """A ULID, larger than every earlier one of this clock."""
        return self._ids.next(self.now())


class IdSource:
    """Makes ULIDs that grow strictly, whatever times it is given; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self, now: int) -> str:
        """A ULID of this time (milliseconds since 1970), or of the last one if that is later."""
        with self._lock:
            fresh = now << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
            if fresh >> _RANDOM_BITS <= self._last >> _RANDOM_BITS:
                # The same millisecond, or the clock went back: stay behind the last id.
                fresh = self._last + 1 + secrets.randbits(32)
            self._last = fresh
        return _base32(fresh)


def _base32(number: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def id_time(ulid: str) -> int:
    """Milliseconds since 1970 in a ULID's first ten characters."""
    return int(ulid[:10].translate(_TO_BASE32), 32)


def to_text(milliseconds: int) -> str:
    """RFC 3339 in UTC with milliseconds: `2026-11-30T12:00:00.000Z`.

    What lies past the year 9999, as a forged id may claim, becomes its last millisecond.
    """
    milliseconds = min(milliseconds, _LAST)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment.isoformat()[:19]}.{milliseconds % 1000:03}Z"


def from_text(text: str) -> int:
    """Milliseconds since 1970 of exactly the form that `to_text` writes.

    Raises ValueError for another form and for a date that does not exist.
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"no RFC 3339 time with milliseconds in UTC: {text!r}")
    moment = datetime.fromisoformat(text[:19] + "+00:00")
    return int(moment.timestamp()) * 1000 + int(text[20:23])


def seconds(duration: str) -> int:
    """Seconds in `90s`, `15m`, `2h` or `7d`. Raises UsageError for anything else."""
    found = _DURATION.fullmatch(duration)
    if not found:
        raise UsageError(f"no duration: {duration!r}; write it like 90s, 15m, 2h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def duration(span: int) -> str:
    """Seconds as the largest unit that divides them: the reverse of `seconds`."""
    unit = next(unit for unit in "dhms" if span % _SECONDS[unit] == 0 and (span or unit == "s"))
    return f"{span // _SECONDS[unit]}{unit}"


def moment(text: str, now: int) -> int:
    """Milliseconds since 1970 of a time that a person names.

    Takes a duration (`2h` is two hours ago), a date, or an ISO 8601 time with an offset or
    `Z`. A time without an offset is refused, since it means another moment on another
    machine; a date alone is midnight UTC. Raises UsageError.
    """
    if _DURATION.fullmatch(text):
        return now - seconds(text) * 1000
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"no time: {text!r}; write 2h, 2026-11-30 or 2026-11-30T12:00:00Z"
        ) from None
    if found.tzinfo is None:
        if len(text) > len("2026-11-30"):
            raise UsageError(f"{text!r} has no time zone; end it with Z or an offset like +02:00")
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
