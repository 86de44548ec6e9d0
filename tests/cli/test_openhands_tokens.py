"""`openhands mint|revoke|keys`: a capability is a secret, and what signs it even more so."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program import COMMAND, GUARD, Cli, Result

from agent_bus.clock import SystemClock
from agent_bus.errors import InvalidCapability
from agent_bus.openhands.gateway.capability import Capability
from agent_bus.openhands.gateway.identifiers import main_id
from agent_bus.openhands.gateway.signing import SigningKeys

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the gateway is for POSIX systems")

MAIN = "11111111-1111-4111-8111-111111111111"


def openhands(cli: Cli, *words: object, **more: Any) -> Result:
    return cli("openhands", *words, **more)


def says(cli: Cli, token: str) -> Capability:
    return SigningKeys(cli.bus.settings.keys, SystemClock()).verify(token)


def test_mint_writes_a_new_file_that_is_ones_own(cli: Cli) -> None:
    file = cli.folder / "token"
    done = openhands(cli, "mint", "--main", MAIN, "--out", file)
    assert (done.code, done.out) == (0, f"{file}\n"), done.err
    assert MAIN in done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()
    assert token not in done.err
    found = says(cli, token)
    assert (str(found.subject), str(found.owner), found.role) == (MAIN, MAIN, "main")
    assert found.actions == {"create_child", "cancel_mission", "resume_mission"}
    assert found.expires_at - found.issued_at == 3600


def test_mint_takes_a_name_of_the_bus(cli: Cli) -> None:
    file = cli.folder / "token"
    words = ("mint", "--main", "alice", "--expires-in", "15m", "--action", "create_child")
    record = openhands(cli, *words, "--out", file, "--json").record
    found = says(cli, file.read_text().strip())
    assert found.subject == main_id(cli.bus.as_agent("user").file.bus, "alice")
    assert record == {
        "main": str(found.subject),
        "actions": ["create_child"],
        "expires_at": record["expires_at"],
        "file": str(file),
    }
    assert found.actions == {"create_child"}
    openhands(cli, "mint", "--main", "nobody", "--out", "x").refused(67, "agents list")


def test_mint_replaces_nothing(cli: Cli) -> None:
    file = cli.folder / "token"
    file.write_text("mine")
    openhands(cli, "mint", "--main", MAIN, "--out", file).refused(76, "stays")
    link = cli.folder / "link"
    link.symlink_to(cli.folder / "elsewhere")
    openhands(cli, "mint", "--main", MAIN, "--out", link).refused(76)
    assert file.read_text() == "mine"
    assert not (cli.folder / "elsewhere").exists()
    openhands(cli, "mint", "--main", MAIN, "--out", "none/token").refused(74, "none")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--action", "complete"], "complete"),
        (["--action", "send_message"], "send_message"),
        (["--expires-in", "0s"], "expire"),
        (["--expires-in", "soon"], "soon"),
    ],
    ids=lambda part: part[-1] if isinstance(part, list) else "",
)
def test_what_no_main_may_have_is_refused(cli: Cli, words: list[str], said: str) -> None:
    openhands(cli, "mint", "--main", MAIN, "--out", "t", *words).refused(64, said)
    assert not (cli.folder / "t").exists()


def test_a_pipe_gets_the_token_and_nothing_else(cli: Cli) -> None:
    done = openhands(cli, "mint", "--main", MAIN, "--out", "-")
    assert (done.code, done.err) == (0, "")
    assert says(cli, done.out.removesuffix("\n")).role == "main"
    openhands(cli, "mint", "--main", MAIN, "--out", "-", "--json").refused(64, "--json")


def test_no_terminal_and_no_redirection_gets_it(cli: Cli) -> None:
    """A terminal keeps what it has shown, and a shell makes files of any mode."""
    main, terminal = pty.openpty()
    file = os.open(cli.folder / "redirected", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for out in (terminal, file):
            done = subprocess.run(
                [*COMMAND, "openhands", "mint", "--main", MAIN, "--out", "-"],
                env=cli.variables(None),
                cwd=cli.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=GUARD,
                check=False,
            )
            assert done.returncode == 64
            assert b"--out FILE" in done.stderr
    finally:
        for each in (main, terminal, file):
            os.close(each)
    assert (cli.folder / "redirected").read_bytes() == b""


def test_a_capability_is_taken_back(cli: Cli) -> None:
    file = cli.folder / "token"
    openhands(cli, "mint", "--main", MAIN, "--out", file)
    token = file.read_text()
    record = openhands(cli, "revoke", file, "--json").record
    assert (record["subject"], record["role"]) == (MAIN, "main")
    with pytest.raises(InvalidCapability):
        says(cli, token.strip())
    again = openhands(cli, "revoke", "-", stdin=token.encode())
    again.refused(77, "not valid", "nothing to take back")
    assert token.strip() not in again.err
    openhands(cli, "revoke", "-", stdin=b"\xff" * 5000).refused(65)
    file.chmod(0o644)
    openhands(cli, "revoke", file).refused(78, "chmod 600")


def test_keys_are_listed_rotated_and_revoked_without_their_secrets(cli: Cli) -> None:
    assert openhands(cli, "keys", "list").out == ""
    file = cli.folder / "token"
    openhands(cli, "mint", "--main", MAIN, "--out", file)
    token = file.read_text().strip()
    (old,) = openhands(cli, "keys", "list", "--json").records
    assert (old["state"], old["retired_at"]) == ("active", None)
    new = openhands(cli, "keys", "rotate", "--json").record
    assert new["kid"] != old["kid"]
    assert says(cli, token).role == "main"
    states = [line.split("\t")[1] for line in openhands(cli, "keys", "list").lines]
    assert states == ["retired", "active"]
    assert openhands(cli, "keys", "revoke", old["kid"], "--json").record["state"] == "revoked"
    with pytest.raises(InvalidCapability):
        says(cli, token)
    openhands(cli, "keys", "revoke", "0" * 16).refused(64, "no key", "keys list")
    openhands(cli, "keys", "revoke", "short").refused(64, "keys list")
    content = (cli.bus.settings.keys / "gateway.json").read_text()
    for done in (openhands(cli, "keys", "list"), openhands(cli, "keys", "list", "--json")):
        assert not any(word in done.out for word in content.split('"') if len(word) == 43)


def test_a_short_secret_of_the_environment_is_refused_by_name(cli: Cli) -> None:
    done = openhands(cli, "mint", "--main", MAIN, "--out", "t", EVEX_MESSAGING_SECRET="short")
    done.refused(78, "EVEX_MESSAGING_SECRET")
    assert "short" not in done.err.replace("shorter", "")


def test_keys_that_others_can_read_are_refused(cli: Cli, tmp_path: Path) -> None:
    openhands(cli, "keys", "rotate")
    file = cli.bus.settings.keys / "gateway.json"
    file.chmod(0o640)
    for words in (("keys", "list"), ("mint", "--main", MAIN, "--out", "t")):
        openhands(cli, *words).refused(78, f"chmod 600 {file}")
