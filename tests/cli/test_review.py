"""`approvals` at a terminal: list, look, decide in place; and what it does in a pipe."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals are of POSIX")

GUARD = 60.0
HOSTILE = "a\x1b[2Jb\u202ec\u2028d"


class Terminal:
    """`agent-bus approvals` at a terminal."""

    def __init__(self, cli: Any, *words: str, me: str | None) -> None:
        self._left = ""
        self._fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent_bus", "approvals", *words],
            env=cli.variables(me, TERM="dumb", COLUMNS="100"),
            cwd=cli.folder,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)

    def until(self, words: str) -> str:
        """All that is shown up to these words."""
        while words not in self._left:
            piece = self._read()
            assert piece, f"it ended after {self._left!r}"
            self._left += piece
        before, _, self._left = self._left.partition(words)
        return before + words

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")

    def rest(self) -> tuple[int, str]:
        """Its exit code, and what it showed at last."""
        while piece := self._read():
            self._left += piece
        return self.process.wait(timeout=GUARD), self._left

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=GUARD)
        os.close(self._fd)

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def _read(self) -> str:
        ready, _, _ = select.select([self._fd], [], [], GUARD)
        assert ready, "nothing came"
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError:  # how Linux says that the other side was closed
            return ""


@pytest.fixture
def at(cli: Any) -> Iterator[Any]:
    """Begin at a terminal, as an identity."""
    opened: list[Terminal] = []

    def begin(*words: str, me: str | None = "user") -> Terminal:
        opened.append(Terminal(cli, *words, me=me))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


def _ask(cli: Any, question: str = "May I?", asker: str = "alice", **more: Any) -> str:
    return str(cli.bus.as_agent(asker).request_approval(question, **more).id)


def _decision(cli: Any, ident: str) -> Any:
    approvals = cli.bus.as_agent("user").approvals
    return approvals.decision(approvals.request(ident))


def test_a_request_is_listed_shown_and_decided(cli: Any, at: Any) -> None:
    _ask(cli, "first?")
    ident = _ask(cli, "second?\nmore of it", options=["yes", "no"], details={"a": 1})
    desk = at()
    listed = desk.until("(Enter ends)")
    assert listed.index("first?") < listed.index("second?")
    desk.type("2")
    shown = desk.until("goes back)")
    for words in ("alice asks conductor", ident, "more of it", '"a": 1', "1  yes", "2  no"):
        assert words in shown
    desk.type("2")
    desk.until("for none)")
    desk.type("not today")
    assert "no for good?" in desk.until("(y/N)")
    desk.type("y")
    shown = desk.until("(Enter ends)")
    assert "Decided: no, by user" in shown
    assert "second?" not in shown
    desk.type("")
    assert desk.rest()[0] == 0
    decided = _decision(cli, ident)
    assert (decided.decision, decided.reason, decided.by) == ("no", "not today", "user")


def test_nothing_is_decided_without_a_yes(cli: Any, at: Any) -> None:
    ident = _ask(cli)
    for answer in ("", "n", "yessir"):
        desk = at()
        for question, typed in (
            ("(Enter ends)", "1"),
            ("goes back)", "1"),
            ("for none)", ""),
            ("(y/N)", answer),
        ):
            desk.until(question)
            desk.type(typed)
        assert "Nothing was decided." in desk.until("(Enter ends)")
        desk.type("")
        assert desk.rest()[0] == 0
    assert _decision(cli, ident) is None


def test_a_number_that_is_none_is_asked_again(cli: Any, at: Any) -> None:
    _ask(cli)
    desk = at()
    for typed in ("0", "2", "x", "-1", "approve"):
        desk.until("(Enter ends)")
        desk.type(typed)
        desk.until("from 1 to 1")
    desk.until("(Enter ends)")
    desk.type("1")
    desk.until("goes back)")
    desk.type("")
    desk.until("(Enter ends)")
    desk.type("")
    assert desk.rest()[0] == 0


def test_an_empty_queue_ends_it(at: Any) -> None:
    code, shown = at().rest()
    assert code == 0
    assert "nothing waits for a decision" in shown


def test_the_end_of_the_input_and_ctrl_c_end_it(cli: Any, at: Any) -> None:
    _ask(cli)
    desk = at()
    desk.until("(Enter ends)")
    desk.press(b"\x04")
    assert desk.rest()[0] == 0


def test_what_somebody_else_decided_meanwhile_stands(cli: Any, at: Any) -> None:
    ident = _ask(cli)
    desk = at()
    for question, typed in (("(Enter ends)", "1"), ("goes back)", "1"), ("for none)", "")):
        desk.until(question)
        desk.type(typed)
    desk.until("(y/N)")
    cli.bus.as_agent("conductor").decide(ident, "deny")
    desk.type("y")
    code, shown = desk.rest()
    assert code == 0
    assert "was decided by conductor" in shown
    assert _decision(cli, ident).decision == "deny"


def test_ones_own_request_can_only_be_withdrawn(cli: Any, at: Any) -> None:
    ident = _ask(cli, asker="user")
    desk = at()
    desk.until("(Enter ends)")
    desk.type("1")
    shown = desk.until("goes back)")
    assert "1  withdraw" in shown
    assert "approve" not in shown
    for typed, question in (("1", "for none)"), ("", "(y/N)"), ("y", "by user")):
        desk.type(typed)
        desk.until(question)
    assert desk.rest()[0] == 0
    assert _decision(cli, ident).decision == "withdraw"


def test_the_same_question_again_names_the_refusal(cli: Any, at: Any) -> None:
    first = _ask(cli)
    cli.bus.as_agent("user").decide(first, "deny", reason="never")
    _ask(cli, " may   I?")
    desk = at()
    desk.until("(Enter ends)")
    desk.type("1")
    shown = " ".join(desk.until("goes back)").split())
    assert "Asked before, in the same words: deny, by user" in shown
    assert "never" in shown


def test_hostile_text_stays_in_its_frame(cli: Any, at: Any) -> None:
    ident = _ask(cli, f"{HOSTILE}\nfake", options=["yes", HOSTILE.replace("\x1b", "")[:5]])
    desk = at()
    shown = desk.until("(Enter ends)")
    desk.type("1")
    shown += desk.until("goes back)")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2Jb\\u202ec\\u2028d" in shown
    (line,) = [line for line in shown.splitlines() if "fake" in line]
    assert line.startswith("│ fake")
    assert line.rstrip().endswith("│")
    assert _decision(cli, ident) is None


def test_a_name_on_the_command_line_may_decide_at_a_terminal(cli: Any, at: Any) -> None:
    _ask(cli)
    desk = at("--as", "conductor", me=None)
    desk.until("(Enter ends)")
    desk.type("")
    assert desk.rest()[0] == 0


def test_who_is_no_admin_has_no_queue(at: Any) -> None:
    code, shown = at(me="alice").rest()
    assert code == 77
    assert "alice is no admin" in shown


def test_in_a_pipe_it_lists_and_decides_nothing(cli: Any) -> None:
    ident = _ask(cli)
    piped = cli("approvals", me="user", stdin=b"1\n1\n\ny\n")
    assert piped.code == 0
    assert piped.lines == cli("pending-approval", me="user").lines
    assert piped.lines[0].startswith(ident)
    assert cli("approvals", "--json", me="user").record["id"] == ident
    assert _decision(cli, ident) is None


def test_json_at_a_terminal_lists_too(cli: Any, at: Any, tmp_path: Path) -> None:
    ident = _ask(cli)
    code, shown = at("--json").rest()
    assert code == 0
    assert ident in shown
    assert "Which one?" not in shown
