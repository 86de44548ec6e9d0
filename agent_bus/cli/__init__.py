"""The command line: `agent-bus`, and `agent-msg`, which is the same program.

A verb's module is imported only when that verb is called, and `mcp` and `hook` before typer is:
they should not wait for a parser of options that they do not have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

MCP_HELP = """\
Usage: agent-bus mcp

The MCP server of one agent, over standard input and output. It takes no options: who it is
stands in AGENT_MSG_AS. `agent-bus connect --help` says how to give it to Claude Code or Codex.
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code (sysexits.h; 64 for usage, 130 when interrupted)."""
    words = _words() if argv is None else list(argv)
    # Whatever is made below is this user's alone.
    os.umask(0o077)
    try:
        code = _run(words)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        # Only what fails before a verb is reached comes here.
        what = f"{type(error).__name__}: {error}"[:500]
        sys.stderr.write(f"agent-bus: unexpected, please report it: {what!a}\n")
        code = 70
    sys.exit(code)


def _run(words: list[str]) -> int:
    if words == ["mcp"]:
        # The server prepares its own streams: its output is the protocol.
        from agent_bus.server.app import main as serve

        serve()
    if words[:1] == ["hook"]:
        # A hook stands in the way of somebody's work: it waits for no parser.
        from agent_bus.hosts.hook import main as answer

        answer(words[1:])
    for stream in (sys.stdout, sys.stderr):
        _prepare(stream)
    if words[:1] == ["mcp"]:
        return _about_mcp(words[1:])
    from agent_bus.cli import app

    return app.run(words)


def _about_mcp(words: list[str]) -> int:
    if words in (["--help"], ["-h"]):
        sys.stdout.write(MCP_HELP)
        return 0
    sys.stderr.write(
        f"agent-bus: agent-bus mcp takes no arguments, not {words[0][:80]!a}: who it is stands "
        "in AGENT_MSG_AS\n"
    )
    return 64


def _words() -> list[str]:
    """The arguments as UTF-8, whatever the locale says; bytes that are none stay surrogates."""
    return [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]


def _prepare(stream: TextIO | None) -> None:
    # None where the descriptor was closed by whoever started this.
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
