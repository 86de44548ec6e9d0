"""scripts/verify-message agrees with the product, with openssl and jq alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_bus.keyring import encode_secret
from agent_bus.names import AgentName
from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "verify-message"
OWN = ROOT / "tests" / "data" / "vectors.json"
VECTORS = ROOT.parent / "shared" / "vectors" / "messages.json"
SIGNATURE_OUTCOMES = {"unknown-key", "revoked-key", "bad-signature", "wrong-sender"}

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("jq")),
    reason="openssl or jq is not installed",
)


def _run(*arguments: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        ["sh", str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=60,
        check=False,
    )


def _sent(bus: TemporaryBus, draft: Draft) -> Path:
    receipt = bus.as_agent("alice").send_one("bob", draft)
    return bus.path / "messages" / "bob" / "new" / f"{receipt.id}.msg"


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        "é ✓ 😀 \u202e",
        "a\r\nb\tc \n\n",
        "nul \0 and escape \x1b[2J",
        "x" * 65536,
        "%s \\0 $(id)",
    ],
    ids=["ascii", "unicode", "line-ends", "controls", "largest", "shell"],
)
def test_a_real_message_is_ok(tmp_path: Path, body: str) -> None:
    with TemporaryBus("alice", "bob", folder=tmp_path) as bus:
        message = _sent(bus, Draft(body=body, subject="s"))

        done = _run(message, tmp_path / "keys")

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"ok {message.stem} from alice\n"


def test_any_altered_byte_is_reported(tmp_path: Path) -> None:
    """One byte in each part of the file: version, key id, signature, payload, last line end."""
    with TemporaryBus("alice", "bob", folder=tmp_path) as bus:
        data = _sent(bus, Draft(body="hello")).read_bytes()
        altered = tmp_path / "altered.msg"
        for position in (0, 10, 12, 40, 95, len(data) // 2, len(data) - 1):
            altered.write_bytes(
                data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
            )

            done = _run(altered, tmp_path / "keys")

            assert done.returncode == 65, position
            assert not done.stdout.startswith("ok"), position


@pytest.mark.parametrize("change", [b"\n", b"\0", b" "])
def test_added_bytes_are_reported(tmp_path: Path, change: bytes) -> None:
    """What a shell variable would drop is part of the bytes that are judged."""
    with TemporaryBus("alice", "bob", folder=tmp_path) as bus:
        message = _sent(bus, Draft(body="hello"))
        altered = tmp_path / "altered.msg"
        altered.write_bytes(message.read_bytes() + change)

        done = _run(altered, tmp_path / "keys")

        assert (done.returncode, done.stdout[:13]) == (65, "bad-signature")


def test_a_rotated_key_verifies_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    with TemporaryBus("alice", "bob", folder=tmp_path) as bus:
        message = _sent(bus, Draft(body="hello"))
        keys, alice = bus.as_agent("alice").keys, AgentName("alice")
        old = keys.load(alice).signing_key().kid
        keys.rotate(alice)
        assert _run(message, tmp_path / "keys").returncode == 0

        keys.revoke(alice, old)

        done = _run(message, tmp_path / "keys")
        assert (done.returncode, done.stdout) == (65, f"revoked-key: {old} of alice\n")


def test_no_secret_stands_in_an_argument(tmp_path: Path) -> None:
    """Every program that the script starts is recorded, with its arguments and environment."""
    with TemporaryBus("alice", "bob", folder=tmp_path) as bus:
        message = _sent(bus, Draft(body="hello"))
        secret = bus.as_agent("alice").keys.load(AgentName("alice")).signing_key().secret
        recorded, programs = tmp_path / "recorded", tmp_path / "programs"
        programs.mkdir()
        names = ("openssl", "jq", "od", "tr", "head", "tail", "wc", "grep", "sed")
        for name in names:
            wrapper = programs / name
            real = shutil.which(name)
            wrapper.write_text(
                f'#!/bin/sh\n{{ printf "%s\\n" {name} "$@"; env; }} >>"{recorded}"\n'
                f'exec {real} "$@"\n'
            )
            wrapper.chmod(0o700)

        done = _run(message, tmp_path / "keys", path=f"{programs}{os.pathsep}{os.environ['PATH']}")

        log = recorded.read_text()
        assert done.returncode == 0
        assert "openssl" in log
        numbers = " ".join(str(byte) for byte in secret)
        words = " ".join(log.split())
        for spelling in (encode_secret(secret), secret.hex(), numbers):
            assert spelling not in words


def test_our_own_vectors(tmp_path: Path) -> None:
    """Sealed keys are among them."""
    vectors = json.loads(OWN.read_text(encoding="utf-8"))
    for ring in vectors["keyrings"]:
        (tmp_path / f"{ring['agent']}.json").write_text(json.dumps(ring))
    for case in vectors["cases"]:
        file = tmp_path / "case.msg"
        file.write_bytes(base64.b64decode(case["file_b64"]))

        done = _run(file, tmp_path)

        said = done.stdout.split()[0].rstrip(":")
        assert done.stderr == "", case["name"]
        if case["expect"] in SIGNATURE_OUTCOMES | {"ok"}:
            assert said == case["expect"], case["name"]


def test_usage_is_64_and_help_is_there(tmp_path: Path) -> None:
    assert _run().returncode == 64
    assert _run(tmp_path / "none.msg", tmp_path).returncode == 64
    assert "verify-message FILE KEYS_FOLDER" in _run("--help").stdout


def test_the_vectors(tmp_path: Path) -> None:
    """Whatever is wrong with header, key, bytes or sender is named; the good ones are ok."""
    if not VECTORS.exists():
        pytest.skip("../shared/vectors/messages.json is not there")
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    for ring in vectors["keyrings"]:
        (tmp_path / f"{ring['agent']}.json").write_text(json.dumps(ring))
    for case in vectors["cases"]:
        file = tmp_path / "case.msg"
        file.write_bytes(base64.b64decode(case["file_b64"]))

        done = _run(file, tmp_path)

        said = done.stdout.split()[0].rstrip(":")
        assert done.returncode == (0 if said == "ok" else 65), case["name"]
        if case["expect"] in SIGNATURE_OUTCOMES | {"ok"}:
            assert said == case["expect"], case["name"]
        elif said != "ok":
            assert said in {"malformed", "wrong-sender"}, case["name"]
