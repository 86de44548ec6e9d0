"""`send`: what arrives, what is printed, what is refused."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest
from program import Cli

from agent_bus.payload import BODY_LIMIT

BODY = b"$(whoami) `id`\r\n'quotes\" \t tab\n\n-- no end"


def body_of(cli: Cli, box: str, ident: str) -> str:
    read = cli("read", ident, "--json", me=box)
    body: str = read.record["message"]["body"]
    return body


def test_prints_the_id_on_stdout_and_talks_on_stderr(cli: Cli) -> None:
    sent = cli("send", "--to", "bob", "--body", "hi", me="alice")
    assert sent.code == 0
    (ident,) = sent.lines
    assert len(ident) == 26
    assert sent.err == "agent-bus: stored for bob, who is not attached\n"
    assert body_of(cli, "bob", ident) == "hi"


def test_json_has_the_receipt_and_nothing_else(cli: Cli) -> None:
    sent = cli("send", "--to", "bob", "--body", "hi", "--json", me="alice")
    assert sent.err == ""
    assert sent.record.keys() == {"id", "to", "durability", "duplicate", "attached"}
    assert sent.record["to"] == "bob"


@pytest.mark.parametrize("way", ["file", "pipe", "dash", "fifo"])
def test_bytes_from_a_file_or_a_pipe_arrive_unchanged(cli: Cli, tmp_path: Path, way: str) -> None:
    file = tmp_path / "bödy"
    file.write_bytes(BODY)
    if way == "file":
        sent = cli("send", "--to", "bob", "--body-file", file, me="alice")
    elif way == "fifo":
        # As a shell's <(...) gives it.
        reading, writing = os.pipe()
        os.write(writing, BODY)
        os.close(writing)
        sent = cli("send", "--to", "bob", "--body-file", "/dev/stdin", me="alice", stdin=reading)
        os.close(reading)
    else:
        words = ["-"] if way == "dash" else ["--body-file", "-"]
        sent = cli("send", "--to", "bob", *words, me="alice", stdin=BODY)
    assert sent.code == 0, sent.err
    assert body_of(cli, "bob", sent.lines[0]) == BODY.decode()


@pytest.mark.parametrize("body", ["-", "--json", "-x", "", "héllo ✓ 𝄞", "a\nb\u2028c\x1b"])
def test_body_as_an_argument_is_taken_literally(cli: Cli, body: str) -> None:
    sent = cli("send", "--to", "bob", "--subject", "s", f"--body={body}", me="alice")
    assert sent.code == 0, sent.err
    assert body_of(cli, "bob", sent.lines[0]) == body


def test_a_subject_alone_is_a_message(cli: Cli) -> None:
    sent = cli("send", "--to", "bob", "--subject", "done", me="alice")
    assert body_of(cli, "bob", sent.lines[0]) == ""


def test_all_fields_arrive(cli: Cli) -> None:
    first = cli.send("bob", "alice")
    sent = cli(
        "send", "--to", "bob,user", "--to", "conductor", "--subject", "s", "--kind", "question",
        "--reply-to", first, "--priority", "high", "--expires-in", "2h", "--body", "b", "--json",
        me="alice",
    )  # fmt: skip
    assert [record["to"] for record in sent.records] == ["bob", "user", "conductor"]
    read = cli("read", sent.records[1]["id"], "--json", me="user").record["message"]
    assert read["kind"] == "question"
    assert read["recipients"] == ["bob", "user", "conductor"]
    assert read["reply_to"] == read["thread"] == first
    assert read["priority"] == "high"
    assert "expires_at" in read


def test_from_is_another_name_of_as(cli: Cli) -> None:
    assert cli("send", "--from", "alice", "--to", "bob", "--body", "hi").code == 0
    assert cli("inbox", "--as", "bob", "--json").record["from"] == "alice"
    both = ("send", "--to", "bob", "--body", "hi", "--from", "alice", "--as")
    cli(*both, "bob").refused(64, "--from alice", "--as bob")
    assert cli(*both, "alice", AGENT_MSG_AS="").code == 0


def test_the_same_key_makes_one_message_and_says_so(cli: Cli) -> None:
    words = ("send", "--to", "bob", "--body", "hi", "--idempotency-key", "k")
    first, second = cli(*words, me="alice"), cli(*words, me="alice")
    assert first.out == second.out
    assert "a repeat of an earlier send" in second.err
    assert cli(*words, "--json", me="alice").record["duplicate"] is True
    changed = ("send", "--to", "bob", "--body", "ho", "--idempotency-key", "k")
    cli(*changed, me="alice").refused(76, "not sent to bob", "'k'")
    assert len(cli("inbox", "--json", me="bob").records) == 1


def test_one_failure_of_several_is_told_and_gives_the_exit_code(cli: Cli) -> None:
    cli.send("alice", "bob", key="k")
    words = ("send", "--body", "other", "--idempotency-key", "k", "--json")
    both = cli(*words, "--to", "user,bob", me="alice").refused(76, "not sent to bob")
    good, bad = both.records
    assert good["to"] == "user"
    assert len(good["id"]) == 26
    assert bad.keys() == {"to", "code", "error"}
    assert (bad["to"], bad["code"]) == ("bob", "conflict")


def test_nothing_is_written_when_one_name_of_several_is_unknown(cli: Cli) -> None:
    before = cli.files()
    cli("send", "--to", "bob,alicia", "--body", "x", me="bob").refused(67, "did you mean alice?")
    cli("send", "--to", "xyz", "--body", "x", me="bob").refused(67, "--force sends")
    json = ("send", "--body", "x", "--json")
    refused = cli(*json, "--to", "nobody,alice,alicia", me="bob").refused(67, "nobody")
    assert [(r["to"], r["code"]) for r in refused.records] == [
        ("nobody", "unknown-recipient"), ("alicia", "unknown-recipient"),
    ]  # fmt: skip
    assert all("error" in record for record in refused.records)
    assert cli.files() == before


def test_force_sends_to_an_unknown_name(cli: Cli) -> None:
    assert cli("send", "--to", "later", "--body", "x", "--force", me="alice").code == 0


def test_a_body_that_is_too_large_is_refused_without_being_read_whole(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    cli("send", "--to", "bob", "--body-file", file, me="alice").refused(65, str(BODY_LIMIT))
    cli("send", "--to", "bob", "-", me="alice", stdin=b"x" * (BODY_LIMIT + 1)).refused(
        65, "standard input", str(BODY_LIMIT)
    )
    assert cli("send", "--to", "bob", "-", me="alice", stdin=b"x" * BODY_LIMIT).code == 0


def test_a_body_that_is_no_utf8_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("send", "--to", "bob", "-", me="alice", stdin=b"ab\xff").refused(65, "byte 2")
    word = os.fsdecode(b"--body=\xff")
    cli("send", "--to", "bob", word, me="alice").refused(64, "body is no UTF-8")


def test_a_terminal_on_stdin_is_not_waited_for(cli: Cli) -> None:
    main, terminal = pty.openpty()
    try:
        cli("send", "--to", "bob", me="alice", stdin=terminal).refused(64, "there is no body")
        sent = cli("send", "--to", "bob", "--subject", "s", me="alice", stdin=terminal)
        assert sent.code == 0
    finally:
        os.close(main)
        os.close(terminal)


def test_a_file_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    missing = tmp_path / "no\x1bsuch"
    refused = cli("send", "--to", "bob", "--body-file", missing, me="alice").refused(74)
    assert "no\\x1bsuch cannot be read: No such file" in refused.err
    cli("send", "--to", "bob", "--body-file", tmp_path, me="alice").refused(74, "directory")


def test_an_attached_recipient_is_told_apart(cli: Cli) -> None:
    with cli.bus.as_agent("bob").presence.attach("bob", "watch"):
        sent = cli("send", "--to", "bob", "--body", "x", me="alice")
    assert sent.err == "agent-bus: stored for bob, who is attached\n"
