"""Who is let in: a link that works once, then a cookie; and which forms are our own.

    http://<16 hex>.localhost:<port>/open?token=…

The name is new for each start, since cookies do not know ports: what else serves pages on
loopback never sees this one's. The token stands in no process's arguments: it is printed, or
lies in a file of mode 0600 that leads the browser on.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from agent_bus.clock import Clock
from agent_bus.files import Folder
from agent_bus.store import open_or_make
from agent_bus.web.markup import document, element

CACHE = "cache"
_PREFIX = "open-"
_LEFTOVER_AGE = 24 * 3600
_HTTP_PORT = 80


class Door:
    """The one session of one server."""

    def __init__(self, port: int) -> None:
        name = f"{secrets.token_hex(8)}.localhost"
        self.host = name if port == _HTTP_PORT else f"{name}:{port}"
        """What a request must name as its host."""
        self.cookie = f"agent-bus-{secrets.token_hex(6)}"
        self._key = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)
        self._signer = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self.url = f"{self.origin}/open?token={self._token}"
        """The link that works once."""

    @property
    def origin(self) -> str:
        """What a form of ours is sent from."""
        return f"http://{self.host}"

    @property
    def used(self) -> bool:
        """Whether the link has been used."""
        return self._token is None

    def open(self, token: str) -> str | None:
        """The cookie to set, in exchange for the token; None if it is not, or no more, right."""
        with self._lock:
            if self._token is None or not _same(token, self._token):
                return None
            self._token = None
        return f"{self.cookie}={self._key}; Path=/; HttpOnly; SameSite=Strict"

    def admits(self, cookies: Mapping[str, str]) -> bool:
        """Whether a request comes from the browser that was let in."""
        return _same(cookies.get(self.cookie, ""), self._key)

    def form_token(self, path: str) -> str:
        """What a form that is sent to this path must hold."""
        return hmac.new(self._signer, path.encode(), sha256).hexdigest()

    def is_own_form(self, path: str, token: str) -> bool:
        """Whether a form that was sent to this path was made here."""
        return _same(token, self.form_token(path))


@contextlib.contextmanager
def redirect_file(bus: Path, door: Door, clock: Clock) -> Iterator[Path]:
    """A file for the browser that leads it to the link; removed at the end. Raises OSError.

    A browser is started with the path of this file: what stands in its arguments can be read
    by every user of the machine.
    """
    name = f"{_PREFIX}{secrets.token_hex(8)}.html"
    with Folder.open(bus) as root, open_or_make(root, CACHE) as cache:
        _sweep(cache, clock)
        cache.create(name, _redirect(door.url).encode())
        try:
            yield cache.path / name
        finally:
            with contextlib.suppress(OSError):
                cache.unlink(name)


def _sweep(cache: Folder, clock: Clock) -> None:
    """Remove what a crash has left; its tokens are dead."""
    for name in cache.names():
        status = cache.status(name) if name.startswith(_PREFIX) else None
        if status and clock.now() / 1000 - status.st_mtime > _LEFTOVER_AGE:
            with contextlib.suppress(OSError):
                cache.unlink(name)


def _redirect(url: str) -> str:
    return document(
        "agent-bus",
        [
            element("meta", name="referrer", content="no-referrer"),
            element("meta", http_equiv="refresh", content=f"0; url={url}"),
        ],
        element("body", element("a", "Open agent-bus", href=url)),
    )


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
