"""How the command line refuses: one line, an exit code of its own, and nothing written."""

from __future__ import annotations

import json

import pytest
from program import Cli, Program, Result

ID = "01kbb000000000000000000001"

USAGE = [
    [],
    ["--no-such"],
    ["--json", "inbox"],
    ["sned"],
    ["sned", "--help"],
    ["\x1b[2J"],
    ["keys"],
    ["keys", "lst"],
    ["keys", "rotate"],
    ["keys", "revoke", "bob"],
    ["agents", "retire"],
    ["send"],
    ["send", "--to"],
    ["send", "--to", "bob"],
    ["send", "--to", "", "--body", "x"],
    ["send", "--to", "bob,", "--body", "x"],
    ["send", "--to", "b\u043eb", "--body", "x"],
    ["send", "--to", "../bob", "--body", "x"],
    ["send", "--to", "bob", "hello"],
    ["send", "--to", "bob", "-", "-"],
    ["send", "--to", "bob", "--body", "x", "-"],
    ["send", "--to", "bob", "--body", "x", "--body-file", "f"],
    ["send", "--to", "bob", "--body", "x", "--kind", "No Kind"],
    ["send", "--to", "bob", "--body", "x", "--priority", "asap"],
    ["send", "--to", "bob", "--body", "x", "--expires-in", "5"],
    ["send", "--to", "bob", "--body", "x", "--thread", "../x"],
    ["send", "--to", "bob", "--body", "x", "--idempotency-key", ""],
    ["send", "--to", "bob", "--body", "x", "--no-such"],
    ["inbox", "--limit", "0"],
    ["inbox", "--limit", "many"],
    ["inbox", "--page", "-1"],
    ["inbox", "--from", "No Name"],
    ["inbox", "--kind", "No"],
    ["inbox", "extra"],
    ["read"],
    ["read", "abc"],
    ["archive"],
    ["archive", "short"],
    ["log", "--since", "yesterday"],
    ["log", "--thread", "x"],
    ["log", "--agent", "No Name"],
    ["thread"],
    ["request-approval"],
    ["decide", ID],
    ["decide", "short", "approve"],
    ["wait", "--timeout", "soon"],
    ["wait", "--timeout", "-1"],
    ["wait", "--thread", "x"],
    ["watch", "--from", "No Name"],
    ["status", "abc"],
    ["verify", "abc"],
    ["prune"],
    ["prune", "--read", "x"],
    ["export"],
    ["keygen"],
    ["keygen", "openhands"],
    ["keygen", "No Name"],
    ["init", "--agents", "No Name"],
    ["connect"],
    ["connect", "emacs"],
    ["prune", "--archived", "1w"],
    ["openhands"],
    ["openhands", "creat"],
    ["openhands", "create", "t"],
    ["openhands", "create", "t", "--role", "qa", "--mission", "-", "--wait", "long"],
    ["openhands", "children", "--state", "asleep"],
    ["openhands", "resume", "t", "--context", "-", "--note", "x"],
    ["openhands", "mirror", "acme/tool", "--protocol", "ftp"],
    ["openhands", "mint", "--main", "alice"],
    ["openhands", "mint", "--main", "No Name", "--out", "t"],
    ["openhands", "mint", "--main", "alice", "--out", "-"],
    ["openhands", "mint", "--main", "alice", "--out", "t", "--action", "complete"],
    ["openhands", "keys"],
    ["openhands", "keys", "revoke", "short"],
    ["openhands", "serve", "--port", "http"],
    ["openhands", "serve", "--host", "0.0.0.0"],
]


BATCH = """
import contextlib, io, json, sys
from agent_bus.cli import app
ended = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = app.run(words)
    ended.append([code, out.getvalue(), err.getvalue()])
json.dump(ended, sys.stdout)
"""


def test_usage_errors_end_with_64_in_one_line(cli: Cli, start: Program) -> None:
    """All in one process, since there are so many; it starts like any other."""
    before = cli.files()
    process = start(BATCH, **cli.bus.environment, AGENT_MSG_AS="alice")
    out, err = process.communicate(json.dumps(USAGE), timeout=60)
    assert err == ""
    ended = json.loads(out)
    for words, (code, printed, said) in zip(USAGE, ended, strict=True):
        Result(code, printed.encode(), said).refused(64)
        assert printed == "", words
        assert "\x1b" not in said, words
    assert cli.files() == before


def test_a_usage_error_of_a_real_process_ends_with_64(cli: Cli) -> None:
    for words in ([], ["sned"], ["send"], ["mcp", "--as", "bob"], ["keys", "rotate"]):
        assert cli(*words, me="alice").refused(64).out == ""


OTHER = [
    (["send", "--to", "bob", "--body", "x", "--subject", "a\nb"], 65, "subject"),
    (["send", "--to", "bob", "--body", "x", "--subject", "s" * 201], 65, "200"),
    (["send", "--to", "bob", "--body", "x", "--kind", "wake"], 65, "own verbs"),
    (["send", "--to", "bob", "--body", "", "--subject", ""], 65, "empty"),
    (["send", "--to", "bbo", "--body", "x"], 67, "did you mean bob?"),
    (["read", ID], 66, "no message"),
    (["archive", ID], 66, "no message"),
    (["thread", ID], 66, "no message"),
    (["status", ID], 66, "no message"),
    (["verify", ID], 66, "no message"),
    (["read", "zzzz"], 66, "no message"),
    (["decide", ID, "approve"], 66, "no approval request"),
    (["pending-approval"], 77, "no admin"),
    (["keygen", "bob"], 76, "keys rotate"),
    (["keys", "list", "nobody"], 78, "no key"),
    (["agents", "retire", "user"], 77, "no admin"),
]


@pytest.mark.parametrize(("words", "code", "said"), OTHER)
def test_every_refusal_has_its_code(cli: Cli, words: list[str], code: int, said: str) -> None:
    before = cli.files()
    assert cli(*words, me="alice").refused(code, said).out == ""
    assert {file for file in cli.files() - before if not file.endswith(".lock")} == set()


IDENTITY = [
    ["send", "--to", "bob", "--body", "x"],
    ["inbox"],
    ["read", ID],
    ["archive", ID],
    ["wait"],
    ["watch"],
    ["request-approval", "May I?"],
    ["pending-approval"],
    ["decide", ID, "approve"],
    ["connect", "claude"],
]


@pytest.mark.parametrize("words", IDENTITY, ids=lambda words: words[0])
def test_nobody_is_guessed(cli: Cli, words: list[str]) -> None:
    """Also in a folder that is called like an agent."""
    (cli.folder / "bob").mkdir()
    cli.folder = cli.folder / "bob"
    names = [None, "${AGENT_MSG_AS}"]
    if words[0] == "send":
        names += ["", " \t", "Bob", "bob\u200b", "../bob", "carol"]
    for name in names:
        cli(*words, me=name, USER="bob", LOGNAME="bob").refused(78)


@pytest.mark.parametrize("words", IDENTITY, ids=lambda words: words[0])
def test_as_against_the_environment_is_refused(cli: Cli, words: list[str]) -> None:
    cli(*words, "--as", "bob", me="alice").refused(77, "--as bob", "alice")


def test_as_against_the_environment_is_refused_where_no_identity_is_needed(cli: Cli) -> None:
    for words in (["log"], ["status"], ["verify"], ["whoami"], ["keys", "list"], ["init"]):
        cli(*words, "--as", "bob", me="alice").refused(77)


ANONYMOUS = [
    ["log"], ["verify"], ["doctor"], ["status"], ["whoami"], ["keys", "list"], ["agents", "list"],
    ["prune", "--read", "1d"], ["init"], ["openhands", "children"],
]  # fmt: skip


@pytest.mark.parametrize("words", ANONYMOUS, ids=lambda words: words[0])
def test_verbs_that_need_no_identity(cli: Cli, words: list[str]) -> None:
    assert cli(*words).code == 0
    assert cli(*words, "--json").code == 0


NO_BUS = [*IDENTITY, *(words for words in ANONYMOUS if words[0] not in ("init", "keys", "whoami"))]


@pytest.mark.parametrize("words", NO_BUS, ids=lambda words: words[0])
def test_no_verb_makes_a_bus(cli: Cli, words: list[str]) -> None:
    missing = cli.folder / "no-bus"
    cli(*words, me="alice", AGENT_MSG_BUS=str(missing)).refused(69, str(missing), "AGENT_MSG_BUS")
    assert not missing.exists()


def test_allow_create_makes_a_bus(cli: Cli) -> None:
    missing = cli.folder / "new"
    made = cli("log", AGENT_MSG_BUS=str(missing), AGENT_BUS_ALLOW_CREATE="1")
    assert made.code == 0
    assert (missing / "messages").is_dir()


@pytest.mark.parametrize(
    "variables",
    [
        {"AGENT_MSG_BUS": "relative"},
        {"ASTRA_AGENT_BUS": "/another"},
        {"AGENT_MSG_KEYS": "${KEYS}"},
        {"AGENT_BUS_POLL": "yes"},
        {"AGENT_BUS_ADMIN_NAMES": "No Name"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_a_variable_that_cannot_be_used_is_named(cli: Cli, variables: dict[str, str]) -> None:
    cli("log", **variables).refused(78, *variables)


def test_loose_permissions_are_refused_with_what_mends_them(cli: Cli) -> None:
    file = cli.bus.settings.keys / "alice.json"
    file.chmod(0o644)
    cli("send", "--to", "bob", "--body", "x", me="alice").refused(78, f"chmod 600 {file}")


VERBS = [
    "init", "keygen", "keys", "agents", "send", "inbox", "read", "archive", "log", "thread",
    "pending-approval", "request-approval", "decide", "verify", "wait", "watch", "status",
    "whoami", "doctor", "prune", "export", "mcp", "connect", "demo", "openhands",
]  # fmt: skip


def test_help_lists_every_verb_and_each_has_its_own(cli: Cli) -> None:
    listed = cli("--help")
    assert listed.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in listed.out
    assert cli("-h").out == listed.out
    for words in (["send"], ["keys", "rotate"], ["mcp"], ["decide"]):
        done = cli(*words, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("Usage: agent-bus " + " ".join(words))


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("agent-bus ")
