"""Changing a host's JSON file: what is not ours stays, with its order and its form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agent_bus.errors import ConfigurationError, Conflict
from agent_bus.hosts.guard import SIGN

SERVER = "agent-bus"
"""The name of our server in every host."""

_INDENT = re.compile(rb"\n([ \t]+)\"")


def parse(data: bytes | None) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file or nothing in it.

    Raises ConfigurationError for what could not be written again without loss: comments,
    a byte order mark, a key that stands there twice.
    """
    if data is None or not data.strip():
        return {}
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is no plain JSON ({str(error)[:120]})") from None
    if not isinstance(value, dict):
        raise ConfigurationError("it holds no JSON object")
    return value


def dump(value: dict[str, Any], like: bytes | None) -> bytes:
    """The file, indented and ended as it was."""
    found = _INDENT.search(like) if like else None
    indent: str | int | None = found[1].decode() if found else 2
    if like and like.strip() and b"\n" not in like.strip():
        indent = None
    escaped = like is not None and like.isascii() and b"\\u" in like
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    end = "" if like and like.strip() and not like.endswith(b"\n") else "\n"
    return (text + end).encode("utf-8", "surrogatepass")


def put_server(value: dict[str, Any], path: Sequence[str], entry: dict[str, Any]) -> None:
    """Put our server where a host looks for servers."""
    _reach(value, path)[SERVER] = entry


def take_server(value: dict[str, Any], path: Sequence[str], name: str | None) -> None:
    """Take our server out; with a name only if it is that agent's. Raises Conflict."""
    holders = [value]
    for key in path:
        inner = holders[-1].get(key)
        if not isinstance(inner, dict):
            return
        holders.append(inner)
    entry = holders[-1].get(SERVER)
    if entry is None:
        return
    given = _name_in(entry)
    if name is not None and given is not None and "$" not in given and "{" not in given:
        _require_same(given, name)
    del holders[-1][SERVER]
    # Claude Code keeps an empty list of servers for each project.
    if len(path) == 1 and not holders[-1]:
        del value[path[0]]


def put_hooks(value: dict[str, Any], groups: dict[str, list[dict[str, object]]]) -> None:
    """Put our hooks behind those that are there; earlier ones of ours are replaced."""
    take_hooks(value)
    hooks = _reach(value, ["hooks"])
    for event, ours in groups.items():
        there = hooks.setdefault(event, [])
        if not isinstance(there, list):
            raise ConfigurationError(f"hooks.{event} is no list")
        there.extend(ours)


def take_hooks(value: dict[str, Any]) -> None:
    """Take our hooks out, and what would be left empty by that."""
    hooks = value.get("hooks")
    if not isinstance(hooks, dict):
        return
    was = False
    for event, groups in list(hooks.items()):
        if not isinstance(groups, list) or not any(_has_ours(group) for group in groups):
            continue
        was = True
        kept = [group for group in map(_without_ours, groups) if group is not None]
        if kept:
            hooks[event] = kept
        else:
            del hooks[event]
    if was and not hooks:
        del value["hooks"]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands there twice")
    return value


def _reach(value: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    for key in path:
        inner = value.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigurationError(f"{key} is no object there")
        value = inner
    return value


def _name_in(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return None
    for key in ("env", "environment"):
        given = entry.get(key)
        if isinstance(given, dict) and isinstance(given.get("AGENT_MSG_AS"), str):
            return str(given["AGENT_MSG_AS"])
    return None


def _require_same(given: str, name: str) -> None:
    if given != name:
        raise Conflict(f"it connects {given[:80]!a} and not {name}: leave out --as to take it out")


def _hooks_of(group: Any) -> list[Any]:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return hooks if isinstance(hooks, list) else []


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, dict) and SIGN in str(hook.get("command", ""))


def _has_ours(group: Any) -> bool:
    return any(_is_ours(hook) for hook in _hooks_of(group))


def _without_ours(group: Any) -> Any:
    if not _has_ours(group):
        return group
    kept = [hook for hook in _hooks_of(group) if not _is_ours(hook)]
    return {**group, "hooks": kept} if kept else None
