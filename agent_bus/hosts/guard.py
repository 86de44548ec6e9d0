"""The shell command of a hook: one test that usually ends it, and the program behind it.

A hook runs at every tool call, and a start of Python would be felt there. So the command
compares two times of change itself: that of the box's `new` folder, and that of the mark
which the program set when it last looked (`memory.Mark`). Only if there is no mark, or the
folder has changed since, the program is started. The mark names the box, so that no agent's
name stands in a file of a host.

`[ a -nt b ]` and `read` are built into every shell. Some shells call `a` newer where `b` is
missing and some do not, hence the `-f`. The session is the host's own variable, or else the
host's process, which is the parent of the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_bus.hosts.events import EVENTS, REWAKE, Moment

SIGN = ": agent-bus;"
"""What all our commands begin with, so that they can be found again."""
UNGUARDED: tuple[Moment, ...] = ("session", "prompt")
"""Moments that come seldom, and at which time alone can make something worth saying."""
REWAKE_TIMEOUT = 24 * 3600
"""Seconds that a background hook waits at most."""
_TIMEOUT = 5
"""Seconds after which the host may end a hook; it ends itself before."""


@dataclass(frozen=True, slots=True)
class Program:
    """How the hook's program is started."""

    words: Sequence[str]
    """The program and its first arguments."""
    environment: Mapping[str, str]
    """What leads it to the bus from anywhere; without a name."""
    marks: str
    """The folder of the marks, as a shell expression."""


def command(program: Program, host: str, event: str) -> str:
    """The command for one event of a host, for `sh`, `bash` or `zsh`.

    It never ends with 2, whatever is wrong with the program: 2 means "block" to a host.
    """
    moment = EVENTS[host][event]
    called = f'{_call(program, host, event)} "$k" || exit 1'
    if moment in UNGUARDED:
        return f"{SIGN} {_key(host)} {called}"
    kind = "stop" if moment == "stop" else "shown"
    guard = (
        f'm={program.marks}/$k.{kind}; [ -f "$m" ] && IFS= read -r b <"$m" && '
        '! [ "$b" -nt "$m" ] && exit 0;'
    )
    return f"{SIGN} {_key(host)} {guard} {called}"


def rewake(program: Program) -> str:
    """The command of the background hook; exit code 2 is its deliberate wake.

    It waits only where somebody sits at the session: a `claude -p` would wait for it.
    """
    attended = '[ "$CLAUDE_CODE_SESSION_ATTENDED" = 1 ] || exit 0;'
    called = f'{_call(program, "claude", REWAKE)} "$k"'
    # `env`, since `exec` takes a program and no assignments in some shells.
    return f"{SIGN} {attended} {_key('claude')} exec env {called}"


def portable(script: str) -> str:
    """The same for a host that runs the user's own shell, which may be none of those."""
    return f"exec sh -c {shlex.quote(script)}"


def groups(program: Program, host: str) -> dict[str, list[dict[str, object]]]:
    """The hooks of a host in the form that all three have: event to matcher groups."""
    # Gemini CLI counts in milliseconds.
    timeout = _TIMEOUT * 1000 if host == "gemini" else _TIMEOUT
    found: dict[str, list[dict[str, object]]] = {}
    for event, moment in EVENTS[host].items():
        script = command(program, host, event)
        entry: dict[str, object] = {
            "type": "command",
            "command": portable(script) if host == "codex" else script,
            "timeout": timeout,
        }
        hooks = [entry]
        if host == "claude" and moment in ("session", "stop"):
            hooks.append(
                {
                    "type": "command",
                    "command": rewake(program),
                    "asyncRewake": True,
                    "timeout": REWAKE_TIMEOUT,
                }
            )
        group: dict[str, object] = {"hooks": hooks}
        if moment == "tool":
            group = {"matcher": "*"} | group
        found[event] = [group]
    return found


def _key(host: str) -> str:
    own = "${CLAUDE_CODE_SESSION_ID:-$PPID}" if host == "claude" else "$PPID"
    return f"k={host}.{own};"


def _call(program: Program, host: str, event: str) -> str:
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in program.environment.items())
    words = shlex.join([*program.words, "hook", host, event])
    return f"{given} {words}" if given else words
