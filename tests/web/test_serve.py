"""`agent-bus ui` as a process: loopback alone, one link, quiet at its end and in its talk."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from agent_bus.errors import UsageError
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus
from agent_bus.web.serve import listen

GUARD = 60.0
HELLO = "agent-bus: you are user; the link works once; Ctrl-C ends this\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_quietly_also_while_pages_are_open(serve: Any, number: int) -> None:
    server = serve("user", "--no-open")
    server.enter()
    with server.client() as client, client.stream("GET", "/events?since=1") as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == ": open"
        server.process.send_signal(number)
        for _ in lines:
            pass
    assert server.end(number) == (0, HELLO)


def test_what_a_crash_left_unsaid_is_said_at_the_start(serve: Any, bus: TemporaryBus) -> None:
    """A decision that was written, and whose message to the requester never left."""
    ident = bus.as_agent("alice").request_approval("May I?").id
    bus.as_agent("user").decide(ident, "approve")
    for path in (*bus.path.glob("messages/alice/new/*.msg"), *bus.path.glob("sent/user/*")):
        path.unlink()
    assert serve("user", "--no-open").end() == (0, HELLO)
    assert len(bus.as_agent("alice").inbox().messages) == 1


def test_it_ends_quietly_before_anybody_came(serve: Any) -> None:
    assert serve("user", "--no-open").end() == (0, HELLO)


def test_it_listens_on_loopback_alone() -> None:
    sockets = listen(0)
    try:
        addresses = {each.getsockname()[0] for each in sockets}
        ports = {each.getsockname()[1] for each in sockets}
    finally:
        for each in sockets:
            each.close()
    assert addresses <= {"127.0.0.1", "::1"}
    assert "127.0.0.1" in addresses
    assert len(ports) == 1


def test_both_loopback_addresses_are_its_own(serve: Any) -> None:
    """A browser may try ::1 first: nobody else can listen there under this number."""
    server = serve("user", "--no-open")
    try:
        with socket.create_connection(("::1", server.port), timeout=GUARD):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


def test_a_port_that_is_taken_is_named(serve: Any) -> None:
    server = serve("user", "--no-open")
    with pytest.raises(UsageError, match=f"port {server.port} cannot be used"):
        listen(server.port)


def test_a_chosen_port_is_used_and_free_again_afterwards(serve: Any) -> None:
    first = serve("user", "--no-open")
    first.enter()
    first.end()
    second = serve("user", "--no-open", "--port", str(first.port))
    assert second.port == first.port
    assert second.host != first.host


def test_the_cookie_of_one_server_is_nothing_to_another(serve: Any) -> None:
    one, other = serve("user", "--no-open"), serve("user", "--no-open")
    one.enter()
    with other.client() as client:
        assert client.get("/", headers={"cookie": one.cookie}).status_code == 401


def test_json_says_where_it_is(serve: Any) -> None:
    server = serve("user", "--no-open", "--json")
    assert server.url.startswith("http://")


def test_no_secret_and_no_text_is_ever_said(serve: Any, bus: TemporaryBus) -> None:
    alice = bus.as_agent("alice")
    alice.send_one("user", Draft(body="the words", subject="the subject"))
    ident = alice.request_approval("the question").id
    server = serve("user", "--no-open")
    server.enter()
    token, secret = server.url.partition("token=")[2], server.cookie.partition("=")[2]
    with server.client() as client:
        for path in ("/", "/inbox", "/log", f"/approvals/{ident}", f"/open?token={token}", "/no"):
            client.get(path)
            client.get(path, headers={"host": "elsewhere"})
            client.post(path, content=b"x" * 100_000)
        client.post(f"/approvals/{ident}", data={"token": "wrong", "reason": "my reason"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=GUARD) as raw:
        raw.sendall(b"\x16\x03\x01 this is no HTTP the words\r\n\r\n")
        raw.recv(1000)
    code, said = server.end()
    assert (code, said) == (0, HELLO)
    for word in (token, secret, "the words", "the subject", "the question", "my reason"):
        assert word not in said


def test_arguments_of_processes_hold_no_token(serve: Any) -> None:
    server = serve("user", "--no-open")
    token = server.url.partition("token=")[2]
    for listing in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token.encode() not in listing.read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def test_a_browser_is_led_by_a_private_file(serve: Any, tmp_path: Path, bus: TemporaryBus) -> None:
    log, program = tmp_path / "log", tmp_path / "browser"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, urllib.parse\n"
        "path = urllib.parse.unquote(sys.argv[1].removeprefix('file://'))\n"
        "told = {'argv': sys.argv, 'mode': os.stat(path).st_mode & 0o777,\n"
        "        'page': open(path).read()}\n"
        f"open({str(log)!r} + '.tmp', 'w').write(json.dumps(told))\n"
        f"os.rename({str(log)!r} + '.tmp', {str(log)!r})\n"
    )
    program.chmod(0o755)
    server = serve("user", BROWSER=f"{program} %s")
    until = time.monotonic() + GUARD
    while not log.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    told = json.loads(log.read_text())
    token = server.url.partition("token=")[2]
    assert not any(token in word for word in told["argv"])
    assert told["argv"][1].startswith("file:///")
    assert told["mode"] == 0o600
    assert server.url in told["page"]
    assert server.end()[0] == 0
    assert not list((bus.path / "cache").glob("open-*"))


def test_without_a_browser_the_link_is_left(serve: Any) -> None:
    server = serve("user", BROWSER="", PATH="/nonexistent")
    server.enter()
    code, said = server.end()
    assert code == 0
    assert "open the link yourself" in said


def test_a_name_on_the_command_line_wants_a_terminal(
    bus: TemporaryBus, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_bus", "ui", "--no-open", "--as", "user"],
        env=environment | bus.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert done.returncode == 77
    assert "needs a terminal" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("port", ["-1", "65536", "x", "²"])
def test_a_port_that_is_none_is_refused(
    bus: TemporaryBus, environment: dict[str, str], port: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_bus", "ui", "--no-open", f"--port={port}"],
        env=environment | bus.environment | {"AGENT_MSG_AS": "user"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GUARD,
        check=False,
    )
    assert done.returncode == 64


WAIT = """
import sys
from agent_bus import settings
from agent_bus.bus import Bus
bus = Bus.open(settings.load(), identity=sys.argv[1])
with bus.watch(warn=print) as watch:
    print("watching", flush=True)
    found = watch.next(timeout=60)
print(found.messages[0].judged.message.data["decision"], flush=True)
"""


def test_a_decision_on_a_page_wakes_the_one_who_waits_for_it(
    serve: Any, bus: TemporaryBus, start: Callable[..., Any], parse: Callable[[str], Any]
) -> None:
    bus.as_agent("alice").request_approval("May I?", options=["yes", "no"])
    waiting = start(WAIT, "alice", **bus.environment)
    assert waiting.stdout.readline() == "watching\n"
    server = serve("user", "--no-open")
    server.enter()
    with server.client() as client:
        (form,) = parse(client.get("/").text).forms
        answer = client.post(
            form.action,
            content=urlencode(form.pressed("yes")),
            headers={
                "origin": server.origin,
                "content-type": "application/x-www-form-urlencoded",
            },
        )
    assert answer.status_code == 303
    assert waiting.stdout.readline() == "yes\n"
    assert waiting.wait(timeout=GUARD) == 0


def test_it_does_not_import_the_pages_for_other_verbs(run: Callable[..., Any]) -> None:
    done = run(
        "import sys; from agent_bus.cli import app; app.run(['whoami', '--help']); "
        "print({'starlette', 'uvicorn'} & set(sys.modules))"
    )
    assert done.stdout.endswith("set()\n")
    assert os.fspath(Path(__file__)) not in done.stderr
