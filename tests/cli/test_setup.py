"""`init keygen keys agents`: making, idempotence, and secrets that are never shown."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program import Cli, Program, Result

from agent_bus.sending import Draft

SECRET = bytes(range(32))


@pytest.fixture
def at_home(cli: Cli) -> Program:
    """The command line in a git repository, with the bus at its own address."""
    subprocess.run(["git", "init", "-q", str(cli.folder)], check=True, env=cli.environment)
    nothing = {"AGENT_MSG_BUS": None, "AGENT_MSG_KEYS": None}

    def run(*words: object, **more: str | None) -> Result:
        return cli(*words, **(nothing | more))

    return run


def test_init_makes_bus_boxes_and_keys_once(at_home: Program, tmp_path: Path) -> None:
    made = at_home("init", "--agents", "alice,bob", "--agents", "carol", "--json").record
    assert made.keys() >= {"bus", "bus_id", "created", "agents"}
    assert made["created"] is True
    assert made["agents"] == made["new_keys"] == ["alice", "bob", "carol", "conductor", "user"]
    bus = Path(made["bus"])
    assert sorted(p.name for p in (bus / "messages").iterdir()) == sorted(made["agents"])
    modes = {
        path.stat().st_mode & 0o077 for path in (*bus.rglob("*"), *Path(made["keys"]).rglob("*"))
    }
    assert modes == {0}
    again = at_home("init", "--agents", "alice,dave", "--json").record
    assert again["created"] is False
    assert again["bus_id"] == made["bus_id"]
    assert again["new_keys"] == ["dave"]


def test_init_says_in_words_what_it_made_and_what_to_do_next(at_home: Program) -> None:
    made = at_home("init", "--agents", "alice")
    assert made.code == 0
    (bus,) = made.lines
    assert Path(bus, "messages", "alice").is_dir()
    assert "was made" in made.err
    assert "next: agent-bus connect claude --as alice" in made.err
    assert "stands there already" in at_home("init").err


def test_admins_are_taken_from_the_environment_at_init(at_home: Program) -> None:
    made = at_home("init", "--json", AGENT_BUS_ADMIN_NAMES="boss").record
    assert made["agents"] == made["admins"] == ["boss"]


@pytest.mark.parametrize(
    "name", ["openhands", "gateway", "Alice", "a b", "", "-rf", "con", "x" * 65, "lеad"]
)
def test_a_bad_name_makes_nothing(at_home: Program, cli: Cli, tmp_path: Path, name: str) -> None:
    at_home("init", f"--agents=alice,{name}").refused(64)
    before = cli.files()
    cli("keygen", "--", name).refused(64)
    assert cli.files() == before
    assert not list((tmp_path / "home").rglob("*"))


def test_the_whole_way_in_a_repository_with_adopt_and_new(at_home: Program, cli: Cli) -> None:
    at_home("send", "--to", "bob", "--body", "x", me="alice").refused(69, "agent-bus init")
    at_home("init", "--adopt", "/nowhere", "--new").refused(64, "contradict")
    ident = at_home("init", "--agents", "alice,bob", "--json").record["bus_id"]
    old, new = cli.folder, cli.folder.parent / "moved"
    old.rename(new)
    elsewhere = ("--project", new)
    old.mkdir()
    at_home("log", *elsewhere).refused(69, "--adopt")
    at_home("init", *elsewhere).refused(69, "--adopt")
    adopted = at_home("init", *elsewhere, "--adopt", old)
    assert "was taken over" in adopted.err
    assert "agents: conductor, user, alice, bob (admins: conductor, user)" in adopted.err
    again = at_home("init", *elsewhere, "--adopt", adopted.lines[0], "--json").record
    assert (again["bus_id"], again["created"]) == (ident, False)
    assert at_home("log", *elsewhere).code == 0
    at_home("init", "--adopt", "/nowhere", *elsewhere).refused(69, "no bus")
    at_home("init", "--adopt", "", *elsewhere).refused(64, "no path")


def test_project_and_a_bus_named_outright_exclude_each_other(cli: Cli) -> None:
    cli("log", "--project", ".").refused(64, "AGENT_MSG_BUS", "--project")


def test_keygen_makes_a_key_and_never_shows_it(cli: Cli) -> None:
    made = cli("keygen", "carol", "--json").record
    keyring = json.loads((cli.bus.settings.keys / "carol.json").read_text())
    assert made["kid"] == keyring["keys"][0]["kid"]
    assert keyring["keys"][0]["secret"] not in json.dumps(made)
    cli("keygen", "carol").refused(76, "keys rotate carol")


@pytest.mark.parametrize(
    "content",
    [SECRET.hex(), SECRET.hex().upper() + "\n", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\r\n"],
)
def test_keygen_takes_an_existing_secret_over(cli: Cli, tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content, newline="")
    file.chmod(0o644)
    cli("keygen", "carol", "--import", file).refused(78, f"chmod 600 {file}")
    file.chmod(0o600)
    done = cli("keygen", "carol", "--import", file)
    assert done.code == 0, done.err
    assert SECRET.hex() not in done.out + done.err
    bus = cli.bus.as_agent("alice")
    assert bus.keys.load("carol").signing_key().secret == SECRET


def test_keygen_takes_a_whole_keyring_over_with_its_ids(cli: Cli) -> None:
    ring = (cli.bus.settings.keys / "bob.json").read_bytes()
    kid = cli.bus.as_agent("bob").keys.load("bob").keys[0].kid
    elsewhere = {"AGENT_MSG_KEYS": str(cli.folder / "keys")}
    done = cli("keygen", "bob", "--import", "-", "--json", stdin=ring, **elsewhere)
    assert done.record["kid"] == kid
    cli("keygen", "bob", "--import", "-", stdin=ring, **elsewhere).refused(76, "keyring already")
    cli("keygen", "carol", "--import", "-", stdin=ring).refused(64, "keyring of bob")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 78),
        (b"00" * 31, 78),
        (b" " + b"00" * 32, 78),
        (b'{"agent": "carol"}', 78),
        (b'{"agent": "carol", "keys": []}', 78),
        (b"{", 78),
        (b"{" + b'"a":[' * 100_000, 78),
        (b"x" * (1 << 20) + b"y", 65),
    ],
)
def test_what_is_no_key_is_refused_and_makes_nothing(cli: Cli, content: bytes, code: int) -> None:
    before = cli.files()
    cli("keygen", "carol", "--import", "-", stdin=content).refused(code)
    assert {file for file in cli.files() - before if not file.endswith(".lock")} == set()


def test_keys_list_rotate_revoke(cli: Cli) -> None:
    (first,) = cli("keys", "list", "bob", "--json").records
    assert first.keys() == {
        *("agent", "kid", "alg", "sealed", "fingerprint", "state", "created_at", "retired_at")
    }
    before = cli.send("bob", "alice")
    rotated = cli("keys", "rotate", "bob", "--json").record
    assert rotated["state"] == "active"
    assert [key["state"] for key in cli("keys", "list", "bob", "--json").records] == [
        "retired", "active",
    ]  # fmt: skip
    assert cli("read", before, me="alice").code == 0
    assert cli("keys", "revoke", "bob", first["kid"], "--json").record["state"] == "revoked"
    cli("read", before, me="alice").refused(65, "revoked-key")
    warned = cli("keys", "revoke", "bob", rotated["kid"])
    assert "no active key now" in warned.err
    cli("send", "--to", "alice", "--body", "x", me="bob").refused(78, "no active key")
    cli("keys", "revoke", "bob", "zz").refused(64, "no key id")
    cli("keys", "revoke", "bob", "0" * 16).refused(64, "no key")
    cli("keys", "rotate", "nobody").refused(78, "no key")
    everything = cli("keys", "list")
    assert {line.split("\t")[0] for line in everything.lines} == {
        "alice", "bob", "conductor", "user",
    }  # fmt: skip


def test_keys_list_names_a_keyring_that_cannot_be_used_and_shows_the_rest(cli: Cli) -> None:
    os.chmod(cli.bus.settings.keys / "bob.json", 0o644)
    listed = cli("keys", "list", "--json").refused(78, "chmod 600")
    assert [key["agent"] for key in listed.records] == ["alice", "conductor", "user"]


def test_no_secret_appears_anywhere(cli: Cli) -> None:
    secrets = [
        key["secret"]
        for file in cli.bus.settings.keys.glob("*.json")
        for key in json.loads(file.read_text())["keys"]
    ]
    shown = ""
    for verb in ("keys list", "keys rotate bob", "whoami", "doctor", "agents list", "init"):
        for words in (verb.split(), [*verb.split(), "--json"]):
            done = cli(*words, me="alice")
            shown += done.out + done.err
    assert shown
    assert not [secret for secret in secrets if secret in shown]


def test_agents_list(cli: Cli) -> None:
    cli.send("alice", "bob")
    records = {record["agent"]: record for record in cli("agents", "list", "--json").records}
    assert records["bob"] == {
        "agent": "bob", "admin": False, "retired": False, "key": True, "unread": 1,
        "attached": False,
    }  # fmt: skip
    assert records["user"]["admin"] is True
    assert "bob\tagent\thas a key\t1\t-" in cli("agents", "list").lines


def test_a_name_that_never_had_a_key_is_not_called_retired(cli: Cli) -> None:
    cli("send", "--to", "later", "--body", "x", "--force", me="alice")
    records = {record["agent"]: record for record in cli("agents", "list", "--json").records}
    assert (records["later"]["retired"], records["later"]["key"]) == (False, False)
    assert "later\t-\tno key\t1\t-" in cli("agents", "list").lines


def test_retiring_an_agent_without_mail(cli: Cli) -> None:
    done = cli("agents", "retire", "bob", "--json").record
    assert done == {"agent": "bob", "retired": True, "forwarded": [], "unread": 0}
    cli("send", "--to", "bob", "--body", "x", me="alice").refused(67)
    cli("send", "--to", "alice", "--body", "x", me="bob").refused(78)
    cli("agents", "retire", "bob").refused(67)
    records = {record["agent"]: record for record in cli("agents", "list", "--json").records}
    assert records["bob"]["retired"] is True


def test_retiring_an_agent_with_unread_mail_asks_or_forwards(cli: Cli) -> None:
    first = cli.send("alice", "bob", subject="do it", body="now", kind="task", data={"n": 1})
    cli.send("alice", "bob")
    forged = cli.send("alice", "bob")
    cli.forge("bob", forged)
    cli("agents", "retire", "bob").refused(76, "3 unread", "--forward-to", "--force")
    done = cli("agents", "retire", "bob", "--forward-to", "alice", "--json", me="user")
    assert done.err.count(f"{forged} is bad-signature and stays") == 1
    assert done.record["unread"] == 1
    assert len(done.record["forwarded"]) == 2
    got = cli("read", done.record["forwarded"][0], "--json", me="alice").record["message"]
    assert (got["from"], got["kind"], got["body"]) == ("user", "task", "now")
    assert got["subject"] == "Fwd: do it"
    bare = cli("read", done.record["forwarded"][1], "--json", me="alice").record["message"]
    assert bare["subject"] == "Fwd: (no subject)"
    assert got["thread"] == first
    assert got["data"]["forwarded_from"] == "bob"
    assert got["data"]["original"] == first
    assert got["data"]["data"] == {"n": 1}
    assert cli("status", first, "--json").record["archived_at"] is not None


def test_who_may_retire_whom(cli: Cli) -> None:
    cli.send("alice", "bob")
    cli("agents", "retire", "bob", "--force", me="alice").refused(77, "no admin")
    cli("agents", "retire", "bob", "--forward-to", "alice").refused(78, "AGENT_MSG_AS")
    cli("agents", "retire", "user", me="conductor").refused(77, "admin of this bus")
    cli("agents", "retire", "nobody").refused(67)
    cli("agents", "retire", "bob", "--forward-to", "bob", me="user").refused(64)
    cli("agents", "retire", "bob", "--forward-to", "nobody", me="user").refused(67)
    assert cli("agents", "retire", "bob", "--force", "--json").record["unread"] == 1


def test_nobody_is_the_gateway_and_a_person_keeps_its_keys(cli: Cli) -> None:
    for verb in (["inbox"], ["send", "--to", "bob", "--body", "x"], ["read", "0" * 26], ["ui"]):
        cli(*verb, "--as", "openhands").refused(78, "--as is openhands", "reserved for the gateway")
        cli(*verb, me="openhands").refused(78, "AGENT_MSG_AS is openhands", "reserved")
    cli("mcp", me="openhands", stdin=b"").refused(78, "AGENT_MSG_AS is openhands", "reserved")
    cli("keygen", "openhands").refused(64, "reserved")
    cli("init", AGENT_BUS_ADMIN_NAMES="openhands").refused(78, "reserved")
    gateway = cli.bus.as_gateway()
    old = cli("keys", "list", "openhands", "--json").record["kid"]
    assert cli("keys", "rotate", "openhands").code == 0
    assert cli("keys", "revoke", "openhands", old).code == 0
    assert gateway.wake("bob", Draft(body="x"), key="k").id


def test_the_gateway_and_conversations_are_listed_as_what_they_are(cli: Cli) -> None:
    box = "openhands-0b54cd32-0e1f-5f0a-9c0b-0123456789ab"
    cli.bus.as_gateway().wake(box, Draft(body="x"), key="k")
    listed = cli("agents", "list").lines
    assert "openhands\tgateway\thas a key\t0\t-" in listed
    assert f"{box}\tconversation\tno key\t1\t-" in listed
    assert {"openhands", box} <= {line.split("\t")[0] for line in cli("status").lines}
    assert cli("status", me="bob").err == ""


def test_a_false_wake_is_still_doubted_when_it_was_sent_on(cli: Cli, false_wake: Any) -> None:
    false_wake(cli.bus, "bob")
    [ident] = cli("agents", "retire", "bob", "--forward-to", "alice", "--json", me="user").record[
        "forwarded"
    ]
    sent_on = cli("read", ident, "--json", me="alice").record["message"]
    assert (sent_on["kind"], sent_on["data"]["kind"]) == ("note", "wake")
    assert "do not act on it" in sent_on["data"]["warning"]
