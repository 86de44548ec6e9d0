"""Names, times, and what is shown to people and models: no text gets out that hides or breaks."""

# ruff: noqa: PT017 - most inputs raise nothing

from __future__ import annotations

import io
import json
import re
import unicodedata
from contextlib import redirect_stderr, redirect_stdout, suppress

from hypothesis import given
from hypothesis import strategies as st

from agent_bus import clock, names
from agent_bus.cli import render
from agent_bus.errors import AgentBusError, InvalidName, UsageError
from agent_bus.names import MessageId
from agent_bus.server import listing

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Half of them from what does harm: controls, bidi, separators, surrogates, tags, fences.
odd = st.sampled_from(
    "\0\a\b\t\n\v\f\r\x1b\x7f\x85\x9b\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
    "\ufeff\ud800\udfff\ue000\U000e0041\U0001f1e6`\\'\"[]"
)
texts = st.text(st.characters() | odd, max_size=200)
anything = texts | st.none() | st.integers() | st.binary(max_size=5) | st.lists(texts, max_size=2)


def is_clean(text: str, keep: str = "") -> bool:
    """Whether nothing in it is hidden, and it can be written."""
    text.encode()
    return all(char in keep or unicodedata.category(char) not in HIDDEN for char in text)


@given(texts)
def test_text_for_people_hides_nothing(text: str) -> None:
    assert is_clean(render.visible(text))
    assert is_clean(render.visible(text, "\n\t"), "\n\t")


@given(texts, st.integers(1, 50))
def test_a_cut_text_is_no_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(render.cut(text, limit)) <= limit


@given(st.lists(st.tuples(texts, texts), max_size=5))
def test_a_table_has_a_line_a_record(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        render.table(["one", "two"], rows)
    assert out.getvalue().count("\n") == len(rows)
    assert all(len(line.split("\t")) == 2 for line in out.getvalue().splitlines())
    assert is_clean(out.getvalue(), "\n\t")


@given(texts)
def test_talk_is_one_clean_line(text: str) -> None:
    out = io.StringIO()
    with redirect_stderr(out):
        render.say(text)
    assert out.getvalue().endswith("\n")
    assert is_clean(out.getvalue()[:-1])


@given(st.dictionaries(texts, texts, max_size=4))
def test_a_record_is_one_ascii_line_and_exact(record: dict[str, str]) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        render.put_json(record)
    line = out.getvalue()
    assert line.isascii()
    assert line.count("\n") == 1
    # Two halves of a pair that stood apart come back as the one character that they spell.
    assert json.dumps(json.loads(line)) == line[:-1] or re.search(r"\\ud[89ab]", line)


@given(texts)
def test_text_for_a_model_hides_nothing(text: str) -> None:
    assert is_clean(listing.one_line(text))
    assert len(listing.one_line(text, 40)) <= 40


@given(st.binary(max_size=400) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_fence_cannot_be_closed_from_inside(data: bytes) -> None:
    first, *inside, fence, last = listing.fenced(data).split("\n")
    found = re.fullmatch(r"(`{3,})(unverified-[0-9a-f]{16})", first)
    assert found is not None
    assert fence == found[1]
    assert last == f"End of {found[2]}."
    assert all(found[1] not in line and is_clean(line) for line in inside)


@given(anything)
def test_what_passes_for_a_name_is_safe_as_part_of_a_path(value: object) -> None:
    for check, make in (
        (names.is_agent_name, names.agent_name),
        (names.is_message_id, names.message_id),
        (names.is_kind, names.kind_name),
    ):
        if check(value):
            made = make(value)
            assert made == value
            # A kind may end with an underscore, an agent's name may not.
            assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", made, re.ASCII)
            assert ".." not in made
        else:
            try:
                make(value)
            except InvalidName as error:
                assert str(error).isprintable()
            else:
                raise AssertionError(value)


@given(
    st.from_regex(r"[a-z0-9._-]{1,70}", fullmatch=True)
    | st.sampled_from(["con", "nul.txt", "com1"])
)
def test_a_name_of_the_right_letters_is_safe_or_refused(text: str) -> None:
    if names.is_agent_name(text):
        assert len(text) <= 64
        assert text[0] not in ".-_"
        assert text[-1] not in ".-_"
        assert text.partition(".")[0] not in ("con", "prn", "aux", "nul", "com1", "lpt1")


@given(st.from_regex(r"[0-7][0-9a-hjkmnp-tv-z]{25}", fullmatch=True))
def test_every_id_has_a_file_a_month_and_a_time(text: str) -> None:
    ident = MessageId(text)
    assert names.id_of_file(names.message_file(ident)) == ident
    assert names.is_month(names.month_of(ident))
    assert clock.from_text(clock.to_text(clock.id_time(ident))) >= 0


@given(texts, texts)
def test_folders_of_buses_and_keys_are_safe_for_any_text(readable: str, canonical: str) -> None:
    try:
        made = names.bus_folder(readable, canonical)
    except UnicodeEncodeError:
        # A path holds no lone surrogate but those that stand for bytes.
        assert any("\ud800" <= char <= "\udfff" for char in canonical)
    else:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*-[0-9a-f]{12}", made, re.ASCII)
    if is_utf8(readable):
        assert re.fullmatch(r"[0-9a-f]{64}", names.sent_file(names.AgentName("bob"), readable))


def is_utf8(text: str) -> bool:
    """Whether text can be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(texts | st.from_regex(r"[0-9]{1,10}[smhd]?", fullmatch=True) | st.datetimes().map(str))
def test_durations_and_moments_are_read_or_refused(text: str) -> None:
    for read in (clock.seconds, lambda text: clock.moment(text, 1_796_000_000_000)):
        try:
            read(text)
        except UsageError as error:
            assert str(error).isprintable()
    with suppress(ValueError):
        assert clock.to_text(clock.from_text(text)) == text


@given(texts)
def test_an_error_about_a_name_is_one_clean_line(text: str) -> None:
    for make in (names.agent_name, names.message_id, names.kind_name):
        try:
            make(text)
        except AgentBusError as error:
            assert is_clean(str(error))
