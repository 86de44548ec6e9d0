"""The background hook of Claude Code: waits for a message and wakes the idle model.

Claude Code starts it when a session begins and when a turn ends, goes on without it, and
tells the model what it wrote on standard error once it ends with 2. Of several that wait for
one session the last alone stays, so that one message wakes once.
"""

from __future__ import annotations

import os

from agent_bus.clock import id_time
from agent_bus.errors import AgentBusError
from agent_bus.hosts import hook, notes
from agent_bus.hosts.events import Call
from agent_bus.hosts.guard import REWAKE_TIMEOUT
from agent_bus.reading import Stored, reason

WAKE = 2
_CALL = Call("claude", "Stop", "tool")
_LOOK = 5.0
"""Seconds between two looks at whether it is still wanted."""
_OVERLAP = 1000
"""Milliseconds before its start from which it tells what the hook of that moment may not have."""


def run(given: hook.Given, key: str) -> int:
    """Wait until there is something new, this one is not wanted any more, or a day is over.

    Returns the exit code: 2 to wake the model, or 0.
    """
    try:
        session = hook.begin(_CALL, given, key)
        return 0 if session is None or given.is_subagent else _wait(session)
    except AgentBusError as error:
        problem = str(error)
    except OSError as error:
        problem = reason(error)
    # With 0 the host shows it to nobody, and does not take it for a wake.
    hook.note_on_stderr(f"agent-bus: {problem}")
    return 0


def _wait(session: hook.Session) -> int:
    memory, clock = session.memory, session.bus.clock
    token, parent = clock.new_id(), os.getppid()
    if not memory.claim(token):
        return 0
    until = clock.monotonic() + REWAKE_TIMEOUT
    # What lay there when a session begins is told by the hook of that moment, which runs now;
    # what has come since it looked is told here, and perhaps there as well. What came during
    # a turn and was not shown is told here.
    begun = clock.now() - _OVERLAP if session.given.is_start else 0

    def is_new(stored: Stored) -> bool:
        ident = stored.place.id
        return id_time(ident) >= begun and ident not in memory.load().shown

    with session.bus.watch(warn=lambda _: None) as watch:
        while clock.monotonic() < until:
            found = watch.next(timeout=_LOOK, include_existing=True, accept=is_new)
            if os.getppid() != parent or not memory.is_claimed_by(token):
                return 0
            if found.messages:
                break
        else:
            return 0
    messages = [one.judged.message for one in found.messages if one.judged.message]
    if not memory.add("shown", [message.id for message in messages]):
        return 0
    hook.note_on_stderr(notes.news(session.me, messages, more=found.remaining))
    return WAKE
