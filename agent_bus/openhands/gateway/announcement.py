"""Where children reach the gateway over HTTP: a living `serve` says it, every gateway reads it.

    <bus>/openhands/gateway/serve/<start id>.json    {"url"}

A lock held on the file means that its process lives, as in `presence`. So a gateway on stdio
finds a server of the same bus, and never one that has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from agent_bus.clock import Clock
from agent_bus.files import Folder, UnfitFile
from agent_bus.names import is_message_id

SERVE = "serve"
_SUFFIX = ".json"
_LIMIT = 16 * 1024


@contextlib.contextmanager
def announce(gateway: Folder, url: str, clock: Clock) -> Iterator[None]:
    """Say that children reach a server under this base URL, until the end of the `with`.

    `gateway` is the folder `<bus>/openhands/gateway`. Raises OSError.
    """
    name = clock.new_id() + _SUFFIX
    with gateway.make(SERVE) as folder:
        held = folder.hold(name, json.dumps({"url": url}).encode() + b"\n")
        try:
            _clear(folder)
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.unlink(name)
            os.close(held)


def find(gateway: Folder) -> str | None:
    """The base URL of the server that started last and lives; None if there is none."""
    try:
        with gateway.child(SERVE) as folder:
            living = (name for name in _names(folder) if folder.is_held(name))
            return next((url for name in living if (url := _url(folder, name))), None)
    except OSError:
        return None


def _names(folder: Folder) -> list[str]:
    """The announcements, the newest first."""
    names = (name for name in folder.names() if is_message_id(name.removesuffix(_SUFFIX)))
    return sorted(names, reverse=True)


def _url(folder: Folder, name: str) -> str | None:
    try:
        value = json.loads(folder.read(name, _LIMIT))
    except (OSError, UnfitFile, ValueError, RecursionError):
        return None
    url = value.get("url") if isinstance(value, dict) else None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None


def _clear(folder: Folder) -> None:
    """Remove what servers have left that did not end by themselves."""
    for name in _names(folder):
        if not folder.is_held(name):
            with contextlib.suppress(OSError):
                folder.unlink(name)
