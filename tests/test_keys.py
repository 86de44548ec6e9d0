"""The folder of keyrings: rotation, revocation, who is known."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_bus.errors import (
    ConfigurationError,
    Conflict,
    IdentityMissing,
    UnsafePermissions,
    UsageError,
)
from agent_bus.keys import ROTATIONS, Keys
from agent_bus.names import GATEWAY, AgentName
from agent_bus.testing import ManualClock

ALICE, BOB = AgentName("alice"), AgentName("bob")


@pytest.fixture
def keys(tmp_path: Path, clock: ManualClock) -> Keys:
    return Keys(tmp_path / "data" / "keys", clock)


def ring_file(keys: Keys, name: str = "alice") -> Path:
    return keys.folder / f"{name}.json"


def test_a_first_key_is_written_for_this_user_alone(keys: Keys) -> None:
    made = keys.generate(ALICE)

    assert keys.load(ALICE).signing_key() == made
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(ring_file(keys).stat().st_mode) == 0o600
    assert [(line.agent, line.event, line.kid) for line in keys.rotations()] == [
        ("alice", "added", made.kid)
    ]


def test_the_history_holds_no_secret(keys: Keys) -> None:
    keys.generate(ALICE)
    keys.rotate(ALICE)

    secrets = [entry["secret"] for entry in json.loads(ring_file(keys).read_text())["keys"]]
    assert not any(secret in (keys.folder / ROTATIONS).read_text() for secret in secrets)


def test_an_active_key_is_rotated_and_never_replaced(keys: Keys) -> None:
    keys.generate(ALICE)
    before = ring_file(keys).read_bytes()

    with pytest.raises(Conflict, match="agent-bus keys rotate alice"):
        keys.generate(ALICE)
    assert ring_file(keys).read_bytes() == before


def test_a_rotated_key_stays_for_verification(keys: Keys, clock: ManualClock) -> None:
    first = keys.generate(ALICE)
    clock.advance(60)
    second = keys.rotate(ALICE)

    ring = keys.load(ALICE)
    assert [(key.kid, key.state) for key in ring.keys] == [
        (first.kid, "retired"),
        (second.kid, "active"),
    ]
    assert ring.signing_key() == second
    assert keys.index().owners[first.kid][0] == ALICE


def test_a_revoked_key_signs_nothing_and_its_state_is_kept(keys: Keys) -> None:
    first = keys.generate(ALICE)
    revoked = keys.revoke(ALICE, first.kid)

    assert revoked.state == "revoked"
    with pytest.raises(IdentityMissing):
        keys.load(ALICE).signing_key()
    second = keys.rotate(ALICE)
    assert [key.state for key in keys.load(ALICE).keys] == ["revoked", "active"]
    assert keys.load(ALICE).signing_key() == second
    with pytest.raises(UsageError, match="keys list alice"):
        keys.revoke(ALICE, "00" * 8)


def test_a_name_out_of_use_is_unknown_until_it_gets_a_key_again(keys: Keys) -> None:
    keys.generate(ALICE)
    keys.generate(BOB)
    keys.retire_agent(ALICE)

    assert keys.known() == {"bob"}
    assert keys.agents() == ["alice", "bob"]
    with pytest.raises(IdentityMissing):
        keys.load(ALICE).signing_key()
    keys.generate(ALICE)
    assert keys.known() == {"alice", "bob"}


def test_a_name_whose_keyring_was_removed_stays_known(keys: Keys) -> None:
    keys.generate(ALICE)
    ring_file(keys).unlink()

    assert keys.agents() == []
    assert keys.known() == {"alice"}


def test_a_keyring_from_elsewhere_keeps_its_key_ids(keys: Keys, tmp_path: Path) -> None:
    keys.generate(ALICE)
    other = Keys(tmp_path / "other", ManualClock())
    other.restore(keys.load(ALICE))

    assert other.load(ALICE) == keys.load(ALICE)
    with pytest.raises(Conflict):
        other.restore(keys.load(ALICE))


def test_a_rotation_reaches_a_process_that_runs(keys: Keys, tmp_path: Path) -> None:
    keys.generate(ALICE)
    running = Keys(keys.folder, ManualClock())
    assert len(running.index().owners) == 1

    second = keys.rotate(ALICE)

    assert second.kid in running.index().owners
    ring_file(keys).unlink()
    assert running.index().owners == {}


def test_no_folder_means_no_keys(keys: Keys) -> None:
    assert keys.agents() == []
    assert keys.rotations() == []
    assert keys.index().owners == {}
    with pytest.raises(IdentityMissing, match="agent-bus keygen alice"):
        keys.load(ALICE)
    assert not keys.folder.exists()


def test_a_loose_keyring_is_refused_with_the_command_that_mends_it(keys: Keys) -> None:
    keys.generate(ALICE)
    keys.generate(BOB)
    ring_file(keys).chmod(0o644)

    with pytest.raises(UnsafePermissions, match=f"chmod 600 {ring_file(keys)}"):
        keys.load(ALICE)
    index = keys.index()
    assert {owner for owner, _ in index.owners.values()} == {"bob"}
    assert "chmod 600" in index.problems[0]
    ring_file(keys).chmod(0o600)
    assert keys.index().problems == ()


def test_a_loose_folder_is_refused(keys: Keys) -> None:
    keys.generate(ALICE)
    keys.folder.chmod(0o755)

    for act in (lambda: keys.load(ALICE), keys.agents, keys.index, lambda: keys.rotate(ALICE)):
        with pytest.raises(UnsafePermissions, match=f"chmod 700 {keys.folder}"):
            act()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"agent":"bob","keys":[]}', "\xff"])
def test_a_broken_keyring_hides_no_other(keys: Keys, text: str) -> None:
    keys.generate(BOB)
    keys.generate(ALICE)
    ring_file(keys).write_text(text, encoding="latin-1")

    with pytest.raises(ConfigurationError) as caught:
        keys.load(ALICE)
    assert str(ring_file(keys)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(keys.index().owners) == 1
    assert len(keys.index().problems) == 1


def test_a_keyring_that_is_a_link_is_refused(keys: Keys, tmp_path: Path) -> None:
    keys.generate(ALICE)
    ring_file(keys).rename(tmp_path / "elsewhere")
    ring_file(keys).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigurationError, match="is a link"):
        keys.load(ALICE)


def test_a_key_id_belongs_to_one_agent(keys: Keys) -> None:
    made = keys.generate(ALICE)
    copy = ring_file(keys).read_text().replace('"alice"', '"bob"')
    fd = os.open(ring_file(keys, "bob"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, copy.encode())
    os.close(fd)

    index = keys.index()

    assert index.owners[made.kid][0] == ALICE
    assert "stands in two keyrings" in index.problems[0]


def test_a_torn_or_foreign_line_of_the_history_is_passed_over(keys: Keys) -> None:
    keys.generate(ALICE)
    history = keys.folder / ROTATIONS
    for line in (
        b"{\n",
        b"[]\n",
        b'{"at":"x","agent":"alice","event":"added"}\n',
        b"\xff\n",
        b'{"a',
    ):
        with history.open("ab") as file:
            file.write(line)

    keys.generate(BOB)

    assert [line.agent for line in keys.rotations()] == ["alice", "bob"]


def test_many_who_make_one_key_make_one(keys: Keys) -> None:
    def attempt(_: int) -> str:
        try:
            return keys.generate(ALICE).kid
        except Conflict:
            return ""

    with ThreadPoolExecutor(20) as pool:
        made = [kid for kid in pool.map(attempt, range(20)) if kid]

    assert [key.kid for key in keys.load(ALICE).keys] == made
    assert len(made) == 1


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_twenty_processes_that_make_and_rotate_lose_no_key(
    keys: Keys, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ten make the same agent's first key at once, ten make their own; then all rotate alice."""
    code = """
import sys
from pathlib import Path
from agent_bus.clock import SystemClock
from agent_bus.errors import Conflict
from agent_bus.keys import Keys
from agent_bus.names import GATEWAY, AgentName
keys, number = Keys(Path(sys.argv[1]), SystemClock()), int(sys.argv[2])
name = AgentName("alice" if number < 10 else f"agent{number}")
print("ready", flush=True)
sys.stdin.readline()
try:
    made = keys.generate(name)
    print(made.kid if name == "alice" else "-", flush=True)
except Conflict:
    print("-", flush=True)
sys.stdin.readline()
print(keys.rotate(AgentName("alice")).kid, flush=True)
"""
    processes = [start(code, keys.folder, number) for number in range(20)]
    assert {line(process) for process in processes} == {"ready"}
    for process in processes:
        go(process)
    made = {line(process) for process in processes} - {"-"}
    for process in processes:
        go(process)
    rotated = {line(process) for process in processes}

    ring = keys.load(ALICE)
    assert len(made) == 1
    assert len(rotated) == 20
    assert {key.kid for key in ring.keys} == made | rotated
    assert [key.state for key in ring.keys].count("active") == 1
    assert len(keys.agents()) == 11
    added = [line.kid for line in keys.rotations() if line.event == "added"]
    assert len(added) == len(set(added)) == 21 + 10


def test_an_agent_without_a_keyring_cannot_be_rotated(keys: Keys) -> None:
    keys.generate(BOB)
    with pytest.raises(IdentityMissing, match="agent-bus keygen alice"):
        keys.rotate(ALICE)
    with pytest.raises(IdentityMissing, match="agent-bus keygen alice"):
        keys.revoke(ALICE, "00" * 8)
    assert keys.agents() == ["bob"]


def test_a_look_at_some_agents_sees_what_has_changed_of_them(keys: Keys, tmp_path: Path) -> None:
    """By another process, after this one has looked at everybody."""
    alice, bob = AgentName("alice"), AgentName("bob")
    assert keys.index([alice]).owners == {}
    keys.generate(alice)
    keys.generate(bob)
    first = keys.index([alice, bob])
    assert keys.index([alice]) is first

    other = Keys(keys.folder, ManualClock())
    made = other.rotate(alice)
    assert made.kid in keys.index([alice]).owners
    other.retire_agent(bob)
    assert bob not in keys.index([alice]).known
    carol = other.generate(AgentName("carol"))
    assert carol.kid in keys.index([AgentName("carol")]).owners
    ring_file(keys, "bob").unlink()
    assert bob not in keys.index([bob]).rings


def test_the_keys_of_the_gateway_are_no_keyring(keys: Keys) -> None:
    made = keys.generate(ALICE)
    other = keys.folder / "gateway.json"
    other.write_text('{"keys": [], "revoked": []}')
    other.chmod(0o600)

    assert keys.agents() == ["alice"]
    assert keys.known() == {"alice"}
    assert keys.index().problems == ()
    assert list(keys.index({GATEWAY}).owners) == [made.kid]
    with pytest.raises(IdentityMissing):
        keys.load(GATEWAY)


@pytest.mark.parametrize(
    "change",
    [Keys.generate, Keys.rotate, Keys.retire_agent, lambda keys, name: keys.revoke(name, "0" * 16)],
)
def test_no_agent_is_called_gateway(
    keys: Keys, change: Callable[[Keys, AgentName], object]
) -> None:
    with pytest.raises(UsageError, match=r"gateway is reserved: gateway\.json is no keyring"):
        change(keys, GATEWAY)
    assert not keys.folder.exists()


def test_a_history_makes_nobody_of_the_gateways_name_known(keys: Keys) -> None:
    keys.generate(ALICE)
    line = {"at": "2026-11-30T12:00:00.000Z", "agent": "gateway", "event": "added", "kid": "0" * 16}
    with (keys.folder / ROTATIONS).open("a") as file:
        file.write(json.dumps(line) + "\n")

    assert keys.known() == {"alice"}


def test_a_missing_key_is_made_once_however_many_make_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Each with a look of its own, as processes have."""
    every = [Keys(tmp_path / "keys", clock) for _ in range(8)]
    with ThreadPoolExecutor(len(every)) as pool:
        list(pool.map(lambda keys: keys.ensure(ALICE), every))

    assert len(every[0].load(ALICE).keys) == 1
    assert [line.event for line in every[0].rotations()] == ["added"]


def test_a_key_that_was_taken_away_is_not_made_again(keys: Keys) -> None:
    keys.ensure(ALICE)
    keys.revoke(ALICE, keys.load(ALICE).signing_key().kid)
    with pytest.raises(IdentityMissing, match="keys rotate alice"):
        keys.ensure(ALICE)
    keys.rotate(ALICE)
    keys.ensure(ALICE)
    keys.retire_agent(ALICE)
    with pytest.raises(IdentityMissing):
        keys.ensure(ALICE)
