"""The documentation says what the code does."""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agent_bus.errors
from agent_bus import settings
from agent_bus.clock import from_text
from agent_bus.envelope import MESSAGE_TYPE, judge, pae
from agent_bus.keyring import Keyring, parse_keyring
from agent_bus.keys import KeyIndex
from agent_bus.names import AgentName, MessageId, sent_file
from agent_bus.openhands.gateway import settings as gateway_settings
from agent_bus.payload import parse_message

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
PACKAGE = ROOT / "agent_bus"

READ_ELSEWHERE = {"NO_COLOR", "XDG_DATA_HOME", "HOME", "PATH"}
"""Variables that the table need not have: libraries and the shell read them."""
OTHER_CODES = {"0", "130", "141"}
"""Exit codes that belong to no error class."""


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def _anchor(title: str) -> str:
    """As GitHub makes them."""
    plain = re.sub(r"[`*\[\]]|\(.*?\)", "", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


# -- links


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "`", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert file.is_relative_to(ROOT), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(title) for title in titles}, target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_named_file_of_the_project_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\b((?:tests|scripts|docs)/[\w./-]*\w)(?![\w*])", text):
        assert (ROOT / name).exists(), name


# -- the worked example


def _example(name: str) -> str:
    found = re.search(
        rf"<!-- example: {name} -->\n```\w*\n(.*?)```", _text("docs/format.md"), re.DOTALL
    )
    assert found, name
    return found[1]


def _ring() -> Keyring:
    found = re.search(r'^\{"agent":"backend-orch","keys".*$', _text("docs/format.md"), re.MULTILINE)
    assert found
    return parse_keyring(found[0].encode())


def test_the_example_is_what_its_key_signs() -> None:
    """Computed here from the text of the page alone, and judged by the product."""
    payload, file = _example("payload").encode(), _example("file").encode()
    key = _ring().keys[0]
    kind = b"application/vnd.agent-bus.message+json"
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)

    mac = hmac.new(key.secret, signed, hashlib.sha256).hexdigest()

    assert key.secret == bytes(range(32))
    assert signed == pae(MESSAGE_TYPE, payload)
    assert signed.startswith(_example("pae").rstrip("\n").encode())
    assert file == f"agent-bus/1 {key.kid} {mac}\n".encode() + payload
    assert f"{len(payload)} bytes" in _text("docs/format.md")


def test_the_example_is_ok_to_a_reader() -> None:
    message = parse_message(_example("payload").encode())
    keys = KeyIndex({key.kid: (AgentName("backend-orch"), key) for key in _ring().keys})

    judged = judge(
        _example("file").encode(),
        keys=keys,
        bus=message.bus,
        box=AgentName("conductor"),
        ident=MessageId("01m8p570g0h6nwvvr14d2pf2db"),
        now=from_text(message.sent_at),
    )

    assert judged.outcome == "ok"


def test_the_examples_of_sent_and_pruned_are_right() -> None:
    payload = _example("payload").encode()
    name = sent_file(AgentName("conductor"), "port-question")
    assert name == hashlib.sha256(b"conductor\0port-question").hexdigest()
    assert _example("sent") == f"sent/backend-orch/{name}\n"
    value = json.loads(payload)
    left_out = ("id", "sent_at", "expires_at", "recipients")
    same = {k: v for k, v in value.items() if k not in left_out}
    content = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
    assert content == parse_message(payload).content_hash()
    assert _example("pruned") == f"{value['id']} backend-orch/{name} {content}\n"


# -- tables


def _first_cells(section: str) -> list[str]:
    rows = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    return [row.strip() for row in rows if row.strip() and not set(row) <= set(" -")]


def test_the_variables_are_those_that_are_read() -> None:
    source = Path(settings.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:AGENT|ASTRA)_[A-Z_]+)"', source))
    table = _first_cells(_section(_text("docs/operations.md"), "Variables"))

    listed = {name for cell in table for name in re.findall(r"`([A-Z_]+)`", cell)}

    assert listed == read


def test_the_variables_of_the_gateway_are_those_that_are_read() -> None:
    source = Path(gateway_settings.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:AGENT_BUS|OPENHANDS|EVEX)_[A-Z_]*[A-Z])"', source))
    table = _first_cells(_section(_text("docs/openhands-gateway.md"), "Variables"))

    assert {name.strip("` ") for name in table} - {"variable"} == read


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_page_names_another_variable(page: Path) -> None:
    """But for one of the first design that requirements.md answers, and one of the scripts."""
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("settings.py"))
    scripts = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "scripts").iterdir() if file.is_file()
    )
    for name in re.findall(r"\b(?:AGENT|ASTRA)_[A-Z_]+\b", page.read_text(encoding="utf-8")):
        known = name in source or name in scripts
        assert known or (name, page.name) == ("AGENT_BUS_SCRIPT", "requirements.md"), name


def test_every_exit_code_and_every_name_of_an_error_is_in_the_table() -> None:
    section = _section(_text("docs/operations.md"), "Exit codes")
    rows = dict(re.findall(r"^\| (\d+) \|([^|]*)\|", section, re.MULTILINE))
    classes = [
        cls
        for cls in vars(agent_bus.errors).values()
        if isinstance(cls, type) and issubclass(cls, agent_bus.errors.AgentBusError)
    ]

    for cls in classes:
        assert f"`{cls.code}`" in rows[str(cls.exit_code)], cls.__name__

    assert set(rows) == {str(cls.exit_code) for cls in classes} | OTHER_CODES
    names = {name for cell in rows.values() for name in re.findall(r"`([a-z-]+)`", cell)}
    assert names == {cls.code for cls in classes}


# -- modules


def _modules() -> list[str]:
    files = [file.name for file in PACKAGE.glob("*.py")]
    packages = [file.parent.name + "/" for file in PACKAGE.glob("*/__init__.py")]
    return sorted(files + packages)


def _table_of_layers() -> list[str]:
    section = _section(_text("AGENTS.md"), "Layer, file, responsibility")
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w/.]+)`", row)]


def test_the_table_of_layers_has_every_module_once() -> None:
    assert sorted(_table_of_layers()) == _modules()


def test_a_module_imports_only_those_above_it_in_the_table() -> None:
    order = [name.removesuffix(".py").rstrip("/") for name in _table_of_layers()]
    core = order[: order.index("doctor") + 1]
    for place, name in enumerate(core):
        package = PACKAGE / name
        for file in package.rglob("*.py") if package.is_dir() else [PACKAGE / f"{name}.py"]:
            used = _imports(file)
            assert used - {name} <= set(core[:place]), f"{file} imports {used - set(core[:place])}"


def _imports(file: Path) -> set[str]:
    """The modules of the package that a file imports, by their first name."""
    used = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "agent_bus":
            path = (node.module or "").split(".")[1:2]
            used.update(path or [alias.name for alias in node.names])
    return used


# -- verbs and tools


@pytest.fixture(scope="module")
def help_text() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "agent_bus", "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    return done.stdout


def _verbs(help_text: str) -> set[str]:
    return set(re.findall(r"^  ([a-z][a-z-]+)  ", help_text.partition("Verbs")[2], re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_verb_that_a_page_names_exists(page: Path, help_text: str) -> None:
    verbs = _verbs(help_text)
    assert "send" in verbs
    for command in _commands(page.read_text(encoding="utf-8")):
        for verb in re.findall(r"(?:^|[\s\"(])(?:agent-bus|agent-msg) ([a-z][a-z-]*)", command):
            assert verb in verbs, command


def _commands(text: str) -> list[str]:
    """The lines in fences, and what stands between backticks."""
    fences = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [*"".join(fences).splitlines(), *(" ".join(span.split()) for span in spans)]


def test_the_readme_lists_every_verb(help_text: str) -> None:
    cells = _first_cells(_section(_text("README.md"), "Verbs"))
    listed = {cell.strip("`") for cell in cells if cell.startswith("`")}
    assert listed == _verbs(help_text)


def test_the_readme_lists_every_tool() -> None:
    from agent_bus.server.tools import TOOLS

    cells = _first_cells(_section(_text("README.md"), "Tools"))
    listed = {name for cell in cells for name in re.findall(r"`(bus_[a-z_]+)`", cell)}
    assert listed == {tool.name for tool in TOOLS}


# -- the promise


@pytest.mark.parametrize("number", range(1, 10))
def test_every_promise_has_its_tests(number: int) -> None:
    text = _text("docs/promise.md")
    assert re.search(rf"^\| P{number} \|", text, re.MULTILINE)
    named = re.search(rf"^\*\*P{number},.*?^Held by `([^`]+)`", text, re.MULTILINE | re.DOTALL)
    assert named
    assert list(ROOT.glob(named[1])), named[1]


# -- style


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_page_names_a_path_of_somebodys_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("/home/me/", "")
    # Where the images of OpenHands have their workspace.
    text = text.replace("/home/openhands/", "")
    assert not re.search(r"/(?:home|Users|root|work|tmp)/", text)
