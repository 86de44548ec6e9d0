"""File events in one folder, as a hint that it is time to look.

Nothing is learnt from an event but that something may have arrived. Where there are no
events (another machine writes, inotify's limits are used up, AGENT_BUS_POLL=1) the caller
looks once a second instead.

On Linux this uses watchdog's inotify instance and not its Observer, for three reasons that
were measured or read there (7.1): the Observer subscribes to moves out of the folder and
holds back whatever comes within half a second of one; it drops queued events on an overflow
of the kernel's queue without telling; and it takes three threads. The mask leaves out
opens, reads and deletions, which a scan and a reader cause themselves.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from agent_bus.filesystem import eventless

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, InotifyFD, WatchDescriptor

Mode = Literal["events", "polling"]

EVENT_INTERVAL = 30.0
"""Seconds between two looks while events come: they are a hint and may fail to come."""
POLL_INTERVAL = 1.0
"""Seconds between two looks without events."""
_STAT_INTERVAL = 5.0
"""Seconds between two questions whether the folder that is watched still stands there."""
_DEATHS = 3
_LIMITS = {
    errno.EMFILE: "fs.inotify.max_user_instances is used up, or this process has too many files",
    errno.ENOSPC: "fs.inotify.max_user_watches is used up",
}


class Source(Protocol):
    """A subscription to the events of one folder."""

    @property
    def alive(self) -> bool:
        """Whether events can still come."""

    @property
    def died(self) -> bool:
        """Whether its thread ended by itself."""

    def stop(self) -> None:
        """End it, and its threads."""


class Arrivals:
    """Wakes its waiters when something may have arrived in a folder. Safe between threads.

    The folder may be missing, go away and come back; `renew` follows it. `warn` gets one
    line when events turn out not to work here.
    """

    def __init__(self, folder: Path, *, poll: bool, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False
        self._renewing = threading.Lock()
        self._source: Source | None = None
        self._watched: tuple[int, int] | None = None
        self._deaths = 0
        self.mode: Mode = "polling" if poll else "events"
        self.why = "AGENT_BUS_POLL=1 turns file events off" if poll else ""
        """Why it is polling; empty under events."""
        if not poll and (kind := eventless(folder)):
            self._give_up(f"a file system of type {kind} tells nothing of other machines")
        self.renew()

    @property
    def count(self) -> int:
        """How often something happened; take it before a look, and give it to `wait`."""
        return self._count

    @property
    def interval(self) -> float:
        """Seconds after which to look without an event."""
        source = self._source
        return EVENT_INTERVAL if source is not None and source.alive else POLL_INTERVAL

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def wait(self, timeout: float, after: int | None = None) -> bool:
        """Sleep until something happens, at most `timeout` seconds. Whether it did.

        With `after` a count, what has happened since that count ends the sleep at once.
        """
        with self._changed:
            seen = self._count if after is None else after
            while True:
                pause = min(timeout, _STAT_INTERVAL)
                if self._changed.wait_for(lambda: self._closed or self._count != seen, pause):
                    return True
                timeout -= pause
                if timeout <= 0:
                    return False
                # The kernel tells nothing of a folder whose parent was moved or replaced.
                if self._source is not None and _identity(self._folder) != self._watched:
                    return True

    def wake(self) -> None:
        """End every sleep: their callers look again."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def renew(self) -> None:
        """Subscribe, where there is no living subscription to the folder that stands there now.

        Call it before each look: what arrives after it is announced, what arrived before it
        is found.
        """
        with self._renewing:
            if self.mode == "polling" or self._closed:
                return
            here = _identity(self._folder)
            source = self._source
            if source is not None:
                if source.alive and here == self._watched:
                    return
                self._drop(source)
            if here is not None and self.mode == "events":
                self._subscribe(here)

    def close(self) -> None:
        """Unsubscribe and end every sleep; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self._renewing:
            source, self._source = self._source, None
            if source is not None:
                source.stop()

    def _subscribe(self, here: tuple[int, int]) -> None:
        try:
            self._source, self._watched = _source(self._folder, self.wake), here
        except FileNotFoundError:
            return
        except OSError as error:
            known = _LIMITS.get(error.errno or 0)
            self._give_up(known or f"the system refuses them ({error.strerror or error})")
        except Exception as error:  # noqa: BLE001 - whatever a foreign library has, looking helps
            self._give_up(f"watchdog cannot give them here ({type(error).__name__}: {error})")

    def _drop(self, source: Source) -> None:
        self._source = None
        self._deaths += source.died
        source.stop()
        if self._deaths >= _DEATHS:
            self._give_up(f"their thread has died {_DEATHS} times")

    def _give_up(self, why: str) -> None:
        self.mode, self.why = "polling", why
        self._warn(f"no file events: {why}; looking every {POLL_INTERVAL:.0f} s instead")


def _source(folder: Path, wake: Callable[[], None]) -> Source:
    if sys.platform == "linux":
        try:
            return InotifySource(folder, wake)
        except ImportError:
            # An older watchdog: its inotify instance is built in another way.
            pass
    return ObserverSource(folder, wake)


class InotifySource:
    """One inotify instance with one watch. Raises OSError where the kernel gives none."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        from watchdog.observers.inotify_c import CallbackId, InotifyConstants, Mask

        wanted = Mask(
            InotifyConstants.IN_CREATE  # by link, which is how messages come, or by copy
            | InotifyConstants.IN_MOVED_TO  # by rename
            | InotifyConstants.IN_CLOSE_WRITE  # a copy is complete; readers never cause it
            | InotifyConstants.IN_DELETE_SELF
            | InotifyConstants.IN_MOVE_SELF
            | InotifyConstants.IN_ONLYDIR
            | InotifyConstants.IN_DONT_FOLLOW
        )
        self._wake = wake
        self._lost = self._ended = False
        self._instance = _instance(self.on_end)
        # Started first: an instance that never ran does not close its descriptors.
        self._instance.start()
        try:
            wd = self._instance.add_callback(
                os.fsencode(folder), wanted, self, CallbackId(id(self))
            )
        except BaseException:
            self.stop()
            raise
        if wd < 0:
            self.stop()
            # watchdog passes over this one error.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    @property
    def alive(self) -> bool:
        """Whether events can still come."""
        return not self._lost and not self._ended

    @property
    def died(self) -> bool:
        """Whether its thread ended by itself; asked before `stop`."""
        return self._ended

    def stop(self) -> None:
        """End it, and its thread."""
        self._instance.stop()
        self._instance.join()

    def on_event(self, event: InotifyEvent) -> None:
        """Called by watchdog's thread."""
        if event.is_delete_self or event.is_move_self:
            self._lost = True
        self._wake()

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:  # noqa: ARG002
        """Called by watchdog's thread when the folder is gone or was unmounted."""
        self._lost = True
        self._wake()

    def on_queue_overflow(self) -> None:
        """Called by watchdog's thread when the kernel has dropped events."""
        self._wake()

    def on_end(self) -> None:
        """Called by watchdog's thread as its last act."""
        self._ended = True
        self._wake()


def _instance(ended: Callable[[], None]) -> InotifyFD:
    from watchdog.observers.inotify_c import InotifyFD

    class Instance(InotifyFD):
        def run(self) -> None:
            try:
                super().run()
            finally:
                # Whoever sleeps must not sleep on when this thread has died of something.
                ended()

    return Instance()


class ObserverSource:
    """watchdog's Observer, for systems other than Linux."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        from watchdog.events import (
            FileClosedEvent,
            FileCreatedEvent,
            FileMovedEvent,
            FileSystemEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002
                wake()

        wanted: list[type[FileSystemEvent]] = [FileCreatedEvent, FileMovedEvent, FileClosedEvent]
        self._observer = Observer()
        self._observer.schedule(Handler(), str(folder), recursive=False, event_filter=wanted)
        try:
            self._observer.start()
        except BaseException:
            self._observer.stop()
            raise

    @property
    def alive(self) -> bool:
        """Whether events can still come."""
        emitters = self._observer.emitters
        return self._observer.is_alive() and all(one.is_alive() for one in emitters)

    @property
    def died(self) -> bool:
        """Whether its thread ended by itself; asked before `stop`."""
        return not self._observer.is_alive()

    def stop(self) -> None:
        """End it, and its threads."""
        self._observer.stop()
        self._observer.join()


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino
