"""`openhands create|children|show|cancel|resume|reconcile|mirror|serve`: with an agent server."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from agent_server import Desk
from program import COMMAND, GUARD, Cli, Lines

from agent_bus.names import AgentName

WORDS = "correct horse battery staple"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the gateway is for POSIX systems")


# -- create


def test_create_prints_the_child_and_tells_how_it_goes_on(desk: Desk) -> None:
    done = desk.create()
    child = desk.child("alice", "writer-604")
    assert (done.code, done.out) == (0, f"{child}\n"), done.err
    said = done.err.splitlines()
    assert said[0] == "agent-bus: child writer-604 starts"
    assert said[-1].endswith(f"is delivered: https://people.example/canvas/conversations/{child}")
    assert len(said) > 2
    first, second = desk.server.messages(child)
    assert first.startswith("PROVIDER_ADMISSION")
    assert second.startswith("MISSION\n{")
    assert (desk.workspace / "delivery" / f"child-{child}" / "README").is_file()


def test_the_same_mission_again_is_the_same_child(desk: Desk) -> None:
    first = desk.create(words=["--json"]).record
    assert first == {
        "child": str(desk.child("alice", "writer-604")),
        "url": f"https://people.example/canvas/conversations/{first['child']}",
        "created": True,
        "state": "delivered",
        "problem": None,
    }
    assert desk.create(words=["--json"]).record == first | {"created": False}
    assert len(desk.server.messages(desk.child("alice", "writer-604"))) == 2
    desk.create(mission={"evidence": ["another"]}).ended(76, "another mission")


def test_what_has_not_begun_in_time_is_said_with_what_to_do(desk: Desk) -> None:
    desk.server.obeys = False
    done = desk.create(words=["--wait", "0", "--json"])
    assert done.code == 75
    assert done.record["state"] == "admitting"
    assert "call this again" in done.err
    desk.server.finish(desk.child("alice", "writer-604"), "PROVIDER_READY")
    assert desk.create(words=["--json"]).record["state"] == "delivered"


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (b"", 64, "no JSON"),
        (b"[]", 64, "no JSON object"),
        (b'{"a":1,"a":2}', 64, "twice"),
        (b"{}", 64, "immediateTask"),
        (b"\xff", 65, "UTF-8"),
        (b"[" * 100_000, 64, "no JSON"),
        (b" " * 300_000, 65, "limit"),
    ],
    ids=["empty", "list", "twice", "incomplete", "bytes", "deep", "large"],
)
def test_a_mission_that_is_none_is_refused(desk: Desk, given: bytes, code: int, said: str) -> None:
    words = ("create", "t", "--role", "writer", "--mission", "-")
    done = desk(*words, me="alice", stdin=given)
    assert (done.code, done.out) == (code, "")
    assert said in done.err.splitlines()[-1]
    assert desk.server.requests == []


def test_the_mission_comes_from_a_file_too(desk: Desk) -> None:
    file = desk.cli.folder / "mission.json"
    file.write_text(json.dumps(desk.mission()))
    done = desk("create", "t", "--role", "writer", "--mission", file, me="alice")
    assert done.code == 0, done.err
    missing = desk("create", "t", "--role", "writer", "--mission", "none.json", me="alice")
    missing.refused(74, "none.json")


def test_a_terminal_sees_one_line_that_goes_away(desk: Desk) -> None:
    """What is escaped for people is the text; the line itself is drawn anew."""
    mission = desk.cli.folder / "mission.json"
    mission.write_text(json.dumps(desk.mission()))
    main, terminal = pty.openpty()
    words = ["openhands", "create", "t", "--role", "writer", "--mission", str(mission)]
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=desk.cli.variables("alice", **desk.variables, TERM="xterm"),
        cwd=desk.cli.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    desk.cli.started.append(process)
    os.close(terminal)
    seen = b""
    try:
        while piece := os.read(main, 4096):
            seen += piece
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(main)
    out, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0, seen
    assert out.decode() == f"{desk.child('alice', 't')}\n"
    assert b"\x1b[" in seen
    assert b"is delivered" in seen


def test_create_needs_the_server_and_says_which_variable(desk: Desk) -> None:
    for name in ("OPENHANDS_URL", "OPENHANDS_API_KEY"):
        done = desk.create(**{name: None})
        assert (done.code, done.out) == (78, "")
        assert name in done.err


def test_a_server_that_is_away_leaves_a_child_to_go_on_with(desk: Desk) -> None:
    done = desk.create(words=["--wait", "0", "--json"], OPENHANDS_URL="http://127.0.0.1:9")
    assert done.code == 75
    assert done.record["state"] == "begun"
    assert "no agent server can be reached" in done.record["problem"]
    assert desk.create(words=["--json"]).record["state"] == "delivered"


STEERING = [["create", "t", "--role", "qa", "--mission", "-"], ["cancel", "t"], ["resume", "t"]]


@pytest.mark.parametrize("words", STEERING, ids=lambda words: words[0])
def test_nobody_is_guessed(desk: Desk, words: list[str]) -> None:
    for me in (None, "openhands", "nobody"):
        assert desk(*words, me=me, stdin=b"{}").code == 78
    desk(*words, "--as", "bob", me="alice").refused(77, "--as bob")


def test_a_sealed_name_does_nothing_without_its_passphrase(desk: Desk) -> None:
    desk.cli.bus.as_agent("alice").keys.seal(AgentName("alice"), WORDS, 2**14)
    done = desk.create()
    assert (done.code, done.out) == (77, ""), done.err
    assert desk.server.requests == []


# -- children, show


def test_children_lists_who_is_at_work_and_asks_nobody(desk: Desk) -> None:
    none = desk("children")
    assert (none.code, none.out, none.err) == (0, "", "")
    assert not (desk.cli.bus.path / "openhands").exists()
    desk.create("one")
    desk.create("two", me="bob")
    asked = len(desk.server.requests)
    # In a shell without the credential.
    nothing = dict.fromkeys(desk.variables)
    rows = [line.split("\t") for line in desk("children", **nothing).lines]
    assert [(row[1], row[2], row[3], row[6]) for row in rows] == [
        ("one", "writer", "delivered", "alice"),
        ("two", "writer", "delivered", "bob"),
    ]
    assert len(desk.server.requests) == asked
    record = desk("children", "--json", **nothing).records[0]
    assert record["child"] == str(desk.child("alice", "one"))
    assert (record["url"], record["last_end"]) == (None, None)


def test_those_that_have_ended_are_listed_if_asked_for(desk: Desk) -> None:
    desk.create("one")
    desk.create("two")
    desk("cancel", "two", me="alice")
    done = desk("children")
    assert [line.split("\t")[1] for line in done.lines] == ["one"]
    assert "1 more have ended: --all" in done.err
    assert len(desk("children", "--all").lines) == 2
    assert [r["task_key"] for r in desk("children", "--state", "cancelled", "--json").records] == [
        "two"
    ]
    desk("children", "--state", "asleep").refused(64, "delivered")


def test_show_tells_all_of_a_child_and_escapes_it(desk: Desk) -> None:
    desk.create("one")
    child = desk.child("alice", "one")
    done = desk("show", str(child)[:8])
    assert done.code == 0, done.err
    shown = dict(line.split(": ", 1) for line in done.lines)
    assert shown["child"] == str(child)
    assert shown["task"] == "Your task now: mend the parser\\x1b[2J"
    assert shown["branch"] == "alice/one"
    assert desk.head in shown["head"]
    assert shown["worktree"] == str(desk.workspace / "delivery" / f"child-{child}")
    assert shown["conversation"] == f"https://people.example/canvas/conversations/{child}"
    # Where it is does not change with where one looks from.
    elsewhere = {
        "OPENHANDS_URL": "http://127.0.0.1:9",
        "AGENT_BUS_OPENHANDS_WORKSPACE": str(desk.workspace / "other"),
    }
    other = dict(line.split(": ", 1) for line in desk("show", "one", **elsewhere).lines)
    assert other["worktree"] == shown["worktree"]
    assert other["conversation"] == f"{desk.server.url}/conversations/{child}"
    record = desk("show", "one", "--json").record
    assert record["mission"]["immediateTask"].endswith("\x1b[2J")
    assert record["branch"] == "alice/one"


def test_a_child_is_named_in_one_way_or_refused(desk: Desk) -> None:
    desk.create("one")
    desk.create("one", me="bob")
    desk("show", "none").refused(66, "--all")
    desk("show", "o").refused(66)
    desk("show", "one").refused(64, str(desk.child("alice", "one")), "bob")
    assert desk("show", str(desk.child("bob", "one")).upper()).code == 0


def test_a_record_that_cannot_be_read_hides_no_other(desk: Desk) -> None:
    desk.create("one")
    folder = desk.cli.bus.path / "openhands" / "gateway" / "children"
    (folder / f"{desk.child('bob', 'x')}.json").write_text("{")
    done = desk("children")
    assert done.code == 74
    assert len(done.lines) == 1
    assert str(desk.child("bob", "x")) in done.err


# -- cancel, resume


def test_an_owner_cancels_and_resumes(desk: Desk) -> None:
    desk.create("one")
    child = desk.child("alice", "one")
    done = desk("cancel", "one", "--json", me="alice")
    assert done.record["outcome"] == "cancelled", done.err
    assert desk.server.chats[str(child)].info["execution_status"] == "paused"
    assert desk("cancel", "one", me="alice").out == f"{child}\tone\treplayed\n"
    record = desk("resume", "one", "--note", "The API is up.", "--json", me="alice").record
    assert (record["outcome"], record["child"]) == ("resumed", str(child))
    assert "The API is up." in desk.server.messages(child)[-1]


def test_a_context_cannot_widen_what_a_child_may_do(desk: Desk) -> None:
    desk.create("one")
    desk("cancel", "one", me="alice")
    context = json.dumps({"facts": {"branch": "main"}}).encode()
    done = desk("resume", "one", "--context", "-", me="alice", stdin=context)
    assert done.code == 64
    assert "branch" in done.err
    both = desk("resume", "one", "--context", "-", "--note", "x", me="alice", stdin=context)
    both.refused(64, "--note")


def test_the_same_key_is_one_message(desk: Desk) -> None:
    desk.create("one")
    desk("cancel", "one", me="alice")
    words = ("resume", "one", "--key", "k1", "--json")
    assert desk(*words, me="alice").record["outcome"] == "resumed"
    assert desk(*words, me="alice").record["outcome"] == "replayed"
    said = desk.server.messages(desk.child("alice", "one"))
    assert sum("RESUME_MISSION" in text for text in said) == 1


def test_a_stranger_steers_nobody_and_an_admin_may(desk: Desk) -> None:
    desk.create("one")
    refused = desk("cancel", "one", me="bob")
    assert refused.code == 77
    assert "alice" in refused.err
    # A name on a command line proves nothing.
    assert desk("cancel", "one", "--as", "user").code == 77
    assert desk("cancel", "one", me="user").code == 0


def test_of_several_with_one_task_key_it_is_ones_own(desk: Desk) -> None:
    desk.create("one")
    desk.create("one", me="bob")
    done = desk("cancel", "one", "--json", me="bob")
    assert done.record["child"] == str(desk.child("bob", "one"))
    desk("cancel", "one", me="user").ended(64, "2 children")


# -- reconcile


def test_a_round_wakes_the_owner_once(desk: Desk) -> None:
    desk.create("one")
    child = desk.child("alice", "one")
    desk.server.finish(child, "All tests pass.")
    done = desk("reconcile", "--json")
    assert (done.code, done.record["ended"]) == (0, [str(child)]), done.err
    (wake,) = desk.cli.bus.as_agent("alice").inbox().messages
    assert wake.judged.message is not None
    assert wake.judged.message.kind == "wake"
    again = desk("reconcile")
    assert (again.code, again.out) == (0, "")
    assert desk("children").out == ""
    line = desk("show", "one").out
    assert f"end: finished at {wake.judged.message.sent_at[:4]}" in line
    assert wake.place.id in line


def test_a_round_says_what_went_wrong(desk: Desk) -> None:
    desk.create("one")
    desk.create("two")
    done = desk("reconcile", OPENHANDS_URL="http://127.0.0.1:9")
    assert done.code == 69
    assert done.err.count("no agent server can be reached") == 1


# -- mirror


def test_mirror_makes_and_fetches(desk: Desk, tmp_path: Path) -> None:
    """Git reaches the repository by an ssh of the test's own."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nexec git-upload-pack {shlex.quote(str(desk.source))}\n")
    ssh.chmod(0o700)
    env = {
        "AGENT_BUS_OPENHANDS_WORKSPACE": str(tmp_path / "other"),
        "OPENHANDS_URL": None,
        "OPENHANDS_API_KEY": None,
        "GIT_SSH_COMMAND": str(ssh),
    }
    path = tmp_path / "other" / "mirrors" / "acme--tool.git"
    words = ("mirror", "acme/tool", "--protocol", "ssh")
    done = desk(*words, **env)
    assert (done.code, done.out) == (0, f"{path}\n"), done.err
    assert "it was made" in done.err
    record = desk(*words, "--json", **env).record
    assert record == {"path": str(path), "created": False, "refs": 1}
    desk("mirror", "acme/tool", "--protocol", "ftp", **env).refused(64, "https or ssh")
    assert desk("mirror", "../x", **env).code == 64
    assert desk("mirror", "acme/tool", "--url", "https://example.org/acme/tool", **env).code == 64


# -- serve


def test_serve_says_where_it_is_and_ends_quietly(desk: Desk, lines: Lines) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = desk.cli.start("openhands", "serve", "--port", "0", **desk.variables)
        url = lines.next(process)
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/healthz", timeout=GUARD) as answer:
            assert answer.status == 200
        found = [f for f in desk("doctor", "--json").record["findings"] if f["code"] == "serving"]
        assert found[0]["path"] == url
        process.send_signal(number)
        out, err = process.communicate(timeout=GUARD)
        assert (process.returncode, out) == (0, b""), err
        assert b"Traceback" not in err
        assert desk.server.key.encode() not in err


def test_serve_wakes_by_itself_and_gives_children_their_tools(desk: Desk, lines: Lines) -> None:
    process = desk.cli.start("openhands", "serve", "--port", "0", "--json", **desk.variables)
    url = json.loads(lines.next(process))["url"]
    created = desk.create("one")
    assert created.code == 0, created.err
    child = desk.child("alice", "one")
    made = desk.server.asked("POST", "/api/conversations")[-1].body
    assert f"{url}/mcp" in json.dumps(made)
    watch = desk.cli.start("wait", "--timeout", "60", "--json", me="alice")
    lines.attached("alice")
    desk.server.finish(child, "done")
    assert json.loads(lines.next(watch))["kind"] == "wake"
    process.terminate()
    process.communicate(timeout=GUARD)


def test_serve_is_not_opened_to_others_without_names(desk: Desk) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        desk("serve", "--host", host).refused(64, "--allow-host")
    desk("serve", "--host", "0.0.0.0", "--allow-host", "*").refused(64, "no name of a host")
    desk("serve", "--port", 0, "--host", "0.0.0.0", "--allow-host", "gateway").refused(64, "URL")
    desk("serve", "--url", "http://user:word@gateway").refused(64, "--url", "credential")
    desk("serve", "--port", "http").refused(64, "--port")


# -- the whole


def test_every_verb_has_its_help(cli: Cli) -> None:
    listed = cli("openhands", "--help")
    assert listed.code == 0
    for verb in (
        *("create", "children", "show", "cancel", "resume", "serve", "reconcile", "mirror"),
        *("mint", "revoke", "keys", "doctor"),
    ):
        assert f"\n  {verb} " in listed.out
        done = cli("openhands", verb, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"Usage: agent-bus openhands {verb}")


def test_the_gateway_signs_as_itself_alone(desk: Desk) -> None:
    desk.create("one")
    assert AgentName("openhands") in desk.cli.bus.as_agent("user").known()
