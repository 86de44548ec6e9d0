"""The bytes of a peer: however they are cut and whatever they are, the decoder goes on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_bus.server.framing import Decoder, Event, Message, Refusal, encode, interpret

LIMIT = 300
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
calls = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "method": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    },
    optional={
        "id": st.integers(-(2**53), 2**53)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        "params": st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.integers(), max_size=3
        ),
    },
)
pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"\r\n\r\n",
            b"Content-Length: ",
            b"Content-Length: 5\r\n\r\n",
            b"content-type: x\r\n",
            b"Content-Length: 99999999999999999\r\n\r\n",
            b"{",
            b"}",
            b'"',
            b"\xff",
            b"\xef\xbb\xbf",
        ]
    ),
    json_values.map(lambda value: json.dumps(value).encode() + b"\n"),
    calls.map(lambda value: json.dumps(value).encode() + b"\n"),
    calls.map(lambda value: encode(json.dumps(value), framed=True)),
)
streams = st.lists(pieces, max_size=12).map(b"".join)


def decoded(data: bytes, cuts: list[int]) -> list[Event]:
    """What a decoder makes of bytes that come in pieces."""
    decoder = Decoder(LIMIT)
    events: list[Event] = []
    start = 0
    for cut in [*sorted(cuts), len(data)]:
        events += decoder.feed(data[start:cut])
        assert len(decoder._buffer) <= LIMIT + max(cut - start, 1)
        start = max(start, cut)
    return events + decoder.end()


@given(streams, st.lists(st.integers(0, 400), max_size=8))
def test_it_does_not_matter_where_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    within = [min(cut, len(data)) for cut in cuts]
    whole, cut = decoded(data, []), decoded(data, within)
    assert repr(whole) == repr(cut)


@given(streams)
def test_one_byte_at_a_time_is_the_same(data: bytes) -> None:
    assert repr(decoded(data, list(range(len(data))))) == repr(decoded(data, []))


@given(streams)
def test_whatever_comes_can_be_answered(data: bytes) -> None:
    for event in decoded(data, []):
        if isinstance(event, Refusal):
            encode(json.dumps(event.answer(), ensure_ascii=False), framed=event.framed)
        else:
            encode(json.dumps(event.value, ensure_ascii=False), framed=event.framed)


@given(
    st.lists(st.tuples(calls, st.booleans()), max_size=8),
    st.lists(st.integers(0, 2000), max_size=5),
)
def test_honest_messages_all_come_through(
    sent: list[tuple[dict[str, Any], bool]], cuts: list[int]
) -> None:
    data = b"".join(encode(json.dumps(value), framed=framed) for value, framed in sent)
    decoder, events, start = Decoder(), [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        events += decoder.feed(data[start:cut])
        start = cut
    events += decoder.end()
    assert events == [Message(value, framed) for value, framed in sent]


@given(streams)
def test_after_any_rubbish_the_next_line_is_understood(data: bytes) -> None:
    decoder = Decoder(LIMIT)
    decoder.feed(data)
    if decoder._body is not None:
        decoder.feed(b" " * min(decoder._body, 10**6))
    if decoder._body is None:
        # An end of line, and the end of a header block.
        decoder.feed(b"\n\n")
        events = decoder.feed(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert decoder._body is not None or any(isinstance(event, Message) for event in events)


@given(json_values, st.booleans())
def test_any_value_is_a_message_or_refused(value: object, escape: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    event = interpret(raw)
    assert event is None or isinstance(event, Message | Refusal)
