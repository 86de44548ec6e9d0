"""bus://inbox in both eras: what it holds, and the news that something has come."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp.client.subscriptions import ResourceUpdated
from mcp.types import ResourceUpdatedNotification

from agent_bus.sending import Draft
from agent_bus.server.resources import INBOX
from agent_bus.testing import TemporaryBus

pytestmark = [
    pytest.mark.anyio,
    # The SDK's client says so of the era that is tested on purpose.
    pytest.mark.filterwarnings("ignore:resources/.* is removed as of 2026-07-28"),
]

GUARD = 60.0
Ok = Callable[[Any], dict[str, Any]]


def write(bus: TemporaryBus, to: str = "alice", **draft: Any) -> str:
    return bus.as_agent("bob").send_one(to, Draft(**{"body": "x", **draft})).id


class News:
    """What a client of the older era is told."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.came = anyio.Event()

    async def __call__(self, message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.uris.append(str(message.params.uri))
            self.came.set()

    async def next(self) -> str:
        with anyio.fail_after(GUARD):
            await self.came.wait()
        self.came = anyio.Event()
        return self.uris[-1]


async def test_the_inbox_holds_what_is_unread(bus: TemporaryBus, connect: Any, mode: str) -> None:
    ids = [write(bus, subject="🐟" * 200) for _ in range(45)]
    async with connect("alice", mode) as client:
        (resource,) = (await client.list_resources()).resources
        assert str(resource.uri) == INBOX
        (content,) = (await client.read_resource(INBOX)).contents
        assert content.mime_type == "application/json"
        value = json.loads(content.text)
        assert len(content.text.encode()) < 20_000

    assert (value["identity"], value["unread"], value["remaining"]) == ("alice", 45, 5)
    assert [entry["id"] for entry in value["messages"]] == ids[:40]
    assert bus.as_agent("alice").inbox(unread=True).total == 45


async def test_there_is_no_other_resource(connect: Any, mode: str) -> None:
    async with connect("alice", mode) as client:
        with pytest.raises(MCPError, match="no such resource; there is bus://inbox"):
            await client.read_resource("bus://outbox")


async def test_another_resource_cannot_be_subscribed_to(connect: Any) -> None:
    async with connect("alice", "legacy") as client:
        with pytest.raises(MCPError, match="no such resource"):
            await client.subscribe_resource("bus://outbox")


async def test_a_subscriber_of_the_older_era_is_told_of_each_arrival(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    write(bus)
    news = News()
    async with connect("alice", "legacy", message_handler=news) as client:
        since_start = write(bus)
        await client.subscribe_resource(INBOX)
        first = write(bus)
        assert await news.next() == INBOX
        second = write(bus)
        assert await news.next() == INBOX
        waited = ok(await client.call_tool("bus_wait", {}))
        third = write(bus)
        assert await news.next() == INBOX
        await client.unsubscribe_resource(INBOX)
        count = len(news.uris)
        write(bus)
        ok(await client.call_tool("bus_wait", {"timeout": 0}))
        ok(await client.call_tool("bus_wait", {"timeout": 0.2}))
        assert len(news.uris) == count

    assert [entry["id"] for entry in waited["messages"]] == [since_start, first, second]
    assert third


async def test_a_subscriber_of_the_newer_era_is_told_of_each_arrival(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    async with connect("alice") as client:
        async with client.listen(resource_subscriptions=[INBOX]) as stream:
            with anyio.fail_after(GUARD):
                first = write(bus)
                assert await anext(stream) == ResourceUpdated(uri=INBOX)
                second = write(bus)
                assert await anext(stream) == ResourceUpdated(uri=INBOX)
                value = ok(await client.call_tool("bus_wait", {}))
        write(bus)
        ok(await client.call_tool("bus_wait", {}))

    assert [entry["id"] for entry in value["messages"]] == [first, second]


async def test_a_stream_for_something_else_starts_nothing(bus: TemporaryBus, connect: Any) -> None:
    async with connect("alice") as client, client.listen(tools_list_changed=True) as stream:
        assert stream.honored.resource_subscriptions is None


async def test_news_of_a_message_that_a_wait_takes_first_still_comes(
    bus: TemporaryBus, connect: Any, ok: Ok
) -> None:
    news = News()
    async with connect("alice", "legacy", message_handler=news) as client:
        await client.subscribe_resource(INBOX)
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                ok(await client.call_tool("bus_wait", {}))

            group.start_soon(wait)
            await anyio.sleep(0.1)
            write(bus)
        assert await news.next() == INBOX


async def test_news_go_on_when_the_bus_was_away_for_a_moment(
    bus: TemporaryBus, connect: Any
) -> None:
    news = News()
    away = bus.path.with_name("away")
    async with connect("alice", "legacy", message_handler=news) as client:
        await client.subscribe_resource(INBOX)
        bus.path.rename(away)
        with pytest.raises(MCPError, match="no-bus: "):
            await client.read_resource(INBOX)
        away.rename(bus.path)
        write(bus)
        assert await news.next() == INBOX


async def test_a_bus_that_is_away_cannot_be_subscribed_to_until_it_is_back(
    bus: TemporaryBus, connect: Any
) -> None:
    news = News()
    away = bus.path.with_name("away")
    async with connect("alice", "legacy", message_handler=news) as client:
        bus.path.rename(away)
        with pytest.raises(MCPError, match="no-bus: "):
            await client.subscribe_resource(INBOX)
        away.rename(bus.path)
        await client.subscribe_resource(INBOX)
        write(bus)
        assert await news.next() == INBOX
