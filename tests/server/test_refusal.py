"""A server that cannot start tells its client why, since hosts hide what it says to people."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

GUARD = 60.0
Begin = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def begin(environment: dict[str, str]) -> Iterator[Begin]:
    """Start the program as a host does, without a name for it."""
    started: list[subprocess.Popen[bytes]] = []

    def go(*words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_bus", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.wait(GUARD)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _ask(process: subprocess.Popen[bytes], method: str, ident: int | str) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    request: dict[str, object] = {"jsonrpc": "2.0", "id": ident, "method": method, "params": {}}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer: dict[str, object] = json.loads(process.stdout.readline())
    return answer


def test_each_request_is_answered_with_the_reason_until_the_handshake(begin: Begin) -> None:
    """The probe of the newer protocol, and then `initialize`, which is the end of it."""
    process = begin("mcp")

    for ident, method in ((1, "server/discover"), ("b", "initialize")):
        answer = _ask(process, method, ident)
        assert answer["id"] == ident
        assert isinstance(answer["error"], dict)
        assert answer["error"]["code"] == -32000
        assert str(answer["error"]["message"]).startswith("AGENT_MSG_AS is not set: ")

    assert process.wait(GUARD) == 78
    _, log = process.communicate(timeout=GUARD)
    assert log.startswith(b"agent-bus: AGENT_MSG_AS is not set")
    assert log.count(b"\n") == 1


def test_a_framed_request_is_answered_in_a_frame(begin: Begin) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}'
    out, _ = begin("mcp").communicate(b"Content-Length: %d\r\n\r\n%b" % (len(body), body), GUARD)

    assert out.startswith(b"Content-Length: ")
    assert b"AGENT_MSG_AS is not set" in out


def test_what_is_no_message_is_refused_and_a_notification_is_not_answered(begin: Begin) -> None:
    process = begin("mcp")
    out, _ = process.communicate(b'nonsense\n{"jsonrpc":"2.0","method":"x"}\n[]\n', GUARD)

    assert process.returncode == 78
    assert [json.loads(line)["error"]["code"] for line in out.splitlines()] == [-32700, -32600]


def test_a_client_that_says_nothing_is_not_waited_for(begin: Begin) -> None:
    process = begin("mcp")

    assert process.wait(GUARD) == 78


def test_a_client_that_is_gone_is_no_trouble(begin: Begin) -> None:
    process = begin("mcp")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n')
    process.stdin.close()

    assert process.wait(GUARD) == 78
