"""What a client hears from a server that cannot start.

Hosts show nobody what a server writes to standard error; what they show is the error that
answers their first request. So whoever asks is told the reason, and then the process ends as
it would have. Claude Code asks twice, `server/discover` and then `initialize`, and shows the
second answer.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator

from agent_bus.clock import SystemClock
from agent_bus.server.framing import Decoder, Event, Message, Refusal, encode

CODE = -32000
"""A server's own error (JSON-RPC 2.0, section 5.1)."""
_PATIENCE = 3.0
"""Seconds without a request after which nobody is taken to ask any more."""
_LAST = "initialize"


def tell(reason: str) -> None:
    """Answer requests on stdin with the reason until the client knows it. Raises nothing."""
    if sys.platform == "win32" or sys.stdin is None or sys.stdout is None or os.isatty(0):
        return
    error = {"code": CODE, "message": reason}
    try:
        for event in _events():
            if isinstance(event, Refusal):
                answer = event.answer()
            elif event.request_id is not None:
                answer = {"jsonrpc": "2.0", "id": event.request_id, "error": error}
            else:
                continue
            os.write(1, encode(json.dumps(answer), framed=event.framed))
            if isinstance(event, Message) and event.value["method"] == _LAST:
                return
    except (OSError, ValueError):
        # The client is gone, or one of the two is no stream that can be waited for.
        return


def _events() -> Iterator[Event]:
    decoder, clock = Decoder(), SystemClock()
    until = clock.monotonic() + _PATIENCE
    while (left := until - clock.monotonic()) > 0 and select.select([0], [], [], left)[0]:
        chunk = os.read(0, 1 << 16)
        for event in decoder.feed(chunk) if chunk else decoder.end():
            if isinstance(event, Message) and event.request_id is not None:
                until = clock.monotonic() + _PATIENCE
            yield event
        if not chunk:
            return
