"""The verbs, each imported only when it is called, and what becomes of errors.

Every failure is one line on stderr (what, where, what to do) and an exit code of sysexits.h;
a usage error is 64 and never 2, which hooks of coding agents read as "block".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import agent_bus
from agent_bus.cli.render import OutputGone, put, say
from agent_bus.errors import AgentBusError, UsageError
from agent_bus.reading import reason

# Their base is public only under the names of its children.
_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]

INTERRUPTED = 130
OUTPUT_GONE = 128 + 13
"""What a shell reports of a program that SIGPIPE has ended."""
UNEXPECTED = 70


@dataclass(frozen=True)
class Verb:
    """Where a verb is implemented: a function made by `options.verb`, or a group of verbs."""

    module: str
    name: str
    help: str


VERBS = {
    "init": Verb("setup", "init", "Make the bus of this project, with keys and boxes."),
    "connect": Verb("connect", "connect", "Connect Claude Code, Codex or another host."),
    "disconnect": Verb("connect", "disconnect", "Take out of a host what connect has put there."),
    "keygen": Verb("setup", "keygen", "Make the key of an agent, or take one over."),
    "keys": Verb("keys", "keys", "List, rotate and revoke keys."),
    "agents": Verb("agents", "agents", "List agents, and retire one."),
    "send": Verb("send", "send", "Send a message."),
    "inbox": Verb("messages", "inbox", "List your messages, oldest first."),
    "read": Verb("messages", "read", "Read a message."),
    "archive": Verb("messages", "archive", "Acknowledge messages: they are done."),
    "wait": Verb("waiting", "wait", "Wait for messages, for a while."),
    "watch": Verb("waiting", "watch", "Print a line for each message that arrives."),
    "log": Verb("messages", "log", "List all messages of the bus, newest first."),
    "thread": Verb("messages", "thread", "Show a conversation."),
    "request-approval": Verb("approvals", "request_approval", "Ask an admin to decide."),
    "pending-approval": Verb("approvals", "pending_approval", "List what waits for a decision."),
    "decide": Verb("approvals", "decide", "Decide a request."),
    "approvals": Verb("review", "review", "Go through what waits for a decision, and decide."),
    "ui": Verb("ui", "ui", "Show the bus in a browser, and decide there."),
    "whoami": Verb("status", "whoami", "Show who you are, which bus this is, and why."),
    "status": Verb("status", "status", "Show how each agent stands, or what became of a message."),
    "verify": Verb("checks", "verify", "Check the signatures of messages."),
    "doctor": Verb("checks", "doctor", "Check the whole bus, and repair it."),
    "prune": Verb("checks", "prune", "Remove old messages that are done."),
    "export": Verb("checks", "export", "Write all messages into one archive."),
    "openhands": Verb("openhands", "openhands", "Hand missions to OpenHands children."),
    "mcp": Verb("", "", "Run the MCP server of one agent (standard input and output)."),
    "hook": Verb("", "", "Answer a hook of a host; connect --hooks puts it there."),
    "demo": Verb("demo", "demo", "Play the main job on a bus that goes away afterwards."),
}


class _AsItIs:
    """Takes text as it is. What typer would build instead loads pydantic, for text as well."""

    def coerce(self, value: Any, param: Any, ctx: object) -> Any:  # noqa: ARG002
        return () if value is None and (param.multiple or param.nargs == -1) else value


class _Textual:
    """All options are text or flags; the verb itself judges them."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param._runtime_param = _AsItIs()  # noqa: SLF001 - another name would only be slower
        return params


class TextCommand(_Textual, TyperCommand):
    """A verb."""


class TextGroup(_Textual, TyperGroup):
    """Some verbs under one name."""


class LazyGroup(TextGroup):
    """All verbs by name; their modules are imported one at a time."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The verbs, in the order in which people need them."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a verb. Raises UsageError for one that there is not."""
        found = VERBS.get(cmd_name)
        if found is None:
            near = get_close_matches(cmd_name, VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else "agent-bus --help lists the verbs"
            raise UsageError(f"no verb {cmd_name[:80]!a}: {hint}")
        return _command(cmd_name, found)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """List the verbs without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def _command(name: str, found: Verb) -> Any:
    implemented = getattr(import_module(f"agent_bus.cli.{found.module}"), found.name)
    if isinstance(implemented, typer.Typer):
        made = typer.main.get_command(implemented)
        made.name = name
        return made
    alone = group()
    alone.command(name, cls=TextCommand)(implemented)
    return typer.main.get_command(alone)


def group(cls: type[TextGroup] = TextGroup, **settings: Any) -> typer.Typer:
    """A typer program, or a part of one, with the habits of this one."""
    return typer.Typer(
        cls=cls,
        subcommand_metavar="VERB ...",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def _version(value: bool) -> None:
    if value:
        put(f"agent-bus {agent_bus.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Signed messages between coding agents. Options come after the verb."""


def run(words: list[str]) -> int:
    """Run one verb; whatever goes wrong ends as one line and an exit code."""
    program = group(cls=LazyGroup)
    program.callback()(_root)
    command = typer.main.get_command(program)
    try:
        code = command.main(words, prog_name="agent-bus", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        code = _failed(error)
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int:
    if isinstance(error, AgentBusError):
        say(str(error))
        return error.exit_code
    if isinstance(error, _TyperUsageError):
        say(_usage(error))
        return UsageError.exit_code
    if isinstance(error, OutputGone | BrokenPipeError):
        return _forget_output(OUTPUT_GONE)
    if isinstance(error, OSError):
        say(reason(error) if error.filename else f"input or output failed: {error.strerror}")
        return _forget_output(74)
    say(f"unexpected, please report it: {type(error).__name__}: {str(error)[:500]}")
    return UNEXPECTED


def _usage(error: Exception) -> str:
    """The words of typer in one line. Its errors know the verb that they are about."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "agent-bus"
    told = getattr(error, "format_message", error.__str__)()
    what = " ".join(told.split()).rstrip(".")
    return f"{what[:1].lower()}{what[1:]}: {where} --help says what there is"


def _forget_output(code: int) -> int:
    """Drop what could not be written, or the interpreter would try it again when it ends."""
    sys.stdout = sys.__stdout__ = None  # type: ignore[misc]
    return code
