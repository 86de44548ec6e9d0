"""`wait` for a while, and `watch` for a monitor that joins, cuts and drops lines.

A line of `watch` is flushed at once, has at most 400 characters, names id and sender first
and never holds the body. It may be lost, repeated or folded into a count: the messages stay
in the box. Both end when nobody reads their output any more, also while nothing arrives.
"""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from agent_bus import clock
from agent_bus.bus import Bus
from agent_bus.cli import lines, render
from agent_bus.cli.options import Shared, open_as, optional_name, verb
from agent_bus.errors import TimedOut, UsageError
from agent_bus.history import Filter
from agent_bus.names import kind_name, message_id
from agent_bus.presence import Attachment, Role
from agent_bus.reading import Stored
from agent_bus.watch import Found, Watch

_Text = str | None

FOLDED_ABOVE = 3
"""So many messages of one look are announced one by one."""
_TICK = 60.0
"""Seconds after which a watcher notes that it is still there."""
_LONGEST = 300
"""Seconds of a wait: so long a host may let a command run."""


@dataclass(frozen=True, kw_only=True)
class Watching(Shared):
    """The options of `watch`."""

    include_existing: Annotated[
        bool, Option("--include-existing", help="Begin with what is unread already.")
    ] = False
    sender: Annotated[_Text, Option("--from", metavar="NAME", help="Only from this agent.")] = None
    kind: Annotated[_Text, Option("--kind", metavar="KIND", help="Only messages of this kind.")] = (
        None
    )
    thread: Annotated[_Text, Option("--thread", metavar="ID", help="One conversation.")] = None


@dataclass(frozen=True, kw_only=True)
class Waiting(Watching):
    """The options of `wait`."""

    timeout: Annotated[
        str, Option("--timeout", metavar="TIME", help="Seconds, or 90s, 5m; at most 5m.")
    ] = "60"


@dataclass(frozen=True)
class _Post:
    """What a watcher works with until it ends."""

    bus: Bus
    watch: Watch
    attachment: Attachment
    ended: threading.Event


@verb
def wait(options: Waiting) -> int:
    """Wait for messages that arrive from now on, and list them; 75 if none does in time."""
    timeout = _seconds(options.timeout)
    with _at_post(options, "wait") as post:
        if not options.include_existing:
            _tell_unread(post, render.say)
        found = post.watch.next(
            timeout=timeout,
            include_existing=options.include_existing,
            accept=_accept(options),
            cancelled=post.ended,
        )
    if not found.messages and not post.ended.is_set():
        raise TimedOut(
            f"nothing arrived for {post.bus.identity} within {timeout:g} seconds: wait again"
        )
    lines.show(found.messages, json=options.json, spare=lines.SPARE_IN_BOX)
    return 0


@verb
def watch(options: Watching) -> int:
    """Print a line for each message that arrives, until the output is closed.

    Begins with how many are unread from before, if there are any.
    """
    # Signals first: from the moment it is seen as attached, it ends quietly.
    with _ended_by_signals() as ending, _at_post(options, "watch") as post:
        ending.add(post)
        _tell_unread(post, render.say if options.json else _announce)
        while not post.ended.is_set():
            found = post.watch.next(
                timeout=_TICK,
                include_existing=options.include_existing,
                accept=_accept(options),
                cancelled=post.ended,
            )
            post.attachment.seen()
            try:
                _print(found, json=options.json)
            except render.OutputGone:
                post.ended.set()
    return 0


def _print(found: Found, *, json: bool) -> None:
    messages = found.messages
    if json:
        for stored in messages:
            render.put_json(lines.record(stored), flush=True)
        return
    doubted = lines.warn(messages)
    if len(messages) > FOLDED_ABOVE:
        oldest = lines.announcement(messages[0])
        count = f"{len(messages)} new" + (f", {doubted} of them doubted" if doubted else "")
        _announce(f"{count}: agent-bus inbox --unread; the oldest: {oldest}")
    else:
        for stored in messages:
            _announce(lines.announcement(stored))


def _announce(line: str) -> None:
    render.put(render.cut(line, lines.LINE_LIMIT), flush=True)


def _tell_unread(post: _Post, tell: Callable[[str], None]) -> None:
    before = post.watch.unread_before_start
    if before:
        tell(f"{before} unread from before start")


def _seconds(text: str) -> float:
    try:
        plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 10
        found = float(text) if plain else float(clock.seconds(text))
    except UsageError:
        raise UsageError(f"--timeout is {text[:40]!a}: give seconds, or 90s, 5m") from None
    if found > _LONGEST:
        raise UsageError(
            f"--timeout is {text[:40]!a}, {_LONGEST} seconds are the most: "
            "use agent-bus watch for longer"
        )
    return found


def _accept(options: Watching) -> Callable[[Stored], bool] | None:
    wanted = Filter(
        sender=optional_name(options.sender),
        kind=None if options.kind is None else kind_name(options.kind),
        thread=None if options.thread is None else message_id(options.thread),
    )
    return wanted.matches if wanted.needs_content() else None


@contextlib.contextmanager
def _at_post(options: Watching, role: Role) -> Iterator[_Post]:
    """Watch the own box and be seen as attached, until the output is gone."""
    _accept(options)  # refused before anything begins
    bus = open_as(options)
    with bus.watch(warn=render.say) as watching:
        ended = threading.Event()
        with bus.presence.attach(bus.identity, role, mode=watching.mode) as attachment:
            if attachment.problem:
                render.say(f"not seen as attached: {attachment.problem}")
            post = _Post(bus, watching, attachment, ended)
            _end_with_output(post)
            yield post


def _end_with_output(post: _Post) -> None:
    """Notice that the reader of the output has gone, without writing to it."""
    if sys.stdout is None:
        post.ended.set()
        return
    if not hasattr(select, "poll"):  # Windows: noticed by the next line
        return
    poll = select.poll()
    # Errors and hang-ups are reported without being asked for.
    poll.register(sys.stdout.fileno(), 0)

    def notice() -> None:
        poll.poll()
        post.ended.set()
        post.watch.wake()

    threading.Thread(target=notice, daemon=True).start()


class _Ending:
    """What a signal has to end; it may come before there is anything."""

    def __init__(self) -> None:
        self._signalled = False
        self._post: _Post | None = None

    def add(self, post: _Post) -> None:
        """End this one as well, at once if the signal has come."""
        self._post = post
        if self._signalled:
            self.end()

    def end(self, number: int | None = None, _: object = None) -> None:
        """The signal handler; a second signal ends the process at once."""
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
        self._signalled = True
        if self._post is not None:
            self._post.ended.set()
            self._post.watch.wake()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[_Ending]:
    """End quietly on SIGINT and SIGTERM."""
    ending = _Ending()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ending.end) for number in numbers}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
