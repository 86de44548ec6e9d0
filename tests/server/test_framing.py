"""Bytes into messages: every peer is read, every fault is named, nothing is kept for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_bus.server.framing import (
    INVALID_REQUEST,
    LIMIT,
    PARSE_ERROR,
    Decoder,
    Event,
    Message,
    Refusal,
    encode,
    interpret,
)

FUZZ = settings(deadline=None, database=None)
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"text": "é \u2028 漢 🐟"}}
LINE = json.dumps(CALL, ensure_ascii=False).encode()


def block(body: bytes, name: str = "Content-Length") -> bytes:
    return b"%b: %d\r\n\r\n%b" % (name.encode(), len(body), body)


def decode(*pieces: bytes, limit: int = LIMIT) -> list[Event]:
    decoder = Decoder(limit)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.end()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n\r\n \n", b""])
def test_a_line_is_a_message_whatever_ends_it(end: bytes) -> None:
    assert decode(LINE + end) == [Message(CALL, framed=False)]


def test_line_separators_inside_strings_do_not_split() -> None:
    value = {"jsonrpc": "2.0", "method": "m", "params": {"t": "\u2028\u2029\x85\x0b\x0c\x1c"}}
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"

    assert decode(line + line) == [Message(value, framed=False)] * 2


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: %d\r\n\r\n",
        b"content-length:%d\n\n",
        b"CONTENT-LENGTH \t: %d \r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
        b"Content-Length: %d\r\nX-Other: {\r\n\r\n",
    ],
)
def test_a_content_length_block_is_a_message(head: bytes) -> None:
    framed = head % len(LINE) + LINE

    assert decode(framed + framed) == [Message(CALL, framed=True)] * 2


def test_both_framings_may_alternate() -> None:
    events = decode(block(LINE) + LINE + b"\n" + block(LINE) + b"\n" + LINE)

    assert [event.framed for event in events] == [True, False, True, False]


def test_a_body_may_hold_line_feeds() -> None:
    body = b"\n" + json.dumps(CALL, indent=2).encode() + b"\r\n\n"

    assert decode(block(body)) == [Message(CALL, framed=True)]


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        (b"Content-Length: x\r\n\r\n", [PARSE_ERROR]),
        (b"Content-Length: -1\r\n\r\n", [PARSE_ERROR]),
        (b"Content-Type: x\r\n\r\n", [PARSE_ERROR]),
        (b"Content-Length: 0\r\n\r\n", [PARSE_ERROR]),
        (b"Content-Length: 3\r\n{}\n", [PARSE_ERROR, INVALID_REQUEST]),
        (b"Content-Length: 3\r\nContent-Type: x\r\n\r\n{}}", [PARSE_ERROR]),
    ],
)
def test_after_a_faulty_block_lines_are_read_again(sent: bytes, codes: list[int]) -> None:
    *refusals, last = decode(sent + b"\n" + LINE + b"\n")

    assert [event.code for event in refusals if isinstance(event, Refusal)] == codes
    assert last == Message(CALL, framed=False)


@pytest.mark.parametrize("sent", [block(LINE)[:-1], b"Content-Length: 5\r\n"])
def test_a_block_that_the_input_cuts_off_is_a_parse_error(sent: bytes) -> None:
    (refusal,) = decode(sent)

    assert isinstance(refusal, Refusal)
    assert refusal.code == PARSE_ERROR


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
@pytest.mark.parametrize("framed", [False, True])
def test_what_is_too_large_is_refused_once_and_skipped(framed: bool, step: int) -> None:
    large = b"x" * 1000
    sent = (block(large) if framed else large + b"\n") + LINE + b"\n"
    pieces = [sent[start : start + step] for start in range(0, len(sent), step)]

    refusal, message = decode(*pieces, limit=200)

    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.request_id, refusal.framed) == (INVALID_REQUEST, None, framed)
    assert message == Message(CALL, framed=False)


def test_what_is_too_large_is_not_kept() -> None:
    decoder = Decoder(limit=1000)

    for start in (b"", b"\nContent-Length: 2147483648\r\n\r\n"):
        decoder.feed(start)
        for _ in range(50):
            decoder.feed(b"x" * 600)
            assert len(decoder._buffer) <= 1000


def test_a_header_that_never_ends_is_not_kept() -> None:
    first, *rest = decode(b"Content-Length: " + b"1" * 500, b"\n\n" + LINE, limit=200)

    assert isinstance(first, Refusal)
    assert rest == [Message(CALL, framed=False)]


def test_a_message_of_exactly_the_limit_is_taken() -> None:
    assert decode(LINE + b"\n", limit=len(LINE)) == [Message(CALL, framed=False)]
    assert decode(block(LINE), limit=len(LINE)) == [Message(CALL, framed=True)]


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"nonsense",
        b"hello: world",
        b"\xef\xbb\xbf" + LINE,
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xed\xa0\x80"}}',
        LINE.decode().encode("utf-16"),
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":-Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1e999}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + b"9" * 5000 + b"}}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_is_a_parse_error(raw: bytes) -> None:
    event = interpret(raw)

    assert isinstance(event, Refusal)
    assert (event.code, event.request_id) == (PARSE_ERROR, None)


@pytest.mark.parametrize(
    ("raw", "ident"),
    [
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None),
        (b'"text"', None),
        (b"null", None),
        (b"5", None),
        (b"{}", None),
        (b'{"id":6}', 6),
        (b'{"id":"six","method":"ping"}', "six"),
        (b'{"jsonrpc":"1.0","id":6,"method":"ping"}', 6),
        (b'{"jsonrpc":2.0,"id":6,"method":"ping"}', 6),
        (b'{"jsonrpc":"2.0","id":6,"method":3}', 6),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":[1]}', 6),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":null}', 6),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":{"a":["\\ud800"]}}', 6),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":{"\\uDFFF":1}}', 6),
        (b'{"jsonrpc":"2.0","id":"\\udc00","method":"ping"}', None),
        (b'{"jsonrpc":"1.0","method":"notifications/initialized"}', None),
    ],
)
def test_what_is_no_json_rpc_is_an_invalid_request(raw: bytes, ident: int | str | None) -> None:
    event = interpret(raw)

    assert isinstance(event, Refusal)
    answer = event.answer()
    assert (answer["error"]["code"], answer["id"]) == (INVALID_REQUEST, ident)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"a":"\\ud800"}}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
        b'{"id":1,"error":{"code":1,"message":"\\ud800"}}',
    ],
)
def test_a_faulty_notification_or_response_is_dropped(raw: bytes) -> None:
    """JSON-RPC answers neither, and a client could take an answer for its own response."""
    assert interpret(raw) is None


def test_a_surrogate_pair_is_no_lone_surrogate() -> None:
    event = interpret(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\ud83d\\udc1f"}}')

    assert isinstance(event, Message)
    assert event.value["params"] == {"a": "🐟"}


def test_only_a_request_has_a_request_id() -> None:
    raws = [b'"id":3,"method":"m"', b'"method":"m"', b'"id":3,"result":{}']
    events = [interpret(b'{"jsonrpc":"2.0",' + raw + b"}") for raw in raws]

    assert [event.request_id for event in events if event] == [3, None, None]


@FUZZ
@given(st.text(), st.booleans())
def test_what_is_encoded_is_one_line_to_every_reader(text: str, framed: bool) -> None:
    value = {"jsonrpc": "2.0", "method": "m", "params": {"text": text}}
    try:
        sent = encode(json.dumps(value, ensure_ascii=False), framed=framed)
    except UnicodeEncodeError:
        return

    assert decode(sent) == [Message(value, framed=framed)]
    assert len(sent.decode().split("\r\n\r\n")[-1].splitlines()) == 1


PIECES = st.sampled_from(
    [
        LINE,
        b"\n",
        b"\r\n",
        b"{",
        b"[]",
        b"Content-Length: 4\r\n\r\n",
        b"Content-Length: 900",
        b"\xff",
    ]
)


@FUZZ
@given(st.lists(PIECES | st.binary(max_size=40)), st.data())
def test_any_bytes_in_any_pieces_give_the_same(pieces: list[bytes], data: Any) -> None:
    sent = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    assert decode(*parts, limit=150) == decode(sent, limit=150)


@FUZZ
@given(st.binary(max_size=200))
def test_no_bytes_break_the_judgement(raw: bytes) -> None:
    event = interpret(raw)

    if isinstance(event, Refusal):
        json.dumps(event.answer()).encode()
