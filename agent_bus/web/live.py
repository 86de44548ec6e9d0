"""What has changed since a page was made, told to the pages that are open.

One thread looks: an arrival in the own box wakes it at once, everything else shows within a
second. It rests while no page is open. Each change has a serial number, and a page says up to
which one it has seen, so that nothing is missed between its making and its first question.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Self

from agent_bus.bus import Bus
from agent_bus.errors import AgentBusError
from agent_bus.presence import Attachment
from agent_bus.pulse import Pulse
from agent_bus.watch import Watch

KINDS = ("approvals", "messages", "agents")
"""What can change, as the fields of a `Pulse` and as a page names what concerns it."""

STREAMS = 4
"""Streams at a time. A browser holds six connections to one name; pages need some."""

_INTERVAL = 1.0
_LINGER = 10.0
"""Seconds for which one still counts as attached after the last page has gone."""
_KEEP_ALIVE = 15.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers in a page's head. `pending` is None for one who may not see them."""

    pending: int | None
    unread: int


class Stream:
    """One open page, seen from the thread that looks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.dismissed = False

    def wake(self) -> None:
        """Let it look again; from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self) -> bool:
        """Sleep until woken, or for a while; whether it was woken."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), _KEEP_ALIVE)
        woken = self._woken.is_set()
        self._woken.clear()
        return woken


class Live:
    """The changes of one bus. Use it with `with`: the thread runs that long."""

    def __init__(self, bus: Bus, *, warn: Callable[[str], None]) -> None:
        self._bus = bus
        self._warn = warn
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._serials = dict.fromkeys(KINDS, 1)
        self._streams: list[Stream] = []
        self._pulse: Pulse | None = None
        self._counts = Counts(None, 0)
        self._ended = threading.Event()
        self._needed = threading.Event()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def counts(self) -> Counts:
        """How much waits now. Raises AgentBusError."""
        pending = len(self._bus.pending()) if self._bus.is_admin else None
        return Counts(pending, self._bus.inbox(unread=True, limit=1).total or 0)

    def look(self) -> int:
        """Compare the bus with the last look, tell the open pages, and give the last serial.

        Raises AgentBusError.
        """
        with self._looking:
            now, before = self._bus.pulse(), self._pulse
            self._pulse = now
            if before is not None and now != before:
                self._tell([kind for kind in KINDS if getattr(now, kind) != getattr(before, kind)])
            return max(self._serials.values())

    async def events(self, since: int) -> AsyncIterator[str]:
        """The changes after `since`, as they happen, in the form of server-sent events."""
        stream = Stream()
        self._enter(stream)
        try:
            yield ": open\n\n"
            while not self._ended.is_set() and not stream.dismissed:
                told = self._since(since)
                if told is not None:
                    since, event = told
                    yield event
                elif not await stream.wait():
                    yield ": still here\n\n"
            if stream.dismissed:
                yield "event: dismissed\ndata:\n\n"
        finally:
            self._leave(stream)

    def end(self) -> None:
        """End the thread and all streams; from any thread, never from a signal's handler."""
        self._ended.set()
        self._needed.set()
        if self._watch is not None:
            self._watch.wake()
        for stream in tuple(self._streams):
            stream.wake()

    def __enter__(self) -> Self:
        self._watch = self._bus.watch(warn=self._warn)
        self._thread = threading.Thread(target=self._run, args=(self._watch,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join(timeout=_LINGER)
        if self._watch is not None:
            self._watch.close()

    def _tell(self, changed: list[str]) -> None:
        counts = self.counts()
        with self._lock:
            number = max(self._serials.values()) + 1
            self._serials |= dict.fromkeys(changed, number)
            self._counts = counts
            streams = tuple(self._streams)
        for stream in streams:
            stream.wake()

    def _since(self, since: int) -> tuple[int, str] | None:
        with self._lock:
            number = max(self._serials.values())
            kinds = [kind for kind, serial in self._serials.items() if serial > since]
            counts = self._counts
        if not kinds:
            return None
        fields = {"kinds": kinds, "pending": counts.pending, "unread": counts.unread}
        return number, f"id: {number}\ndata: {json.dumps(fields)}\n\n"

    def _enter(self, stream: Stream) -> None:
        with self._lock:
            self._streams.append(stream)
            too_many = self._streams[:-STREAMS]
        for oldest in too_many:
            oldest.dismissed = True
            oldest.wake()
        self._needed.set()

    def _leave(self, stream: Stream) -> None:
        with self._lock:
            self._streams.remove(stream)

    # -- the thread

    def _run(self, watch: Watch) -> None:
        while not self._ended.is_set():
            self._needed.wait()
            if self._ended.is_set():
                return
            self._needed.clear()
            # Whoever looks at a page is there to be reached.
            with self._bus.presence.attach(self._bus.identity, "watch", mode=watch.mode) as here:
                self._attend(watch, here)

    def _attend(self, watch: Watch, here: Attachment) -> None:
        """Look as long as a page is open, and a little longer: pages are loaded anew."""
        alone, complaint = 0.0, ""
        while not self._ended.is_set() and alone < _LINGER:
            try:
                self.look()
                found = watch.next(timeout=_INTERVAL, cancelled=self._ended)
                complaint = ""
            except AgentBusError as error:
                complaint = self._complain(str(error), complaint)
                self._ended.wait(_INTERVAL)
                continue
            here.seen()
            waited = 0.0 if found.messages else _INTERVAL
            alone = 0.0 if self._streams else alone + waited

    def _complain(self, text: str, before: str) -> str:
        if text != before:
            self._warn(f"the pages are not told of changes: {text}")
        return text
