"""Changing Codex's TOML file: one block of ours between two lines, all else untouched."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from agent_bus.errors import ConfigurationError
from agent_bus.hosts.document import SERVER

_FIRST = "# >>> agent-bus: what `agent-bus disconnect codex` takes out again"
_LAST = "# <<< agent-bus"
_BLOCK = re.compile(
    rf"\n?^{re.escape(_FIRST)}$.*?^{re.escape(_LAST)}$\n?", re.MULTILINE | re.DOTALL
)


def put(data: bytes | None, server: Sequence[str], shell: Sequence[str]) -> bytes:
    """The file with our block at its end, in the place of an earlier one.

    `server` are the lines of the server; `shell` those that let the agent's own shell write
    to the bus: they are left out where the file has such a table, since a table stands only
    once. Raises ConfigurationError for what is no TOML, or would be none.
    """
    text = _without(_text(data))
    there = _parse(text)
    lines = [_FIRST, *server]
    if "sandbox_workspace_write" not in there:
        lines += ["", *shell]
    lead = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    made = text + lead + "\n".join([*lines, _LAST]) + "\n"
    servers = there.get("mcp_servers")
    if isinstance(servers, dict) and SERVER in servers:
        raise ConfigurationError(f"it has a table mcp_servers.{SERVER} of its own: take that out")
    _parse(made)
    return made.encode()


def take(data: bytes) -> bytes:
    """The file without our block. Raises ConfigurationError for what is no UTF-8."""
    return _without(_text(data)).encode()


def lacks_root(data: bytes | None, root: str) -> bool:
    """Whether the agent's shell would still not be allowed to write to the bus."""
    table = _parse(_text(data)).get("sandbox_workspace_write", {})
    roots = table.get("writable_roots", []) if isinstance(table, dict) else []
    return not any(isinstance(one, str) and _is_below(root, one) for one in roots)


def quoted(text: str) -> str:
    r"""A basic string of TOML: written as one of JSON, as long as nothing becomes two \u."""
    return json.dumps(text, ensure_ascii=False)


def table(values: Mapping[str, str]) -> str:
    """An inline table of strings."""
    return "{ " + ", ".join(f"{name} = {quoted(value)}" for name, value in values.items()) + " }"


def _text(data: bytes | None) -> str:
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError("it is no UTF-8") from None


def _without(text: str) -> str:
    return _BLOCK.sub("", text)


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"it is no TOML, or would be none ({error})") from None


def _is_below(path: str, folder: str) -> bool:
    real = os.path.realpath(folder)
    return path == real or path.startswith(real.rstrip("/") + "/")
