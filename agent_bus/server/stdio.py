"""The stdio transport under the SDK's `Server`: asyncio on the host's two pipes.

What the SDK's own transport does not give, and this one does: every faulty line is answered;
invalid UTF-8 never reaches a tool; SIGINT, SIGTERM, SIGHUP, a closed stdout and the death of
the parent end the server cleanly; output that nobody reads cannot hold it.

Reading begins before the SDK is loaded, which takes most of a second: messages queue up,
and an `Opening` may answer the first request meanwhile. The SDK then gets all of them, that
first one included, since the state of its session hangs on it; only its answer is dropped.

Where stdin is no pipe or socket, and on Windows, the SDK's transport moves the bytes, and
signals, parent and cleanup are as here.

Nothing at the head of this module may import `mcp`, pydantic or anyio.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from agent_bus.errors import AgentBusError
from agent_bus.server.framing import Decoder, Event, Message, Refusal, encode
from agent_bus.server.wire import Writer, has_hung_up, take_over

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.models import InitializationOptions
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

Build = Callable[[], "tuple[Server[Any], InitializationOptions]"]
Answer = Callable[[dict[str, Any]], dict[str, Any] | None]

# All in seconds. Claude Code sends SIGINT, SIGTERM after 0.1 and SIGKILL after 0.5: what a
# signal starts has to be over by then. A client that closes stdin waits for 2 s or more.
_TICK = 1.0
_OPENING_GRACE = 0.1  # for the first request, which hosts send at once
_ANSWER_GRACE = 0.5  # after the end of stdin, for answers that are nearly there
_CANCEL_GRACE = 0.2  # for cancelled tool calls; a thread may never return
_DRAIN_GRACE = 1.0  # for a client that still reads, after the end of stdin
_SIGNAL_DRAIN_GRACE = 0.1
_CLEANUP_GRACE = 2.0

_logger = logging.getLogger(__name__)


def run(
    build: Build, *, opening: Answer | None = None, cleanup: Sequence[Callable[[], None]] = ()
) -> NoReturn:
    """Serve one client on stdin and stdout, and end the process.

    `build` makes the server; it runs in a thread, and is where `mcp` gets imported. `opening`
    may answer the first request before that. Whatever has to be true before any request is
    answered must be done before this call.

    `cleanup` runs at every end but SIGKILL, each callback once and in order, whatever the
    others did. The process ends without waiting for threads: with 0 when the client, its
    host or a signal ended it, with an AgentBusError's own exit code (one line on stderr),
    with 70 for anything unforeseen.
    """
    code = 0
    try:
        # Never closed: that would wait for the threads of blocked tool calls.
        asyncio.new_event_loop().run_until_complete(serve(build, opening))
    except KeyboardInterrupt:  # before the handlers stood, or on Windows
        pass
    except AgentBusError as error:
        code = error.exit_code
        if sys.stderr:
            sys.stderr.write(f"agent-bus: {error}\n")
    except BaseException:
        _logger.exception("the server ended unexpectedly")
        code = 70
    _clean_up(cleanup, code)
    os._exit(code)


async def serve(build: Build, opening: Answer | None = None) -> None:
    """Serve one client until it, its host or a signal ends that; see `run`.

    Takes the process's standard streams over for good. Raises what `build` raises,
    ConfigurationError without open standard streams, and what breaks the SDK's session.
    """
    parent = os.getppid()
    stop = asyncio.Event()
    _stop_on_signals(stop)
    descriptors = take_over()
    session = _Session(*descriptors, opening, stop) if descriptors else None
    work = asyncio.ensure_future(_serve_sdk(session, build) if session else _serve_stock(build))
    watch = asyncio.ensure_future(_host_is_gone(parent, session))
    ended = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait({work, watch, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, watch, ended):
        task.cancel()
    await asyncio.wait({work}, timeout=_CANCEL_GRACE)
    if session:
        await session.close()
    if work in done:
        work.result()
    elif work.done() and not work.cancelled():
        # Cancelled with requests still queued, the SDK may fail over its own streams.
        _logger.debug("the session ended with an error", exc_info=work.exception())


class _Session:
    """Between the wire and the SDK: answers what the SDK never sees, passes on the rest."""

    def __init__(self, source: int, sink: int, opening: Answer | None, stop: asyncio.Event) -> None:
        self.sink = sink
        self._source = source
        self._opening = opening
        self._stop = stop
        self._writer = Writer(sink, stop.set)
        self._decoder = Decoder()
        self._framed = False
        self._forward: Callable[[dict[str, Any]], None] | None = None
        self._backlog: list[dict[str, Any]] = []
        self._unanswered: set[int | str] = set()
        self._replayed: dict[str, Any] | None = None
        self._at_end = False
        self._heard = asyncio.Event()
        asyncio.get_running_loop().add_reader(source, self._readable)

    async def heard(self) -> None:
        """Return when the client has said something, or soon after it has not.

        Loading the SDK takes the interpreter for itself, a few milliseconds at a time; the
        opening is answered before that.
        """
        if self._opening:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._heard.wait(), _OPENING_GRACE)

    def attach(self, forward: Callable[[dict[str, Any]], None]) -> None:
        """The SDK is ready: give it what has come so far, and from now on everything."""
        self._forward = forward
        for value in self._backlog:
            forward(value)
        self._backlog.clear()
        self._settle()

    def deliver(self, message: JSONRPCMessage) -> None:
        """A message from the SDK to the client. Raises nothing."""
        answered = None if hasattr(message, "method") else message.id
        if answered is not None:
            if self._is_replayed(answered, message):
                return
            self._unanswered.discard(answered)
        try:
            self._write(message.model_dump_json(by_alias=True, exclude_unset=True))
        except ValueError:  # a lone surrogate, say, out of a file name
            _logger.exception("a message to the client cannot be encoded")
            if answered is not None:
                error = {"code": -32603, "message": "the result cannot be encoded as JSON"}
                self._write(json.dumps({"jsonrpc": "2.0", "id": answered, "error": error}))
        self._settle()

    async def close(self) -> None:
        """Stop reading, and give the client a moment to take what was written."""
        asyncio.get_running_loop().remove_reader(self._source)
        await self._writer.drain(_DRAIN_GRACE if self._at_end else _SIGNAL_DRAIN_GRACE)

    def _readable(self) -> None:
        try:
            data = os.read(self._source, 65536)
        except BlockingIOError:
            return
        except OSError:  # ECONNRESET: the other end of a socket is gone
            data = b""
        for event in self._decoder.feed(data) if data else self._decoder.end():
            self._receive(event)
        if not data:
            asyncio.get_running_loop().remove_reader(self._source)
            self._at_end = True
            self._settle()
        self._heard.set()

    def _receive(self, event: Event) -> None:
        self._framed = event.framed
        if isinstance(event, Refusal):
            self._write(json.dumps(event.answer()))
            return
        if event.request_id is not None:
            self._open(event.value)
        elif event.value.get("method") == "notifications/cancelled":
            # A cancelled request is never answered, so nobody is to wait for that.
            self._unanswered.discard(_cancelled_id(event))
        if self._forward:
            self._forward(event.value)
        else:
            self._backlog.append(event.value)

    def _open(self, request: dict[str, Any]) -> None:
        """Answer the first request if that can be done; the SDK is to answer all others."""
        answer = self._ask_opening(request)
        self._opening = None
        if answer is None:
            self._unanswered.add(request["id"])
        else:
            self._write(json.dumps(answer))
            self._replayed = answer

    def _ask_opening(self, request: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return self._opening(request) if self._opening else None
        except Exception:
            _logger.exception("the opening failed; the request waits for the SDK")
            return None

    def _is_replayed(self, answered: int | str, message: JSONRPCMessage) -> bool:
        """Whether this is the SDK's answer to the request that was answered already."""
        given = self._replayed
        if given is None or answered != given["id"]:
            return False
        self._replayed = None
        if message.model_dump(by_alias=True, exclude_unset=True) != given:
            _logger.warning("the SDK answers the opening request otherwise: %s", message)
        return True

    def _settle(self) -> None:
        """After the end of stdin: end when all is answered, or a little later."""
        if not self._at_end:
            return
        if not self._unanswered:
            self._stop.set()
        elif self._forward:
            asyncio.get_running_loop().call_later(_ANSWER_GRACE, self._stop.set)

    def _write(self, text: str) -> None:
        self._writer.write(encode(text, framed=self._framed))


class _Outbox:
    """The SDK's write stream: hands each message to the session at once."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def send(self, item: SessionMessage, /) -> None:
        self._session.deliver(item.message)

    async def aclose(self) -> None:
        """Nothing to close: the session outlives the SDK's loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _serve_sdk(session: _Session, build: Build) -> None:
    await session.heard()
    server, options = await asyncio.get_running_loop().run_in_executor(None, build)
    # Imported here, since `build` has loaded them by now, in its thread.
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    # Unbounded: reading must go on, or the end of stdin would go unseen.
    inbox, requests = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)

    def forward(value: dict[str, Any]) -> None:
        try:
            message = jsonrpc_message_adapter.validate_python(value, by_name=False)
            inbox.send_nowait(SessionMessage(message))
        except (ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # A faulty response of the client, or the session has just ended.
            _logger.debug("dropped a message: %s", error)

    async with inbox:
        session.attach(forward)
        await server.run(requests, _Outbox(session), options)


async def _serve_stock(build: Build) -> None:
    server, options = await asyncio.get_running_loop().run_in_executor(None, build)
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (requests, outbox):
        await server.run(requests, outbox, options)


async def _host_is_gone(parent: int, session: _Session | None) -> None:
    """Return when the parent has died, or the reading end of stdout is closed.

    A sibling that inherited the pipe can keep stdin open for ever. "The parent is 1" would
    be true from the start in a container, and never with a subreaper.
    """
    while os.getppid() == parent and not (session and has_hung_up(session.sink)):  # noqa: ASYNC110
        await asyncio.sleep(_TICK)  # neither of the two can be waited for


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
            # Under nohup the host outlives its terminal, and so must its server.
            continue
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop.set)


def _clean_up(cleanup: Sequence[Callable[[], None]], code: int) -> None:
    # A callback on a dead file system must not hold the process either.
    limit = threading.Timer(_CLEANUP_GRACE, os._exit, (code or 70,))
    limit.daemon = True
    limit.start()
    for callback in cleanup:
        try:
            callback()
        except Exception:
            _logger.exception("a cleanup failed")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _cancelled_id(event: Message) -> int | str | None:
    params = event.value.get("params", {})
    ident = params.get("requestId")
    return ident if isinstance(ident, int | str) else None
