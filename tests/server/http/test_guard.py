"""What no request gets past: a foreign name, a web page, a body of no plain length, slowness."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from agent_bus.server.http import app, guard

HOOK = "/completion-hook"


def test_its_health_is_told_without_a_secret(served: Any) -> None:
    answer = served.request("GET", "/healthz")

    assert (answer.status, answer.json()) == (200, {"ok": True})
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "a b", None])
def test_a_foreign_name_learns_nothing(served: Any, host: str | None) -> None:
    """A web page whose name was made to point here (DNS rebinding) comes with that name."""
    for path in ("/healthz", "/nowhere"):
        answer = served.request("GET", path, Host=host)
        assert answer.status in (400, 421)
        assert b"ok" not in answer.body


def test_two_host_headers_are_no_name(served: Any) -> None:
    head = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nHost: evil.example\r\n\r\n"

    assert served.raw(head.encode()).status in (400, 421)


@pytest.mark.parametrize("host", ["gateway", "GATEWAY:3101", "gateway:80", "127.0.0.1"])
def test_an_allowed_name_is_one_with_any_port(opened: Any, host: str) -> None:
    """A container reaches the door by another port than it has here."""
    served = opened(hosts={"127.0.0.1", "gateway"})

    assert served.request("GET", "/healthz", Host=host).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1"])
def test_a_web_page_may_not_call(served: Any, child: Any, origin: str) -> None:
    value = {"session_id": str(child.id)}
    bearer = f"Bearer {child.completion}"

    assert served.post(HOOK, value, Origin=origin, Authorization=bearer).status == 403


def test_an_allowed_page_may_call(opened: Any) -> None:
    served = opened(origins={"https://desk.example"})

    assert served.request("GET", "/healthz", Origin="https://desk.example").status == 200
    assert served.request("GET", "/healthz", Origin="https://desk.example:1").status == 403


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/mcpx", 404),
        ("GET", "/webhooks", 405),
        ("GET", HOOK, 405),
        ("GET", "/mcp", 405),
        ("DELETE", "/mcp", 405),
        ("PUT", "/healthz", 405),
        ("OPTIONS", "/mcp", 405),
    ],
)
def test_there_is_nothing_else(served: Any, method: str, path: str, status: int) -> None:
    answer = served.request(method, path)

    assert answer.status == status
    assert ("allow" in answer.headers) is (status == 405)


LENGTHS = [
    (["Content-Length: 2", "Content-Length: 3"], 400),
    (["Content-Length: 2, 3"], 400),
    (["Content-Length: -1"], 400),
    (["Content-Length: +2"], 400),
    (["Content-Length: 0x2"], 400),
    (["Content-Length: 99999999999999999999"], 400),
    (["Content-Length: 65537"], 413),
    ([], 411),
    (["Transfer-Encoding: chunked"], 411),
    (["Transfer-Encoding: chunked", "Content-Length: 2"], 411),
    (["Transfer-Encoding: gzip, chunked"], 400),
]


@pytest.mark.parametrize(("lines", "status"), LENGTHS)
def test_a_body_of_no_plain_length_is_not_read(
    served: Any, stage: Any, child: Any, lines: list[str], status: int
) -> None:
    """RFC 9112, section 6: two readers that differ on a length can be set against each other."""
    before = len(stage.server.calls)
    head = [
        f"POST {HOOK} HTTP/1.1",
        f"Host: 127.0.0.1:{served.port}",
        "Content-Type: application/json",
        f"Authorization: Bearer {child.completion}",
        *lines,
    ]
    answer = served.raw("\r\n".join([*head, "", ""]).encode())

    # Some of them the HTTP library refuses by itself.
    assert answer.status in {status, 400}
    assert len(stage.server.calls) == before


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "json", None])
def test_a_body_of_another_type_is_refused(served: Any, child: Any, kind: str | None) -> None:
    """A form of a web page can be sent anywhere without asking."""
    value = {"session_id": str(child.id)}
    headers = {"Authorization": f"Bearer {child.completion}", "Content-Type": kind}

    assert served.post(HOOK, value, **headers).status == 415


def test_a_body_where_none_belongs_is_refused(served: Any) -> None:
    assert served.request("GET", "/healthz", b"{}").status == 400
    assert served.request("GET", "/healthz", Transfer_Encoding="chunked").status == 400


def test_a_body_that_never_comes_ends_in_a_refusal(opened: Any, stage: Any) -> None:
    served = opened(body_seconds=0.2)
    before = len(stage.server.calls)
    head = (
        f"POST {HOOK} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )

    assert served.raw(head.encode()).status == 408
    assert len(stage.server.calls) == before


def test_a_body_that_drips_ends_in_a_refusal(opened: Any) -> None:
    """Each byte comes in time, the whole does not."""
    served = opened(body_seconds=0.5)
    head = (
        f"POST {HOOK} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as wire:
        wire.sendall(head.encode())
        wire.settimeout(0.02)
        data = b""
        for _ in range(2000):
            try:
                wire.sendall(b" ")
                data += wire.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            break
    assert data.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent", [b"", b"POST /completion-hook HT", b"GET / HTTP/1.1\r\nHost: x\r\n"]
)
def test_a_head_that_never_comes_ends_the_connection(opened: Any, sent: bytes) -> None:
    """So a few of them cannot keep everybody else out."""
    served = opened(head_seconds=0.2)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as wire:
        wire.sendall(sent)
        answer = wire.recv(1000)

    assert answer[:12] == (b"HTTP/1.1 408" if sent else b"")


def test_a_half_head_after_a_whole_request_ends_the_connection_as_well(opened: Any) -> None:
    served = opened(head_seconds=0.2)
    head = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as wire:
        wire.sendall(head + b"GET /hea")
        data = b""
        while more := wire.recv(1000):
            data += more

    assert data.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in data


def test_slow_clients_leave_no_thread_behind(opened: Any) -> None:
    served = opened(head_seconds=0.3)
    served.request("GET", "/healthz")
    before = threading.active_count()
    wires = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(40)]
    for wire in wires:
        wire.sendall(b"POST /completion-hook HTTP/1.1\r\nX: ")
    assert served.request("GET", "/healthz").status == 200
    assert threading.active_count() <= before
    for wire in wires:
        assert wire.recv(100).startswith(b"HTTP/1.1 408")
        wire.close()


def test_an_address_that_is_full_leaves_the_others_open(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = guard.Rule(("POST",), body=1000, at_once=1)
    monkeypatch.setitem(app.RULES, HOOK, narrow)
    served = opened()
    head = (
        f"POST {HOOK} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as wire:
        wire.sendall(head.encode())
        until = time.monotonic() + 60
        while (answer := served.post(HOOK, {})).status != 503 and time.monotonic() < until:
            pass
        assert answer.status == 503
        assert answer.headers["retry-after"]
        assert served.request("GET", "/healthz").status == 200


def test_no_http_and_a_huge_head_are_answered_or_cut(served: Any) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET /" + b"a" * 40_000):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as wire:
            wire.sendall(data)
            wire.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert wire.recv(100)[:12] in (b"", b"HTTP/1.1 400")
    assert served.request("GET", "/healthz").status == 200
