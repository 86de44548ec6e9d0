"""The background hook of Claude Code: who waits, who wakes, who gives way."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from agent_bus.hosts import guard

GUARD = 60.0
Eventually = Callable[[Callable[[], bool], str], None]


def _begin(
    host: Any, eventually: Eventually, event: str = "Stop", **more: str | None
) -> subprocess.Popen[bytes]:
    """Start the hook, and wait until it waits."""
    claims = host.bus.path / "cache/hooks"
    before = {path.read_bytes() for path in claims.glob("*.waits")}
    attended = {"CLAUDE_CODE_SESSION_ATTENDED": "1"} | more
    process: subprocess.Popen[bytes] = host.start(guard.rewake(host.program()), **attended)
    assert process.stdin is not None
    told = json.dumps({"session_id": host.session, "hook_event_name": event}).encode()
    # It may have ended already.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(told)
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdin = None
    eventually(
        lambda: (
            process.poll() is not None
            or bool({path.read_bytes() for path in claims.glob("*.waits")} - before)
        ),
        "the hook waits",
    )
    return process


def _end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, err = process.communicate(timeout=GUARD)
    assert out == b""
    return process.returncode, err.decode()


def test_a_message_wakes_once(host: Any, eventually: Eventually) -> None:
    host("SessionStart")
    process = _begin(host, eventually)
    ident = host.send(subject='look "here"')
    code, err = _end(process)
    assert code == 2
    assert f"- {ident} from bob" in err
    assert "the body" not in err
    host("UserPromptSubmit").silent()


def test_what_came_during_the_turn_and_was_not_shown_wakes(
    host: Any, eventually: Eventually
) -> None:
    host("SessionStart")
    ident = host.send()
    code, err = _end(_begin(host, eventually))
    assert code == 2
    assert ident in err


def test_what_was_shown_wakes_nobody(host: Any, eventually: Eventually) -> None:
    host("SessionStart")
    shown = host.send()
    host("PostToolUse")
    process = _begin(host, eventually)
    ident = host.send()
    code, err = _end(process)
    assert code == 2
    assert ident in err
    assert shown not in err


def test_at_the_start_of_a_session_old_mail_is_left_to_the_other_hook(
    host: Any, eventually: Eventually
) -> None:
    old = host.send()
    time.sleep(1.2)  # older than what this hook takes for the other one's blind spot
    process = _begin(host, eventually, "SessionStart")
    host("SessionStart")
    # Perhaps before the cursor is taken: it is told all the same.
    ident = host.send()

    code, err = _end(process)
    assert code == 2
    assert ident in err
    assert old not in err


def test_the_last_one_alone_stays(host: Any, eventually: Eventually) -> None:
    """A new turn ends while an older hook still waits: one message wakes once."""
    host("SessionStart")
    first = _begin(host, eventually)
    second = _begin(host, eventually)
    ident = host.send()
    outcomes = [_end(first), _end(second)]
    assert [code for code, _ in outcomes] == [0, 2]
    assert ident in outcomes[1][1]


def test_nobody_sits_there(host: Any, eventually: Eventually) -> None:
    """`claude -p` would wait for it: it ends before the program is started."""
    for attended in (None, "0", ""):
        process = _begin(host, eventually, CLAUDE_CODE_SESSION_ATTENDED=attended)
        assert _end(process) == (0, "")
    assert not list((host.bus.path).glob("cache/hooks/*.waits"))


def test_it_does_not_outlive_its_host(host: Any, eventually: Eventually) -> None:
    """The host is killed: its hooks, which are in groups of their own, are not."""
    command = guard.rewake(host.program())
    outer = host.start(f"({command}) <&0 & echo $!; wait", CLAUDE_CODE_SESSION_ATTENDED="1")
    pid = int(outer.stdout.readline())
    outer.stdin.close()
    outer.stdin = None
    claims = host.bus.path / "cache/hooks"
    eventually(lambda: bool(list(claims.glob("*.waits"))), "it waits")
    outer.send_signal(signal.SIGKILL)
    _, err = outer.communicate(timeout=GUARD)
    # Its output is closed, so it has ended.
    assert err == b""
    assert pid > 0


@pytest.mark.parametrize("name", [None, "nobody-here"])
def test_without_an_agent_it_ends_at_once(
    host: Any, eventually: Eventually, name: str | None
) -> None:
    code, err = _end(_begin(host, eventually, AGENT_MSG_AS=name))
    assert code == 0
    assert err.count("\n") == (0 if name is None else 1)
