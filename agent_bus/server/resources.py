"""bus://inbox: the unread messages as a resource, and the news that some have come.

Subscribed to by `resources/subscribe` (up to 2025-11-25) or `subscriptions/listen`
(2026-07-28). While somebody subscribes, one thread sits on the process's `Watch`; it is
shown every arrival and takes none, so that a bus_wait still gets it. The news carries no
content and is no delivery: a client that misses it finds the message all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import mcp.types as t
from mcp.server import Server, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError

from agent_bus.errors import AgentBusError
from agent_bus.names import MessageId
from agent_bus.reading import Stored
from agent_bus.server.listing import LIMIT, compact, fault, fitting, one_line
from agent_bus.server.models import Listed, Result
from agent_bus.server.verbs import Service

INBOX = "bus://inbox"

Context = ServerRequestContext[Any, Any]

_FOR_EVER = 365 * 24 * 3600.0
_RETRY = 1.0
_NOTICED = 4096

_logger = logging.getLogger(__name__)


class Inbox(Result):
    """What the resource holds."""

    identity: str
    unread: int
    messages: list[Listed]
    remaining: int


class Resources:
    """The resource of one process, and whoever subscribes to it. One client per process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._events = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._events)
        self._session: ServerSession | None = None
        self._listening = 0
        self._follower: _Follower | None = None
        self._starting = anyio.Lock()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Server[Any]) -> AsyncIterator[None]:
        """Ends what follows the box when the connection ends."""
        try:
            yield
        finally:
            self._session, self._listening = None, 0
            self._stop_if_unwanted()

    async def list(self, _: Context, __: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
        """The one resource."""
        resource = t.Resource(
            uri=INBOX,
            name="inbox",
            description="Your unread messages, without their text.",
            mime_type="application/json",
        )
        return t.ListResourcesResult(resources=[resource])

    async def read(self, _: Context, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        """The unread messages. Raises MCPError."""
        _check(params.uri)
        try:
            inbox = await anyio.to_thread.run_sync(self._inbox)
        except (AgentBusError, OSError) as error:
            raise MCPError(t.INTERNAL_ERROR, fault(error)) from None
        text = compact(inbox.wire())
        content = t.TextResourceContents(uri=INBOX, mime_type="application/json", text=text)
        return t.ReadResourceResult(contents=[content])

    async def subscribe(self, context: Context, params: t.SubscribeRequestParams) -> t.EmptyResult:
        """resources/subscribe. Raises MCPError for another resource."""
        _check(params.uri)
        self._session = context.session
        await self._follow()
        return t.EmptyResult()

    async def unsubscribe(self, _: Context, params: t.UnsubscribeRequestParams) -> t.EmptyResult:
        """resources/unsubscribe."""
        _check(params.uri)
        self._session = None
        self._stop_if_unwanted()
        return t.EmptyResult()

    async def listen(
        self, context: Context, params: t.SubscriptionsListenRequestParams
    ) -> t.SubscriptionsListenResult:
        """subscriptions/listen: lasts as long as the subscription."""
        if INBOX not in (params.notifications.resource_subscriptions or ()):
            return await self._streams(context, params)
        self._listening += 1
        try:
            await self._follow()
            return await self._streams(context, params)
        finally:
            self._listening -= 1
            self._stop_if_unwanted()

    async def _follow(self) -> None:
        """Begin to follow the box: what arrives from now on is told. Raises MCPError."""
        async with self._starting:
            if self._follower is not None:
                return
            follower = _Follower(self._service, self._changed)
            try:
                await anyio.to_thread.run_sync(follower.start)
            except (AgentBusError, OSError) as error:
                raise MCPError(t.INTERNAL_ERROR, fault(error)) from None
            self._follower = follower

    def _stop_if_unwanted(self) -> None:
        if self._session is None and self._listening == 0 and self._follower is not None:
            self._follower.stop()
            self._follower = None

    async def _changed(self) -> None:
        if self._session is not None:
            await self._session.send_resource_updated(INBOX)
        await self._events.publish(ResourceUpdated(uri=INBOX))

    def _inbox(self) -> Inbox:
        bus = self._service.bus
        page = bus.inbox(unread=True, limit=LIMIT)
        total = page.total or 0
        return Inbox(
            identity=bus.identity,
            unread=total,
            messages=fitting(page.messages),
            remaining=max(0, total - len(page.messages)),
        )


class _Follower:
    """Sits on the watch in a thread of its own and tells the event loop of arrivals."""

    def __init__(self, service: Service, changed: Callable[[], Awaitable[None]]) -> None:
        self._service = service
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        self._noticed: set[MessageId] = set()
        self._telling: asyncio.Task[None] | None = None
        self._is_news = False

    def start(self) -> None:
        """Note what lies there now, and begin. Raises NoBus and OSError."""
        self._noticed = self._unread()
        threading.Thread(target=self._run, name="bus://inbox", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._cancelled.set()
        self._service.watch.wake()

    def _run(self) -> None:
        while not self._cancelled.is_set():
            try:
                self._service.watch.next(
                    timeout=_FOR_EVER,
                    accept=self._notice,
                    cancelled=self._cancelled,
                    takes=False,
                )
                return  # cancelled, or the watch was closed
            except (AgentBusError, OSError):
                pass  # the bus is gone, perhaps for a moment; the tools say so
            except Exception as error:  # noqa: BLE001 - news must not stop for one odd file
                _logger.error(  # noqa: TRY400 - one line
                    "bus://inbox: %s: %s", type(error).__name__, one_line(str(error))
                )
            self._cancelled.wait(_RETRY)

    def _notice(self, stored: Stored) -> bool:
        """Called by the watch for whatever no wait was given yet. Takes nothing."""
        ident = stored.place.id
        if ident not in self._noticed:
            if len(self._noticed) >= _NOTICED:
                self._noticed &= self._unread()
            self._noticed.add(ident)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tell)
        return False

    def _unread(self) -> set[MessageId]:
        bus = self._service.bus
        return set(bus.store.unread(bus.identity))

    def _tell(self) -> None:
        self._is_news = True
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._is_news:
            self._is_news = False
            await self._changed()


def _check(uri: str) -> None:
    if uri != INBOX:
        raise MCPError(
            t.INVALID_PARAMS, f"no such resource; there is {INBOX}", {"uri": one_line(uri, 200)}
        )
