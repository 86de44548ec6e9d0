"""`wait` and `watch` as real processes: what wakes them, what they print, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from program import Cli, Lines

from agent_bus.bus import Bus
from agent_bus.names import message_file
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock

MODES = {"events": "0", "polling": "1"}


def end(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return out, err.decode()


@pytest.fixture(params=MODES)
def poll(request: pytest.FixtureRequest) -> str:
    return MODES[request.param]


def test_watch_prints_a_flushed_line_per_message(cli: Cli, lines: Lines, poll: str) -> None:
    process = cli.start("watch", me="bob", AGENT_BUS_POLL=poll)
    lines.attached("bob")
    for number in range(2):
        ident = cli.send("alice", "bob", subject=f"s{number}", body="never shown")
        assert lines.next(process) == f"{ident}  alice  note  s{number}"
    assert end(process) == (b"", "")
    assert process.returncode == 0


def test_watch_begins_with_what_is_unread_from_before(cli: Cli, lines: Lines) -> None:
    for _ in range(2):
        cli.send("alice", "bob")
    process = cli.start("watch", me="bob")
    assert lines.next(process) == "2 unread from before start"
    lines.attached("bob")
    ident = cli.send("alice", "bob")
    assert lines.next(process).startswith(f"{ident}  alice  note")
    end(process)


def test_watch_folds_more_than_three_and_json_never_does(cli: Cli, lines: Lines) -> None:
    ids = [cli.send("alice", "bob", subject=f"s{n}") for n in range(4)]
    process = cli.start("watch", "--include-existing", me="bob")
    assert lines.next(process) == "4 unread from before start"
    folded = lines.next(process)
    assert folded.startswith("4 new: ")
    assert f"{ids[0]}  alice  note  s0" in folded
    assert end(process)[0] == b""
    process = cli.start("watch", "--include-existing", "--json", me="bob")
    assert [json.loads(lines.next(process))["id"] for _ in ids] == ids
    assert end(process) == (b"", "agent-bus: 4 unread from before start\n")


def test_watch_lines_are_short_escaped_and_begin_with_id_and_sender(cli: Cli, lines: Lines) -> None:
    process = cli.start("watch", me="bob")
    lines.attached("bob")
    ident = cli.send("alice", "bob", subject="\u202e" * 200, priority="urgent")
    line = lines.next(process)
    assert line.startswith(f"{ident}  alice  note  [urgent] \\u202e")
    assert len(line) == 400
    end(process)


def test_watch_filters(cli: Cli, lines: Lines) -> None:
    process = cli.start("watch", "--from", "user", "--kind", "task", me="bob")
    lines.attached("bob")
    cli.send("alice", "bob", kind="task")
    cli.send("user", "bob")
    ident = cli.send("user", "bob", kind="task")
    assert lines.next(process).startswith(ident)
    assert end(process) == (b"", "")


def test_watch_names_a_bad_file_on_stderr_and_goes_on(cli: Cli, lines: Lines) -> None:
    process = cli.start("watch", me="bob", AGENT_BUS_POLL="1")
    lines.attached("bob")
    new = cli.bus.path / "messages" / "bob" / "new"
    bad = "01kbb000000000000000000009"
    (new / f".{bad}").write_bytes(b"\xff\x1b[2J\n{}\n")
    os.rename(new / f".{bad}", new / message_file(bad))
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    assert said.startswith(f"agent-bus: {bad} in the box of bob is not shown: malformed")
    ident = cli.send("alice", "bob")
    assert lines.next(process).startswith(ident)
    assert end(process) == (b"", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_ends_quietly_on_a_signal(cli: Cli, lines: Lines, number: int) -> None:
    process = cli.start("watch", me="bob")
    lines.attached("bob")
    process.send_signal(number)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0
    assert not cli.attached("bob")


@pytest.mark.parametrize("verb", [["watch"], ["wait", "--timeout", "5m"]])
def test_ends_by_itself_when_nobody_reads_the_output_while_idle(
    cli: Cli, lines: Lines, verb: list[str], poll: str
) -> None:
    process = cli.start(*verb, me="bob", AGENT_BUS_POLL=poll)
    lines.attached("bob")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_watch_ends_at_once_with_a_closed_output(cli: Cli) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *cli.command, "watch"],
        env=cli.variables("bob"),
        cwd=cli.folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_losing_a_watch_at_any_point_loses_nothing(cli: Cli, lines: Lines) -> None:
    """What a killed watch did not show is counted by the next, and lies in the box."""
    sent = []
    for _ in range(4):
        process = cli.start("watch", me="bob")
        if sent:
            assert lines.next(process) == f"{len(sent)} unread from before start"
        lines.attached("bob")
        sent.append(cli.send("alice", "bob"))
        process.kill()
        process.wait(timeout=60)
        lines.detached("bob")
        sent.append(cli.send("alice", "bob"))
    assert [record["id"] for record in cli("inbox", "--json", me="bob").records] == sent


def test_watchers_do_not_compete(cli: Cli, lines: Lines) -> None:
    processes = [cli.start("watch", me="bob") for _ in range(2)]
    waiting = cli.start("wait", "--timeout", "50", me="bob")
    lines.attached("bob", 3)
    ident = cli.send("alice", "bob")
    for process in processes:
        assert lines.next(process).startswith(ident)
        end(process)
    out, _ = waiting.communicate(timeout=60)
    assert out.decode().startswith(ident)
    assert waiting.returncode == 0


def test_wait_lists_what_arrives(cli: Cli, lines: Lines, poll: str) -> None:
    old = cli.send("alice", "bob")
    process = cli.start("wait", "--json", "--timeout", "50s", me="bob", AGENT_BUS_POLL=poll)
    lines.attached("bob")
    ident = cli.send("alice", "bob", subject="s")
    out, err = process.communicate(timeout=60)
    record = json.loads(out)
    assert record.keys() >= {
        "id", "from", "to", "kind", "subject", "sent_at", "state", "outcome",
    }  # fmt: skip
    assert record["id"] == ident
    assert err == b"agent-bus: 1 unread from before start\n"
    assert process.returncode == 0
    listed = cli("wait", "--include-existing", me="bob")
    assert [line.split("\t")[0] for line in listed.lines] == [old, ident]


def test_wait_takes_the_message_that_it_is_asked_for(cli: Cli, lines: Lines) -> None:
    process = cli.start("wait", "--from", "user", "--timeout", "50", me="bob")
    lines.attached("bob")
    cli.send("alice", "bob")
    ident = cli.send("user", "bob")
    out, _ = process.communicate(timeout=60)
    assert [line.split("\t")[0] for line in out.decode().splitlines()] == [ident]


def test_wait_ends_with_75_when_nothing_comes(cli: Cli) -> None:
    ended = cli("wait", "--timeout", "0.2", me="bob").refused(75, "nothing arrived for bob")
    assert ended.out == ""
    assert cli("wait", "--timeout", "0", "--json", me="bob").code == 75


@pytest.mark.parametrize("time", ["301", "1h", "300.1"])
def test_a_long_wait_is_refused_and_told_to_watch(cli: Cli, time: str) -> None:
    cli("wait", "--timeout", time, me="bob").refused(64, "agent-bus watch")


def test_wait_passes_over_what_has_expired(cli: Cli) -> None:
    past = Bus.open(cli.bus.settings, identity="alice", clock=ManualClock(1_600_000_000_000))
    past.send_one("bob", Draft(body="late", expires_in=60))
    assert cli("wait", "--include-existing", "--timeout", "0", me="bob").code == 75


def test_wait_is_interrupted_quietly(cli: Cli, lines: Lines) -> None:
    process = cli.start("wait", me="bob")
    lines.attached("bob")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def test_a_bus_that_goes_away_ends_watch_with_a_reason(cli: Cli, lines: Lines) -> None:
    process = cli.start("watch", me="bob", AGENT_BUS_POLL="1")
    lines.attached("bob")
    cli.bus.path.rename(cli.bus.path.parent / "elsewhere")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (69, b"")
    assert err.decode().startswith("agent-bus: the bus at ")
    assert err.count(b"\n") == 1


def test_watch_marks_a_wake_of_anybody_but_the_gateway(
    cli: Cli, lines: Lines, false_wake: Any
) -> None:
    process = cli.start("watch", me="bob")
    lines.attached("bob")
    ident = false_wake(cli.bus, "bob", priority="urgent")
    assert lines.next(process) == f"{ident}  alice  wake  [doubted] [urgent] Child ended"
    real = cli.bus.as_gateway().wake("bob", Draft(subject="Child ended"), key="k").id
    assert lines.next(process) == f"{real}  openhands  wake  Child ended"
    assert end(process)[1].startswith(f"agent-bus: warning: {ident}: a wake is signed by openhands")


def test_a_folded_line_says_how_many_are_doubted(cli: Cli, lines: Lines, false_wake: Any) -> None:
    ids = [cli.send("alice", "bob") for _ in range(3)] + [false_wake(cli.bus, "bob")]
    process = cli.start("watch", "--include-existing", me="bob")
    assert lines.next(process) == "4 unread from before start"
    assert lines.next(process).startswith("4 new, 1 of them doubted: ")
    assert f"warning: {ids[3]}" in end(process)[1]
    waited = cli("wait", "--include-existing", "--json", me="bob").records
    assert ["warning" in record for record in waited] == [False, False, False, True]
