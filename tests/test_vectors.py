"""Message files and decisions with what every reader must say of them.

tests/data/vectors.json is made by a script that knows nothing of the product. Where the
shared vectors lie beside the repository, they are judged as well.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_bus.approvals import Approvals
from agent_bus.clock import from_text
from agent_bus.delivery import Delivery
from agent_bus.errors import NotPermitted
from agent_bus.keyring import Keyring, encode_secret, parse_keyring
from agent_bus.keys import Keys
from agent_bus.names import AgentName, MessageId
from agent_bus.pins import chain
from agent_bus.sealing import open_key
from agent_bus.store import Store
from agent_bus.testing import ManualClock

DATA = Path(__file__).parent / "data"
OWN = json.loads((DATA / "vectors.json").read_text())
SHARED_PATH = Path(__file__).resolve().parents[2] / "shared" / "vectors" / "messages.json"
SHARED = json.loads(SHARED_PATH.read_text()) if SHARED_PATH.exists() else None
SHARED_NOW = "2026-11-30T12:30:00.000Z"


@dataclass(frozen=True)
class World:
    """A bus as the vectors describe it."""

    store: Store
    approvals: Approvals

    def put(self, case: dict[str, Any], part: str = "new") -> None:
        """Lay a message file into its box."""
        folder = self.store.root / "messages" / case["box"] / part
        (folder / f"{case['file_id']}.msg").write_bytes(base64.b64decode(case["file_b64"]))


def build(folder: Path, vectors: dict[str, Any]) -> World:
    file = vectors["bus"]
    bus = MessageId(file if isinstance(file, str) else file["bus"])
    admins = vectors.get("admins") or file["admins"]
    clock = ManualClock(from_text(vectors.get("now", SHARED_NOW)))
    keys = Keys(folder / "keys", clock)
    for ring in vectors["keyrings"]:
        keys.restore(parse_keyring(json.dumps(ring).encode()))
    root = folder / "bus"
    for name in ("messages", "approvals", "sent", "agents"):
        (root / name).mkdir(parents=True, mode=0o700)
    store = Store(root, bus, keys, clock)
    for box in {case["box"] for case in vectors["cases"]}:
        store.make_box(AgentName(box)).close()
    return World(store, Approvals(store, Delivery(store, clock), clock, admins))


def sources() -> Iterator[Any]:
    yield pytest.param(OWN, id="own")
    missing = pytest.mark.skipif(SHARED is None, reason=f"{SHARED_PATH} is not there")
    yield pytest.param(SHARED, id="shared", marks=missing)


def params(part: str) -> Iterator[Any]:
    for case in OWN[part]:
        yield pytest.param(OWN, case, id=f"own-{case['name']}")
    if SHARED is None:
        reason = f"{SHARED_PATH} is not there"
        yield pytest.param(None, None, id="shared", marks=pytest.mark.skip(reason=reason))
        return
    for case in SHARED[part]:
        yield pytest.param(SHARED, case, id=f"shared-{case['name']}")


@pytest.mark.parametrize(("vectors", "case"), list(params("cases")))
def test_a_message_file_is_judged_as_the_format_says(
    tmp_path: Path, vectors: dict[str, Any], case: dict[str, Any]
) -> None:
    world = build(tmp_path, vectors)
    world.put(case)

    stored = world.store.load(AgentName(case["box"]), MessageId(case["file_id"]))

    assert stored.judged.outcome == case["expect"], stored.judged.detail
    assert (stored.judged.message is not None) == (case["expect"] in ("ok", "expired"))


@pytest.mark.parametrize(("vectors", "case"), list(params("decisions")))
def test_a_decision_counts_only_if_the_format_says_so(
    tmp_path: Path, vectors: dict[str, Any], case: dict[str, Any]
) -> None:
    world = build(tmp_path, vectors)
    ident = request_id(vectors)
    place = world.store.root / "approvals"
    (place / f"{ident}.request").write_bytes(base64.b64decode(vectors["request"]["file_b64"]))
    (place / f"{ident}.decision").write_bytes(base64.b64decode(case["file_b64"]))

    decision = world.approvals.decision(world.approvals.request(ident))

    assert ("valid" if decision else "invalid") == case["expect"]


@pytest.mark.parametrize("vectors", list(sources()))
def test_a_box_with_all_of_them_shows_the_good_ones_and_names_the_rest(
    tmp_path: Path, vectors: dict[str, Any]
) -> None:
    world = build(tmp_path, vectors)
    expected: dict[tuple[str, str], str] = {}
    for case in vectors["cases"]:
        if (case["box"], case["file_id"]) not in expected:
            world.put(case)
            expected[case["box"], case["file_id"]] = case["expect"]

    found = {}
    for box in world.store.boxes():
        for stored in world.store.load_all(world.store.places(box, ("new",))):
            found[stored.place.box, stored.place.id] = stored.judged.outcome

    assert found == expected


def test_the_shared_vectors_are_complete() -> None:
    if SHARED is None:
        pytest.skip(f"{SHARED_PATH} is not there")
    assert (len(SHARED["cases"]), len(SHARED["decisions"])) == (49, 9)


def test_our_own_vectors_are_what_their_script_makes() -> None:
    made = subprocess.run(
        [sys.executable, "-I", str(DATA / "make_vectors.py")],
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert json.loads(made.stdout) == OWN


def test_our_own_sealed_key_opens_with_its_passphrase_alone() -> None:
    ring = harbour()
    ((kid, private),) = OWN["private"].items()
    key = next(key for key in ring.keys if key.kid == kid)

    opened = open_key(ring.agent, key, OWN["passphrase"])

    assert encode_secret(opened.private) == private
    # The accent in its other spelling, as another keyboard sends it.
    assert open_key(ring.agent, key, unicodedata.normalize("NFD", OWN["passphrase"])) == opened
    with pytest.raises(NotPermitted):
        open_key(ring.agent, key, OWN["passphrase"] + " ")
    with pytest.raises(NotPermitted):
        open_key(AgentName("chief"), key, OWN["passphrase"])


def test_our_own_chain_holds_as_the_format_says() -> None:
    assert chain(harbour(), OWN["chain"]["fingerprints"]) == set(OWN["chain"]["kids"])
    assert chain(harbour(), []) == set()


def harbour() -> Keyring:
    (ring,) = (ring for ring in OWN["keyrings"] if ring["agent"] == OWN["chain"]["agent"])
    return parse_keyring(json.dumps(ring).encode())


def request_id(vectors: dict[str, Any]) -> MessageId:
    data = base64.b64decode(vectors["request"]["file_b64"])
    return MessageId(json.loads(data.partition(b"\n")[2])["id"])


def test_the_script_of_our_vectors_uses_nothing_of_the_product() -> None:
    text = (DATA / "make_vectors.py").read_text()

    assert "import agent_bus" not in text
    assert "from agent_bus" not in text
