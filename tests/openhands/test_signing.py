"""The gateway's own secrets: rotation with grace, revocation, a file that is safe or refused."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agent_bus.errors import (
    ConfigurationError,
    InvalidCapability,
    StorageError,
    UnsafePermissions,
    UsageError,
)
from agent_bus.keys import Keys
from agent_bus.names import AgentName
from agent_bus.openhands.gateway.capability import (
    child_capability_token,
    completion_token,
    main_capability_token,
)
from agent_bus.openhands.gateway.signing import FILE, SigningKeys
from agent_bus.testing import ManualClock

MAIN = UUID("11111111-1111-4111-8111-111111111111")
DAY = 86400
EXTRA = "a-long-random-secret-of-some-host"


@pytest.fixture
def signing(tmp_path: Path, clock: ManualClock) -> SigningKeys:
    return SigningKeys(tmp_path / "data" / "keys", clock)


@pytest.fixture
def token(signing: SigningKeys, clock: ManualClock) -> Callable[[], str]:
    """A child's capability, issued now with the newest key."""

    def issue() -> str:
        now = clock.now() // 1000
        return child_capability_token(signing.newest(), MAIN, "t-1", "qa", issued_at=now)

    return issue


def file_of(signing: SigningKeys) -> Path:
    return signing.folder / FILE


def put(signing: SigningKeys, data: object) -> None:
    signing.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    file_of(signing).write_bytes(text)
    file_of(signing).chmod(0o600)


def reason(signing: SigningKeys, token: object) -> str:
    with pytest.raises(InvalidCapability) as caught:
        signing.verify(token)
    return caught.value.reason


def states(signing: SigningKeys) -> list[str]:
    return [key.state for key in signing.listing()]


def test_the_first_key_is_made_for_this_user_alone(signing: SigningKeys) -> None:
    assert signing.secrets() == []
    signing.ensure()
    before = file_of(signing).read_bytes()
    signing.ensure()

    assert file_of(signing).read_bytes() == before
    assert stat.S_IMODE(signing.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_of(signing).stat().st_mode) == 0o600
    assert [len(secret) for secret in signing.secrets()] == [32]
    assert signing.newest() == signing.secrets()[0]


def test_what_is_signed_here_is_verified_here(
    signing: SigningKeys, token: Callable[[], str]
) -> None:
    assert signing.verify(token()).task_key == "t-1"


def test_many_that_begin_together_make_one_key(tmp_path: Path, clock: ManualClock) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: SigningKeys(tmp_path, clock).newest(), range(24)))

    assert len(set(made)) == 1


ENSURE = """
import sys
from pathlib import Path
from agent_bus.clock import SystemClock
from agent_bus.openhands.gateway.signing import SigningKeys
print("ready", flush=True)
sys.stdin.readline()
print(SigningKeys(Path(sys.argv[1]), SystemClock()).newest().hex())
"""


def test_processes_that_begin_together_make_one_key(
    signing: SigningKeys, start: Callable[..., Any]
) -> None:
    started = [start(ENSURE, signing.folder) for _ in range(3)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate(timeout=60) for process in started]

    assert [err for _, err in results] == [""] * 3
    assert {out.strip() for out, _ in results} == {signing.newest().hex()}


def test_after_a_rotation_the_old_key_verifies_for_a_day(
    signing: SigningKeys, clock: ManualClock
) -> None:
    now = clock.now() // 1000
    old = signing.newest()
    long = main_capability_token(old, MAIN, issued_at=now, expires_at=now + 9 * DAY)
    new = signing.rotate()

    assert states(signing) == ["retired", "active"]
    assert signing.listing()[-1] == new
    assert signing.newest() != old
    clock.advance(DAY - 0.001)
    assert signing.verify(long).subject == MAIN
    clock.advance(0.001)
    assert reason(signing, long) == "no live secret has signed it"
    assert signing.secrets() == [signing.newest()]


def test_a_childs_capability_outlives_a_rotation(
    signing: SigningKeys, token: Callable[[], str], clock: ManualClock
) -> None:
    made = token()
    signing.rotate()
    clock.advance(DAY - 1)

    assert signing.verify(made).role == "qa"
    clock.advance(1)
    reason(signing, made)


def test_two_rotations_in_a_row_keep_both_older_keys(
    signing: SigningKeys, token: Callable[[], str], clock: ManualClock
) -> None:
    made = [token()]
    for _ in range(2):
        clock.advance(60)
        signing.rotate()
        made.append(token())

    assert [signing.verify(text).role for text in made] == ["qa"] * 3
    assert len(signing.secrets()) == 3


def test_a_revoked_key_verifies_nothing_from_that_moment(
    signing: SigningKeys, token: Callable[[], str]
) -> None:
    made = token()
    (key,) = signing.listing()
    ended = signing.revoke(key.kid)

    assert (ended.kid, ended.state) == (key.kid, "revoked")
    assert reason(signing, made) == "no live secret has signed it"
    assert states(signing) == ["revoked", "active"]
    assert signing.verify(token()).role == "qa"


def test_a_retired_key_can_still_be_revoked(signing: SigningKeys, token: Callable[[], str]) -> None:
    made = token()
    signing.rotate()
    signing.revoke(signing.listing()[0].kid)

    assert states(signing) == ["revoked", "active"]
    reason(signing, made)


def test_a_key_that_is_not_there_cannot_be_revoked(signing: SigningKeys) -> None:
    signing.ensure()
    before = file_of(signing).read_bytes()

    with pytest.raises(UsageError, match="no key"):
        signing.revoke("0" * 16)
    assert file_of(signing).read_bytes() == before


def test_a_listing_shows_no_secret(signing: SigningKeys) -> None:
    signing.ensure()
    signing.rotate()

    stored = [entry["secret"] for entry in json.loads(file_of(signing).read_text())["keys"]]
    shown = repr(signing.listing()) + repr(signing)
    assert not any(secret in shown for secret in stored)


def test_what_was_taken_back_is_refused_and_nothing_else(
    signing: SigningKeys, token: Callable[[], str], clock: ManualClock
) -> None:
    taken = token()
    now = clock.now() // 1000
    hook = completion_token(signing.newest(), MAIN, "t-1", "qa", issued_at=now)
    found = signing.verify(taken)
    clock.advance(1)
    later = token()
    assert not signing.is_revoked(found.subject, found.issued_at)
    signing.revoke_token(found.subject, found.issued_at)
    before = file_of(signing).read_bytes()
    signing.revoke_token(found.subject, found.issued_at)

    assert file_of(signing).read_bytes() == before
    assert signing.is_revoked(found.subject, found.issued_at)
    assert reason(signing, taken) == reason(signing, hook) == "revoked"
    assert signing.verify(later).subject == found.subject
    signing.rotate()
    assert reason(signing, taken) == "revoked"


@pytest.mark.parametrize("at", [-1, 1 << 32, 1.5, True])
def test_only_a_time_that_can_be_is_taken_back(signing: SigningKeys, at: Any) -> None:
    with pytest.raises(UsageError):
        signing.revoke_token(MAIN, at)


def test_the_extra_secret_verifies_and_never_signs(tmp_path: Path, clock: ManualClock) -> None:
    signing = SigningKeys(tmp_path, clock, EXTRA)
    now = clock.now() // 1000
    token = main_capability_token(EXTRA, MAIN, issued_at=now, expires_at=now + 60)

    assert signing.verify(token).role == "main"
    assert signing.newest() != EXTRA.encode()
    assert signing.secrets() == [signing.newest(), EXTRA.encode()]
    assert EXTRA not in file_of(signing).read_text()
    with pytest.raises(InvalidCapability):
        SigningKeys(tmp_path, clock).verify(token)


@pytest.mark.parametrize("extra", ["", "test-secret", "x" * 31, "\ud800" * 40])
def test_a_short_extra_secret_is_refused_at_once(
    tmp_path: Path, clock: ManualClock, extra: str
) -> None:
    with pytest.raises(ConfigurationError, match="fewer than 32 bytes") as caught:
        SigningKeys(tmp_path, clock, extra)
    assert not extra or extra not in str(caught.value)


def test_bytes_of_an_extra_secret_count_not_characters(tmp_path: Path, clock: ManualClock) -> None:
    assert SigningKeys(tmp_path, clock, "ä" * 16).secrets() == ["ä".encode() * 16]
    assert SigningKeys(tmp_path, clock, "\udcff" * 32).secrets() == [b"\xff" * 32]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are those of Unix")
def test_a_file_or_folder_that_others_may_read_is_refused(signing: SigningKeys) -> None:
    signing.ensure()
    file_of(signing).chmod(0o640)
    for use in (signing.secrets, signing.newest, signing.rotate, signing.listing):
        with pytest.raises(UnsafePermissions, match="chmod 600"):
            use()
    file_of(signing).chmod(0o600)
    signing.folder.chmod(0o750)
    for use in (signing.secrets, signing.newest, signing.rotate, signing.listing):
        with pytest.raises(UnsafePermissions, match="chmod 700"):
            use()
    signing.folder.chmod(0o700)


def test_a_link_is_not_followed(signing: SigningKeys, tmp_path: Path) -> None:
    signing.ensure()
    other = tmp_path / "other"
    file_of(signing).rename(other)
    file_of(signing).symlink_to(other)

    with pytest.raises(ConfigurationError, match="link"):
        signing.secrets()


def test_a_folder_that_is_none_is_an_error_of_storage(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "keys").write_text("")

    with pytest.raises(StorageError):
        SigningKeys(tmp_path / "keys", clock).secrets()


SECRET = "A" * 43
KEY = {
    "kid": "0" * 16,
    "secret": SECRET,
    "state": "active",
    "created_at": "2026-11-30T12:00:00.000Z",
}
GONE = {"subject": str(MAIN), "issued_at": 1}


def test_a_file_of_the_right_form_is_read(signing: SigningKeys) -> None:
    put(signing, {"keys": [KEY]})

    assert signing.newest() == bytes(32)
    signing.revoke_token(MAIN, 1)
    assert json.loads(file_of(signing).read_text()) == {"keys": [KEY], "revoked": [GONE]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        [],
        {},
        {"keys": {}},
        {"keys": [], "more": 1},
        {"keys": [[]]},
        {"keys": [{}]},
        {"keys": [KEY, KEY]},
        {"keys": [{**KEY, "alg": "ed25519"}]},
        {"keys": [{**KEY, "kid": "x"}]},
        {"keys": [{**KEY, "kid": 7}]},
        {"keys": [{**KEY, "secret": SECRET + "="}]},
        {"keys": [{**KEY, "secret": SECRET[1:]}]},
        {"keys": [{**KEY, "secret": "A" * 42 + "B"}]},
        {"keys": [{**KEY, "state": "old"}]},
        {"keys": [{**KEY, "state": "retired"}]},
        {"keys": [{**KEY, "created_at": SECRET}]},
        {"keys": [{**KEY, "retired_at": "yesterday"}]},
        {"keys": [], "revoked": {}},
        {"keys": [], "revoked": [{"subject": str(MAIN)}]},
        {"keys": [], "revoked": [{**GONE, "subject": "x"}]},
        {"keys": [], "revoked": [{**GONE, "issued_at": -1}]},
        {"keys": [], "revoked": [{**GONE, "issued_at": True}]},
        {"agent": "gateway", "keys": [KEY]},
    ],
    ids=lambda data: ascii(data)[:40],
)
def test_a_file_of_another_form_is_refused_in_one_line_and_kept(
    signing: SigningKeys, data: object
) -> None:
    put(signing, data)
    before = file_of(signing).read_bytes()

    for use in (signing.ensure, signing.secrets, signing.rotate, lambda: signing.verify("x")):
        with pytest.raises(ConfigurationError) as caught:
            use()
        text = str(caught.value)
        assert FILE in text
        assert "\n" not in text
        assert SECRET not in text
    assert file_of(signing).read_bytes() == before


def test_the_file_never_grows_beyond_what_can_be_read(
    signing: SigningKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.ensure()
    size = file_of(signing).stat().st_size
    monkeypatch.setattr("agent_bus.openhands.gateway.signing._LIMIT", size)

    with pytest.raises(ConfigurationError, match="full"):
        signing.revoke_token(MAIN, 1)
    assert signing.listing()


def test_agents_and_the_gateway_share_the_folder(signing: SigningKeys, clock: ManualClock) -> None:
    keys = Keys(signing.folder, clock)
    keys.generate(AgentName("alice"))
    signing.ensure()

    assert keys.known() == {"alice"}
    assert keys.index().problems == ()
    assert sorted(os.listdir(signing.folder)) == sorted(
        [".alice.lock", ".gateway.lock", "alice.json", FILE, "rotations.jsonl"]
    )
