"""A mission: what one child is to do, in which role, on which checkout.

A Main writes it; everything about it that can be judged without git and without the agent
server is judged here, before either is asked. Bound, it says whose child works on it and how
the child reports. It never holds a capability.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agent_bus.errors import InvalidMission
from agent_bus.openhands.gateway.caller import Role
from agent_bus.openhands.gateway.identifiers import task_key
from agent_bus.openhands.gateway.terms import URL_LIMIT, web_url
from agent_bus.openhands.gateway.wire import compact, digest, json_object, member, text
from agent_bus.payload import is_one_line

MISSION_LIMIT = 12_000
ITEMS_LIMIT = 100
LINKS_LIMIT = 20
LINE_LIMIT = 200
BEGINNING = "Your task now:"
RUNTIME = "runtime_environment"
WAITER_SKILL = "evex-delivery-waiter"

CHILD_ROLES: Mapping[str, Role] = {
    "spec": "spec",
    "planner": "planner",
    # Its earlier name.
    "plan-author": "planner",
    "writer": "writer",
    "reviewer": "reviewer",
    "qa": "qa",
    "repair": "repair",
    "waiter": "waiter",
}
"""The roles that a child can be created in, by the names that a caller may give them."""

_CHANGING: frozenset[Role] = frozenset({"spec", "planner", "writer", "repair"})
_WITH_RUNTIME: frozenset[Role] = frozenset({"qa", "repair"})
_LISTS = ("allowedMutations", "prohibitions", "skills", "evidence")
_REQUIRED = ("immediateTask", "links", "checkout", *_LISTS)
_RESERVED = (
    *("owningMainId", "childId", "taskKey", "role", "callback", "capabilities"),
    "runtimeGrants",
)
_CHECKOUT = ("repository", "branch", "headSha")

_REPOSITORY_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SHA = re.compile(r"[0-9a-f]{40}")
# What git-check-ref-format(1) forbids, and a few names that git would take for something else.
_UNFIT_IN_BRANCH: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[^!-~]"), "has a character that is not visible ASCII"),
    (re.compile(r"[~^:?*\[\\]"), "has one of ~ ^ : ? * [ or a backslash"),
    (re.compile(r"\.\.|@\{"), "has .. or @{"),
    (re.compile(r"\A[-/]"), "begins with - or /"),
    (re.compile(r"[/.]\Z"), "ends with / or ."),
    (re.compile(r"//"), "has //"),
    (re.compile(r"(?:\A|/)\."), "has a part that begins with ."),
    (re.compile(r"\.lock(?:\Z|/)"), "has a part that ends with .lock"),
    (re.compile(r"\Arefs/"), "begins with refs/"),
    (re.compile(r"\A(?:@|HEAD|[0-9a-f]{40})\Z"), "means something else to git"),
)
_BRANCH_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Checkout:
    """The exact state of a repository that a child begins with."""

    repository: str
    """owner/name."""
    branch: str
    head_sha: str
    """40 lower-case hex digits."""


@dataclass(frozen=True, slots=True)
class Mission:
    """A mission that keeps every rule. `content` is the Main's object, a copy of its own."""

    task_key: str
    role: Role
    checkout: Checkout
    content: Mapping[str, Any]
    capabilities: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The same for equal missions, whatever the order of their keys."""
        return digest(
            {
                "taskKey": self.task_key,
                "role": self.role,
                "capabilities": list(self.capabilities),
                "mission": dict(self.content),
            }
        )

    @property
    def skills(self) -> tuple[str, ...]:
        """The names of the skills that the child is to use."""
        return tuple(self.content["skills"])


def parse(task: object, role: object, mission: object, capabilities: object = None) -> Mission:
    """A mission from what a caller gave. Raises InvalidMission; asks nobody."""
    if not isinstance(task, str):
        raise InvalidMission("taskKey is no text: give a string")
    key, known = task_key(task), _role(role)
    content = json_object(mission, "mission", MISSION_LIMIT)
    _check_keys(content)
    _check_task(content["immediateTask"])
    _check_links(content["links"])
    for name in _LISTS:
        _check_list(content[name], member("mission", name))
    _check_skills(content["skills"])
    found = checkout(content["checkout"])
    _check_role(known, content)
    return Mission(key, known, found, content, _runtime(capabilities, known))


def bind(mission: Mission, *, owner: UUID, child: UUID, reports: bool) -> str:
    """The message that gives a child its mission.

    `reports`: whether the child has the tool to report with; if not, its final answer is the
    report.
    """
    bound = {
        "owningMainId": str(owner),
        "childId": str(child),
        "taskKey": mission.task_key,
        "role": mission.role,
        "callback": _callback(reports),
        "capabilities": list(mission.capabilities),
    }
    return "MISSION\n" + compact(dict(mission.content) | bound)


def checkout(value: object) -> Checkout:
    """A checkout from a mission: exactly repository, branch and headSha."""
    what = "mission.checkout"
    if not isinstance(value, dict) or set(value) != set(_CHECKOUT):
        raise InvalidMission(f"{what} is no object with exactly {', '.join(_CHECKOUT)}")
    head = value["headSha"]
    if not isinstance(head, str) or _SHA.fullmatch(head) is None:
        raise InvalidMission(f"{what}.headSha is not 40 lower-case hex digits")
    return Checkout(
        repository=repository(value["repository"], f"{what}.repository"),
        branch=branch(value["branch"], f"{what}.branch"),
        head_sha=head,
    )


def repository(value: object, what: str = "repository") -> str:
    """owner/name of a repository: both are safe as part of a file's name."""
    parts = value.split("/") if isinstance(value, str) and len(value) <= 201 else []
    if not isinstance(value, str) or len(parts) != 2 or not all(map(_is_part, parts)):
        raise InvalidMission(
            f"{what} is no owner/name: each has 1 to 100 of A-Z a-z 0-9 _ . -, begins with a "
            "letter or digit, has no .. and ends neither with . nor with .git"
        )
    return value


def branch(value: object, what: str = "branch") -> str:
    """The short name of a branch that git can take; git's own check comes later."""
    if not isinstance(value, str) or not 0 < len(value) <= _BRANCH_LIMIT:
        raise InvalidMission(f"{what} is no text of 1 to {_BRANCH_LIMIT} characters")
    for unfit, why in _UNFIT_IN_BRANCH:
        if unfit.search(value):
            raise InvalidMission(f"{what} {why}: {value[:80]!a} is no name of a branch")
    return value


def _is_part(part: str) -> bool:
    fits = _REPOSITORY_PART.fullmatch(part) is not None
    return fits and ".." not in part and not part.lower().endswith((".", ".git"))


def _role(value: object) -> Role:
    if not isinstance(value, str) or value not in CHILD_ROLES:
        raise InvalidMission(f"role is none of {', '.join(dict.fromkeys(CHILD_ROLES.values()))}")
    return CHILD_ROLES[value]


def _check_keys(content: Mapping[str, Any]) -> None:
    for name in _REQUIRED:
        if name not in content:
            raise InvalidMission(f"mission.{name} is missing")
    for name in _RESERVED:
        if name in content:
            raise InvalidMission(f"mission.{name} is set by the gateway: leave it out")


def _check_task(value: object) -> None:
    task = text(value, "mission.immediateTask")
    if not task.startswith(BEGINNING):
        raise InvalidMission(f"mission.immediateTask does not begin with {BEGINNING!r}")
    text(task.removeprefix(BEGINNING), f"mission.immediateTask after {BEGINNING!r}")


def _check_links(value: object) -> None:
    what = "mission.links"
    if not isinstance(value, dict) or len(value) > LINKS_LIMIT:
        raise InvalidMission(f"{what} is no object of at most {LINKS_LIMIT} entries")
    for key, entry in value.items():
        _check_line(key, f"a key of {what}", LINE_LIMIT)
        name = member(what, key)
        # Not every reference has a URL: an id or a path inside the repository will do.
        if isinstance(entry, str) and "://" in entry:
            web_url(entry, name)
        else:
            _check_line(entry, name, URL_LIMIT)


def _check_list(value: object, what: str) -> None:
    if not isinstance(value, list) or len(value) > ITEMS_LIMIT:
        raise InvalidMission(f"{what} is no list of at most {ITEMS_LIMIT} texts")
    for index, entry in enumerate(value):
        text(entry, f"{what}[{index}]")


def _check_skills(skills: list[str]) -> None:
    # The child finds them in its environment, one a line.
    for index, skill in enumerate(skills):
        _check_line(skill, f"mission.skills[{index}]", LINE_LIMIT)


def _check_line(value: object, what: str, limit: int) -> None:
    if not is_one_line(text(value, what), limit):
        raise InvalidMission(f"{what} is not one line of at most {limit} characters")


def _check_role(role: Role, content: Mapping[str, Any]) -> None:
    changes = content["allowedMutations"]
    if role in _CHANGING and not changes:
        raise InvalidMission(f"mission.allowedMutations is empty: say what a {role} may change")
    if role not in _CHANGING and changes:
        raise InvalidMission(f"mission.allowedMutations is not empty: a {role} changes nothing")
    if role == "waiter" and WAITER_SKILL not in content["skills"]:
        raise InvalidMission(f"mission.skills lacks {WAITER_SKILL}, which a waiter needs")


def _runtime(value: object, role: Role) -> tuple[str, ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list) or len(value) > 1 or value[0] != RUNTIME:
        raise InvalidMission(f"capabilities is neither empty nor the list of {RUNTIME} alone")
    if role not in _WITH_RUNTIME:
        fit = " and ".join(sorted(_WITH_RUNTIME))
        raise InvalidMission(f"capabilities: {RUNTIME} is for {fit}, not for a {role}")
    return (RUNTIME,)


def _callback(reports: bool) -> dict[str, str | None]:
    if reports:
        return {"tool": "send_to_parent", "onFailure": "leave the result as your final answer"}
    return {"tool": None, "report": "your final answer is the report"}
