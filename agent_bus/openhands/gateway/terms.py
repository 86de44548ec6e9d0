"""The rules for what the tools take, but for the mission itself. All raise InvalidMission.

Nothing here looks at who calls or at any file: an argument is right or wrong by itself. No
error repeats a link, which could hold a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from agent_bus.approvals import request_content
from agent_bus.errors import InvalidMessage, InvalidMission
from agent_bus.openhands.gateway.wire import digest, json_object, member, text

ReportKind = Literal["RESULT", "NEEDS_INPUT"]

RESULT_LIMIT = 20_000
CONTEXT_LIMIT = 20_000
QUESTION_LIMIT = 4000
LINKS_LIMIT = 12
URL_LIMIT = 2048
REVISION = "currentRevision"
"""The one key of a context that says where the branch stands now."""

_KEY_HEX = 24
_MESSAGE_KEY = re.compile(r"[!-~]{1,200}")
_LINK_KEY = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_SHA = re.compile(r"[0-9a-f]{40}")
# RFC 3986 in ASCII, without userinfo: other characters are percent-encoded, other hosts are
# written in punycode. So nothing can be hidden in it or turned around.
_URL = re.compile(
    r"https?://(?:[a-z0-9][a-z0-9._~-]*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?"
    r"(?:[/?#][a-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*)?",
    re.ASCII | re.IGNORECASE,
)
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]*@", re.ASCII | re.IGNORECASE)

FORBIDDEN_IN_CONTEXT = frozenset(
    (
        *("authority", "allowedmutations", "prohibitions", "capabilities", "callback"),
        *("checkout", "repository", "branch", "ref", "head", "headsha", "candidate"),
        *("mission", "role", "skills", "model", "reasoningeffort"),
        *("pullrequest", "specificationpr", "runtimegrants"),
        *("environmentgrant", "environmentgeneration"),
        *("modelpressuregrant", "modelpressuregeneration"),
    )
)
"""What a context must not say: it would widen what the mission has settled."""


def message_key(value: object) -> str:
    """A caller's own key of a message: 1 to 200 visible ASCII characters."""
    if not isinstance(value, str) or _MESSAGE_KEY.fullmatch(value) is None:
        raise InvalidMission("messageKey is not 1 to 200 visible ASCII characters without spaces")
    return value


def report_kind(value: object) -> ReportKind:
    """RESULT or NEEDS_INPUT."""
    if isinstance(value, str) and value in ("RESULT", "NEEDS_INPUT"):
        return cast("ReportKind", value)
    raise InvalidMission("kind is neither RESULT nor NEEDS_INPUT: give one of them")


def result(value: object) -> dict[str, Any]:
    """What a child reports: a JSON object of at most 20000 bytes in compact form."""
    return json_object(value, "result", RESULT_LIMIT)


def result_key(checked: Mapping[str, Any]) -> str:
    """The key of a result that came without one. A key inside the result does not change it."""
    said = {key: checked[key] for key in checked if key not in ("messageKey", "callbackGeneration")}
    return _derived("result", said)


def question(value: object) -> str:
    """A question, without the blanks around it: at most 4000 characters."""
    asked = text(value, "question").strip()
    if len(asked) > QUESTION_LIMIT:
        raise InvalidMission(f"question is longer than {QUESTION_LIMIT} characters: shorten it")
    return asked


def options(value: object) -> tuple[str, ...]:
    """2 to 5 different answers, each of which can stand as an option of an approval."""
    if not isinstance(value, list) or not 2 <= len(value) <= 5:
        raise InvalidMission("options is not a list of 2 to 5 answers")
    chosen = tuple(text(option, f"options[{index}]") for index, option in enumerate(value))
    # A person could not tell them apart.
    if len({" ".join(option.casefold().split()) for option in chosen}) != len(chosen):
        raise InvalidMission("options has the same answer twice: make them differ")
    try:
        request_content("?", chosen, None)
    except InvalidMessage as error:
        raise InvalidMission(f"options: {error}") from None
    return chosen


def decision_key(asked: str, offered: Sequence[str]) -> str:
    """The key of a question with its options, both checked."""
    return _derived("decision", {"question": asked, "options": list(offered)})


def links(value: object) -> dict[str, str]:
    """1 to 12 links of http or https, by names of a-z 0-9 _ -."""
    room = LINKS_LIMIT * (URL_LIMIT + 64)
    taken = json_object(value, "links", room)
    if not 1 <= len(taken) <= LINKS_LIMIT:
        raise InvalidMission(f"links has {len(taken)} entries: give 1 to {LINKS_LIMIT}")
    for key in taken:
        if _LINK_KEY.fullmatch(key) is None:
            raise InvalidMission(
                f"{member('links', key)} is no name of a link: use 1 to 32 of a-z 0-9 _ -, "
                "beginning with a letter"
            )
    return {key: web_url(entry, member("links", key)) for key, entry in taken.items()}


def navigation_key(checked: Mapping[str, str]) -> str:
    """The key of checked links."""
    return _derived("navigation", dict(checked))


def web_url(value: object, what: str) -> str:
    """A URL of http or https, at most 2048 ASCII characters, without a credential."""
    if not isinstance(value, str):
        raise InvalidMission(f"{what} is no text: give a URL")
    if len(value) > URL_LIMIT:
        raise InvalidMission(f"{what} is longer than {URL_LIMIT} characters: shorten it")
    if _AUTHORITY.match(value):
        raise InvalidMission(f"{what} holds a credential (user@host): take it out")
    if _URL.fullmatch(value) is None:
        raise InvalidMission(
            f"{what} is no http or https URL in ASCII (RFC 3986): percent-encode all other "
            "characters"
        )
    return value


def context(value: object) -> dict[str, Any]:
    """What a child is told when it goes on: facts, which cannot widen what it may do.

    A non-empty object of at most 20000 bytes. Keys are ASCII, so that no look-alike passes;
    `FORBIDDEN_IN_CONTEXT` holds whatever the case and the signs between the letters.
    """
    taken = json_object(value, "context", CONTEXT_LIMIT)
    if not taken:
        raise InvalidMission("context is empty: say what has changed")
    revision = taken.get(REVISION)
    if REVISION in taken and not (isinstance(revision, str) and _SHA.fullmatch(revision)):
        raise InvalidMission(f"context.{REVISION} is not 40 lower-case hex digits")
    for key in _keys({key: entry for key, entry in taken.items() if key != REVISION}):
        _check_fact(key)
    return taken


def _check_fact(key: str) -> None:
    name = member("context", key)
    if not key.isascii():
        raise InvalidMission(f"{name} is no ASCII key: use ASCII letters")
    letters = "".join(char for char in key.lower() if char.isalnum())
    if letters == REVISION.lower():
        raise InvalidMission(f"{name}: write it {REVISION}, at the root of the context only")
    if letters in FORBIDDEN_IN_CONTEXT:
        raise InvalidMission(
            f"{name} may not stand in a context, which cannot change what the mission has "
            "settled: leave it out"
        )


def _keys(value: object) -> Iterator[str]:
    """All keys at any depth, of a value whose depth is bounded."""
    if isinstance(value, dict):
        yield from value
        for entry in value.values():
            yield from _keys(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _keys(entry)


def _derived(kind: str, value: object) -> str:
    return f"{kind}:{digest(value)[:_KEY_HEX]}"
