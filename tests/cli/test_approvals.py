"""`request-approval pending-approval decide`: one queue, one decision."""

from __future__ import annotations

import json
import os
import pty

import pytest
from program import Cli

from agent_bus.bus import Bus
from agent_bus.testing import ManualClock


def ask(cli: Cli, *words: str, question: str = "Drop the table?\nIt is empty.") -> str:
    asked = cli("request-approval", question, *words, me="alice")
    assert asked.code == 0, asked.err
    return asked.lines[0]


def test_a_request_stands_in_the_queue_with_all_that_matters(cli: Cli) -> None:
    words = ("--options", "yes,no", "--option", "yes, but later", "--details", '{"rows": 0}')
    ident = ask(cli, *words, "--expires-in", "2h")
    record = cli("pending-approval", "--json", me="user").record
    assert record.keys() >= {
        "id", "from", "to", "subject", "question", "options", "details", "asked_at",
        "expires_at", "sha256",
    }  # fmt: skip
    assert record["id"] == ident
    assert (record["from"], record["to"]) == ("alice", "conductor")
    assert record["subject"] == "Drop the table?"
    assert record["question"] == "Drop the table?\nIt is empty."
    assert record["options"] == ["yes", "no", "yes, but later"]
    assert record["details"] == {"rows": 0}
    (line,) = cli("pending-approval", me="conductor").lines
    assert line.split("\t")[0] == ident
    assert line.endswith("yes | no | yes, but later\tDrop the table?")


def test_a_request_that_was_tampered_with_is_reported(cli: Cli) -> None:
    ident = ask(cli)
    path = cli.bus.path / "approvals" / f"{ident}.request"
    data = path.read_bytes().replace(b"Drop the table", b"Keep the table")
    path.unlink()
    path.write_bytes(data)
    shown = cli("pending-approval", me="user")
    assert (shown.code, shown.out) == (0, "")
    assert f"{ident} does not verify (bad-signature)" in shown.err


def test_the_question_may_come_from_standard_input(cli: Cli) -> None:
    asked = cli("request-approval", "-", "--json", me="alice", stdin=b"May I?\n")
    assert asked.record.keys() >= {"id", "to", "durability", "duplicate", "attached"}
    assert cli("pending-approval", "--json", me="user").record["question"] == "May I?\n"


def test_the_first_decision_stands_and_the_requester_is_told(cli: Cli) -> None:
    ident = ask(cli)
    decided = cli("decide", ident, "approve", "--reason", "go on", "--json", me="user").record
    assert decided.keys() >= {"id", "decision", "by", "decided_at"}
    assert (decided["id"], decided["decision"], decided["by"]) == (ident, "approve", "user")
    again = cli("decide", ident, "approve", me="conductor")
    assert again.code == 0
    assert "user had decided so already" in again.err
    cli("decide", ident, "deny", me="conductor").refused(76, "decided by user")
    told = cli("inbox", "--json", me="alice").record
    assert told["kind"] == "approval_decision"
    assert cli("pending-approval", me="user").out == ""


def test_who_may_decide(cli: Cli) -> None:
    ident = ask(cli)
    cli("decide", ident, "approve", me="alice").refused(77, "withdraw")
    cli("decide", ident, "approve", me="bob").refused(77, "no admin")
    cli("pending-approval", me="bob").refused(77, "no admin")
    cli("decide", ident, "perhaps", me="user").refused(65, "no option")
    cli("decide", ident[:12], "approve", me="user").refused(64, "no message id")
    cli("decide", "0" * 26, "approve", me="user").refused(66)
    cli("decide", ident, "approve", "--sha256", "0" * 64, me="user").refused(76, "not what was")
    assert cli("decide", ident, "withdraw", me="alice").code == 0
    cli("decide", ident, "approve", me="user").refused(76, "withdraw")


def test_a_process_whose_admins_are_narrowed_may_not_decide(cli: Cli) -> None:
    ident = ask(cli)
    narrowed = {"AGENT_BUS_ADMIN_NAMES": "conductor"}
    cli("decide", ident, "approve", me="user", **narrowed).refused(77)
    cli("decide", ident, "approve", me="bob", AGENT_BUS_ADMIN_NAMES="bob").refused(77)


def test_a_decision_after_expiry_is_refused(cli: Cli) -> None:
    past = Bus.open(cli.bus.settings, identity="alice", clock=ManualClock(1_600_000_000_000))
    ident = past.request_approval("May I?", expires_in=60).id
    cli("decide", ident, "approve", me="user").refused(65, "expired")


def test_deciding_with_as_wants_a_terminal(cli: Cli) -> None:
    ident = ask(cli)
    cli("decide", ident, "approve", "--as", "user").refused(77, "terminal")
    cli("decide", ident, "approve", "--as", "user", AGENT_MSG_AS=" ").refused(77, "terminal")
    main, terminal = pty.openpty()
    try:
        assert cli("decide", ident, "approve", "--as", "user", stdin=terminal).code == 0
    finally:
        os.close(main)
        os.close(terminal)


def test_as_that_agrees_with_the_environment_needs_no_terminal(cli: Cli) -> None:
    assert cli("decide", ask(cli), "approve", "--as", "user", me="user").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--details", "{"], 64, "--details is no JSON"),
        (["--details", "NaN"], 65, "JSON"),
        (["--details", "[" * 100_000], 64, "--details is no JSON"),
        (["--details", '{"a": 1, "a": 2}'], 65, "'a' twice"),
        (["--details", json.dumps("x" * 20_000)], 65, "--details is too large"),
        (["--options", "a,,b"], 65, "no option"),
        (["--options", "a,a"], 65, "different"),
        (["--option", "withdraw"], 65, "withdraw"),
        (["--to", "bob"], 64, "no admin"),
        (["--expires-in", "soon"], 64, "no duration"),
    ],
)
def test_requests_that_are_refused_write_nothing(
    cli: Cli, words: list[str], code: int, said: str
) -> None:
    before = cli.files()
    cli("request-approval", "May I?", *words, me="alice").refused(code, said)
    assert cli.files() == before


def test_asking_again_with_a_key_makes_no_second_request(cli: Cli) -> None:
    first, second = ask(cli, "--idempotency-key", "k"), ask(cli, "--idempotency-key", "k")
    assert first == second
    assert len(cli("pending-approval", "--json", me="user").records) == 1
