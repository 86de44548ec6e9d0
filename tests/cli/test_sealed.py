"""Sealed names on the command line: passphrases at a terminal, and what happens without one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals are of POSIX")
termios = pytest.importorskip("termios")
import fcntl  # noqa: E402 - behind the skip

from program import Cli  # noqa: E402

GUARD = 60.0
WORDS = "correct horse battery staple"


class Terminal:
    """A verb at a terminal of its own."""

    def __init__(self, cli: Cli, *words: str, me: str | None) -> None:
        self._left = ""
        self.shown = ""
        self._fd, inner = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent_bus", *words],
            env=cli.variables(me, TERM="dumb", COLUMNS="200"),
            cwd=cli.folder,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - nothing but one ioctl
        )
        os.close(inner)

    def answer(self, question: str, text: str) -> None:
        while question not in self._left:
            piece = self._read()
            assert piece, f"it ended after {self._left!r}"
            self._left += piece
        self._left = self._left.partition(question)[2]
        os.write(self._fd, text.encode() + b"\n")

    def rest(self) -> tuple[int, str]:
        while self._read():
            pass
        return self.process.wait(timeout=GUARD), self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=GUARD)
        os.close(self._fd)

    def _read(self) -> str:
        ready, _, _ = select.select([self._fd], [], [], GUARD)
        assert ready, f"nothing came after {self.shown!r}"
        try:
            piece = os.read(self._fd, 65536).decode(errors="replace")
        except OSError:  # how Linux says that the other side was closed
            return ""
        self.shown += piece
        return piece


@pytest.fixture
def at(cli: Cli) -> Iterator[Any]:
    opened: list[Terminal] = []

    def begin(*words: str, me: str | None = None) -> Terminal:
        opened.append(Terminal(cli, *words, me=me))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


@pytest.fixture
def sealed(cli: Cli, at: Any) -> Cli:
    """The name `user` is sealed, as its owner does it."""
    made = at("keygen", "user", "--sealed")
    made.answer("New passphrase of user: ", WORDS)
    made.answer("The same again: ", WORDS)
    code, shown = made.rest()
    assert code == 0, shown
    assert WORDS not in shown
    assert "fingerprint" in shown
    assert "pinned on" in shown
    return cli


def ask(cli: Cli, **more: Any) -> str:
    return str(cli.bus.as_agent("alice").request_approval("May I?", **more).id)


def decision(cli: Cli, ident: str) -> Any:
    approvals = cli.bus.as_agent("alice").approvals
    return approvals.decision(approvals.request(ident))


def test_a_name_is_sealed_and_decides_at_a_terminal(sealed: Cli, at: Any) -> None:
    ident = ask(sealed, needs="user")
    desk = at("decide", ident, "approve", me="user")
    desk.answer("Passphrase of user: ", WORDS)
    code, shown = desk.rest()
    assert code == 0, shown
    assert WORDS not in shown
    assert decision(sealed, ident).by == "user"


def test_the_queue_at_a_terminal_asks_once(sealed: Cli, at: Any) -> None:
    first, second = ask(sealed), ask(sealed, needs="user")
    desk = at("approvals", me="user")
    for number in range(2):
        desk.answer("(Enter ends) ", "1")
        desk.answer("goes back) ", "1")
        desk.answer("for none) ", "")
        desk.answer("(y/N) ", "y")
        if not number:
            desk.answer("Passphrase of user: ", WORDS)
    code, shown = desk.rest()
    assert code == 0, shown
    assert shown.count("Passphrase") == 1
    assert "Only user may decide this" in shown
    assert decision(sealed, first) is not None
    assert decision(sealed, second) is not None


def test_a_wrong_passphrase_decides_nothing(sealed: Cli, at: Any) -> None:
    ident = ask(sealed)
    desk = at("decide", ident, "approve", me="user")
    desk.answer("Passphrase of user: ", "not the passphrase")
    code, shown = desk.rest()
    assert code == 77
    assert "not the passphrase of key" in shown
    assert decision(sealed, ident) is None


@pytest.mark.parametrize("typed", [("short", None), (WORDS, WORDS + "x")])
def test_an_unfit_new_passphrase_changes_nothing(cli: Cli, at: Any, typed: Any) -> None:
    before = (cli.bus.settings.keys / "user.json").read_bytes()
    made = at("keygen", "user", "--sealed")
    made.answer("New passphrase of user: ", typed[0])
    if typed[1]:
        made.answer("The same again: ", typed[1])
    assert made.rest()[0] == 64
    assert (cli.bus.settings.keys / "user.json").read_bytes() == before


def test_without_a_terminal_nothing_is_asked_and_nothing_is_signed(sealed: Cli) -> None:
    """An agent with the whole environment, whose shell has pipes for streams."""
    ident = ask(sealed)
    pipe = f"{WORDS}\n{WORDS}\n".encode()
    for words in (
        ("decide", ident, "approve"),
        ("send", "--to", "bob", "--body", "x"),
        ("request-approval", "May I?"),
    ):
        sealed(*words, me="user", stdin=pipe).refused(77, "user is sealed", "agent-bus approvals")
    sealed("decide", ident, "approve", "--as", "user", stdin=pipe).refused(77)
    sealed("keys", "rotate", "user", stdin=pipe).refused(77, "at a terminal")
    sealed("keys", "pin", "user", stdin=pipe).refused(77, "at a terminal")
    sealed("keygen", "user", "--sealed", stdin=pipe).refused(76, "keys rotate user")
    sealed("keygen", "user", stdin=pipe).refused(76)
    sealed("keygen", "bob", "--sealed", stdin=pipe).refused(77, "at a terminal")
    assert decision(sealed, ident) is None
    assert sealed("inbox", me="bob", stdin=pipe).lines == []
    listed = sealed("approvals", me="user", stdin=b"1\n1\n\ny\n" + pipe)
    assert listed.code == 0
    assert decision(sealed, ident) is None


def test_a_sealed_name_still_reads(sealed: Cli) -> None:
    ident = sealed.send("alice", "user")
    assert sealed("inbox", "--json", me="user").record["id"] == ident
    assert sealed("read", ident, "--archive", me="user").code == 0
    assert sealed("whoami", me="user").code == 0


def test_keys_shows_what_is_sealed_and_no_secret(sealed: Cli) -> None:
    rows = [line.split() for line in sealed("keys", "list", "user").lines]
    assert "hmac-sha256" in rows[-2]
    assert "retired" in rows[-2]
    assert rows[-1][2:5] == ["sealed", "ed25519", "active"]
    old, new = sealed("keys", "list", "user", "--json").records
    assert (old["sealed"], new["sealed"], new["alg"]) == (False, True, "ed25519")
    assert len(new["fingerprint"]) == 64
    sealed("export", "out.tar.gz")
    packed = subprocess.run(
        ["tar", "-xzOf", "out.tar.gz", "--wildcards", "*/keyrings.jsonl"],
        cwd=sealed.folder,
        capture_output=True,
        check=True,
        timeout=GUARD,
    )
    lines = [json.loads(line) for line in packed.stdout.splitlines()]
    assert new["fingerprint"] in {line["fingerprint"] for line in lines}
    ring = json.loads((sealed.bus.settings.keys / "user.json").read_text())
    assert ring["keys"][1]["sealed"]["ciphertext"].encode() not in packed.stdout


def test_rotation_asks_for_the_old_passphrase(sealed: Cli, at: Any) -> None:
    ident = ask(sealed, needs="user")
    rotating = at("keys", "rotate", "user")
    rotating.answer("Passphrase of user: ", WORDS)
    rotating.answer("keeps the old one): ", "")
    code, shown = rotating.rest()
    assert code == 0, shown
    desk = at("decide", ident, "deny", me="user")
    desk.answer("Passphrase of user: ", WORDS)
    assert desk.rest()[0] == 0
    assert decision(sealed, ident).decision == "deny"
    assert sealed("doctor").code == 0


def test_what_was_sent_before_on_another_bus_counts_if_its_owner_says_so(
    sealed: Cli, at: Any
) -> None:
    at_pin = at("keys", "pin", "user")
    at_pin.answer("Passphrase of user: ", WORDS)
    code, shown = at_pin.rest()
    assert code == 0, shown
    assert "Do they count?" not in shown


def test_no_other_program_looks_into_the_memory_of_one_that_asked(run: Any) -> None:
    if sys.platform != "linux":
        pytest.skip("that is of Linux")
    done = run(LOOK)
    assert done.returncode == 0, done.stderr
    seen = dict(line.split() for line in done.stdout.splitlines())
    if seen["plain"] == "refused":
        pytest.skip("this system lets no program look into another one at all")
    assert seen["hardened"] == "refused"


LOOK = """
import ctypes, os, sys
from agent_bus import sealing

prctl = ctypes.CDLL(None).prctl

def become_nobody():
    # Root may look into everything, and who has changed its user is not dumpable.
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        prctl(4, 1, 0, 0, 0)

def keep(ready, end, hardened):
    become_nobody()
    if hardened:
        sealing.harden()
    os.write(ready, b"x")
    os.read(end, 1)

def spy(pid):
    become_nobody()
    try:
        os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return 3
    return 4

def child(action, *arguments):
    pid = os.fork()
    if pid == 0:
        os._exit(action(*arguments) or 0)
    return pid

for name in ("plain", "hardened"):
    (ready, tell), (end, over) = os.pipe(), os.pipe()
    keeper = child(keep, tell, end, name == "hardened")
    os.read(ready, 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child(spy, keeper), 0)[1])
    os.write(over, b"x")
    os.waitpid(keeper, 0)
    print(name, {3: "refused", 4: "opened"}[code])
"""
