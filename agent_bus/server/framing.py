"""Bytes from a peer into JSON-RPC messages, and text back into bytes.

MCP over stdio is one JSON object a line (specification, "Transports", stdio). Some clients
send `Content-Length` blocks instead, as the Language Server Protocol has them; those are
understood and answered in kind. Everything here is pure and needs the standard library
alone, so that a request can be read, and answered, before the SDK is loaded.

Input is judged once and here: what passes is a JSON object of JSON-RPC 2.0 that can be
encoded again; all else is a `Refusal`, which says what to answer. A faulty response or
notification is dropped, since JSON-RPC answers neither.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

LIMIT = 4 * 1024 * 1024
"""Bytes of one message. The largest body is 64 KiB, so that no honest one comes near."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

_LENGTH = re.compile(rb"content-length[ \t]*:[ \t]*([0-9]{1,18})[ \t]*", re.IGNORECASE)
_BLOCK_START = re.compile(rb"content-(?:length|type)[ \t]*:", re.IGNORECASE)
_HEADER = re.compile(rb"[A-Za-z0-9-]+[ \t]*:")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Line ends to somebody: Node's readline splits at the last two, Python's splitlines at all.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON-RPC request, notification or response, as decoded JSON."""

    value: dict[str, Any]
    framed: bool
    """Whether it came in a `Content-Length` block."""

    @property
    def request_id(self) -> int | str | None:
        """The id if this is a request, else None."""
        return self.value.get("id") if "method" in self.value else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Input that is no message. `answer` is what JSON-RPC wants said about it."""

    code: int
    reason: str
    request_id: int | str | None
    framed: bool

    def answer(self) -> dict[str, Any]:
        """The error response; its id is null where none could be read."""
        error = {"code": self.code, "message": self.reason}
        return {"jsonrpc": "2.0", "id": self.request_id, "error": error}


Event = Message | Refusal


class Decoder:
    """Takes bytes in pieces of any size and gives back what is complete.

    Never holds more than `limit` bytes and one piece: a longer message is refused as soon
    as that is known, and skipped to its end. Raises nothing.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._in_headers = False
        self._length: int | None = None
        self._body: int | None = None
        self._skipping = False
        self._events: list[Event] = []

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes."""
        self._buffer += data
        while self._step():
            pass
        return self._taken()

    def end(self) -> list[Event]:
        """The input has ended. A last line counts without its line feed."""
        if self._body is not None or self._in_headers:
            if not self._skipping:
                self._refuse(PARSE_ERROR, "the input ended within a framed message", framed=True)
        elif not self._skipping:
            self._take_line(bytes(self._buffer))
        self._buffer.clear()
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _step(self) -> bool:
        """Take one line or body out of the buffer; False if it holds no whole one."""
        if self._body is not None:
            return self._step_body(self._body)
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._keep_unfinished_line()
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        if self._skipping:
            self._skipping = False
        elif len(line) > self._limit:
            self._refuse_size()
        else:
            self._take_line(line.removesuffix(b"\r"))
        return True

    def _keep_unfinished_line(self) -> None:
        if not self._skipping and len(self._buffer) > self._limit:
            self._refuse_size()
            self._skipping = True
        if self._skipping:
            self._buffer.clear()
        self._searched = len(self._buffer)

    def _step_body(self, length: int) -> bool:
        if self._skipping:
            dropped = min(length, len(self._buffer))
            del self._buffer[:dropped]
            self._body = length - dropped
        elif len(self._buffer) >= length:
            body = bytes(self._buffer[:length])
            del self._buffer[:length]
            self._interpret(body, framed=True)
            self._body = 0
        if self._body:
            return False
        self._body, self._skipping = None, False
        return True

    def _take_line(self, line: bytes) -> None:
        if self._in_headers:
            self._take_header(line)
        elif _BLOCK_START.match(line):
            self._in_headers, self._length = True, None
            self._take_header(line)
        elif line.strip():
            self._interpret(line, framed=False)

    def _take_header(self, line: bytes) -> None:
        if found := _LENGTH.fullmatch(line):
            self._length = int(found[1])
        elif not line:
            self._start_body()
        elif not _HEADER.match(line):
            self._in_headers = False
            self._refuse(PARSE_ERROR, "a header block must end with an empty line", framed=True)
            self._take_line(line)

    def _start_body(self) -> None:
        self._in_headers = False
        if self._length is None:
            self._refuse(PARSE_ERROR, "a header block without a Content-Length", framed=True)
            return
        self._body = self._length
        if self._length > self._limit:
            self._refuse_size(framed=True)
            self._skipping = True

    def _refuse_size(self, *, framed: bool = False) -> None:
        framed, self._in_headers = framed or self._in_headers, False
        self._refuse(INVALID_REQUEST, f"a message may have {self._limit} bytes", framed=framed)

    def _refuse(self, code: int, reason: str, *, framed: bool) -> None:
        self._events.append(Refusal(code, reason, None, framed))

    def _interpret(self, raw: bytes, *, framed: bool) -> None:
        if event := interpret(raw, framed=framed):
            self._events.append(event)


def interpret(raw: bytes, *, framed: bool = False) -> Event | None:
    """Judge the bytes of one message. None: not valid, and nothing is to be answered."""
    try:
        # Decoded here, since json.loads would take UTF-16 too.
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError:
        return Refusal(PARSE_ERROR, "Parse error: not UTF-8", None, framed)
    except (ValueError, RecursionError) as error:
        return Refusal(PARSE_ERROR, f"Parse error: {error}", None, framed)
    if not isinstance(value, dict):
        reason = "Invalid Request: a message is one JSON object, and batches are not taken"
        return Refusal(INVALID_REQUEST, reason, None, framed)
    fault = _fault(value, raw)
    if fault is None:
        return Message(value, framed)
    if _expects_no_answer(value):
        return None
    return Refusal(INVALID_REQUEST, f"Invalid Request: {fault}", _readable_id(value), framed)


def encode(text: str, *, framed: bool) -> bytes:
    """JSON text as it goes to the peer. Raises UnicodeEncodeError for a lone surrogate."""
    body = (text if text.isascii() else text.translate(_LINE_ENDS)).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body) if framed else body + b"\n"


def _fault(value: dict[str, Any], raw: bytes) -> str | None:
    if _SURROGATE.search(raw) and not _is_encodable(value):
        return "a string holds a lone surrogate"
    if value.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "method" not in value:
        return None if _is_response(value) else "there is no method"
    return _call_fault(value)


def _call_fault(value: dict[str, Any]) -> str | None:
    if not isinstance(value["method"], str):
        return "method must be a string"
    if "id" in value and not _is_id(value["id"]):
        return "id must be a string or an integer"
    if not isinstance(value.get("params", {}), dict):
        return "params must be an object"
    return None


def _expects_no_answer(value: dict[str, Any]) -> bool:
    if "method" not in value:
        return _is_response(value)
    return isinstance(value["method"], str) and value.get("jsonrpc") == "2.0" and "id" not in value


def _is_response(value: dict[str, Any]) -> bool:
    return "result" in value or "error" in value


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _readable_id(value: dict[str, Any]) -> int | str | None:
    ident = value.get("id")
    return ident if _is_id(ident) and _is_encodable(ident) else None


def _is_encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number
