"""Keyrings, the history of keys, the journal, what is kept of pruned messages, bus.json, and
git's mark: whatever these files hold, they are read or refused in words.
"""

# ruff: noqa: PT017 - most inputs raise nothing

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_bus import records
from agent_bus.clock import SystemClock, to_text
from agent_bus.errors import AgentBusError
from agent_bus.files import Folder
from agent_bus.keyring import Key, Keyring, decode_secret, dump, import_secret, parse_keyring
from agent_bus.keys import ROTATIONS, Keys
from agent_bus.names import AgentName, is_message_id
from agent_bus.resolve import BUS_FILE, MARK, mark, read_bus_file

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Each input replaces the file of the one before."""

ids = st.from_regex(r"[0-7][0-9a-hjkmnp-tv-z]{25}", fullmatch=True)
times = st.integers(0, 253_402_300_799_999).map(to_text)
kids = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
states = st.sampled_from(["active", "retired", "revoked"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=15,
)
keys = st.builds(
    Key,
    kid=kids,
    secret=st.binary(min_size=32, max_size=32),
    state=states,
    created_at=times,
    retired_at=st.none() | times,
    alg=st.sampled_from(["hmac-sha256", "ed25519", "rot13"]),
)
rings = st.builds(
    Keyring,
    agent=st.just(AgentName("alice")),
    keys=st.lists(keys, max_size=4, unique_by=lambda key: key.kid).map(tuple),
)
rubbish = st.binary(max_size=400) | json_values.map(lambda value: json.dumps(value).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder."""
    tmp_path.chmod(0o700)
    return tmp_path


@given(rings)
def test_a_keyring_comes_back_as_it_was_written(ring: Keyring) -> None:
    assert parse_keyring(dump(ring)) == ring


@given(rubbish)
def test_a_keyring_is_read_or_refused(data: bytes) -> None:
    try:
        ring = parse_keyring(data)
    except (ValueError, RecursionError):
        return
    assert parse_keyring(dump(ring)) == ring


@given(rings, st.data())
def test_a_keyring_with_an_odd_value_is_read_or_refused(ring: Keyring, data: st.DataObject) -> None:
    value = json.loads(dump(ring))
    secrets = [key["secret"] for key in value["keys"]]
    place = data.draw(st.sampled_from([value, *value["keys"]]))
    name = data.draw(st.sampled_from(sorted(place)) | st.text(max_size=5))
    place[name] = data.draw(json_values)
    try:
        found = parse_keyring(json.dumps(value).encode())
    except ValueError as error:
        assert not any(secret in str(error) for secret in secrets)
        return
    assert parse_keyring(dump(found)) == found


@one_folder
@given(rubbish)
def test_a_folder_of_keys_with_rubbish_in_it_still_serves(folder: Path, data: bytes) -> None:
    (folder / "bob.json").write_bytes(data)
    (folder / "bob.json").chmod(0o600)
    found = Keys(folder, SystemClock())
    assert not found.index().owners
    try:
        found.load(AgentName("bob"))
    except AgentBusError as error:
        assert str(error).isprintable()


@given(st.text(max_size=60))
def test_a_secret_has_one_spelling(text: str) -> None:
    try:
        secret = decode_secret(text)
    except ValueError:
        return
    assert len(secret) == 32


@given(st.binary(max_size=80))
def test_a_foreign_key_file_is_read_or_refused(data: bytes) -> None:
    try:
        secret = import_secret(data)
    except ValueError as error:
        assert str(error).isprintable()
        return
    assert len(secret) == 32


rotation_lines = (
    st.fixed_dictionaries(
        {
            "at": times | st.text(max_size=5),
            "agent": st.just("alice") | json_values,
            "event": st.sampled_from(["added", "retired", "revoked", "agent_retired", "eaten"])
            | json_values,
        },
        optional={"kid": kids | json_values},
    )
    | json_values
).map(lambda value: json.dumps(value).encode())


@one_folder
@given(st.lists(rotation_lines | st.binary(max_size=60), max_size=8))
def test_the_history_of_keys_passes_over_what_is_no_line_of_it(
    folder: Path, lines: list[bytes]
) -> None:
    (folder / ROTATIONS).write_bytes(b"\n".join(lines))
    (folder / ROTATIONS).chmod(0o600)
    found = Keys(folder, SystemClock())
    for line in found.rotations():
        assert line.event in ("added", "retired", "revoked", "agent_retired")
    found.known()


event_lines = st.builds(
    lambda at, event, ident: f"{at} {event} {ident}".encode(),
    times | st.text(max_size=5),
    st.sampled_from(["read", "archived", "eaten"]),
    ids | st.text(max_size=30),
)


@one_folder
@given(st.lists(event_lines | st.binary(max_size=60), max_size=8), st.binary(max_size=30))
def test_the_journal_passes_over_what_is_no_line_of_it(
    folder: Path, lines: list[bytes], tail: bytes
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    (folder / records.JOURNAL).write_bytes(data + tail)
    with Folder.open(folder) as box:
        found = list(records.events(box))
    (folder / records.JOURNAL).write_bytes(data)
    with Folder.open(folder) as box:
        whole = list(records.events(box))
    assert all(is_message_id(event.id) for event in found)
    assert found[: len(whole)] == whole


pruned_lines = st.builds(
    lambda ident, sent, content: f"{ident} {sent} {content}".encode(),
    ids | st.text(max_size=30),
    st.just("-") | st.text(max_size=10),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True) | st.text(max_size=10),
)


@one_folder
@given(st.lists(pruned_lines | st.binary(max_size=60), max_size=8), ids)
def test_what_is_kept_of_pruned_messages_survives_rubbish(
    folder: Path, lines: list[bytes], ident: str
) -> None:
    good = f"{ident} - {'0' * 64}".encode()
    (folder / records.PRUNED).write_bytes(
        b"".join(line + b"\n" for line in (*lines, good, b"torn"))
    )
    with Folder.open(folder) as month:
        found = list(records.pruned_in(month))
    assert ident in {entry.id for entry in found}
    assert all(is_message_id(entry.id) for entry in found)


bus_files = st.fixed_dictionaries(
    {
        "format": st.just(1) | json_values,
        "bus": ids | json_values,
        "project": st.text(max_size=20) | json_values,
        "admins": st.just(["conductor"]) | json_values,
        "created_at": times | json_values,
    }
).map(lambda value: json.dumps(value).encode())


@one_folder
@given(bus_files | rubbish)
def test_bus_json_is_read_or_refused(folder: Path, data: bytes) -> None:
    (folder / BUS_FILE).write_bytes(data)
    with Folder.open(folder) as root:
        try:
            found = read_bus_file(root)
        except AgentBusError as error:
            assert str(error).isprintable()
            return
    assert is_message_id(found.bus)


@one_folder
@given(st.binary(max_size=60) | ids.map(lambda ident: ident.encode() + b"\n"))
def test_the_mark_of_a_repository_is_read_or_refused(folder: Path, data: bytes) -> None:
    (folder / MARK).write_bytes(data)
    try:
        found = mark(folder)
    except AgentBusError as error:
        assert str(error).isprintable()
        return
    assert found is not None
    assert found.encode() == data.strip()
