"""What the verbs share: `--as`, `--project`, `--json`, and how a verb declares its own.

A verb is a function of one frozen dataclass, whose fields say what typer is to offer. So the
shared options are inherited and not repeated, and a verb with many options is no function
of many arguments.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Option

from agent_bus import settings
from agent_bus.bus import Bus
from agent_bus.errors import NotPermitted, UsageError
from agent_bus.names import AgentName, agent_name
from agent_bus.settings import Settings, identity_of

_PATHS = (
    "project", "body_file", "import_file", "adopt", "file", "mission_file", "context_file", "out",
)  # fmt: skip
"""Fields that name a file, and may hold any bytes that a path may hold."""

_LAST_PORT = 65535

ID_HELP = "The id, or a unique beginning or end of it."


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The options of every verb."""

    as_name: Annotated[
        str | None,
        Option("--as", metavar="NAME", help="Who you are, where AGENT_MSG_AS is not set."),
    ] = None
    project: Annotated[
        str | None,
        Option("--project", metavar="DIR", help="Where the project is; else the working folder."),
    ] = None
    json: Annotated[bool, Option("--json", help="One JSON object a line, exact and in ASCII.")] = (
        False
    )


_Options = TypeVar("_Options", bound=Shared)


def verb(function: Callable[[_Options], int | None]) -> Callable[..., int]:
    """Make a function that typer can read: the fields of the dataclass are its parameters.

    It returns the exit code. Text that is no UTF-8 is refused before the verb begins.
    """
    (parameter,) = inspect.signature(function, eval_str=True).parameters.values()
    options: type[_Options] = parameter.annotation
    hints = get_type_hints(options, include_extras=True)
    shared = {field.name for field in fields(Shared)}
    ordered = sorted(fields(options), key=lambda field: field.name in shared)

    def called(**values: Any) -> int:
        for name, value in values.items():
            if name not in _PATHS:
                _require_text(name, value)
        return function(options(**values)) or 0

    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__annotations__ = {field.name: hints[field.name] for field in ordered}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(field, hints[field.name]) for field in ordered]
    )
    return called


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.default is MISSING else field.default,
        annotation=hint,
    )


def _require_text(name: str, value: object) -> None:
    for text in value if isinstance(value, list) else [value]:
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name.replace('_', '-')} is no UTF-8: {str(text)[:80]!a}") from None


# -- who and where


def load_settings(options: Shared) -> Settings:
    """The environment, with `--project` in the place of AGENT_BUS_PROJECT_DIR.

    Raises ConfigurationError, and UsageError where a bus is named outright as well: one of
    the two would be silently ignored.
    """
    loaded = settings.load()
    if options.project is None:
        return loaded
    if loaded.bus is not None:
        raise UsageError(
            f"--project {options.project} and {loaded.bus_variable} each name a bus: "
            f"leave out --project, or unset {loaded.bus_variable}"
        )
    return replace(loaded, project=as_path(options.project))


def is_bound(loaded: Settings) -> bool:
    """Whether the environment says who this process is."""
    return loaded.identity is not None and bool(loaded.identity.strip())


def identity(options: Shared, loaded: Settings) -> AgentName:
    """Who this process is. Raises IdentityMissing, and NotPermitted as `check_as` does."""
    check_as(options, loaded)
    if options.as_name is not None:
        return identity_of(options.as_name, "--as")
    return loaded.require_identity()


def check_as(options: Shared, loaded: Settings) -> None:
    """Refuse a `--as` that contradicts the environment. Raises NotPermitted."""
    if options.as_name is not None and is_bound(loaded) and loaded.identity != options.as_name:
        raise NotPermitted(
            f"--as {options.as_name} is refused, since AGENT_MSG_AS says that this process is "
            f"{loaded.identity}: leave out --as"
        )


def open_as(options: Shared) -> Bus:
    """The bus, as the identity of this process."""
    loaded = load_settings(options)
    return Bus.open(loaded, identity=identity(options, loaded))


def open_anonymous(options: Shared) -> Bus:
    """The bus, as nobody: for verbs that need no identity."""
    loaded = load_settings(options)
    check_as(options, loaded)
    return Bus.open(loaded)


def require_person(options: Shared, loaded: Settings) -> None:
    """Refuse to decide under `--as` without a terminal.

    A name on a command line proves nothing; a terminal makes it likely that a person typed
    it. Raises NotPermitted.
    """
    typed = sys.stdin is not None and sys.stdin.isatty()
    if options.as_name is not None and not is_bound(loaded) and not typed:
        raise NotPermitted(
            "deciding with --as needs a terminal: run it at one, or set AGENT_MSG_AS"
        )


# -- values


def as_path(text: str) -> Path:
    """A path from an argument, its bytes as they were given. Raises UsageError for none."""
    # An empty one would be the working folder.
    if not text or "\0" in text:
        raise UsageError(f"no path: {text[:80]!a}")
    return Path(os.fsdecode(text.encode("utf-8", "surrogateescape")))


def split_names(values: Iterable[str]) -> list[str]:
    """Names that were given several times, with commas between them, or both."""
    return [name.strip() for value in values for name in value.split(",")]


def optional_name(text: str | None) -> AgentName | None:
    """A name that was given, judged. Raises InvalidName."""
    return None if text is None else agent_name(text)


def number(text: str, what: str) -> int:
    """A whole number from 1. Raises UsageError."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise UsageError(f"{what} is {text[:40]!a}: give a whole number from 1")
    return int(text)


def port_number(text: str) -> int:
    """A TCP port; 0 stands for a free one. Raises UsageError."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > _LAST_PORT:
        raise UsageError(f"--port is {text[:40]!a}: give a number from 0 to {_LAST_PORT}")
    return int(text)
