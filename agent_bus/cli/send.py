"""`send`: from arguments, a file or standard input to signed messages."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from dataclasses import dataclass, replace
from typing import Annotated, BinaryIO

from typer import Argument, Option

from agent_bus import clock
from agent_bus.access import check_access
from agent_bus.bus import Bus
from agent_bus.cli import lines, passphrase, render
from agent_bus.cli.options import Shared, as_path, open_as, split_names, verb
from agent_bus.errors import InvalidMessage, StorageError, UnknownRecipient, UsageError
from agent_bus.names import agent_name
from agent_bus.payload import BODY_LIMIT
from agent_bus.sending import Draft, Refusal

_Text = str | None


@dataclass(frozen=True, kw_only=True)
class Send(Shared):
    """The options of `send`."""

    to: Annotated[list[str], Option("--to", metavar="NAME", help="Repeat it, or use commas.")]
    subject: Annotated[str, Option("--subject", metavar="TEXT", help="One line.")] = ""
    kind: Annotated[
        str, Option("--kind", metavar="KIND", help="note, task, question, answer, status …")
    ] = "note"
    body: Annotated[_Text, Option("--body", metavar="TEXT", help="The body itself.")] = None
    body_file: Annotated[
        _Text, Option("--body-file", metavar="F", help="The body from a file (- for stdin).")
    ] = None
    reply_to: Annotated[_Text, Option("--reply-to", metavar="ID", help="What it answers.")] = None
    thread: Annotated[_Text, Option("--thread", metavar="ID", help="The conversation.")] = None
    priority: Annotated[
        _Text, Option("--priority", metavar="P", help="low, normal, high or urgent.")
    ] = None
    expires_in: Annotated[
        _Text, Option("--expires-in", metavar="TIME", help="90s, 15m, 2h, 7d.")
    ] = None
    idempotency_key: Annotated[
        _Text, Option("--idempotency-key", metavar="KEY", help="Makes sending again safe.")
    ] = None
    force: Annotated[bool, Option("--force", help="Send to a name that nobody has.")] = False
    as_name: Annotated[
        _Text,
        Option("--as", metavar="NAME", help="Who you are, where AGENT_MSG_AS is unset."),
    ] = None
    sender: Annotated[_Text, Option("--from", metavar="NAME", help="The same as --as.")] = None
    stdin: Annotated[
        _Text, Argument(metavar="[-]", help="- reads the body from standard input.")
    ] = None


@verb
def send(options: Send) -> int:
    """Send a message; prints its id.

    The body may have 64 KiB of UTF-8 and arrives byte for byte. From a file or standard
    input no shell touches it.
    """
    if options.stdin not in (None, "-"):
        raise UsageError(
            f"{options.stdin[:80]!a} stands alone: give the body with --body or --body-file, "
            "or - for standard input, and several recipients as --to a,b"
        )
    bus = open_as(_as_sender(options))
    passphrase.unlock(bus)
    try:
        outcomes = bus.send(
            split_names(options.to),
            _draft(options),
            key=options.idempotency_key,
            force=options.force,
        )
    except UnknownRecipient as error:
        if options.json:
            _record_unknown(bus, split_names(options.to))
        # The core speaks to all front ends; here it is an option.
        raise UnknownRecipient(str(error).replace("(force ", "(--force ")) from None
    failed = [outcome.error for outcome in outcomes if isinstance(outcome, Refusal)]
    for outcome in outcomes:
        if options.json:
            render.put_json(lines.receipt(outcome))
        if isinstance(outcome, Refusal):
            render.say(f"not sent to {outcome.to}: {outcome.error}")
        elif not options.json:
            render.put(outcome.id)
            render.say(lines.told(outcome))
    return failed[0].exit_code if failed else 0


def _as_sender(options: Send) -> Send:
    """The options with one name for who sends. Raises UsageError for two."""
    if options.sender is None:
        return options
    if options.as_name not in (None, options.sender):
        raise UsageError(
            f"--from {options.sender} and --as {options.as_name} name two senders: give one of them"
        )
    return replace(options, as_name=options.sender)


def _record_unknown(bus: Bus, names: list[str]) -> None:
    known = set(bus.known())
    for name in dict.fromkeys(map(agent_name, names)):
        if name not in known:
            error = UnknownRecipient(f"nobody here is called {name}: agent-bus agents list")
            render.put_json(lines.receipt(Refusal(name, error)))


def _draft(options: Send) -> Draft:
    lasting = options.expires_in
    return Draft(
        body=_body(options),
        subject=options.subject,
        kind=options.kind,
        reply_to=options.reply_to,
        thread=options.thread,
        priority=options.priority,
        expires_in=None if lasting is None else clock.seconds(lasting),
    )


def _body(options: Send) -> str:
    sources = [options.body, options.body_file, options.stdin]
    if sum(source is not None for source in sources) > 1:
        raise UsageError("the body is given twice: choose one of --body, --body-file and -")
    if options.body is not None:
        return options.body
    if options.stdin is not None or options.body_file == "-":
        return read_text(None)
    if options.body_file is not None:
        return read_text(options.body_file)
    if not options.subject:
        raise UsageError("there is no body: give --body TEXT, --body-file F, or - for stdin")
    return ""


def read_text(file: str | None, limit: int = BODY_LIMIT) -> str:
    """The text of a file, or of standard input for None, exactly as it is.

    Raises InvalidMessage for what is too large or no UTF-8, and StorageError.
    """
    data = read_bytes(file, limit)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(
            f"{_called(file)} is no UTF-8 (byte {error.start}): convert it, or send its path"
        ) from None


def read_bytes(file: str | None, limit: int, *, private: bool = False) -> bytes:
    """The bytes of a file, or of standard input for None; `limit` plus one are read at most.

    Raises InvalidMessage for what is too large, StorageError, and UnsafePermissions for a
    `private` file that others may read.
    """
    if file is None and sys.stdin is None:
        raise UsageError("standard input is closed: name a file")
    try:
        with contextlib.ExitStack() as stack:
            opened: BinaryIO = sys.stdin.buffer
            if file is not None:
                opened = stack.enter_context(open(as_path(file), "rb"))
                if private:
                    _check_private(opened, file)
            data = opened.read(limit + 1)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise StorageError(f"{_called(file)} cannot be read: {why}") from None
    if len(data) > limit:
        raise InvalidMessage(f"{_called(file)} has more than {limit} bytes, which is the limit")
    return data


def _check_private(opened: BinaryIO, file: str) -> None:
    status = os.fstat(opened.fileno())
    if stat.S_ISREG(status.st_mode):  # what a shell's <(...) gives has no mode of its own
        check_access(status, file, 0o077)


def _called(file: str | None) -> str:
    return "standard input" if file is None else file
