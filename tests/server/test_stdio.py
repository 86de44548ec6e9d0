"""The stdio transport, held against real processes over raw pipes and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

SERVER = str(Path(__file__).with_name("echo_server.py"))
ROOT = str(Path(__file__).resolve().parents[2])
PREFIX = "io.modelcontextprotocol/"
LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = "2026-07-28"
GUARD = 60.0
"""Seconds after which a test gives up; nothing here is expected to take long."""
FOR_EVER = 600


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return {**kept, "PYTHONPATH": ROOT, **more}


class Peer:
    """A client of one server process, over bare descriptors."""

    def __init__(
        self, process: subprocess.Popen[bytes], to_server: int, from_server: int, log: Path
    ) -> None:
        self.process = process
        self.to_server = to_server
        self.from_server = from_server
        self.log = log
        self.modern = False
        self._rest = b""
        self._last_id = 0

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            while line:
                line = line[os.write(self.to_server, line) :]

    def read(self) -> bytes:
        """Some bytes of stdout; none at its end."""
        assert select.select([self.from_server], [], [], GUARD)[0], "no answer"
        try:
            return os.read(self.from_server, 65536)
        except ConnectionResetError:
            return b""

    def line(self) -> bytes:
        """The next line of stdout, without its end; empty at the end of stdout."""
        while b"\n" not in self._rest:
            data = self.read()
            if not data:
                assert not self._rest, "the last line is not finished"
                return b""
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        assert line, "an empty line"
        return line

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.line())
        assert message["jsonrpc"] == "2.0"
        return message

    def messages(self) -> list[dict[str, Any]]:
        """Everything up to the end of stdout."""
        return [json.loads(line) for line in iter(self.line, b"")]

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request of this connection's era, with the next id."""
        self._last_id += 1
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {
                PREFIX + "protocolVersion": MODERN,
                PREFIX + "clientCapabilities": {},
                PREFIX + "clientInfo": {"name": "test", "version": "1"},
            }
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        request = self.request(method, params)
        self.send(request)
        answer = self.message()
        assert answer["id"] == request["id"]
        return answer

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def echo(self, text: str = "hi") -> str:
        """What the server says to a plain call: proof that it lives and is in order."""
        answer = self.ask("tools/call", {"name": "echo", "arguments": {"text": text}})
        return str(answer["result"]["content"][0]["text"])

    def initialize(self, version: str = "2025-11-25") -> dict[str, Any]:
        self.send(self.opening(version))
        answer = self.message()
        if not self.modern:
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def opening(self, version: str = "2025-11-25") -> dict[str, Any]:
        self.modern = version == MODERN
        if self.modern:
            return self.request("server/discover")
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        return self.request("initialize", params)

    def wait_for_log(self, text: str) -> None:
        end = time.monotonic() + GUARD
        while text not in self.log.read_text():
            assert time.monotonic() < end, f"never logged: {text}"
            time.sleep(0.01)

    def close_input(self) -> None:
        os.close(self.to_server)
        self.to_server = -1

    def wait(self) -> int:
        return self.process.wait(GUARD)

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(GUARD / 6)
        self.process.kill()
        self.process.wait()
        for fd in {self.to_server, self.from_server} - {-1}:
            os.close(fd)


Start = Callable[..., Peer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers, each on a pair of pipes, and ends them after the test."""
    peers: list[Peer] = []

    def start(
        *options: str,
        command: tuple[str, ...] = (sys.executable, SERVER),
        ends: tuple[int, int, int, int] | None = None,
        **env: str,
    ) -> Peer:
        log = tmp_path / f"stderr-{len(peers)}"
        theirs_in, ours_out, ours_in, theirs_out = ends or (*os.pipe(), *os.pipe())
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, *options],
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=stderr,
                env=environment(**env),
            )
        for fd in {theirs_in, theirs_out}:
            os.close(fd)
        peers.append(Peer(process, ours_out, ours_in, log))
        return peers[-1]

    yield start
    for peer in peers:
        peer.end()


def socket_ends() -> tuple[int, int, int, int]:
    """As Node makes them: a socket pair for each stream."""
    first, second = socket.socketpair(), socket.socketpair()
    return first[0].detach(), first[1].detach(), second[0].detach(), second[1].detach()


def shared_socket_ends() -> tuple[int, int, int, int]:
    """One socket pair for both streams."""
    theirs, ours = socket.socketpair()
    theirs_fd, ours_fd = theirs.detach(), ours.detach()
    return theirs_fd, ours_fd, ours_fd, theirs_fd


# Both eras, and the SDK's own client


@pytest.mark.parametrize("options", [(), ("--opening",)])
@pytest.mark.parametrize("version", [*LEGACY, MODERN])
def test_every_protocol_version_is_served(
    start: Start, version: str, options: tuple[str, ...]
) -> None:
    peer = start(*options)

    answer = peer.initialize(version)["result"]

    assert version in (answer.get("protocolVersion"), *answer.get("supportedVersions", ()))
    assert len(peer.ask("tools/list")["result"]["tools"]) == 8
    assert peer.echo() == "hi"
    peer.close_input()
    assert peer.messages() == []
    assert peer.wait() == 0


@pytest.mark.parametrize("options", [[], ["--opening"]])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdk_client_is_served(mode: Any, options: list[str], tmp_path: Path) -> None:
    cleaned = tmp_path / "cleaned"
    command = [SERVER, *options, "--cleanup", str(cleaned)]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment())

    async def session() -> None:
        async with Client(parameters, mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert "echo" in names
            result = await client.call_tool("echo", {"text": "é 漢 🐟 \u2028"})
            assert result.content[0].text == "é 漢 🐟 \u2028"  # type: ignore[union-attr]

    asyncio.run(session())
    assert cleaned.read_text() == "clean\n"


def test_an_enveloped_request_may_open_the_session(start: Start) -> None:
    """A client of 2026-07-28 may leave `server/discover` out."""
    peer = start("--opening")
    peer.modern = True

    assert peer.echo("first") == "first"


# stdout carries the protocol alone


def test_output_of_tools_and_children_never_reaches_the_wire(start: Start) -> None:
    """Nor does what was printed, and not flushed, before the server started."""
    peer = start()
    peer.initialize()

    answer = peer.ask("tools/call", {"name": "noise"})

    # The child found its stdin at an end, and no descriptor but the standard ones.
    assert answer["result"]["content"][0]["text"] == "'' []"
    assert peer.echo() == "hi"
    peer.close_input()
    assert peer.messages() == []
    for text in ("never flushed before", "printed", "written", "child", "printed and never"):
        assert text in peer.log.read_text()


def test_text_like_a_message_stays_text(start: Start) -> None:
    peer = start()
    peer.initialize()
    text = '\n{"jsonrpc":"2.0","id":1,"result":{}}\nContent-Length: 5\r\n\r\n'

    assert peer.echo(text) == text


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "cp932"},
    ],
)
def test_bytes_are_the_same_in_every_locale(start: Start, locale: dict[str, str]) -> None:
    peer = start(**locale)
    peer.initialize()
    request = peer.call("echo", text="é 漢 🐟 –")

    peer.send(json.dumps(request, ensure_ascii=False).encode() + b"\n")

    assert '"é 漢 🐟 –"'.encode() in peer.line()
    peer.close_input()
    assert peer.wait() == 0


def test_every_message_is_one_line_to_every_reader(start: Start) -> None:
    """Node's readline ends a line at U+2028, and Python's splitlines at U+0085."""
    peer = start()
    peer.initialize()
    text = "a\u2028b\u2029c\x85d"
    peer.send(peer.call("echo", text=text))

    line = peer.line().decode()

    assert len(line.splitlines()) == 1
    assert json.loads(line)["result"]["content"][0]["text"] == text


# What is read


FAULTY: list[tuple[bytes, int, int | str | None]] = [
    (b"nonsense", -32700, None),
    (b"{", -32700, None),
    (b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}', -32700, None),
    (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":{"a":"\xff"}}', -32700, None),
    (b"[" * 50_000, -32700, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc":"2.0","id":6,"method":"ping"}]', -32600, None),
    (b'"text"', -32600, None),
    (b'{"id":6}', -32600, 6),
    (b'{"jsonrpc":"1.0","id":"six","method":"ping"}', -32600, "six"),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":[]}', -32600, 6),
    (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":{"a":"\\ud800"}}', -32600, 6),
    (b"x" * (5 * 1024 * 1024), -32600, None),
]

DROPPED = [
    b"",
    b"  \r",
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":"x"}}',
    b'{"jsonrpc":"2.0","method":"notifications/unheard-of"}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized","params":{"_meta":7}}',
    b'{"jsonrpc":"2.0","id":99,"result":{}}',
    b'{"jsonrpc":"2.0","id":99,"result":"no object"}',
    b'{"jsonrpc":"2.0","id":[],"error":7}',
    b'{"jsonrpc":"1.0","id":1,"result":{}}',
]


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_faulty_input_is_answered_or_dropped_and_ends_nothing(start: Start, version: str) -> None:
    peer = start()
    peer.initialize(version)

    for raw, code, ident in FAULTY:
        peer.send(raw + b"\n")
        answer = peer.message()
        assert (answer["error"]["code"], answer["id"]) == (code, ident), raw[:60]
    for raw in DROPPED:
        peer.send(raw + b"\n")

    assert peer.echo() == "hi"
    peer.close_input()
    assert peer.messages() == []
    assert peer.wait() == 0


def test_faulty_input_before_the_opening_ends_nothing(start: Start) -> None:
    peer = start("--opening")

    for raw, code, _ident in FAULTY:
        peer.send(raw + b"\n")
        assert peer.message()["error"]["code"] == code
    peer.initialize()

    assert peer.echo() == "hi"


def test_crlf_and_line_separators_are_read(start: Start) -> None:
    peer = start()
    peer.initialize()
    request = peer.call("echo", text="a\u2028b\x85c")

    peer.send(json.dumps(request, ensure_ascii=False).encode() + b"\r\n")

    assert peer.message()["result"]["content"][0]["text"] == "a\u2028b\x85c"


@pytest.mark.parametrize("options", [(), ("--opening",)])
def test_a_last_line_without_its_end_is_answered(start: Start, options: tuple[str, ...]) -> None:
    """All at once, as `printf … | agent-bus mcp` sends it."""
    peer = start(*options)
    first, second = peer.opening(), peer.call("echo", text="last")

    peer.send(first, json.dumps(second).encode())
    peer.close_input()

    assert [answer["id"] for answer in peer.messages()] == [1, 2]
    assert peer.wait() == 0


def test_a_peer_that_sends_content_length_is_answered_in_kind(start: Start) -> None:
    peer = start()
    opening, call = peer.opening(), peer.call("echo", text="é")

    for request, heads in (
        (opening, b"Content-Length: %d\r\n\r\n"),
        (call, b"content-type: application/json\r\nCONTENT-LENGTH:%d\r\nX-More: 1\r\n\r\n"),
    ):
        body = json.dumps(request, ensure_ascii=False).encode()
        peer.send(heads % len(body) + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += peer.read()
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head == b"Content-Length: %d" % len(body)
        assert json.loads(body)["id"] == request["id"]

    peer.send(b"Content-Length: 2\r\n\r\n{]")
    assert peer.read().startswith(b"Content-Length: ")
    assert peer.echo("a line again") == "a line again"


def test_a_framed_message_that_is_too_large_is_skipped(start: Start) -> None:
    peer = start()
    peer.initialize()
    large = b"x" * (5 * 1024 * 1024)

    peer.send(b"Content-Length: %d\r\n\r\n" % len(large), large)

    assert b'"code": -32600' in peer.read()
    assert peer.echo() == "hi"


@pytest.mark.parametrize("ends", [socket_ends, shared_socket_ends])
def test_sockets_serve_as_well_as_pipes(
    start: Start, ends: Callable[[], tuple[int, int, int, int]]
) -> None:
    peer = start(ends=ends())
    peer.initialize()
    size = 1_000_000
    calls = [peer.call("big", size=size) for _ in range(3)]

    peer.send(*calls)

    answers = [peer.message() for _ in calls]
    assert {answer["id"] for answer in answers} == {call["id"] for call in calls}
    assert {len(answer["result"]["content"][0]["text"]) for answer in answers} == {size}
    with contextlib.closing(socket.socket(fileno=os.dup(peer.to_server))) as end:
        end.shutdown(socket.SHUT_WR)
    assert peer.wait() == 0


# Handlers


def test_no_fault_of_a_handler_ends_the_server(start: Start) -> None:
    peer = start()
    peer.initialize()

    assert "error" in peer.ask("tools/call", {"name": "fail"})
    assert peer.ask("tools/call", {"name": "surrogate"})["error"]["code"] == -32603
    assert peer.ask("no/such/method")["error"]["code"] == -32601
    assert peer.echo() == "hi"


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_long_calls_hold_up_nobody(start: Start, version: str) -> None:
    peer = start()
    peer.initialize(version)
    waiting = peer.call("sleep", seconds=FOR_EVER)

    peer.send(waiting, peer.call("block", seconds=FOR_EVER))
    peer.wait_for_log("blocked")

    assert peer.echo() == "hi"
    assert len(peer.ask("tools/list")["result"]["tools"]) == 8
    cancel = {"requestId": waiting["id"]}
    peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel})
    assert peer.echo("a cancelled call is not answered") == "a cancelled call is not answered"


def test_notifications_go_out_before_the_answer(start: Start) -> None:
    peer = start()
    peer.initialize()
    peer.send(peer.call("push", text="done"))

    assert peer.message()["method"] == "notifications/resources/updated"
    assert peer.message()["result"]["content"][0]["text"] == "done"


# Endings


def test_the_end_of_stdin_ends_an_idle_server(start: Start, tmp_path: Path) -> None:
    """Twenty clients come and go; nothing stays, and each server cleans up."""
    for number in range(20):
        cleaned = tmp_path / f"cleaned-{number}"
        peer = start("--opening", "--cleanup", str(cleaned))
        peer.initialize()
        peer.close_input()
        assert peer.messages() == []
        assert peer.wait() == 0
        assert cleaned.read_text() == "clean\n"


def test_quick_calls_are_answered_after_the_end_of_stdin(start: Start) -> None:
    peer = start()
    peer.initialize()
    calls = [peer.call("echo", text=str(number)) for number in range(50)]

    peer.send(*calls)
    peer.close_input()

    answers = peer.messages()
    assert [answer["id"] for answer in answers] == [call["id"] for call in calls]
    assert all("result" in answer for answer in answers)
    assert peer.wait() == 0


@pytest.mark.parametrize("tool", ["sleep", "block"])
@pytest.mark.parametrize("ending", ["eof", "SIGINT", "SIGTERM", "SIGHUP"])
def test_a_busy_server_ends_cleanly(start: Start, tmp_path: Path, ending: str, tool: str) -> None:
    """An unanswered wait, or a thread that never returns, holds nothing up."""
    cleaned = tmp_path / "cleaned"
    peer = start("--cleanup", str(cleaned))
    peer.initialize()
    peer.send(peer.call(tool, seconds=FOR_EVER))
    peer.wait_for_log("asleep" if tool == "sleep" else "blocked")

    if ending == "eof":
        peer.close_input()
    else:
        peer.process.send_signal(getattr(signal, ending))

    assert peer.wait() == 0
    assert cleaned.read_text() == "clean\n"
    assert all("error" in message for message in peer.messages())


@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_server_that_is_still_building_ends_cleanly(
    start: Start, tmp_path: Path, ending: str
) -> None:
    cleaned = tmp_path / "cleaned"
    peer = start("--opening", "--slow", str(FOR_EVER), "--cleanup", str(cleaned))
    peer.initialize()

    peer.process.send_signal(getattr(signal, ending))

    assert peer.wait() == 0
    assert cleaned.read_text() == "clean\n"


def test_a_hangup_is_ignored_under_nohup(start: Start) -> None:
    """The host outlives its terminal then, and no host brings a dead server back."""
    nohup = ("/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, SERVER)
    peer = start(command=nohup)
    peer.initialize()

    peer.process.send_signal(signal.SIGHUP)

    assert peer.echo() == "hi"
    peer.process.send_signal(signal.SIGTERM)
    assert peer.wait() == 0


@pytest.mark.parametrize("ends", [None, socket_ends])
def test_a_closed_stdout_ends_an_idle_server(
    start: Start, tmp_path: Path, ends: Callable[[], tuple[int, int, int, int]] | None
) -> None:
    cleaned = tmp_path / "cleaned"
    peer = start("--cleanup", str(cleaned), ends=ends and ends())
    peer.initialize()

    os.close(peer.from_server)
    peer.from_server = -1

    assert peer.wait() == 0
    assert cleaned.read_text() == "clean\n"


def test_a_closed_stdout_ends_a_server_that_writes(start: Start) -> None:
    peer = start()
    peer.initialize()

    os.close(peer.from_server)
    peer.from_server = -1
    with contextlib.suppress(BrokenPipeError):
        peer.send(*(peer.call("echo", text="x") for _ in range(20)))

    assert peer.wait() == 0
    assert "Traceback" not in peer.log.read_text()


@pytest.mark.parametrize("ending", ["eof", "SIGTERM"])
def test_output_that_nobody_reads_holds_up_no_end(
    start: Start, tmp_path: Path, ending: str
) -> None:
    cleaned = tmp_path / "cleaned"
    peer = start("--cleanup", str(cleaned))
    peer.initialize()
    peer.send(*(peer.call("echo", text="x" * 1000) for _ in range(400)))

    if ending == "eof":
        peer.close_input()
    else:
        peer.process.send_signal(signal.SIGTERM)

    assert peer.wait() == 0
    assert cleaned.read_text() == "clean\n"


def test_a_client_that_never_reads_counts_as_gone(start: Start) -> None:
    """Else what it does not read would be kept without end."""
    peer = start()
    peer.initialize()

    peer.send(*(peer.call("big", size=15_000_000) for _ in range(5)))

    assert peer.wait() == 0


def test_a_flood_of_faults_that_nobody_reads_hides_no_end(start: Start) -> None:
    peer = start()
    peer.initialize()

    peer.send(b"x\n" * 50_000)
    peer.close_input()

    assert peer.wait() == 0


def test_a_client_that_reads_late_loses_nothing(start: Start) -> None:
    """More than a pipe holds is kept until it is read."""
    peer = start()
    peer.initialize()
    calls = [peer.call("big", size=50_000) for _ in range(40)]

    peer.send(*calls)

    assert {peer.message()["id"] for _ in calls} == {call["id"] for call in calls}


@pytest.mark.parametrize("options", [(), ("--slow", str(FOR_EVER))])
def test_the_death_of_the_parent_ends_the_server(
    start: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Even where a sibling, here the test itself, still holds the write end of stdin."""
    cleaned = tmp_path / "cleaned"
    host = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    peer = start(
        *("--opening", "--cleanup", str(cleaned), *options),
        command=(sys.executable, "-c", host, sys.executable, SERVER),
    )
    peer.initialize()

    peer.process.kill()

    assert peer.messages() == []
    assert cleaned.read_text() == "clean\n"


def test_a_cleanup_that_hangs_does_not_hold_the_process(start: Start) -> None:
    peer = start("--opening", "--stuck-cleanup")
    peer.initialize()
    peer.close_input()

    assert peer.wait() == 70


@pytest.mark.parametrize("options", [(), ("--opening",)])
@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        ("usage", 64, "agent-bus: no such bus: make one with agent-bus init\n"),
        ("bug", 70, "the build broke"),
        ("lifespan", 70, "the lifespan broke"),
    ],
)
def test_a_server_that_cannot_be_built_says_why(
    start: Start, tmp_path: Path, options: tuple[str, ...], fault: str, code: int, text: str
) -> None:
    cleaned = tmp_path / "cleaned"
    peer = start(*options, "--fail", fault, "--cleanup", str(cleaned))

    assert peer.wait() == code
    log = peer.log.read_text()
    assert text in log
    assert fault != "usage" or "build" not in log
    assert cleaned.read_text() == "clean\n"


# The opening


@pytest.mark.parametrize("version", [*LEGACY, MODERN])
def test_the_opening_is_answered_before_the_server_is_built(start: Start, version: str) -> None:
    peer = start("--opening", "--slow", str(FOR_EVER))

    answer = peer.initialize(version)

    info = {"name": "echo", "version": "1.2.3"}
    found = answer["result"]
    assert found.get("serverInfo") or found["_meta"][PREFIX + "serverInfo"] == info


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
def test_what_comes_during_the_build_waits_and_is_answered_in_order(
    start: Start, version: str
) -> None:
    """The SDK hears of the opening too, and its own answer goes nowhere."""
    peer = start("--opening", "--slow", "0.5")

    peer.initialize(version)
    calls = [peer.call("echo", text=str(number)) for number in range(5)]
    peer.send(*calls)
    peer.close_input()

    answers = peer.messages()
    assert [answer["id"] for answer in answers] == [call["id"] for call in calls]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == list("01234")
    assert "otherwise" not in peer.log.read_text()


def test_an_unusual_opening_waits_for_the_sdk(start: Start) -> None:
    peer = start("--opening")
    request = peer.opening()
    request["params"]["clientInfo"]["icons"] = [{"src": "data:,"}]

    peer.send(request)

    assert peer.message()["result"]["serverInfo"]["name"] == "echo"
    assert peer.echo() == "hi"


def test_a_faulty_opening_gets_the_sdks_answer(start: Start) -> None:
    peer = start("--opening")
    peer.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})

    assert peer.message()["error"]["code"] == -32602


def test_a_fault_of_the_opening_ends_nothing(start: Start) -> None:
    peer = start("--broken-opening")

    assert peer.initialize()["result"]["serverInfo"]["name"] == "echo"
    assert peer.echo() == "hi"


def test_a_second_opening_goes_to_the_sdk(start: Start) -> None:
    """Claude Code asks `server/discover` twice."""
    peer = start("--opening")

    first, second = peer.initialize(MODERN), peer.initialize(MODERN)

    assert first["result"] == second["result"]


@pytest.mark.parametrize("module", ["stdio", "opening"])
def test_the_transport_loads_without_the_sdk(module: str) -> None:
    code = (
        f"import sys, agent_bus.server.{module}\n"
        "sys.exit(str(sorted({'mcp', 'mcp_types', 'anyio', 'pydantic'} & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=False
    )

    assert done.stderr == b"[]\n"


# Where stdin is no pipe


def test_the_sdks_transport_serves_a_file(tmp_path: Path) -> None:
    peer = Peer(None, -1, -1, tmp_path)  # type: ignore[arg-type]
    requests = tmp_path / "requests.jsonl"
    requests.write_text(json.dumps(peer.opening()) + "\n")
    cleaned = tmp_path / "cleaned"
    with requests.open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, SERVER, "--opening", "--cleanup", str(cleaned)],
            stdin=stdin,
            capture_output=True,
            env=environment(),
            timeout=GUARD,
            check=False,
        )

    assert done.returncode == 0
    assert cleaned.read_text() == "clean\n"


def test_a_server_on_the_null_device_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, SERVER],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        timeout=GUARD,
        check=False,
    )

    assert (done.returncode, done.stdout.count(b"{")) == (0, 0)


@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_a_server_on_a_terminal_answers_and_ends_on_a_signal(start: Start, ending: str) -> None:
    ours, theirs = pty.openpty()
    peer = start(ends=(theirs, ours, *os.pipe()))

    assert "result" in peer.initialize()
    peer.process.send_signal(getattr(signal, ending))

    assert peer.wait() == 0


def test_stdout_may_be_a_file(tmp_path: Path) -> None:
    peer = Peer(None, -1, -1, tmp_path)  # type: ignore[arg-type]
    lines = [json.dumps(peer.opening()), json.dumps(peer.call("echo", text="hi"))]
    answers = tmp_path / "answers"
    with answers.open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, SERVER],
            input="\n".join(lines).encode(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=GUARD,
            check=False,
        )

    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in answers.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_closed_standard_stream_is_named(closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, SERVER],
        stdin=subprocess.PIPE,
        capture_output=True,
        env=environment(),
        timeout=GUARD,
        check=False,
    )

    assert done.returncode == 78
    assert done.stderr.startswith(b"agent-bus: stdin or stdout is closed")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stderr_hurts_nobody(start: Start) -> None:
    peer = start(command=("/bin/sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, SERVER))
    peer.initialize()

    assert "result" in peer.ask("tools/call", {"name": "noise"})
    assert peer.echo() == "hi"
    peer.close_input()
    assert peer.messages() == []
    assert peer.wait() == 0
