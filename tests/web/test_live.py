"""Open pages are told what has changed since they were made."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_bus.bus import Bus
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus
from agent_bus.web.live import STREAMS, Live

GUARD = 30.0


@pytest.fixture
def user(bus: TemporaryBus) -> Bus:
    return bus.as_agent("user")


@pytest.fixture
def live(user: Bus) -> Live:
    return Live(user, warn=pytest.fail)


def _told(event: str) -> tuple[int, dict[str, Any]]:
    head, _, data = event.rstrip("\n").partition("\ndata: ")
    return int(head.removeprefix("id: ")), json.loads(data)


async def _next(events: AsyncIterator[str]) -> str:
    return await asyncio.wait_for(anext(events), GUARD)


async def _rest(events: AsyncIterator[str]) -> list[str]:
    return [event async for event in events]


def test_a_look_at_a_still_bus_changes_nothing(live: Live) -> None:
    assert live.look() == live.look() == 1


@pytest.mark.parametrize("kind", ["messages", "approvals", "agents"])
def test_a_look_tells_what_kind_of_thing_has_changed(
    bus: TemporaryBus, live: Live, kind: str
) -> None:
    before = live.look()
    alice = bus.as_agent("alice")
    if kind == "messages":
        alice.send_one("bob", Draft(body="x"))
    elif kind == "approvals":
        alice.decide(_settled(bus, live), "withdraw")
        before = live.look() - 1
    else:
        alice.presence.attach(AgentName("alice"), "mcp")
    after = live.look()
    told = live._since(before)
    assert told is not None
    number, fields = _told(told[1])
    assert number == after == before + 1
    assert kind in fields["kinds"]
    assert live._since(after) is None


def _settled(bus: TemporaryBus, live: Live) -> str:
    ident = bus.as_agent("alice").request_approval("May I?").id
    live.look()
    return ident


def test_a_change_between_the_page_and_its_stream_is_told(bus: TemporaryBus, live: Live) -> None:
    page = live.look()
    bus.as_agent("alice").request_approval("May I?")
    live.look()

    async def go() -> None:
        events = live.events(page)
        assert await _next(events) == ": open\n\n"
        number, fields = _told(await _next(events))
        assert number > page
        assert {"approvals", "messages"} <= set(fields["kinds"])
        assert (fields["pending"], fields["unread"]) == (1, 0)
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(go())


def test_an_arrival_is_told_to_every_open_page(bus: TemporaryBus, live: Live) -> None:
    async def go() -> None:
        streams = [live.events(live.look()) for _ in range(2)]
        for events in streams:
            await _next(events)
        bus.as_agent("alice").send_one("user", Draft(body="secret words"))
        for events in streams:
            event = await _next(events)
            while not _told(event)[1]["unread"]:  # its own presence was told first
                event = await _next(events)
            assert "secret" not in event
            await events.aclose()  # type: ignore[attr-defined]

    with live:
        asyncio.run(go())


def test_an_open_page_counts_as_attached(bus: TemporaryBus, user: Bus, live: Live) -> None:
    async def go() -> None:
        events = live.events(live.look())
        await _next(events)
        until = time.monotonic() + GUARD
        while not user.presence.attached(user.identity):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await events.aclose()  # type: ignore[attr-defined]

    with live:
        assert not user.presence.attached(user.identity)
        asyncio.run(go())
    assert not user.presence.attached(user.identity)


def test_the_oldest_of_too_many_streams_is_dismissed(live: Live) -> None:
    async def go() -> None:
        streams = [live.events(1) for _ in range(STREAMS + 1)]
        for events in streams:
            assert await _next(events) == ": open\n\n"
        assert (await _next(streams[0])).startswith("event: dismissed\n")
        with pytest.raises(StopAsyncIteration):
            await _next(streams[0])
        for events in streams[1:]:
            await events.aclose()  # type: ignore[attr-defined]
        assert live._streams == []

    asyncio.run(go())


def test_the_end_ends_every_stream(live: Live) -> None:
    async def go() -> None:
        events = live.events(live.look())
        await _next(events)
        waiting = asyncio.create_task(_rest(events))
        await asyncio.sleep(0)
        live.end()
        await asyncio.wait_for(waiting, GUARD)

    with live:
        asyncio.run(go())


def test_who_is_no_admin_is_not_told_how_much_waits(bus: TemporaryBus) -> None:
    live = Live(bus.as_agent("bob"), warn=pytest.fail)
    bus.as_agent("alice").request_approval("May I?")
    assert live.counts().pending is None


def test_a_bus_that_fails_is_complained_of_once(user: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_bus.errors import StorageError

    said: list[str] = []
    live = Live(user, warn=said.append)
    failed = 0

    def fail() -> None:
        nonlocal failed
        failed += 1
        raise StorageError("the disk is gone")

    async def go() -> None:
        events = live.events(1)
        await _next(events)
        until = time.monotonic() + GUARD
        while failed < 2:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        await events.aclose()  # type: ignore[attr-defined]

    monkeypatch.setattr(user, "pulse", fail)
    with live:
        asyncio.run(go())
    assert said == ["the pages are not told of changes: the disk is gone"]
