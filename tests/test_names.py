"""Names: the only way from text to a path."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_bus.clock import IdSource, to_text
from agent_bus.errors import InvalidName
from agent_bus.names import (
    AgentName,
    MessageId,
    agent_name,
    bus_folder,
    id_of_file,
    ids_of_files,
    is_agent_name,
    is_conversation,
    is_message_id,
    is_month,
    kind_name,
    message_file,
    message_id,
    month_of,
    sent_file,
)

ID = MessageId("01kbb000000000000000000001")


@pytest.mark.parametrize("name", ["a", "0", "backend-orch", "a.b", "a_b", "x" * 64, "con-1", "com"])
def test_agent_names(name: str) -> None:
    assert agent_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a..b", ".a", "a.", "-a", "a-", "_a", "a_", "A", "Bob", "x" * 65),
        *("a/b", "a\\b", "../a", "/a", "a b", " a", "a\n", "a\0", "a:b", "~", "a@b", "%2e"),
        *("con", "nul", "aux", "prn", "com1", "lpt9", "con.txt", "nul.a.b"),
        *("bоb", "boｂ", "ﬁx", "é", "a\u200b", "\u202ebob", "ı", "K"),
        *(None, 7, b"bob", ["bob"]),
    ],
)
def test_no_agent_name_is_ever_repaired(name: object) -> None:
    with pytest.raises(InvalidName) as caught:
        agent_name(name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isascii()


@given(st.text(max_size=70))
def test_a_name_that_is_taken_is_safe_as_one_component(name: str) -> None:
    if is_agent_name(name):
        assert set(name) <= set(string.ascii_lowercase + string.digits + "._-")
        assert name[0] not in ".-_"
        assert name[-1] not in ".-_"


@pytest.mark.parametrize(
    "text", ["", "8zzzzzzzzzzzzzzzzzzzzzzzzz", ID.upper(), ID + "0", ID[:-1], ID[:-1] + "u", None]
)
def test_no_message_id(text: object) -> None:
    assert not is_message_id(text)
    with pytest.raises(InvalidName):
        message_id(text)


@pytest.mark.parametrize("text", ["", "Note", "1a", "a-b", "_a", "a" * 33, None, "a\n"])
def test_no_kind(text: object) -> None:
    with pytest.raises(InvalidName):
        kind_name(text)


def test_a_file_name_leads_back_to_its_id() -> None:
    assert id_of_file(message_file(ID)) == ID
    assert id_of_file(ID) is None
    assert id_of_file("x.msg") is None
    assert id_of_file(message_file(ID) + ".msg") is None


def test_the_month_of_an_id_is_that_of_its_time() -> None:
    assert month_of(MessageId("00000000000000000000000000")) == "1970-01"
    assert month_of(MessageId("7zzzzzzzzzzzzzzzzzzzzzzzzz")) == "9999-12"
    assert is_month(month_of(ID))
    assert not is_month("2026-1")
    assert not is_month("2026-11 ")


@given(st.sampled_from(["a", "ab", "b"]), st.text(), st.sampled_from(["a", "ab", "b"]), st.text())
def test_two_keyed_sends_share_a_file_only_if_they_are_the_same(
    first: str, key: str, second: str, other: str
) -> None:
    keys = [text.encode("utf-8", "replace").decode() for text in (key, other)]
    same = sent_file(AgentName(first), keys[0]) == sent_file(AgentName(second), keys[1])

    assert same == ((first, keys[0]) == (second, keys[1]))


def test_a_bus_folder_is_readable_and_tells_equal_names_apart() -> None:
    one = bus_folder("my app", "/a/my app")

    assert one.startswith("my-app-")
    assert one != bus_folder("my app", "/b/my app")
    assert bus_folder("…", "/x").startswith("project-")


def test_the_ids_of_many_files_are_those_of_each() -> None:
    other = MessageId(ID[:-1] + "z")
    names = [
        message_file(ID),
        "x.msg",
        f"a\n{message_file(ID)}",
        f"{message_file(ID)}\n",
        f"x{message_file(ID)}",
        f"{message_file(ID)}.msg",
        ID,
        "",
        "pruned",
        message_file(other),
    ]

    assert ids_of_files(names) == [ID, other]
    assert ids_of_files(names) == [ident for name in names if (ident := id_of_file(name))]
    assert ids_of_files([]) == []


@given(st.integers(0, 2**48 - 1))
def test_every_moment_has_the_month_of_the_calendar(moment: int) -> None:
    ident = MessageId(IdSource().next(moment))
    shown = to_text(moment)[:7]

    assert month_of(ident) == (shown if moment <= 253_402_300_799_999 else "9999-12")


def test_the_box_of_a_conversation_is_told_by_its_name() -> None:
    uuid = "0b54cd32-0e1f-5f0a-9c0b-0123456789ab"
    assert is_conversation(agent_name(f"openhands-{uuid}"))
    for text in ("openhands", "openhands-2", uuid, f"openhands-{uuid}0", f"openhands-{uuid[:-1]}g"):
        assert not is_conversation(agent_name(text))
