"""The only place where text becomes part of a path.

Each function takes text from outside and gives it back as a name that is safe as one
component of a path on every system, or refuses it. Nothing is ever repaired: two
spellings of one name would be two boxes for one agent. Small ASCII letters alone rule out
look-alikes, case folding and the aliases of NTFS and HFS+.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NewType, cast

from agent_bus.clock import id_time
from agent_bus.errors import InvalidName

AgentName = NewType("AgentName", str)
MessageId = NewType("MessageId", str)

RESERVED = AgentName("openhands")
"""The identity that signs wakes; only the gateway acts as it."""

GATEWAY = AgentName("gateway")
"""No agent's name: in the folder of keyrings, `gateway.json` holds other keys (`signing`)."""

MESSAGE_SUFFIX = ".msg"

_AGENT = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?", re.ASCII)
_CONVERSATION = re.compile(
    rf"{RESERVED}-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}", re.ASCII
)
_ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)
_FILES = re.compile(
    rf"(?:^|(?<=\0))({_ULID.pattern}){re.escape(MESSAGE_SUFFIX)}(?=\0|\Z)", re.ASCII
)
_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.ASCII)
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


def agent_name(text: object) -> AgentName:
    """An agent's name. Raises InvalidName."""
    if not is_agent_name(text):
        raise InvalidName(
            f"no agent name: {_shown(text)}; use 1 to 64 of a-z 0-9 . _ - "
            "(a letter or digit at both ends, no '..', no device name)"
        )
    return AgentName(str(text))


def is_agent_name(text: object) -> bool:
    """Whether text is an agent's name."""
    return isinstance(text, str) and len(text) <= 64 and _is_agent_name(text)


@lru_cache(maxsize=1024)
def _is_agent_name(text: str) -> bool:
    return (
        _AGENT.fullmatch(text) is not None and ".." not in text and _DEVICE.fullmatch(text) is None
    )


def is_conversation(name: AgentName) -> bool:
    """Whether a box is that of an OpenHands conversation, which has no key of its own."""
    return _CONVERSATION.fullmatch(name) is not None


def message_id(text: object) -> MessageId:
    """A message's id: a ULID in lower case. Raises InvalidName."""
    if not is_message_id(text):
        raise InvalidName(f"no message id: {_shown(text)}; an id has 26 characters, like 01kbb…")
    return MessageId(str(text))


def is_message_id(text: object) -> bool:
    """Whether text is a ULID in lower case."""
    return isinstance(text, str) and _ULID.fullmatch(text) is not None


def kind_name(text: object) -> str:
    """A message's kind. Raises InvalidName."""
    if not is_kind(text):
        raise InvalidName(
            f"no kind: {_shown(text)}; use 1 to 32 of a-z 0-9 _, beginning with a letter"
        )
    return str(text)


def is_kind(text: object) -> bool:
    """Whether text is a kind."""
    return isinstance(text, str) and _KIND.fullmatch(text) is not None


def message_file(ident: MessageId) -> str:
    """The file name of a message."""
    return ident + MESSAGE_SUFFIX


def id_of_file(name: str) -> MessageId | None:
    """The id in a message's file name, or None if the name is no message's."""
    stem = name.removesuffix(MESSAGE_SUFFIX)
    return MessageId(stem) if stem != name and is_message_id(stem) else None


def ids_of_files(names: Iterable[str]) -> list[MessageId]:
    """The ids in those file names that are messages', in the order given.

    All in one search, since a box may hold ten thousand; no file name contains a NUL.
    """
    return cast("list[MessageId]", _FILES.findall("\0".join(names)))


def month_of(ident: MessageId) -> str:
    """The archive folder of a message: the year and month in its id, `2026-11`.

    An id may claim a time past the year 9999, which no calendar here knows; all of those
    share the last month.
    """
    return _month_of_minutes(ident[:6]) or _month_at(ident)


@lru_cache(maxsize=1024)
def _month_of_minutes(prefix: str) -> str | None:
    """The month of all ids that begin so, those of 17 minutes; None if two share them."""
    first, last = _month_at(prefix + "0000"), _month_at(prefix + "zzzz")
    return first if first == last else None


def _month_at(ulid: str) -> str:
    try:
        return datetime.fromtimestamp(id_time(ulid) / 1000, UTC).isoformat()[:7]
    except (ValueError, OverflowError):
        return "9999-12"


def is_month(text: str) -> bool:
    """Whether text names an archive folder."""
    return re.fullmatch(r"\d{4}-\d\d", text, re.ASCII) is not None


def sent_file(recipient: AgentName, key: str) -> str:
    """The file name under which a keyed send is remembered.

    A hash, since a key is any text; NUL cannot be part of a recipient's name, so that no
    two pairs share one.
    """
    return hashlib.sha256(f"{recipient}\0{key}".encode()).hexdigest()


def bus_folder(readable: str, canonical: str) -> str:
    """The folder name of a bus: a readable part, and a hash of the canonical path.

    The hash alone tells two projects apart; the readable part is for people, so here odd
    characters may be replaced.
    """
    digest = hashlib.sha256(os.fsencode(canonical)).hexdigest()[:12]
    return f"{_UNFIT.sub('-', readable).strip('-.')[:48] or 'project'}-{digest}"


def _shown(text: object) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 80 else shown[:79] + "…"
