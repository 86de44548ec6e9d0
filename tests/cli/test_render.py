"""What people see holds nothing that moves a cursor, on a terminal and in a pipe alike."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import termios
import unicodedata
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program import Cli

from agent_bus.cli.render import cut, visible
from agent_bus.payload import is_one_line

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# What a subject may hold: controls and line separators are refused at the door.
SUBJECT = "a\u202eb\u200bc\u2066d\ufeffe\U000e0041 漢é"
BODY = (
    "top\n\tkept\x1b[2J\x1b]0;title\x07\x1b]52;c;AAAA\x07\x1bP\b\b\r\x7f\x9b1A\x85"
    "\u2028\u2029\u202e\u200b\v\f\x1c end"
)


@given(st.text(st.characters()))
def test_visible_leaves_nothing_hidden(text: str) -> None:
    shown = visible(text)
    assert not [char for char in shown if unicodedata.category(char) in HIDDEN]
    assert shown.splitlines() in ([], [shown])
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ~", "plain ~"),
        ("é漢🐟", "é漢🐟"),
        ("\x1b\n\t\x7f\x9b", r"\x1b\x0a\x09\x7f\x9b"),
        ("\u202e\u200b\u2028\ud800", r"\u202e\u200b\u2028\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_visible_escapes_by_code(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_keeps_what_it_is_told_to() -> None:
    assert visible("a\n\tb\r", keep="\n\t") == "a\n\tb\\x0d"


def test_cut_says_that_it_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"


def on_a_terminal(
    cli: Cli, *words: str, me: str | None = None, columns: int = 0, **more: str | None
) -> str:
    """What a terminal would get, stdout and stderr together."""
    main, terminal = pty.openpty()
    if columns:
        termios.tcsetwinsize(terminal, (24, columns))
        more["COLUMNS"] = None
    process = Popen(
        [*cli.command, *words],
        env=cli.variables(me, **({"TERM": "xterm-256color", "COLUMNS": "300"} | more)),
        cwd=cli.folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    got = b""
    # EIO: the last one that had the terminal open has ended.
    with contextlib.suppress(OSError):
        while chunk := os.read(main, 65536):
            got += chunk
    os.close(main)
    process.wait(timeout=60)
    return got.decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    """What rich itself writes for colours and bars, taken away."""
    return re.sub(r"\x1b\[([0-9;]*[mK]|\?25[hl]|1A)|\r", "", text)


def unseen(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in HIDDEN and c not in "\n\t"]


VERBS = [
    ["inbox"], ["log"], ["thread", "ID"], ["verify", "ID"], ["status"], ["status", "ID"],
    ["read", "ID"], ["wait", "--include-existing"], ["agents", "list"], ["pending-approval"],
    ["whoami"], ["doctor"],
]  # fmt: skip


@pytest.fixture
def hostile(cli: Cli) -> str:
    assert is_one_line(SUBJECT)
    return str(cli.send("alice", "user", subject=SUBJECT, body=BODY))


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_hostile_text_is_escaped_on_a_terminal_and_in_a_pipe(
    cli: Cli, hostile: str, words: list[str]
) -> None:
    words = [hostile if word == "ID" else word for word in words]
    done = cli(*words, me="user")
    assert unseen(done.out + done.err) == []
    assert unseen(without_colours(on_a_terminal(cli, *words, me="user"))) == []


def test_one_record_is_one_line_whatever_it_holds(cli: Cli, hostile: str) -> None:
    for verb in (["inbox"], ["log"], ["thread", hostile], ["wait", "--include-existing"]):
        (line,) = cli(*verb, me="user").out.splitlines()
        assert "a\\u202eb\\u200bc" in line
        assert len(line.split("\t")) == 7


def test_json_is_ascii_and_exact(cli: Cli, hostile: str) -> None:
    read = cli("read", hostile, "--json", me="user")
    assert len(read.raw.splitlines()) == 1
    assert read.record["message"]["body"] == BODY
    assert read.record["message"]["subject"] == SUBJECT


def test_read_keeps_line_ends_and_tabs_of_a_body_alone(cli: Cli, hostile: str) -> None:
    out = cli("read", hostile, me="user").out
    assert "\ntop\n\tkept\\x1b[2J\\x1b]0;title\\x07" in out
    assert "\\x0b\\x0c\\x1c end\n```\nEnd of body-" in out


def test_errors_are_escaped(cli: Cli) -> None:
    for words in (["\x1b[2J"], ["log", "--agent", "\u202e"], ["export", "/no/\x1b[2J"]):
        assert unseen(cli(*words).err) == []


def test_a_terminal_gets_a_head_and_colours_and_no_color_takes_them_away(cli: Cli) -> None:
    ident = cli.send("alice", "bob", subject="s")
    shown = on_a_terminal(cli, "inbox", me="bob")
    assert "\x1b[1m" in shown
    head, line = without_colours(shown).splitlines()
    assert head.split() == ["id", "sent", "at", "from", "to", "kind", "state", "subject"]
    assert line.split()[0] == ident
    # Bold is no colour.
    plain = on_a_terminal(cli, "inbox", me="bob", NO_COLOR="1")
    assert set(re.findall(r"\x1b\[[0-9;]*m", plain)) <= {"\x1b[1m", "\x1b[0m"}
    assert "\x1b" not in cli("inbox", me="bob").out


def test_a_narrow_terminal_cuts_the_subject_and_keeps_one_line(cli: Cli) -> None:
    ident = cli.send("alice", "bob", subject="word " * 40)
    shown = without_colours(on_a_terminal(cli, "inbox", me="bob", COLUMNS="100"))
    _, line = shown.splitlines()
    assert line.startswith(ident)
    assert len(line.rstrip()) <= 100
    assert line.rstrip().endswith("…")


@pytest.mark.parametrize("words", [["log"], ["inbox"], ["thread", "ID"]], ids=lambda w: w[0])
def test_at_80_columns_a_list_has_whole_ids_and_the_subject(cli: Cli, words: list[str]) -> None:
    ident = cli.send("alice", "bob", subject="Which port does it use? " * 6, kind="question")
    words = [ident if word == "ID" else word for word in words]
    shown = without_colours(on_a_terminal(cli, *words, me="bob", columns=80))
    head, line = shown.splitlines()
    assert head.startswith("id")
    assert head.endswith("subject")
    assert line.startswith(f"{ident}  ")
    assert re.search(r"  \d\d-\d\d \d\d:\d\d  alice  .*Which port does .*…$", line)
    assert len(line) <= 80


def test_at_80_columns_a_question_stands_whole_under_its_id(cli: Cli) -> None:
    question = "May I drop the table of all the orders of the years before this one, for good?"
    ident = cli.bus.as_agent("alice").request_approval(question, expires_in=3600).id
    shown = without_colours(on_a_terminal(cli, "pending-approval", me="user", columns=80))
    _, line, *below = shown.splitlines()
    assert line.startswith(f"{ident}  ")
    assert line.endswith("approve | deny")
    assert " ".join(text.strip() for text in below) == question
    assert all(len(text) <= 80 for text in shown.splitlines())


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100])
@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_ids_are_whole_on_every_terminal(
    cli: Cli, hostile: str, words: list[str], columns: int
) -> None:
    asked = cli.bus.as_agent("alice").request_approval("May I?", options=["x" * 60, "y" * 60]).id
    cli.forge("user", hostile)
    words = [hostile if word == "ID" else word for word in words]
    shown = without_colours(on_a_terminal(cli, *words, me="user", columns=columns))
    if words[0] == "pending-approval":
        assert asked in shown
    elif words[0] in ("inbox", "log", "verify", "wait") or words == ["status", hostile]:
        assert hostile in shown


def test_a_record_that_is_broken_over_lines_names_its_fields(cli: Cli) -> None:
    ident = cli.send("alice", "bob")
    shown = without_colours(on_a_terminal(cli, "status", ident, columns=50)).splitlines()
    assert shown[0].startswith(f"{ident}  to: bob")
    assert shown[-1].endswith("attached: no")


def test_markup_in_a_subject_stays_text(cli: Cli) -> None:
    cli.send("alice", "bob", subject="[red]x[/red] :boom: [link=http://a]b")
    shown = without_colours(on_a_terminal(cli, "inbox", me="bob"))
    assert "[red]x[/red] :boom: [link=http://a]b" in shown


@pytest.mark.parametrize(
    "words", [["verify"], ["doctor"], ["prune", "--archived", "1d"], ["export", "out.tar.gz"]]
)
def test_bars_are_for_terminals(cli: Cli, words: list[str]) -> None:
    cli.send("alice", "bob")
    assert "\x1b[?25l" not in cli(*words).err
    if words[0] == "export":
        (cli.folder / "out.tar.gz").unlink()
    assert "\x1b[?25l" in on_a_terminal(cli, *words)


def test_a_bar_on_stderr_leaves_data_on_stdout(cli: Cli) -> None:
    """As in `agent-bus verify > bad.txt` at a terminal."""
    ident = cli.send("alice", "bob")
    cli.forge("bob", ident)
    main, terminal = pty.openpty()
    process = Popen(
        [*cli.command, "verify"],
        env=cli.variables(None, TERM="xterm"),
        stdout=PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    out, _ = process.communicate(timeout=60)
    os.close(main)
    assert out.decode().startswith(f"{ident}\tbob\tnew\tbad-signature\t")


LOCALES = [
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "cp1252"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PYTHONUTF8": "1"},
]


@pytest.mark.parametrize("variables", LOCALES, ids=lambda v: ",".join(f"{k}={v[k]}" for k in v))
def test_text_survives_every_locale(cli: Cli, variables: dict[str, str]) -> None:
    text = "héllo – 漢 🐟"
    sent = cli("send", "--to", "bob", "--subject", text, "--body", text, me="alice", **variables)
    assert sent.code == 0, sent.err
    assert sent.raw.isascii()
    ident = sent.lines[0]
    read = cli("read", ident, me="bob", **variables)
    assert f"subject: {text}\n" in read.out
    assert f"\n{text}\n```\n" in read.out
    assert b"\r" not in read.raw
    assert cli("read", ident, "--json", me="bob", **variables).record["message"]["body"] == text
    file = cli.folder / "datei-é"
    file.write_text("aus der Datei")
    from_file = cli("send", "--to", "bob", "--body-file", file, me="alice", **variables)
    assert from_file.code == 0, from_file.err
    missing = cli("send", "--to", "bob", "--body-file", "fehlt-é", me="alice", **variables)
    missing.refused(74, "fehlt-é cannot be read")


def test_a_folder_whose_name_is_no_text_can_be_used_and_shown(cli: Cli, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/od\xffd\x1b"
    os.mkdir(odd)
    folder = os.fsdecode(odd)
    home = {"AGENT_MSG_BUS": None, "AGENT_MSG_KEYS": None}
    made = cli("init", "--project", folder, "--json", **home)
    assert made.code == 0, made.err
    assert os.path.isdir(made.record["bus"])
    shown = cli("whoami", "--project", folder, **home)
    assert "od\\udcffd\\x1b" in shown.out
    assert json.loads(cli("whoami", "--project", folder, "--json", **home).out)["bus_id"]
