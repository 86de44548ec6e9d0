"""How the verbs of `openhands` come to a gateway, take JSON, and say how it goes on."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agent_bus.bus import Bus
from agent_bus.cli import passphrase, render
from agent_bus.cli.options import Shared, check_as, identity, load_settings
from agent_bus.cli.send import read_text
from agent_bus.errors import InvalidMission, UsageError

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.gateway import Gateway

JSON_LIMIT = 256 * 1024
"""Bytes of a file of JSON that are read; the rules of the gateway are narrower."""


@contextlib.contextmanager
def opened(options: Shared) -> Iterator[Gateway]:
    """The gateway of this bus, with what the environment says of the agent server.

    Raises ConfigurationError and what `Gateway.open` raises.
    """
    # Pydantic and an HTTP client come with it: --help waits for neither.
    from agent_bus.openhands.gateway import settings
    from agent_bus.openhands.gateway.gateway import Gateway

    loaded = load_settings(options)
    check_as(options, loaded)
    with contextlib.closing(Gateway.open(loaded, settings.load())) as gateway:
        yield gateway


def acting(options: Shared) -> Bus:
    """The bus as the identity of this process, which has a key and has opened it.

    Raises IdentityMissing, NotPermitted for a sealed name without its passphrase, and what
    `Bus.open` raises.
    """
    loaded = load_settings(options)
    bus = Bus.open(loaded, identity=identity(options, loaded))
    passphrase.unlock(bus)
    # The gateway signs, and not this identity: so nothing later would miss its key.
    bus.keys.signer(bus.identity)
    return bus


def read_object(file: str, what: str) -> dict[str, Any]:
    """The JSON object in a file, or in standard input for `-`.

    Raises InvalidMission for what is none or says something twice, InvalidMessage for what
    is too large or no UTF-8, and StorageError.
    """
    text = read_text(None if file == "-" else file, JSON_LIMIT)
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InvalidMission(
            f"{what} is no JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidMission(f"{what} is no JSON that can be used: {str(error)[:120]}") from None
    if not isinstance(found, dict):
        raise InvalidMission(f"{what} is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def waiting(text: str, option: str) -> float:
    """Seconds to wait, as `30`, `90s` or `2m`; 0 waits for nothing. Raises UsageError."""
    from agent_bus import clock

    if text.isascii() and text.isdigit() and len(text) <= 6:
        return float(text)
    try:
        return float(clock.seconds(text))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


@contextlib.contextmanager
def telling(first: str, *, still: bool = False) -> Iterator[Callable[[str], None]]:
    """Says on stderr how something goes on: gives a function for what is done now.

    At a terminal one line that changes and goes away; else, and where something may be asked
    there (`still`), a line for each step.
    """
    if still or sys.stderr is None or not sys.stderr.isatty():
        render.say(first)
        yield render.say
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status(Text(render.visible(first))) as status:
        yield lambda text: status.update(Text(render.visible(text)))
