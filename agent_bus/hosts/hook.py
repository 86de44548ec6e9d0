"""`agent-bus hook HOST EVENT [KEY]`: answers one hook of a host, in the host's own form.

It reads the hook's JSON on standard input and writes its answer, or nothing, on standard
output. A hook stands in the way of a person's work, so it ends within two seconds whatever
happens, with 0 and at most one line on standard error. It moves no message, and what it
cannot remember having said it does not say at every tool call.

Nothing at the head of this module may import more than it needs: the clock is running.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from agent_bus.hosts.events import EVENTS, REWAKE, Call, call

if TYPE_CHECKING:
    from agent_bus.bus import Bus
    from agent_bus.errors import AgentBusError
    from agent_bus.hosts.memory import Mark, Memory
    from agent_bus.names import AgentName, MessageId
    from agent_bus.payload import Message
    from agent_bus.settings import Settings

HELP = """\
Usage: agent-bus hook HOST EVENT [KEY]

Answers a hook of Claude Code, Codex or Gemini CLI. It is no command for people: a host runs
it. `agent-bus connect HOST --hooks` shows what to put into the host's configuration.
"""

_SECONDS = 1.5
"""After which it gives up; the start of the interpreter comes on top."""
_INPUT_SECONDS = 0.5
_INPUT_LIMIT = 8 * 1024 * 1024
_LISTED = 60
"""Messages that are read to be listed; more are counted."""
_JUDGED = 300
"""Unread messages that are read to find the urgent ones."""
_CAP = 2
"""How often the end of a turn is refused before somebody says something again."""
_DECISIONS = ("approval_decision",)


@dataclass(frozen=True, slots=True)
class Given:
    """What the host says, as far as it is of its form."""

    session: str = ""
    stop_hook_active: bool = False
    is_subagent: bool = False
    is_start: bool = False
    """Whether the session begins, where a hook runs at several moments."""


@dataclass(frozen=True, slots=True)
class Session:
    """What an answer is made from."""

    bus: Bus
    memory: Memory
    mark: Mark
    call: Call
    given: Given

    @property
    def me(self) -> AgentName:
        """Who the session is."""
        return self.bus.identity


def main(words: Sequence[str]) -> NoReturn:
    """Answer one hook and end the process: with 0, or with 2 to wake an idle model."""
    code = 0
    try:
        if list(words[:1]) in (["--help"], ["-h"]):
            _write(1, HELP)
        else:
            code = _run(words)
    except BaseException as error:  # noqa: BLE001 - a hook is never a reason to stop
        _log(f"unexpected, please report it: {type(error).__name__}: {str(error)[:300]}")
    # Not through the interpreter's own end, which may wait for a thread or a disk.
    _end(code)


def _run(words: Sequence[str]) -> int:
    host, event, key = [*words, "", "", ""][:3]
    if (host, event) == ("claude", REWAKE):
        from agent_bus.hosts import rewake

        return rewake.run(read_input(), key)
    found = call(host, event)
    if found is None or len(words) > 3:
        hosts = ", ".join(EVENTS)
        _log(f"no hook {' '.join(words)[:80]!a}: agent-bus connect {{{hosts}}} --hooks")
        return 0
    timer = threading.Timer(_SECONDS, _give_up)
    timer.daemon = True
    timer.start()
    reply = answer(found, read_input(), key)
    if reply:
        _write(1, json.dumps(reply) + "\n")
    return 0


def answer(found: Call, given: Given, key: str) -> dict[str, Any] | None:
    """What to say to the host, or None for nothing."""
    from agent_bus.errors import AgentBusError

    if given.is_subagent:
        # It shares the session with its parent, who is told.
        return None
    try:
        session = begin(found, given, key)
    except AgentBusError as error:
        return _without_bus(found, error)
    if session is None:
        return None
    say = {"session": _welcome, "prompt": _prompt, "tool": _tool, "stop": _stop}[found.moment]
    try:
        return say(session)
    except AgentBusError as error:
        _log(str(error))
        return None


def begin(found: Call, given: Given, key: str) -> Session | None:
    """Open the bus as the agent of this session; None if it is nobody's.

    Raises AgentBusError where somebody is named and cannot be.
    """
    from agent_bus import settings
    from agent_bus.bus import Bus
    from agent_bus.clock import SystemClock
    from agent_bus.errors import AgentBusError
    from agent_bus.hosts.memory import NOBODY, Mark, Memory

    # A bus is never made by the way.
    chosen = replace(settings.load(), allow_create=False)
    mark = Mark(chosen.data, key, SystemClock())
    try:
        bus = Bus.open(chosen)
        name = bus.presence.session_agent(given.session) if given.session else None
        if name is None and not (chosen.identity or "").strip():
            raise _nobody(chosen)
        bus = Bus.open(chosen, identity=name or chosen.require_identity())
    except AgentBusError:
        if found.moment != "session":
            for kind in ("shown", "stop"):
                mark.set(kind, NOBODY, 1)
        if (chosen.identity or "").strip():
            raise
        return None
    return Session(bus, Memory(bus.store, bus.identity, given.session or key), mark, found, given)


def read_input() -> Given:
    """The hook's JSON on standard input. Whatever is wrong with it says nothing."""
    try:
        value = json.loads(_read_all(0))
    except (OSError, ValueError, RecursionError):
        return Given()
    if not isinstance(value, dict):
        return Given()
    session = value.get("session_id")
    return Given(
        session=session if isinstance(session, str) and len(session) <= 256 else "",
        stop_hook_active=value.get("stop_hook_active") is True,
        is_subagent=isinstance(value.get("agent_id"), str),
        is_start=value.get("hook_event_name") == "SessionStart",
    )


# -- the four moments


def _welcome(session: Session) -> dict[str, Any]:
    from agent_bus.clock import id_time
    from agent_bus.hosts import notes
    from agent_bus.hosts.memory import sweep

    bus = session.bus
    changed = _changed(session)
    unread = bus.store.unread(session.me)
    if session.memory.begin(unread):
        _set_marks(session, changed, "shown")
    sweep(bus.store, bus.settings.data, bus.clock)
    text = notes.welcome(
        session.me,
        is_admin=bus.is_admin,
        unread=len(unread),
        oldest=id_time(unread[0]) if unread else None,
        now=bus.clock.now(),
        pending=len(bus.pending()) if bus.is_admin else 0,
    )
    return session.call.context("\n".join(filter(None, [text, _neglected(session)])))


def _prompt(session: Session) -> dict[str, Any] | None:
    if session.memory.load().blocks:
        session.memory.add("prompt")
    return _say_news(session, also=_neglected(session), unremembered=True)


def _tool(session: Session) -> dict[str, Any] | None:
    return _say_news(session, also="", unremembered=False)


def _stop(session: Session) -> dict[str, Any] | None:
    from agent_bus.hosts import notes

    changed, seen = _changed(session), session.memory.load()
    urgent = [
        message
        for message in _look(session, _unread(session, seen.blocked)[:_JUDGED])[0]
        if message.priority == "urgent" or message.kind in _DECISIONS
    ]
    if not urgent:
        _set_marks(session, changed, "stop")
        return None
    if session.given.stop_hook_active or seen.blocks >= _CAP:
        return None
    idents = [message.id for message in urgent]
    remembered = session.memory.add("block") and session.memory.add("blocked", idents)
    if not remembered:
        return None
    session.memory.add("shown", idents)
    text = notes.before_stopping(session.me, urgent[:_LISTED], len(urgent[_LISTED:]))
    return session.call.refuse_to_stop(text)


def _say_news(session: Session, *, also: str, unremembered: bool) -> dict[str, Any] | None:
    """What was not shown in this session; each message once."""
    from agent_bus.hosts import notes

    changed, seen = _changed(session), session.memory.load()
    fresh = _unread(session, seen.shown)
    text = also
    if fresh:
        if not session.memory.add("shown", fresh) and not unremembered:
            return None
        listed, bad = _look(session, fresh[:_LISTED])
        more, room = len(fresh[_LISTED:]), notes.LIMIT - len(also) - 1
        news = notes.news(session.me, listed, more=more, bad=bad, limit=room)
        text = "\n".join(filter(None, [news, also]))
    _set_marks(session, changed, "shown")
    return session.call.context(text) if text else None


# -- parts


def _changed(session: Session) -> int | None:
    """When the box last changed (ns). To be asked before it is listed."""
    try:
        with session.bus.store.open("messages", session.me, "new") as folder:
            return folder.own_status().st_mtime_ns
    except OSError:
        return None


def _set_marks(session: Session, changed: int | None, kind: str) -> None:
    if changed is not None:
        box = session.bus.address.path / "messages" / session.me / "new"
        session.mark.set(kind, os.fspath(box), changed)


def _unread(session: Session, known: frozenset[str]) -> list[MessageId]:
    return [ident for ident in session.bus.store.unread(session.me) if ident not in known]


def _look(session: Session, idents: Sequence[MessageId]) -> tuple[list[Message], int]:
    """The messages that may be shown, and how many files do not verify."""
    from agent_bus.reading import Place
    from agent_bus.verdicts import is_offered

    places = [Place(session.me, ident, "new") for ident in idents]
    offered: list[Message] = []
    bad = 0
    for stored in session.bus.store.load_all(places):
        if stored.judged.message is None:
            bad += 1
        elif is_offered(stored):
            offered.append(stored.judged.message)
    return offered, bad


def _neglected(session: Session) -> str:
    """Of which messages the sender is to know that nobody has read them; each once."""
    from agent_bus.hosts import notes

    told = session.memory.load().told
    found = [one for one in session.bus.unread_by_others().messages if one.id not in told]
    if not found:
        return ""
    session.memory.add("told", [one.id for one in found])
    return notes.neglected(found, now=session.bus.clock.now())


def _nobody(chosen: Settings) -> AgentBusError:
    from agent_bus.errors import IdentityMissing

    return IdentityMissing(f"this session is nobody on a bus ({chosen.identity!a})")


def _without_bus(found: Call, error: AgentBusError) -> dict[str, Any] | None:
    """The person is told once, at the start; a model can do nothing about it."""
    _log(str(error))
    if found.moment != "session":
        return None
    from agent_bus.visible import cut, visible

    return found.tell_user(cut(f"agent-bus: {visible(str(error))}", 500))


# -- the process


def _read_all(fd: int) -> bytes:
    """What comes on a descriptor until its end or until the time is up."""
    from agent_bus.clock import SystemClock

    clock, chunks, size = SystemClock(), [], 0
    until = clock.monotonic() + _INPUT_SECONDS
    while (left := until - clock.monotonic()) > 0 and size < _INPUT_LIMIT:
        if not select.select([fd], [], [], left)[0]:
            break
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _give_up() -> None:
    _log(f"no answer within {_SECONDS} s: nothing is said this time")
    os._exit(0)


def _end(code: int) -> NoReturn:
    os._exit(code)


def _log(text: str) -> None:
    from agent_bus.visible import visible

    _write(2, f"agent-bus: {visible(text)}\n")


def _write(fd: int, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


def note_on_stderr(text: str) -> None:
    """Several lines for the model, where a host takes them from standard error."""
    _write(2, text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
