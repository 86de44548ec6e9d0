"""bus_wait: it delays nobody, answers in time, and consumes nothing unless it answers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError

from agent_bus.sending import Draft
from agent_bus.server import app, waiting
from agent_bus.server.arguments import WaitArguments
from agent_bus.server.resources import INBOX
from agent_bus.server.verbs import Service
from agent_bus.server.waiting import _Call
from agent_bus.testing import ManualClock, TemporaryBus

pytestmark = pytest.mark.anyio

GUARD = 60.0
Ok = Callable[[Any], dict[str, Any]]
Failed = Callable[[Any], str]


def write(bus: TemporaryBus, to: str = "alice", **draft: Any) -> str:
    return bus.as_agent("bob").send_one(to, Draft(**{"body": "x", **draft})).id


def ids(value: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in value["messages"]]


async def test_other_calls_answer_during_a_wait_and_two_waits_both_wake(
    bus: TemporaryBus, connect: Any, ok: Ok, mode: str
) -> None:
    values: list[dict[str, Any]] = []

    async def wait(client: Client) -> None:
        values.append(ok(await client.call_tool("bus_wait", {"timeout": 300})))

    with anyio.fail_after(GUARD):
        async with connect("alice", mode) as client, anyio.create_task_group() as group:
            group.start_soon(wait, client)
            group.start_soon(wait, client)
            await _until(lambda: _sleepers() >= 2)
            ok(await client.call_tool("bus_inbox", {}))
            ok(await client.call_tool("bus_send", {"to": "bob", "body": "x"}))
            await client.list_tools()
            assert not values
            ident = await anyio.to_thread.run_sync(write, bus)

    assert [ids(value) for value in values] == [[ident], [ident]]


async def test_forty_waits_starve_nobody_and_all_wake(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    values: list[dict[str, Any]] = []

    async def wait(client: Client) -> None:
        values.append(ok(await client.call_tool("bus_wait", {"timeout": 300})))

    with anyio.fail_after(GUARD):
        async with connect("alice") as client, anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(wait, client)
            await _until(lambda: _sleepers() >= 40)
            ok(await client.call_tool("bus_send", {"to": "bob", "body": "x"}))
            ident = await anyio.to_thread.run_sync(write, bus)

    assert [ids(value) for value in values] == [[ident]] * 40


async def test_too_many_waits_are_refused(
    serve: Any, failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAITS", 1)
    with anyio.fail_after(GUARD):
        async with Client(app.make(serve("alice"))) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "bus_wait", {"timeout": 300})
            await _until(lambda: _sleepers() >= 1)
            line = failed(await client.call_tool("bus_wait", {}))
            group.cancel_scope.cancel()

    assert line.startswith("busy: 1 waits run in this server already")


async def test_what_comes_between_start_and_the_first_wait_is_shown_once(
    bus: TemporaryBus, connect: Any, ok: Ok, mode: str
) -> None:
    before = write(bus)
    async with connect("alice", mode) as client:
        since = write(bus)
        first = ok(await client.call_tool("bus_wait", {}))
        second = ok(await client.call_tool("bus_wait", {"timeout": 0}))
        third = ok(await client.call_tool("bus_wait", {"include_existing": True}))
        fourth = ok(await client.call_tool("bus_wait", {"timeout": 0, "include_existing": True}))

    assert ids(first) == [since]
    assert (first["timed_out"], first["unread"], first["unread_before_start"]) == (False, 2, 1)
    assert ids(second) == []
    assert second["timed_out"]
    assert "nothing yet: call bus_wait again" in second["hint"]
    assert "1 unread from before" in second["hint"]
    assert ids(third) == [before]
    assert ids(fourth) == []


async def test_a_limit_leaves_the_rest_for_the_next_wait(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    async with connect("alice") as client:
        sent = [write(bus) for _ in range(5)]
        first = ok(await client.call_tool("bus_wait", {"limit": "1"}))
        rest = ok(await client.call_tool("bus_wait", {}))

    assert (ids(first), first["remaining"]) == (sent[:1], 4)
    assert "4 more are ready" in first["hint"]
    assert (ids(rest), rest["remaining"]) == (sent[1:], 0)
    assert "hint" not in rest


async def test_what_a_thread_filter_passes_over_is_left_for_another_wait(
    bus: TemporaryBus, connect: Any, ok: Ok, failed: Failed
) -> None:
    async with connect("alice") as client:
        asked = ok(await client.call_tool("bus_send", {"to": "bob", "body": "?"}))
        root = asked["receipts"][0]["id"]
        other, answer = write(bus), write(bus, reply_to=root)
        assert ids(ok(await client.call_tool("bus_wait", {"thread": root}))) == [answer]
        assert ids(ok(await client.call_tool("bus_wait", {}))) == [other]
        line = failed(await client.call_tool("bus_wait", {"thread": "01"}))

    assert line.startswith("invalid-name: ")


async def test_a_wait_that_is_given_up_consumes_nothing_and_frees_its_thread(
    bus: TemporaryBus, connect: Any, ok: Ok, mode: str
) -> None:
    with anyio.fail_after(GUARD):
        async with connect("alice", mode) as client:
            with anyio.move_on_after(0.2):
                await client.call_tool("bus_wait", {"timeout": 300})
            with pytest.raises(MCPError):
                await client.call_tool("bus_wait", {"timeout": 300}, read_timeout_seconds=0.2)
            await _until(lambda: _sleepers() == 0)
            ident = write(bus)

            assert ids(ok(await client.call_tool("bus_wait", {}))) == [ident]


def test_an_answer_that_reaches_nobody_is_given_back(bus: TemporaryBus, serve: Any) -> None:
    """The thread has its message at the moment at which the call is cancelled."""
    old = write(bus)
    service = serve("alice")
    new = write(bus)
    asked = WaitArguments(include_existing=True)
    call = _Call(service, asked)

    assert [entry.id for entry in call.run().messages] == [old, new]
    call.cancel()
    assert [entry.id for entry in _Call(service, WaitArguments()).run().messages] == [new]
    assert [entry.id for entry in _Call(service, asked).run().messages] == [old]


def test_a_call_that_is_cancelled_before_it_began_takes_nothing(
    bus: TemporaryBus, serve: Any
) -> None:
    service = serve("alice")
    ident = write(bus)
    call = _Call(service, WaitArguments())
    call.cancel()

    assert call.run().messages == []
    assert [entry.id for entry in _Call(service, WaitArguments()).run().messages] == [ident]


@pytest.mark.parametrize(
    ("asked", "seconds"), [(0, 0), (1, 0.9), (10, 9), (60, 58), (300, 298), (600, 298)]
)
def test_a_wait_answers_a_little_before_its_time(serve: Any, asked: float, seconds: float) -> None:
    assert _Call(serve("alice"), WaitArguments(timeout=asked)).seconds == seconds


async def test_a_longer_wait_is_cut_and_says_so(bus: TemporaryBus, connect: Any, ok: Ok) -> None:
    async with connect("alice") as client:
        write(bus)
        value = ok(await client.call_tool("bus_wait", {"timeout": 1e300}))

    assert value["hint"] == "a wait lasts at most 300 seconds"


async def test_progress_is_reported_to_a_client_that_asks(
    bus: TemporaryBus, connect: Any, ok: Ok, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PROGRESS_INTERVAL", 0.01)
    seen: list[tuple[float, float | None, str | None]] = []
    enough = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        if len(seen) == 3:
            enough.set()

    async def wait(client: Client) -> None:
        ok(await client.call_tool("bus_wait", {"timeout": 300}, progress_callback=note))

    with anyio.fail_after(GUARD):
        async with connect("alice", mode) as client, anyio.create_task_group() as group:
            group.start_soon(wait, client)
            await enough.wait()
            write(bus)

    assert [round(step[0], 2) for step in seen[:3]] == [0.01, 0.02, 0.03]
    assert seen[0][1:] == (298, "waiting for messages")


async def test_a_file_that_does_not_verify_is_named_and_no_message(
    bus: TemporaryBus, connect: Any, ok: Ok, warnings: list[str]
) -> None:
    async with connect("alice") as client:
        ident = write(bus)
        path = bus.path / "messages" / "alice" / "new" / f"{ident}.msg"
        path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"'))
        value = ok(await client.call_tool("bus_wait", {"timeout": 0.1}))
        good = write(bus)
        assert ids(ok(await client.call_tool("bus_wait", {}))) == [good]

    assert value["messages"] == []
    assert f"{ident} (bad-signature)" in value["warning"]
    assert any(ident in line for line in warnings)


async def test_a_subscription_leaves_the_warning_to_the_next_wait(
    bus: TemporaryBus, connect: Any, ok: Ok, warnings: list[str]
) -> None:
    ident = write(bus)
    path = forge(bus, ident)
    path.rename(bus.path / "aside")
    async with connect("alice") as client, client.listen(resource_subscriptions=[INBOX]):
        (bus.path / "aside").rename(path)
        with anyio.fail_after(GUARD):
            await _until(lambda: any(ident in line for line in warnings))
        value = ok(await client.call_tool("bus_wait", {"timeout": 0}))
        again = ok(await client.call_tool("bus_wait", {"timeout": 0}))

    assert f"{ident} (bad-signature)" in value["warning"]
    assert "warning" not in again
    assert sum(ident in line for line in warnings) == 1


def test_a_warning_that_reaches_nobody_is_given_back(bus: TemporaryBus, serve: Any) -> None:
    service = serve("alice")
    bad = write(bus)
    forge(bus, bad)
    call = _Call(service, WaitArguments(timeout=0))
    assert bad in (call.run().warning or "")
    call.cancel()

    assert bad in (_Call(service, WaitArguments(timeout=0)).run().warning or "")
    assert _Call(service, WaitArguments(timeout=0)).run().warning is None


async def test_what_is_left_of_the_older_mail_names_the_way_to_it(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    sent = [write(bus) for _ in range(2)]
    async with connect("alice") as client:
        asked = {"include_existing": True, "limit": 1}
        first = ok(await client.call_tool("bus_wait", asked))
        assert first["hint"] == "1 more are ready: call bus_wait again with include_existing"
        assert ids(ok(await client.call_tool("bus_wait", asked))) == sent[1:]


async def test_a_large_limit_is_no_matter_where_all_is_shown(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    async with connect("alice") as client:
        write(bus)
        for name in ("bus_wait", "bus_inbox", "bus_log"):
            assert "hint" not in ok(await client.call_tool(name, {"limit": 1000}))


async def test_bad_and_expired_files_from_before_are_no_unread_messages(
    held: TemporaryBus, clock: ManualClock, ok: Ok
) -> None:
    write(held, expires_in=60)
    forge(held, write(held))
    write(held)
    clock.advance(3600)
    alice = held.as_agent("alice")
    with alice.watch(warn=print) as watch, alice.presence.attach(alice.identity, "mcp") as here:
        async with Client(app.make(Service(alice, watch, here))) as client:
            value = ok(await client.call_tool("bus_wait", {"timeout": 0}))

    assert value["unread_before_start"] == 1


def forge(bus: TemporaryBus, ident: str, box: str = "alice") -> Path:
    """Change one letter of a message."""
    path = bus.path / "messages" / box / "new" / f"{ident}.msg"
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"'))
    os.utime(path, (1_000_000, 1_000_000))
    return path


def _sleepers() -> int:
    """The waits that are in a thread now."""
    return sum(thread.name.startswith("AnyIO worker") and _is_waiting(thread)
               for thread in threading.enumerate())  # fmt: skip


def _is_waiting(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is _Call.run.__code__:
            return True
        frame = frame.f_back
    return False


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - a thread tells nobody that it sleeps
        await anyio.sleep(0.01)
