"""JSON that a caller hands over: taken in strictly, and written in one way only.

What comes in may be anything that Python can hold. It is copied value by value, with a limit
on depth and on size that holds while the copy is made, so that nothing hostile gets far.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn

from agent_bus.errors import InvalidMission
from agent_bus.payload import NESTING_LIMIT
from agent_bus.visible import is_hidden

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
# An IEEE 754 double holds less than 2**1024; other readers of JSON have nothing larger.
_NUMBER_BITS = 1023


def compact(value: object) -> str:
    """JSON in its one form: keys sorted, no spaces, ASCII only; its length is its bytes.

    For values that were checked. Raises ValueError for what JSON does not have (NaN).
    """
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """The hex SHA-256 of the compact form."""
    return hashlib.sha256(compact(value).encode("ascii")).hexdigest()


def json_object(value: object, what: str, limit: int) -> dict[str, Any]:
    """A deep copy of a JSON object of at most `limit` bytes in compact form.

    Raises InvalidMission for anything else: other types, keys that are no text, numbers that a
    double cannot hold, lone surrogates, more than 32 levels.
    """
    if not isinstance(value, dict):
        raise InvalidMission(f"{what} is no JSON object: give one")
    taken = _Intake(what, limit).members(value, what, 1)
    if len(compact(taken)) > limit:
        _too_long(what, limit)
    return taken


def text(value: object, what: str) -> str:
    """Text of whole characters that is not blank. Raises InvalidMission."""
    if not isinstance(value, str):
        raise InvalidMission(f"{what} is no text: give a string")
    if all(char.isspace() or is_hidden(char) for char in value):
        raise InvalidMission(f"{what} is blank: write something")
    return _whole(value, what)


def member(what: str, key: str) -> str:
    """How an error names a member of an object."""
    return f"{what}.{key if _PLAIN_KEY.fullmatch(key) else ascii(key[:40])}"


class _Intake:
    """One copy. `_room`: how many characters its compact form may still grow, at least."""

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit, self._room = what, limit, limit

    def members(self, value: dict[Any, Any], where: str, depth: int) -> dict[str, Any]:
        _check_depth(where, depth)
        taken: dict[str, Any] = {}
        for key, entry in value.items():
            if not isinstance(key, str):
                raise InvalidMission(f"{where} has a key that is no text")
            self._spend(len(key))
            # The path ends at the first level: a whole one could be as long as the value.
            inner = member(where, key) if depth == 1 else where
            taken[_whole(key, where)] = self._value(entry, inner, depth)
        return taken

    def _value(self, value: object, where: str, depth: int) -> Any:
        self._spend(1)
        if isinstance(value, dict):
            return self.members(value, where, depth + 1)
        if isinstance(value, list):
            _check_depth(where, depth + 1)
            return [self._value(entry, where, depth + 1) for entry in value]
        if isinstance(value, str):
            self._spend(len(value))
            return _whole(value, where)
        return _plain(value, where)

    def _spend(self, count: int) -> None:
        self._room -= count
        if self._room < 0:
            _too_long(self._what, self._limit)


def _plain(value: object, where: str) -> int | float | None:
    """A number, true, false or null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= _NUMBER_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int | float):
        raise InvalidMission(f"{where} holds a number that is not finite or too large for JSON")
    raise InvalidMission(f"{where} holds a {type(value).__name__[:40]!a}, which JSON does not have")


def _whole(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMission(f"{where} holds half a character (a lone surrogate)") from None
    return value


def _check_depth(where: str, depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise InvalidMission(f"{where} is nested more than {NESTING_LIMIT} levels deep")


def _too_long(what: str, limit: int) -> NoReturn:
    raise InvalidMission(f"{what} is longer than {limit} characters as compact JSON: shorten it")
