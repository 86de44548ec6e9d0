"""What the gateway of OpenHands children does, as operations that are harmed.

`mission` makes a child: from a mission to a conversation that works on it. `wake` is the round
that tells its owner, itself a conversation, that it has ended. The agent server stands in the
process of the tests and survives whatever is harmed.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from looking import Outcome, Ready, bus, everything, settings, unfit
from operations import Operation
from processes import wait_until

from agent_bus.errors import StorageError, Unavailable
from agent_bus.openhands.gateway import doctor
from agent_bus.openhands.gateway.caller import MAIN_ACTIONS, Caller
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.identifiers import child_id
from agent_bus.openhands.gateway.journal import Record
from agent_bus.openhands.gateway.parts import Pauses
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.testing import TemporaryBus

if TYPE_CHECKING:
    from wired import PlayingServer

MAIN = UUID("11111111-1111-4111-8111-111111111111")
"""The owner: a conversation of the same server."""
CHILD = child_id(MAIN, "task-1")
ANSWER = "the widget is mended"
PAUSES = Pauses(poll=0.01, settle_finished=0.0, settle=0.0, settle_paused=0.0)
_WAIT = 30.0


class World:
    """The agent server of this process; None in the process that is harmed."""

    server: PlayingServer | None = None


def play(server: Any, child: UUID, message: str) -> None:
    """A child begins as it is told, and is done as soon as it has its mission."""
    if message.startswith("PROVIDER_ADMISSION"):
        server.finish(child, "PROVIDER_READY")
    elif message.startswith("MISSION"):
        server.finish(child, ANSWER)


def reset() -> None:
    """Let the server forget everything but the owner."""
    server = _server()
    server.chats.clear()
    made = {"conversation_id": str(MAIN), "workspace": {"working_dir": "/"}, "agent_settings": {}}
    server._create(made | {"agent": {"kind": "Agent"}})


def _server() -> PlayingServer:
    assert World.server is not None
    return World.server


def prepare(root: Path) -> str:
    """A bus, a mirror, and where the agent server is."""
    from scene import make_mirror

    root.mkdir()
    TemporaryBus("alice", "bob", folder=root)
    (root / "workspace").mkdir()
    head = make_mirror(root / "workspace")
    where = {"url": _server().url, "key": _server().key, "head": head}
    (root / "world.json").write_text(json.dumps(where))
    return ""


def gateway_settings(root: Path) -> GatewaySettings:
    """The settings of the gateway in a folder."""
    where = json.loads((root / "world.json").read_text())
    return GatewaySettings(
        where["url"], where["key"], "http://people.test", workspace=root / "workspace"
    )


def opened(root: Path) -> Gateway:
    """A gateway that has loaded what it needs, and has asked git and the server once."""
    from agent_bus.openhands.gateway import git

    made = Gateway.open(settings(root), gateway_settings(root), pauses=PAUSES)
    made.parts.provider.conversation(UUID(int=0))
    git.run(("rev-parse", "--git-dir"), what="nothing", folder=root)
    return made


def mission(root: Path) -> dict[str, Any]:
    """What the child is to do."""
    head = json.loads((root / "world.json").read_text())["head"]
    return {
        "immediateTask": "Your task now: mend the widget.",
        "links": {},
        "checkout": {"repository": "acme/widgets", "branch": "fix/1", "headSha": head},
        "allowedMutations": ["src/**"],
        "prohibitions": [],
        "skills": ["python"],
        "evidence": [],
    }


def created(gateway: Gateway, mission: dict[str, Any]) -> str:
    """Make the child."""
    owner = Caller(MAIN, MAIN, "root", "main", MAIN_ACTIONS)
    made = gateway.create_child(
        owner, task_key="task-1", role="writer", mission=mission, wait=_WAIT
    )
    if made.state in ("begun", "created", "admitting", "admitted"):
        raise Unavailable(made.problem or f"it is {made.state} and does not go on")
    return str(made.child)


def _create(root: Path, _ident: str, _key: str | None) -> Ready:
    gateway, wanted = opened(root), mission(root)

    def create() -> str:
        with gateway:
            return created(gateway, wanted)

    return create


def _wake(root: Path, _ident: str, _key: str | None) -> Ready:
    gateway = opened(root)
    created(gateway, mission(root))

    def wake() -> str:
        with gateway:
            done = gateway.reconcile()
        if done.problems:
            raise StorageError("; ".join(done.problems))
        return ""

    return wake


# -- what there is afterwards


def settle(root: Path) -> None:
    """Wait until nobody works for a process that is gone: its git, its requests."""
    wait_until(lambda: not any(_of(root)), "its git ends")
    wait_until(
        lambda: not any("process_request" in each.name for each in threading.enumerate()),
        "its requests end",
    )


def _of(root: Path) -> Iterator[Path]:
    """The gits whose command line names a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if line.partition(b"\0")[0].endswith(b"git") and bytes(root) in line:
                yield path


def record(root: Path) -> Record | None:
    """What the journal says of the child."""
    path = root / "bus" / "openhands" / "gateway" / "children" / f"{CHILD}.json"
    return Record.model_validate_json(path.read_bytes()) if path.exists() else None


def said() -> Counter[str]:
    """How often each kind of message was posted to the child."""
    texts = _server().messages(CHILD) if str(CHILD) in _server().chats else []
    return Counter(text.partition("\n")[0] for text in texts)


def copies() -> Counter[str]:
    """How often the owner's conversation tells each end."""
    texts = _server().messages(MAIN) if str(MAIN) in _server().chats else []
    told = [text.removeprefix("RECOVERY_WAKE\n") for text in texts]
    return Counter(str(json.loads(text).get("status")) for text in told)


def wakes(root: Path) -> Counter[str]:
    """How often the owner's box tells each end."""
    found = (stored.judged.message for stored in everything(root))
    return Counter(str(one.data["status"]) for one in found if one and one.kind == "wake")


def worktrees(root: Path) -> int:
    """How many worktrees there are, to the mirror as well."""
    delivery = root / "workspace" / "delivery"
    there = len(list(delivery.iterdir())) if delivery.exists() else 0
    known = root / "workspace" / "mirrors" / "acme--widgets.git" / "worktrees"
    return max(there, len(list(known.iterdir())) if known.exists() else 0)


def _counts(root: Path) -> dict[str, int]:
    to_child = said()
    return {
        "worktree": worktrees(root),
        "conversation": len(_server().chats) - 1,
        "admission": to_child["PROVIDER_ADMISSION"],
        "mission": to_child["MISSION"],
        "wake": wakes(root)["finished"],
        "copy": copies()["finished"],
    }


def _check(root: Path, _: str, outcome: Outcome, *, through: str) -> Iterator[str]:
    """Never two of anything; up to `through` one of each where it is said to be done."""
    settle(root)
    yield from unfit(root)
    known = record(root)
    attempts = known.attempt if known else 1
    if outcome.code == "died" and attempts > 1:
        yield "a death made a second attempt of it"
    counts = _counts(root)
    done = list(counts)[: list(counts).index(through) + 1] if outcome.code == "ok" else []
    for name, count in counts.items():
        # An attempt may have failed before it came so far.
        most = attempts if name == "admission" else 1
        if not (name in done) <= count <= most:
            yield f"{name}: there are {count}"
    if len(outcome.text.splitlines()) > 1 or "evx1_" in outcome.text:
        yield f"this is no clean line: {outcome.text!r}"


def _check_created(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    yield from _check(root, ident, outcome, through="mission")


def _check_woken(root: Path, ident: str, outcome: Outcome) -> Iterator[str]:
    yield from _check(root, ident, outcome, through="copy")


def _recheck(root: Path, ident: str, first: Outcome) -> Iterator[str]:
    """After two more rounds of others: one of each, and a doctor who is content."""
    for _ in range(2):
        with opened(root) as gateway:
            yield from gateway.reconcile().problems
    yield from _check(root, ident, Outcome("ok"), through="copy")
    known = record(root)
    if known is None or known.state != "ended" or known.problem:
        yield f"the journal says {known}"
    elif first.code == "died" and known.attempt > 1:
        yield "a death made a second attempt of it"
    elif not wakes(root)["error"] == copies()["error"] == known.attempt - 1:
        yield f"{known.attempt} attempts, and {wakes(root)} were told, {copies()} copied"
    found = doctor.examine(bus(root), gateway_settings(root))
    yield from (f"{one.code} {one.path}: {one.message}" for one in found if one.severity == "error")


MISSIONS: dict[str, Operation] = {
    "mission": Operation(prepare, _create, _check_created, _recheck),
    "wake": Operation(prepare, _wake, _check_woken, _recheck),
}
