"""The floor of looking after children: so many plain GETs every five seconds.

Given the URL of a server, its key, and paths. Prints a line after each time.
"""

from __future__ import annotations

import json
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

INTERVAL = 5.0


def asker(url: str) -> HTTPConnection:
    """A connection that stays open."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.connect()
    return connection


def get(connection: HTTPConnection, key: str, path: str) -> object:
    """What it answers, as JSON."""
    connection.request("GET", path, headers={"X-Session-API-Key": key})
    answer = connection.getresponse()
    found: object = json.loads(answer.read())
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return found


def main(url: str, key: str, *paths: str) -> None:
    """Ask for ever."""
    connection = asker(url)
    while True:
        begun = time.monotonic()
        for path in paths:
            get(connection, key, path)
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        time.sleep(max(0.0, INTERVAL - (time.monotonic() - begun)))


if __name__ == "__main__":
    main(*sys.argv[1:])
