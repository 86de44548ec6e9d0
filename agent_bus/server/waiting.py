"""bus_wait: a wait that blocks nobody, answers in time, and consumes nothing unless it answers.

Each wait sleeps in a thread of its own; the limit on them is separate from that of the other
tools, so that forty waits cannot starve a send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from mcp.server import ServerRequestContext

from agent_bus.errors import Busy
from agent_bus.names import message_id
from agent_bus.reading import Stored
from agent_bus.server.arguments import WaitArguments
from agent_bus.server.listing import LIMIT, fitting
from agent_bus.server.models import WaitResult
from agent_bus.server.verbs import Service
from agent_bus.watch import Found

LONGEST = 300.0
"""Seconds that a wait may take."""
PROGRESS_INTERVAL = 5.0
"""Seconds between two notes to a client that asked for them; some give up after ten."""
WAITS = 100
"""Waits at the same time."""

_MARGIN = 2.0


class Waiting:
    """The waits of one process. Make it on the event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._threads = anyio.CapacityLimiter(WAITS)

    async def wait(
        self, context: ServerRequestContext[Any, Any], asked: WaitArguments
    ) -> WaitResult:
        """Answer a bus_wait. Raises Busy, and what `Watch.next` raises."""
        if not self._threads.available_tokens:
            raise Busy(f"{WAITS} waits run in this server already: end one first")
        call = _Call(self._service, asked)
        outcome: WaitResult | Exception
        async with anyio.create_task_group() as group:
            group.start_soon(_report, context, call.seconds)
            # An error that leaves the group would come out wrapped.
            try:
                outcome = await self._in_thread(call)
            except Exception as error:  # noqa: BLE001
                outcome = error
            group.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _in_thread(self, call: _Call) -> WaitResult:
        try:
            return await anyio.to_thread.run_sync(
                call.run, abandon_on_cancel=True, limiter=self._threads
            )
        except BaseException:
            call.cancel()
            raise


class _Call:
    """One wait. Its thread and the event loop may end it at the same time."""

    def __init__(self, service: Service, asked: WaitArguments) -> None:
        self._service = service
        self._asked = asked
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._found: Found | None = None
        longest = min(asked.timeout, LONGEST)
        # A client whose own limit is the same number is to get the answer before it gives up.
        self.seconds = longest - min(_MARGIN, longest / 10)

    def run(self) -> WaitResult:
        """Wait and tell what came; runs in a thread."""
        asked = self._asked
        self._service.attachment.seen()
        found = self._service.watch.next(
            timeout=self.seconds,
            include_existing=asked.include_existing,
            limit=min(asked.limit, LIMIT),
            accept=_thread_filter(asked.thread),
            cancelled=self._cancelled,
        )
        with self._lock:
            self._found = found
        if self._cancelled.is_set():
            self._give_back()
        return self._result(found)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._cancelled.set()
        self._service.watch.wake()
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            found, self._found = self._found, None
        if found is not None:
            self._service.watch.give_back(found)

    def _result(self, found: Found) -> WaitResult:
        bus, watch = self._service.bus, self._service.watch
        before = watch.unread_before_start
        return WaitResult(
            messages=fitting(found.messages),
            timed_out=found.timed_out,
            remaining=found.remaining,
            unread=len(bus.store.unread(bus.identity)),
            unread_before_start=before,
            warning=_warning(found.bad),
            hint=_hint(self._asked, found, before),
        )


async def _report(context: ServerRequestContext[Any, Any], seconds: float) -> None:
    """Tell a client that asked for it that the wait goes on."""
    spent = 0.0
    while True:
        await anyio.sleep(PROGRESS_INTERVAL)
        spent += PROGRESS_INTERVAL
        await context.session.report_progress(min(spent, seconds), seconds, "waiting for messages")


def _thread_filter(thread: str | None) -> Callable[[Stored], bool] | None:
    if thread is None:
        return None
    wanted = message_id(thread)

    def is_wanted(stored: Stored) -> bool:
        message = stored.judged.message
        return message is not None and wanted in (message.thread, message.id)

    return is_wanted


def _warning(bad: tuple[Stored, ...]) -> str | None:
    if not bad:
        return None
    named = ", ".join(f"{stored.place.id} ({stored.judged.outcome})" for stored in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return f"not messages, they do not verify: {named}{more}; bus_verify has the reasons"


def _hint(asked: WaitArguments, found: Found, before: int) -> str | None:
    how = " with include_existing" if asked.include_existing else ""
    hints = {
        "nothing yet: call bus_wait again to go on waiting": found.timed_out,
        f"{found.remaining} more are ready: call bus_wait again{how}": found.remaining > 0,
        f"{before} unread from before this server started: bus_inbox lists them, "
        "include_existing gives those that no wait gave yet": (
            found.timed_out and before > 0 and not asked.include_existing
        ),
        f"a wait lasts at most {LONGEST:.0f} seconds": asked.timeout > LONGEST,
        f"limit is at most {LIMIT}": asked.limit > LIMIT and found.remaining > 0,
    }
    return "; ".join(hint for hint, holds in hints.items() if holds) or None
