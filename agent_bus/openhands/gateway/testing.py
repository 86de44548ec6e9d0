"""An agent server in memory, whose runs a test plays.

    server = PlayedServer()
    server.create(order)
    server.post(order.child, "MISSION …")
    server.finish(order.child, "done")
    assert server.run_end(order.child, None).answer == "done"

It refuses what the real one refuses, and is held to the same tests. What happens to a run is
said with `finish`, `fail`, `stick`, `pause`, `wait_for_confirmation`, `say`, `use_tool`, `vanish`
and `full`; `play`, given when it is made, is called for each run that starts. What happens to
the connection is said with `down`, `refuse` and `lose_reply`. `calls` has what was asked of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from agent_bus.clock import SystemClock
from agent_bus.errors import ServerRefused, Unavailable
from agent_bus.openhands.gateway.events import QUIET_TOOLS
from agent_bus.openhands.gateway.provider import Conversation, Order, RunEnd, Status, StopHook


@dataclass(frozen=True, slots=True)
class Call:
    """Something that was asked of the server, whether or not it did it."""

    operation: str
    """The name of the method."""
    ident: UUID
    text: str | None = None
    """The message, the marker or the run that was handed over."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event. `kind` is message, say, finish, error or tool."""

    id: str
    kind: str
    text: str = ""
    code: str = ""


@dataclass
class Played:
    """A conversation as it stands."""

    folder: str
    tags: dict[str, str]
    status: Status = "idle"
    is_acp: bool = False
    hook: StopHook | None = None
    servers: dict[str, str] = field(default_factory=dict)
    """Its MCP servers, name and URL; a test adds those of a plugin."""
    events: list[Happened] = field(default_factory=list)

    @property
    def messages(self) -> list[Happened]:
        """What users wrote, oldest first."""
        return [event for event in self.events if event.kind == "message"]

    def add(self, kind: str, text: str = "", code: str = "") -> None:
        """Let something happen."""
        self.events.append(Happened(_CLOCK.new_id(), kind, text, code))


Value = TypeVar("Value")

_CLOCK = SystemClock()

Play = Callable[["PlayedServer", UUID, str], None]
"""Gets the server, the conversation, and its newest message."""
OnStop = Callable[[UUID, StopHook], None]
"""Gets the conversation whose run has finished, and the hook that it was made with."""


class PlayedServer:
    """A `Provider` in memory. Safe to use from several threads.

    `play` is called when a run starts, `on_stop` when a Stop hook would be; both by the thread
    that caused it, and both may call the server.
    """

    def __init__(
        self,
        public_url: str = "http://openhands.test",
        *,
        play: Play | None = None,
        on_stop: OnStop | None = None,
        acp: bool = False,
    ) -> None:
        self.calls: list[Call] = []
        """All calls of the provider's methods, oldest first."""
        self.orders: dict[UUID, Order] = {}
        """What each conversation was made from."""
        self.play = play
        self.on_stop = on_stop
        self._public_url = public_url
        self._acp = acp
        self._full = False
        self._down = False
        self._conversations: dict[UUID, Played] = {}
        self._refusals: dict[str, list[int]] = {}
        self._lost: dict[str, int] = {}
        self._lock = threading.RLock()

    # What a provider does.

    def conversation(self, ident: UUID) -> Conversation | None:
        """How it stands, or None if it is not known."""
        with self._lock:
            self._called("conversation", ident)
            found = self._conversations.get(ident)
            if found is None:
                return self._reply("conversation", None)
            last = found.messages[-1].id if found.messages else None
            seen = Conversation(
                id=ident,
                status=found.status,
                folder=found.folder,
                tags=dict(found.tags),
                last_user_message=last,
                is_acp=found.is_acp,
                servers=dict(found.servers),
            )
            return self._reply("conversation", seen)

    def create(self, order: Order) -> bool:
        """Make it, idle. False: it was there already."""
        with self._lock:
            self._called("create", order.child)
            if order.child in self._conversations:
                return self._reply("create", False)
            if self._full:
                raise ServerRefused("the played server has no room for another run", status=429)
            self.orders[order.child] = order
            self._conversations[order.child] = Played(
                str(order.folder),
                dict(order.tags),
                is_acp=self._acp,
                hook=order.hook,
                servers={entry.name: entry.url for entry in order.servers},
            )
            return self._reply("create", True)

    def post(self, ident: UUID, text: str, *, run: bool = True) -> bool:
        """Add a user message and start a run. False: saved, but there is no room for a run.

        While it runs, the message is queued; while it waits for a confirmation, it approves.
        """
        with self._lock:
            self._called("post", ident, text)
            found = self._known(ident)
            found.add("message", text)
            if found.status in ("finished", "stuck"):
                found.status = "idle"
            begins = run and found.status != "running"
            if begins and not self._full:
                found.status = "running"
        if begins and not self._full:
            self._begun(ident)
        return self._reply("post", not (begins and self._full))

    def run(self, ident: UUID) -> bool:
        """Start a run. One that has finished only has its Stop hook called again."""
        with self._lock:
            self._called("run", ident)
            found = self._known(ident)
            was = found.status
            if was != "running" and self._full:
                return self._reply("run", False)
            if was not in ("running", "finished"):
                found.status = "running"
        if was == "finished":
            self._stopped(ident)
        elif was != "running":
            self._begun(ident)
        return self._reply("run", True)

    def interrupt(self, ident: UUID) -> None:
        """Stop the run at once. Does nothing to one that has ended or waits."""
        with self._lock:
            self._called("interrupt", ident)
            found = self._known(ident)
            if found.status in ("idle", "running"):
                found.status = "paused"
        self._reply("interrupt", None)

    def reject(self, ident: UUID, reason: str) -> None:
        """Refuse what waits for a confirmation; it is idle then."""
        with self._lock:
            self._called("reject", ident, reason)
            found = self._known(ident)
            if found.status == "waiting_for_confirmation":
                found.status = "idle"
        self._reply("reject", None)

    def find_message(self, ident: UUID, marker: str) -> str | None:
        """The id of the newest user message whose text contains a marker, or None."""
        with self._lock:
            self._called("find_message", ident, marker)
            messages = reversed(self._known(ident).messages)
            found = (event.id for event in messages if marker in event.text)
            return self._reply("find_message", next(found, None))

    def run_end(self, ident: UUID, run: str | None) -> RunEnd:
        """What happened after the message `run`; None for after the newest user message."""
        with self._lock:
            self._called("run_end", ident, run)
            found = self._known(ident)
            last = found.messages[-1].id if found.messages else None
            return self._reply("run_end", _end(found.events, run or last))

    def url(self, ident: UUID) -> str:
        """What a person opens the conversation under."""
        return f"{self._public_url}/conversations/{ident}"

    # What happens to a run.

    def finish(self, ident: UUID, answer: str) -> None:
        """The run ends with this answer, and the Stop hook is called."""
        with self._lock:
            self._running(ident).add("finish", answer)
            self._running(ident).status = "finished"
        self._stopped(ident)

    def fail(self, ident: UUID, code: str, text: str) -> None:
        """The run ends in an error. No hook is called."""
        with self._lock:
            found = self._running(ident)
            found.status = "error"
            found.add("error", text, code)

    def stick(self, ident: UUID) -> None:
        """The run ends because it goes round in circles. No hook is called."""
        with self._lock:
            self._running(ident).status = "stuck"

    def pause(self, ident: UUID) -> None:
        """A person pauses it. Does nothing to one that has ended or waits."""
        with self._lock:
            found = self._known(ident)
            if found.status in ("idle", "running"):
                found.status = "paused"

    def wait_for_confirmation(self, ident: UUID) -> None:
        """It wants to do something that somebody has to allow."""
        with self._lock:
            found = self._running(ident)
            found.add("tool", "terminal")
            found.status = "waiting_for_confirmation"

    def say(self, ident: UUID, text: str) -> None:
        """The agent writes something; its run goes on."""
        with self._lock:
            self._running(ident).add("say", text)

    def use_tool(self, ident: UUID, name: str = "terminal") -> None:
        """The agent calls a tool; its run goes on."""
        with self._lock:
            self._running(ident).add("tool", name)

    def plug_in(self, ident: UUID, name: str, url: str) -> None:
        """A plugin of the workspace brings an MCP server, as when the runtime starts."""
        with self._lock:
            self._known(ident).servers[name] = url

    def vanish(self, ident: UUID) -> None:
        """It is deleted. It can be made anew."""
        with self._lock:
            self._conversations.pop(ident, None)

    def full(self, full: bool = True) -> None:
        """Whether there is no room for another run."""
        with self._lock:
            self._full = full

    def add_conversation(
        self, ident: UUID, folder: Path = Path("/"), tags: dict[str, str] | None = None
    ) -> None:
        """Make one that nobody ordered: a Main, or somebody else's under the same id."""
        with self._lock:
            self._conversations[ident] = Played(str(folder), dict(tags or {}), is_acp=self._acp)

    def messages(self, ident: UUID) -> list[str]:
        """All that users wrote to it, oldest first. It counts as no call."""
        with self._lock:
            return [event.text for event in self._known(ident).messages]

    # What happens to the connection.

    def down(self, down: bool = True) -> None:
        """Whether nobody answers: every call raises Unavailable, nothing is done."""
        with self._lock:
            self._down = down

    def refuse(self, operation: str, status: int = 422, times: int = 1) -> None:
        """The next calls of this method are refused with this HTTP status, nothing is done.

        From 500 on that is Unavailable, as with the real one.
        """
        with self._lock:
            self._refusals.setdefault(operation, []).extend([status] * times)

    def lose_reply(self, operation: str, times: int = 1) -> None:
        """The next calls of this method take effect, but raise Unavailable."""
        with self._lock:
            self._lost[operation] = self._lost.get(operation, 0) + times

    def _called(self, operation: str, ident: UUID, text: str | None = None) -> None:
        self.calls.append(Call(operation, ident, text))
        if self._down:
            raise Unavailable("the played server is down")
        if waiting := self._refusals.get(operation):
            status = waiting.pop(0)
            if status >= 500:
                raise Unavailable(f"the played server failed (HTTP {status})")
            raise ServerRefused(f"the played server refuses (HTTP {status})", status=status)

    def _reply(self, operation: str, value: Value) -> Value:
        with self._lock:
            if self._lost.get(operation, 0) > 0:
                self._lost[operation] -= 1
                raise Unavailable("the reply of the played server was lost")
        return value

    def _known(self, ident: UUID) -> Played:
        if found := self._conversations.get(ident):
            return found
        raise ServerRefused("the played server knows no such conversation", status=404)

    def _running(self, ident: UUID) -> Played:
        found = self._known(ident)
        if found.status != "running":
            raise ValueError(f"the conversation is {found.status}: a test plays a run, not this")
        return found

    def _begun(self, ident: UUID) -> None:
        if self.play:
            self.play(self, ident, self.messages(ident)[-1] if self.messages(ident) else "")

    def _stopped(self, ident: UUID) -> None:
        with self._lock:
            found = self._conversations.get(ident)
        if self.on_stop and found and found.hook:
            self.on_stop(ident, found.hook)


def _end(happened: list[Happened], run: str | None) -> RunEnd:
    places = [place for place, event in enumerate(happened) if event.id == run]
    if not places:
        return RunEnd(used_tools=True)
    after = happened[places[0] + 1 :]
    finishes = [event for event in after if event.kind == "finish"]
    said = [event.text for event in after if event.kind == "say"]
    errors = [event for event in after if event.kind == "error"]
    if errors and finishes and after.index(errors[-1]) < after.index(finishes[-1]):
        errors = []
    return RunEnd(
        answer=next((text.text for text in reversed(finishes) if text.text.strip()), "")
        or (said[-1] if said else ""),
        error_code=errors[-1].code if errors else None,
        error_text=errors[-1].text if errors else None,
        used_tools=any(e.kind == "tool" and e.text not in QUIET_TOOLS for e in after),
    )
