"""Where it listens, under which names it may be called, and how others find it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent_bus.errors import UsageError
from agent_bus.files import Folder
from agent_bus.openhands.gateway import announcement
from agent_bus.server.http import serve
from agent_bus.testing import TemporaryBus

GUARD = 60.0
PROGRAM = """
import contextlib, json, sys
from agent_bus import settings
from agent_bus.openhands.gateway import settings as gateway_settings
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.server.http.serve import serve

@contextlib.contextmanager
def ready(url):
    print(url, flush=True)
    yield
    print("ended", flush=True)

def warn(text):
    print(text, file=sys.stderr, flush=True)

loaded = gateway_settings.load()
with contextlib.closing(Gateway.open(settings.load(), loaded)) as gateway:
    options = json.loads(sys.argv[1])
    serve(gateway, port=0, session_key=loaded.api_key, ready=ready, warn=warn, **options)
"""


@pytest.fixture
def variables(bus: TemporaryBus, environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return (
        environment
        | bus.environment
        | {
            "OPENHANDS_URL": "http://127.0.0.1:9",
            "OPENHANDS_API_KEY": "the-session-key",
            "AGENT_BUS_OPENHANDS_WORKSPACE": str(tmp_path / "workspace"),
        }
    )


@pytest.fixture
def begin(variables: dict[str, str]) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(**options: Any) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=GUARD)


def find(bus: TemporaryBus) -> str | None:
    with Folder.open(bus.path) as root, root.descend("openhands", "gateway") as folder:
        return announcement.find(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_process_serves_announces_itself_and_ends_quietly(
    bus: TemporaryBus, begin: Any, number: int
) -> None:
    process, url = begin()
    assert url.startswith("http://127.0.0.1:")
    assert httpx2.get(f"{url}/healthz").json() == {"ok": True}
    assert find(bus) == url

    process.send_signal(number)
    out, err = process.communicate(timeout=GUARD)
    assert (process.returncode, out, err) == (0, "ended\n", "")
    assert find(bus) is None
    assert list((bus.path / "openhands/gateway/serve").iterdir()) == []


def test_a_process_that_was_killed_is_not_found(bus: TemporaryBus, begin: Any) -> None:
    process, url = begin()
    assert find(bus) == url
    process.kill()
    process.wait(timeout=GUARD)
    assert find(bus) is None

    _, second = begin()
    assert find(bus) == second
    assert len(list((bus.path / "openhands/gateway/serve").iterdir())) == 1


def test_the_url_that_children_use_is_told_and_its_name_may_be_used(
    bus: TemporaryBus, begin: Any
) -> None:
    _, url = begin(host="0.0.0.0", url="http://gateway.internal:8080/", allowed_hosts=["other"])
    assert url == "http://gateway.internal:8080"
    assert find(bus) == url
    (number,) = _ports(_)
    for host, status in (
        ("gateway.internal:8080", 200),
        ("other", 200),
        (f"127.0.0.1:{number}", 200),
        ("evil.example", 421),
    ):
        answer = httpx2.get(f"http://127.0.0.1:{number}/healthz", headers={"host": host})
        assert answer.status_code == status


def _ports(process: subprocess.Popen[str]) -> set[int]:
    """Where a process listens."""
    inodes = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(link))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            found.add(int(fields[1].partition(":")[2], 16))
    return found


def test_nothing_of_a_request_is_ever_said(begin: Any) -> None:
    process, url = begin()
    token = "evx1_" + "A" * 120
    with httpx2.Client() as client:
        for path in ("/mcp", "/completion-hook", "/webhooks/events/x", "/nowhere"):
            client.post(f"{url}{path}", json={"a": token}, headers={"authorization": token})
            client.get(f"{url}{path}?t={token}")
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=GUARD)
    assert (out, err) == ("ended\n", "")


def test_a_port_that_is_taken_and_a_host_that_is_none_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {number} cannot be used"):
            serve.listen("127.0.0.1", number)
    with pytest.raises(UsageError, match="no such host"):
        serve.listen("no such host", 0)


def test_every_address_is_no_url() -> None:
    (listening,) = serve.listen("0.0.0.0", 0)
    with listening, pytest.raises(UsageError, match="give the URL"):
        serve.own_url("0.0.0.0", listening)


@pytest.mark.parametrize("name", ["", "*", "a/b", "a@b", "http://a", "a b", "*.example"])
def test_what_is_no_name_of_a_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a host"):
        serve._name(name)


@pytest.mark.parametrize(
    ("given", "kept"), [("A.b", "a.b"), ("a:80", "a"), ("[::1]:80", "[::1]"), ("::1", "")]
)
def test_a_name_is_kept_without_its_port(given: str, kept: str) -> None:
    if kept:
        assert serve._name(given) == kept
    else:
        with pytest.raises(UsageError):
            serve._name(given)
