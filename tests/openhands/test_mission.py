"""Missions: every rule, before git and the agent server are asked, and for hostile input too."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hostile import check_line, nested
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_bus.errors import InvalidMission
from agent_bus.openhands.gateway.mission import (
    BEGINNING,
    CHILD_ROLES,
    Checkout,
    bind,
    branch,
    parse,
    repository,
)
from agent_bus.openhands.gateway.wire import compact

HEAD = "0123456789abcdef0123456789abcdef01234567"
MAIN = UUID("11111111-1111-4111-8111-111111111111")
CHILD = UUID("ac0e4948-30e3-593d-8169-c06a02eee9f4")
Change = Callable[[dict[str, Any]], object]


def content(**changed: Any) -> dict[str, Any]:
    return {
        "immediateTask": "Your task now: mend the parser",
        "links": {"issue": "https://github.com/acme/tool/issues/604", "main": "conversation 7"},
        "checkout": {"repository": "acme/tool.js", "branch": "fix/604", "headSha": HEAD},
        "allowedMutations": ["src/parser.py"],
        "prohibitions": ["no new dependency"],
        "skills": ["tests-first"],
        "evidence": ["the tests pass"],
    } | changed


def with_checkout(**changed: Any) -> dict[str, Any]:
    made = content()
    made["checkout"] |= changed
    return made


def refusal(
    mission: object,
    *,
    task: object = "writer-604",
    role: object = "writer",
    capabilities: object = None,
) -> str:
    with pytest.raises(InvalidMission) as caught:
        parse(task, role, mission, capabilities)
    check_line(str(caught.value))
    return str(caught.value)


def test_a_right_mission_is_taken_as_it_is() -> None:
    found = parse("writer-604", "writer", content(), [])

    assert found.task_key == "writer-604"
    assert found.role == "writer"
    assert found.checkout == Checkout("acme/tool.js", "fix/604", HEAD)
    assert found.content == content()
    assert found.capabilities == ()
    assert found.skills == ("tests-first",)


def test_a_mission_may_hold_more_than_it_must() -> None:
    extra = {"budget": {"hours": 2.5, "cheap": True, "why": None}, "names": ["ñandú", "🪶"]}

    assert parse("t", "writer", content(**extra)).content == content(**extra)


def test_what_the_caller_changes_later_does_not_change_the_mission() -> None:
    given_ = content()
    found = parse("t", "writer", given_)
    before = found.sha256

    given_["evidence"].append("more")
    given_["checkout"]["branch"] = "other"

    assert found.content == content()
    assert found.sha256 == before


@pytest.mark.parametrize("name", sorted(content()))
def test_each_key_is_required(name: str) -> None:
    mission = content()
    del mission[name]

    assert f"mission.{name} is missing" in refusal(mission)


@pytest.mark.parametrize(
    "name",
    [
        *("owningMainId", "childId", "taskKey", "role", "callback", "capabilities"),
        "runtimeGrants",
    ],
)
@pytest.mark.parametrize("value", [None, "x", {}])
def test_what_the_gateway_sets_is_reserved(name: str, value: object) -> None:
    assert f"mission.{name}" in refusal(content(**{name: value}))


@pytest.mark.parametrize(
    "task",
    [
        *("", "mend it", "your task now: x", " Your task now: x", "Your task now", BEGINNING),
        *(f"{BEGINNING} \n\t", f"{BEGINNING}\u200b\u202e", "Your task now： x", None, 7, ["x"]),
    ],
)
def test_the_task_begins_in_one_way_and_says_something(task: object) -> None:
    assert "mission.immediateTask" in refusal(content(immediateTask=task))


@pytest.mark.parametrize(
    "mission", [None, "text", b"{}", [], [["immediateTask", "x"]], 7, True, {1, 2}, {}]
)
def test_a_mission_is_an_object(mission: object) -> None:
    assert "mission" in refusal(mission)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "acme/tool",
        [],
        {"repository": "acme/tool", "branch": "fix"},
        {"repository": "acme/tool", "branch": "fix", "headSha": HEAD, "remote": "origin"},
        {"repository": "acme/tool", "branch": "fix", "headsha": HEAD},
    ],
)
def test_a_checkout_has_exactly_three_keys(value: object) -> None:
    assert "mission.checkout is no object with exactly" in refusal(content(checkout=value))


@pytest.mark.parametrize(
    "head",
    [HEAD.upper(), HEAD[:39], HEAD + "0", HEAD + "\n", "g" * 40, "HEAD", "", None, 7, "０" * 40],
)
def test_a_head_is_forty_lower_case_hex_digits(head: object) -> None:
    assert "mission.checkout.headSha" in refusal(with_checkout(headSha=head))


@pytest.mark.parametrize("name", ["a/b", "acme/tool.js", "A-1/x_y", f"{'a' * 100}/{'b' * 100}"])
def test_names_of_repositories(name: str) -> None:
    assert repository(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "a", "../x", "a/b/c", "a/", "/b", "/", "a/..", "a/.", "./a", "a/b..c", "a//b"),
        *("a/b.git", "a/b.GIT", "a/b.git\n", "a/b\n", "\na/b", "a/b.", "a./b", "-x/-y", "a/-y"),
        *(".a/b", "a/.git", "_a/b", "a b/c", "a\\b/c", "a/b\0", "a/~b", "a/%2e%2e", "a:b/c"),
        *("ñandú/①", "аcme/tool", "ａ/b", f"{'a' * 101}/b", f"a/{'b' * 101}", "a/" * 1000),
        *(None, 7, ["a", "b"]),
    ],
)
def test_a_repository_that_no_path_should_be_made_of_is_refused(name: object) -> None:
    assert "mission.checkout.repository" in refusal(with_checkout(repository=name))


@pytest.mark.parametrize(
    "name",
    ["main", "fix/604", "a.b-c_d", "x@y", "feature/refs/x", "a/-b", "h" * 200, "head", "{x}"],
)
def test_names_of_branches(name: str) -> None:
    assert branch(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("-x", "-b", "@{-1}", "HEAD", "a..b", "a b", "x.lock", "../../etc", "a/../b", "/abs"),
        *("x~1", "a//b", "x/", ".hid", "a\nb", "a\n", "", "a\\b", "@", "refs/heads/x", "ñ"),
        *("x.lock/y", "a/.hid", "a.", "a^", "a:b", "a?", "a*", "a[b", "a@{b", "a\x7fb", "a\0"),
        *("h" * 201, "h" * 300, HEAD, "ａ", "\u202ea", None, 7, ["main"]),
    ],
)
def test_a_branch_that_git_could_take_for_something_else_is_refused(name: object) -> None:
    assert "mission.checkout.branch" in refusal(with_checkout(branch=name))


@settings(max_examples=60)
@given(st.text("ab./@{}-~^:?*[\\ \n#!+HEADreflock", min_size=1, max_size=12))
@example("a/-b")
@example("a.lock.b")
@example("{-1}")
def test_git_takes_every_branch_that_is_taken(name: str) -> None:
    try:
        branch(name)
    except InvalidMission:
        return
    done = subprocess.run(
        ["git", "check-ref-format", "--branch", name], capture_output=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, f"{name}\n".encode())


@pytest.mark.parametrize("role", ["spec", "planner", "plan-author", "writer", "repair"])
def test_a_role_that_changes_things_says_what(role: str) -> None:
    found = parse("t", role, content())

    assert found.role == CHILD_ROLES[role]
    assert "allowedMutations is empty" in refusal(content(allowedMutations=[]), role=role)


@pytest.mark.parametrize("role", ["reviewer", "qa", "waiter"])
def test_a_role_that_only_looks_changes_nothing(role: str) -> None:
    skills = ["evex-delivery-waiter", "x"]

    assert parse("t", role, content(allowedMutations=[], skills=skills)).role == role
    assert "allowedMutations is not empty" in refusal(content(skills=skills), role=role)


def test_a_waiter_has_the_skill_of_waiting() -> None:
    assert "evex-delivery-waiter" in refusal(content(allowedMutations=[]), role="waiter")


@pytest.mark.parametrize(
    "role", ["", "main", "deputy", "Writer", "writer ", "writer\n", "ｗriter", None, 6, ["writer"]]
)
def test_no_other_role_can_be_created(role: object) -> None:
    assert "role" in refusal(content(), role=role)


@pytest.mark.parametrize("role", ["qa", "repair"])
def test_a_runtime_is_for_those_who_run_things(role: str) -> None:
    mission = content(allowedMutations=["src"] if role == "repair" else [])

    found = parse("t", role, mission, ["runtime_environment"])

    assert found.capabilities == ("runtime_environment",)
    assert parse("t", role, mission).sha256 != found.sha256


@pytest.mark.parametrize("role", ["spec", "planner", "writer"])
def test_nobody_else_gets_a_runtime(role: str) -> None:
    assert "capabilities" in refusal(content(), role=role, capabilities=["runtime_environment"])


@pytest.mark.parametrize(
    "value",
    [
        ["model_pressure"],
        ["runtime_environment", "runtime_environment"],
        ["runtime_environment", "model_pressure"],
        [None],
        [["runtime_environment"]],
        [nested(10_000)],
        "runtime_environment",
        {"runtime_environment": True},
        ("runtime_environment",),
        0,
        "",
        {},
    ],
)
def test_there_is_one_capability_at_most_and_only_that_one(value: object) -> None:
    assert "capabilities" in refusal(content(), role="repair", capabilities=value)


@pytest.mark.parametrize(
    "value",
    ["", "-x", "a b", "a\n", "x" * 129, None, 7, ["t"], nested(10_000), 10**5000],
    ids=range(10),
)
def test_a_task_key_is_checked_first(value: object) -> None:
    refusal(content(), task=value)


@pytest.mark.parametrize("name", ["allowedMutations", "prohibitions", "skills", "evidence"])
@pytest.mark.parametrize(
    "value", [None, "text", {}, [""], [" \n"], ["\u200b"], [7], [None], ["a", ["b"]], ["x"] * 101]
)
def test_lists_hold_texts_that_say_something(name: str, value: object) -> None:
    assert f"mission.{name}" in refusal(content(**{name: value}))


@pytest.mark.parametrize("skill", ["a\nb", "a\x00", "a\u2028b", "x" * 201])
def test_a_skill_is_one_line(skill: str) -> None:
    assert "mission.skills[1] is not one line" in refusal(content(skills=["x", skill]))


@pytest.mark.parametrize("count", [0, 1, 20])
def test_links_may_be_few_or_many(count: int) -> None:
    links = {f"link {index}": f"https://example.org/{index}" for index in range(count)}

    assert parse("t", "writer", content(links=links)).content["links"] == links


@pytest.mark.parametrize(
    "links",
    [
        None,
        [],
        "https://example.org",
        {str(index): "x" for index in range(21)},
        {"": "x"},
        {" ": "x"},
        {"a\nb": "x"},
        {"k" * 201: "x"},
        {"a": ""},
        {"a": None},
        {"a": {"url": "https://example.org"}},
        {"a": "two\nlines"},
        {"a": "x" * 2049},
        {"a": "file:///etc/passwd"},
        {"a": "https://user:secret@example.org/"},
        {"a": "https://exam\u202eple.org/"},
        {"a": "see javascript://example.org/%0aalert(1)"},
    ],
)
def test_links_lead_somewhere_or_name_something(links: object) -> None:
    said = refusal(content(links=links))

    assert "mission.links" in said
    assert "secret" not in said


def filled(length: int) -> dict[str, Any]:
    """A mission whose compact form has so many characters."""
    missing = length - len(compact(content(note="")))
    return content(note="x" * missing)


def test_a_mission_has_twelve_thousand_characters_and_not_one_more() -> None:
    assert len(compact(parse("t", "writer", filled(12_000)).content)) == 12_000
    assert "mission is longer than 12000" in refusal(filled(12_001))


def test_characters_outside_ascii_count_as_they_are_written() -> None:
    assert parse("t", "writer", content(note="é" * 1000))
    assert "longer than 12000" in refusal(content(note="é" * 2000))


def endless() -> dict[str, Any]:
    made: list[Any] = []
    made += [made, made]
    return content(note=made)


@pytest.mark.parametrize(
    "mission",
    [
        content(note=float("nan")),
        content(note=[{"deep": float("inf")}]),
        content(note=-float("inf")),
        content(note=10**400),
        content(note=10**100_000),
        content(note="\ud800"),
        content(**{"\udfff": 1}),
        content(note={"x": {"\ud83d": 1}}),
        content(note={1: "x"}),
        content(note={None: "x"}),
        content(note={("a", "b"): "x"}),
        content() | {7: "x"},
        content(note=b"bytes"),
        content(note={"a", "b"}),
        content(note=("a",)),
        content(note=object()),
        content(note=nested(10_000)),
        content(note="x" * 10_000_000),
        content(note=[None] * 1_000_000),
        content(**{"k" * 1_000_000: 1}),
        endless(),
    ],
    ids=range(21),
)
def test_what_is_no_json_or_too_much_of_it_is_refused(mission: object) -> None:
    assert "mission" in refusal(mission)


def test_objects_ten_thousand_deep_are_refused_without_a_crash() -> None:
    made: dict[str, Any] = {}
    for _ in range(10_000):
        made = {"a": made}

    assert "nested more than 32" in refusal(content(note=made))


def test_thirty_two_levels_are_taken_and_no_more() -> None:
    assert parse("t", "writer", content(note=nested(31)))
    assert "mission.note is nested more than 32" in refusal(content(note=nested(32)))


def test_equal_missions_have_one_digest_whatever_the_order_of_their_keys() -> None:
    mission = content(note={"a": 1, "b": [{"c": 2, "d": 3}]})
    turned = json.loads(json.dumps(mission))
    turned = {key: turned[key] for key in reversed(list(turned))}
    turned["note"] = {"b": [{"d": 3, "c": 2}], "a": 1}

    digest = parse("t", "writer", mission).sha256

    assert parse("t", "writer", turned, []).sha256 == digest
    assert len(digest) == 64


@pytest.mark.parametrize(
    ("task", "role", "change"),
    [
        ("u", "planner", lambda _: None),
        ("t", "writer", lambda _: None),
        ("t", "planner", lambda mission: mission["evidence"].append("x")),
        ("t", "planner", lambda mission: mission["evidence"].reverse()),
        ("t", "planner", lambda mission: mission["checkout"].update(branch="other")),
        ("t", "planner", lambda mission: mission.update(note=None)),
    ],
)
def test_another_mission_has_another_digest(task: str, role: str, change: Change) -> None:
    mission = content(evidence=["a", "b"])
    first = parse("t", "planner", mission).sha256
    changed = copy.deepcopy(mission)
    change(changed)

    assert parse(task, role, changed).sha256 != first


def test_two_names_of_one_role_are_one_mission() -> None:
    assert parse("t", "plan-author", content()).sha256 == parse("t", "planner", content()).sha256


def bound(reports: bool) -> tuple[str, dict[str, Any]]:
    mission = parse("writer-604", "writer", content(note="zwölf"))
    text = bind(mission, owner=MAIN, child=CHILD, reports=reports)
    head, _, rest = text.partition("\n")
    assert head == "MISSION"
    return rest, json.loads(rest)


def test_a_bound_mission_says_whose_it_is_and_how_to_report() -> None:
    text, value = bound(reports=True)

    assert value == content(note="zwölf") | {
        "owningMainId": str(MAIN),
        "childId": str(CHILD),
        "taskKey": "writer-604",
        "role": "writer",
        "capabilities": [],
        "callback": {
            "tool": "send_to_parent",
            "onFailure": "leave the result as your final answer",
        },
    }
    assert text == compact(value)
    assert text.isascii()
    assert "evx1_" not in text


def test_a_child_without_the_tool_reports_with_its_final_answer() -> None:
    _, value = bound(reports=False)

    assert value["callback"]["tool"] is None
    assert "final answer" in value["callback"]["report"]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.text(st.characters(categories=["Cs", "Cf", "Zs", "Cc"]), max_size=5)
    | st.binary(max_size=5)
    | st.just(nested(40))
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [*content(), "repository", "branch", "headSha", "role", "callback", "note", "issue"]
)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, ANYTHING), max_size=3)


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_nothing_at_all_raises_another_error(
    task: object, role: object, mission: object, capabilities: object
) -> None:
    refusal(mission, task=task, role=role, capabilities=capabilities)


@given(CHANGES, st.sampled_from(list(CHILD_ROLES)) | ANYTHING, ANYTHING)
def test_a_mission_is_taken_or_refused_whatever_is_changed_in_it(
    changes: list[tuple[bool, str, Any]], role: object, capabilities: object
) -> None:
    mission = content()
    for inner, key, value in changes:
        target = mission["checkout"] if inner and isinstance(mission["checkout"], dict) else mission
        target[key] = value
    try:
        found = parse("t", role, mission, capabilities)
    except InvalidMission as error:
        check_line(str(error))
        return
    assert compact(found.content) == compact(mission)
    assert len(bind(found, owner=MAIN, child=CHILD, reports=True)) < 13_000
    assert parse("t", found.role, found.content).content == mission
