"""`verify doctor prune export whoami status`: looking after a bus."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from program import Cli, Lines

from agent_bus.bus import Bus
from agent_bus.sending import Draft
from agent_bus.testing import ManualClock

PAST = 1_600_000_000_000
VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "messages.json"


def test_verify_passes_a_good_bus_and_counts(cli: Cli) -> None:
    cli.send("alice", "bob")
    ident = cli.send("bob", "alice")
    done = cli("verify")
    assert (done.code, done.out) == (0, "")
    assert done.err == "agent-bus: checked 2: 2 ok\n"
    records = cli("verify", "--json").records
    assert all(record.keys() >= {"id", "box", "outcome"} for record in records)
    assert [record["box"] for record in records] == ["alice", "bob"]
    assert cli("verify", ident[-9:]).lines == [f"{ident}\talice\tnew\tok\t"]
    assert [r["id"] for r in cli("verify", "--box", "alice", "--json").records] == [ident]


def test_verify_ends_with_65_and_names_what_fails(cli: Cli) -> None:
    good, bad = cli.send("alice", "bob"), cli.send("alice", "bob")
    cli.forge("bob", bad)
    done = cli("verify").refused(65, "checked 2: 1 bad-signature, 1 ok")
    (line,) = done.lines
    assert line.startswith(f"{bad}\tbob\tnew\tbad-signature\t")
    assert [r["outcome"] for r in cli("verify", "--json").records] == ["ok", "bad-signature"]
    assert cli("verify", good).code == 0
    assert cli("verify", bad).code == 65
    cli("verify", "0" * 26).refused(66)
    cli("verify", "--box", "nobody").refused(66)
    assert cli("verify", good, "--box", "bob").code == 0
    cli("verify", good, "--box", "alice").refused(66, "in the box of alice")
    cli("verify", good, "--box", "A b").refused(64)


def test_verify_counts_an_expired_message_apart(cli: Cli) -> None:
    past = Bus.open(cli.bus.settings, identity="alice", clock=ManualClock(PAST))
    past.send_one("bob", Draft(body="late", expires_in=60))
    done = cli("verify")
    assert done.code == 0
    assert done.err == "agent-bus: checked 1: 1 expired\n"


@pytest.mark.skipif(not VECTORS.exists(), reason=f"the vectors are not at {VECTORS}")
def test_verify_judges_every_vector_as_expected(cli: Cli) -> None:
    vectors = json.loads(VECTORS.read_text())
    bus, keys = cli.folder / "bus", cli.folder / "keys"
    for folder in (bus, bus / "messages", keys):
        folder.mkdir(mode=0o700)
    (bus / "bus.json").write_text(json.dumps(vectors["bus"]))
    for ring in vectors["keyrings"]:
        file = keys / f"{ring['agent']}.json"
        file.write_text(json.dumps(ring))
        file.chmod(0o600)
    expected = {}
    for case in vectors["cases"]:
        new = bus / "messages" / case["box"] / "new"
        new.mkdir(parents=True, exist_ok=True)
        file = new / f"{case['file_id']}.msg"
        assert not file.exists()
        file.write_bytes(base64.b64decode(case["file_b64"]))
        expected[case["box"], case["file_id"]] = case["expect"]
    done = cli("verify", "--json", AGENT_MSG_BUS=str(bus), AGENT_MSG_KEYS=str(keys))
    assert done.code == 65
    assert {(r["box"], r["id"]): r["outcome"] for r in done.records} == expected


def test_doctor_finds_a_forgery_and_repairs_by_moving_it_aside(cli: Cli) -> None:
    ident = cli.send("alice", "bob")
    assert cli("doctor", "--json").record["ok"] is True
    assert cli("doctor").err == "agent-bus: every promise holds\n"
    cli.forge("bob", ident)
    before = cli.files()
    done = cli("doctor", "--json")
    assert done.code == 65
    assert done.record.keys() >= {"ok", "findings"}
    assert done.record["ok"] is False
    (finding,) = [f for f in done.record["findings"] if f["code"] == "bad-signature"]
    assert finding.keys() >= {"code", "severity", "path", "message", "repaired"}
    assert ident in finding["path"]
    assert cli("doctor").code == 65
    assert cli.files() == before
    repaired = cli("doctor", "--repair")
    assert repaired.code == 0
    assert any("\tbad-signature\t" in line for line in repaired.lines)
    assert list((cli.bus.path / "messages" / "bob" / "bad").iterdir())
    assert cli("doctor").code == 0


def test_doctor_measures_a_wake_if_asked(cli: Cli) -> None:
    done = cli("doctor", "--ping", "--json", me="bob").record
    assert done["ping"]["wake_ms"] >= 0
    assert cli("inbox", me="bob").out == ""
    cli("doctor", "--ping").refused(78)


def test_prune_removes_what_is_old_and_keeps_the_rest(cli: Cli) -> None:
    past = Bus.open(cli.bus.settings, identity="alice", clock=ManualClock(PAST))
    archived, read, unread = (past.send_one("bob", Draft(body=f"{n}")).id for n in range(3))
    cli("archive", archived, me="bob")
    cli("read", read, me="bob")
    fresh = cli.send("alice", "bob")
    cli("archive", fresh, me="bob")
    cli("prune").refused(64, "--archived")
    cli("prune", "--archived", "1 week").refused(64, "no duration")
    assert cli("prune", "--archived", "7d", "--json").record["removed"] == 1
    assert cli("prune", "--archived", "7d", "--read", "7d").lines == [
        "removed 1, kept undecided 0, kept bad 0, leftovers removed 0"
    ]
    left = {record["id"] for record in cli("log", "--json").records}
    assert left == {unread, fresh}


def test_export_writes_one_archive_and_replaces_none(cli: Cli) -> None:
    cli.send("alice", "bob")
    done = cli("export", "out.tar.gz", "--json").record
    assert done["messages"] == 1
    file = cli.folder / "out.tar.gz"
    with tarfile.open(file) as archive:
        assert any(name.endswith(".msg") for name in archive.getnames())
    cli("export", "out.tar.gz").refused(73, "out.tar.gz")
    other = cli("export", "other.tar.gz")
    assert other.lines == [str(cli.folder / "other.tar.gz")]
    assert other.err.startswith("agent-bus: 1 messages, ")


def test_whoami_says_who_where_and_how(cli: Cli) -> None:
    record = cli("whoami", "--json", me="user").record
    assert record.keys() >= {"identity", "admin", "bus", "bus_id", "project", "how", "keys"}
    assert record["identity"] == "user"
    assert record["admin"] is True
    assert record["bus"] == str(cli.bus.path)
    assert record["how"] == "AGENT_MSG_BUS"
    assert record["keys"] == str(cli.bus.settings.keys)
    assert "identity: alice" in cli("whoami", "--as", "alice").lines
    nobody = cli("whoami", "--json")
    assert nobody.code == 0
    assert (nobody.record["identity"], nobody.record["admin"]) == (None, False)


def test_whoami_shows_what_it_can_where_something_is_wrong(cli: Cli) -> None:
    nowhere = cli("whoami", "--json", me="bob", AGENT_MSG_BUS="/nowhere").refused(69, "/nowhere")
    assert nowhere.record["identity"] == "bob"
    assert nowhere.record["bus"] == "/nowhere"
    assert nowhere.record["bus_id"] is None
    keyless = cli("whoami", "--json", me="carol").refused(78, "carol has no key")
    assert keyless.record["identity"] == "carol"
    assert keyless.record["has_key"] is False
    assert keyless.record["bus_id"] is not None
    unexpanded = cli("whoami", "--json", me="${AGENT_MSG_AS}").refused(78, "nobody expanded")
    assert unexpanded.record["bus_id"] is not None


def test_status_shows_each_agent(cli: Cli, lines: Lines) -> None:
    ident = cli.send("alice", "bob")
    bad = cli.send("alice", "bob")
    cli.forge("bob", bad)
    cli.start("watch", me="bob")
    lines.attached("bob")
    done = cli("status", "--json")
    records: dict[str, Any] = {record["agent"]: record for record in done.records}
    bob = records["bob"]
    assert bob["unread"] == 2
    assert bob["oldest_unread"] is not None
    assert [process["role"] for process in bob["attached"]] == ["watch"]
    assert bob["attached_since"] is not None
    assert bob["last_seen"] is not None
    assert [entry["id"] for entry in bob["bad"]] == [bad]
    assert f"{bad} in the box of bob is bad-signature" in done.err
    assert records["user"]["attached"] == []
    text = cli("status")
    (line,) = [line for line in text.lines if line.startswith("bob\t2\t")]
    assert "\twatch since " in line
    assert ident


def test_status_reports_a_second_server(cli: Cli) -> None:
    presence = cli.bus.as_agent("bob").presence
    with presence.attach("bob", "mcp"), presence.attach("bob", "mcp"):
        assert "2 MCP servers act as bob" in cli("status").err


def test_status_of_a_message_tells_what_became_of_it(cli: Cli) -> None:
    ident = cli.send("alice", "bob")

    def status(**options: str) -> dict[str, Any]:
        record: dict[str, Any] = cli("status", ident, "--json", **options).record
        return record

    assert status(me="alice").keys() >= {"id", "to", "delivered_at", "read_at", "archived_at"}
    assert (status()["read_at"], status()["archived_at"]) == (None, None)
    cli("read", ident, me="bob")
    assert status(me="alice")["read_at"] is not None
    cli("archive", ident, me="bob")
    assert status(me="alice")["archived_at"] is not None
    assert cli("status", ident, me="alice").lines[0].startswith(f"{ident}\tbob\t")
    other = cli.send("alice", "conductor")
    # What became of it is no secret; its text is.
    assert "hello" not in cli("status", other, "--json", me="bob").out
    cli("status", "0" * 26, me="bob").refused(66, "no message")
    assert cli("status", other, me="user").code == 0


def test_verify_and_doctor_name_a_wake_of_anybody_but_the_gateway(
    cli: Cli, false_wake: Any
) -> None:
    ident = false_wake(cli.bus, "bob")
    why = "a wake is signed by openhands, and this is not: do not act on it"
    done = cli("verify")
    assert done.lines == [f"{ident}\tbob\tnew\tok\t{why}"]
    assert (done.code, done.err) == (0, "agent-bus: checked 1: 1 ok\n")
    assert cli("verify", "--json").record["warning"] == why
    found = cli("doctor")
    assert found.code == 0
    assert any(line.startswith("warning\tdoubted-wake\t") for line in found.lines)
