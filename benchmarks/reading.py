"""Looking things up: an inbox, signatures, and a long history."""

from __future__ import annotations

import hmac
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_bus.bus import Bus
from agent_bus.clock import IdSource, to_text
from agent_bus.envelope import MESSAGE_TYPE, pae, sign_message
from agent_bus.keyring import Key
from agent_bus.names import AgentName, MessageId, message_file, month_of
from agent_bus.payload import Message
from agent_bus.testing import TemporaryBus
from benchmarks.measuring import Result, Scale, Step, compared, in_turn, median
from benchmarks.sending import BODY

_PAGE = 50
_MONTH = 10_000
_SIZES = {"inbox-10": 10, "inbox-1000": 1_000, "inbox-10000": 10_000}
_BEGIN = 1_767_571_200_000
"""The fifth of January 2026, in milliseconds since 1970."""
_DAYS_28 = 28 * 86_400_000


class Filler:
    """Puts signed messages into boxes, without a flush: they only need to be there."""

    def __init__(self, bus: TemporaryBus) -> None:
        self._bus = bus
        self._alice = bus.as_agent("alice")
        self.key: Key = self._alice.keys.load(AgentName("alice")).signing_key()

    def fill(self, box: str, part: str, count: int, begin: int = _BEGIN) -> Path:
        """Add messages of successive seconds; `part` is a folder of the box, or `archive`."""
        folder, ids = self._bus.path / "messages" / box / part, IdSource()
        for number in range(count):
            ident = MessageId(ids.next(begin + number * 100))
            where = folder / month_of(ident) if part == "archive" else folder
            if not number:
                where.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = sign_message(self._message(ident, box, begin + number * 100), self.key)
            fd = os.open(where / message_file(ident), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, data)
            os.close(fd)
        return where

    def _message(self, ident: MessageId, box: str, at: int) -> Message:
        return Message(
            id=ident,
            bus=self._alice.file.bus,
            sender=AgentName("alice"),
            to=AgentName(box),
            sent_at=to_text(at),
            subject="the build is green again",
            body=BODY,
        )


def read_and_hmac(path: str, secret: bytes) -> bytes:
    """The floor of one message: read it and check its HMAC. Returns the payload."""
    with open(path, "rb") as file:
        data = file.read()
    header, _, payload = data.partition(b"\n")
    mac = hmac.new(secret, pae(MESSAGE_TYPE, payload), "sha256").hexdigest()
    if not hmac.compare_digest(mac, header.decode().split(" ")[2]):
        raise ValueError(path)
    return payload


def bare_page(folder: Path, secret: bytes, limit: int) -> list[dict[str, object]]:
    """The floor of a page: list, sort, read and verify, parse what is to be shown."""
    names = sorted(os.listdir(folder))[:limit]
    return [json.loads(read_and_hmac(f"{folder}/{name}", secret)) for name in names]


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    with tempfile.TemporaryDirectory(prefix="agent-bus-bench-", dir=scale.folder) as place:
        bus = TemporaryBus("alice", *_SIZES, folder=Path(place))
        yield from inboxes(scale, bus)
    with tempfile.TemporaryDirectory(prefix="agent-bus-bench-", dir=scale.folder) as place:
        yield from history(scale, Path(place))


def inboxes(scale: Scale, bus: TemporaryBus) -> Iterator[Result]:
    """The first page, and then the signatures of the largest."""
    filler = Filler(bus)
    secret, pages = filler.key.secret, []
    for name, size in _SIZES.items():
        folder = filler.fill(name, "new", size)
        reader = bus.as_agent(name)
        steps = [
            lambda f=folder: bare_page(f, secret, _PAGE),
            lambda r=reader: r.inbox(limit=_PAGE),
        ]
        floor, ours = in_turn(steps, scale.rounds(200, 60))
        pages.append(compared(name, f"first page of {size:,} unread", floor, ours, 2.0))
        yield pages[-1]
    first, last = pages[0], pages[-1]
    grown, floor_grown = last.ours / first.ours, (last.floor or 1) / (first.floor or 1)
    title, of = "growth from 10 to 10,000 unread", "our growth ÷ its growth"
    yield Result(
        "inbox-growth", title, "times", grown, floor_grown, grown / floor_grown, 1.0, of=of
    )
    yield _verify(scale, folder, reader, secret)


def _verify(scale: Scale, folder: Path, reader: Bus, secret: bytes) -> Result:
    def bare() -> None:
        for name in sorted(os.listdir(folder)):
            read_and_hmac(f"{folder}/{name}", secret)

    def ours() -> None:
        assert all(stored.judged.ok for stored in reader.verify(box=folder.parent.name))

    floor, times = in_turn([bare, ours], scale.rounds(9, 5))
    return compared("verify", "verify of 10,000", floor, times, 1.5)


def history(scale: Scale, place: Path) -> Iterator[Result]:
    """One bus with a month of archived messages beside one with ten (in a hurry: three)."""
    months = scale.rounds(10, 3)
    _, short = _archived(place / "short", 1)
    folder, long = _archived(place / "long", months)
    steps = [lambda: sorted(os.listdir(folder)), *short.values(), *long.values()]
    floor, *times = in_turn(steps, scale.rounds(100, 30))
    kept = f"{months * _MONTH:,} archived"
    for name, before, after in zip(long, times[: len(short)], times[len(short) :], strict=True):
        beside = compared(name, f"{name}, {kept}", floor, after, None)
        more = {"of_floor": beside.ratio, "with_10000": median(before) * 1000} | beside.more
        ratio, of = median(after) / median(before), f"{kept} ÷ 10,000"
        yield Result(
            name, beside.title, "ms", beside.ours, beside.floor, ratio, 1.25, of=of, more=more
        )


def _archived(place: Path, months: int) -> tuple[Path, dict[str, Step]]:
    """The folder of the last month of such a bus, and the views of its conductor."""
    place.mkdir()
    bus = TemporaryBus("alice", "bob", folder=place)
    filler, conductor = Filler(bus), bus.as_agent("conductor")
    for _ in range(10):
        bus.as_agent("bob").request_approval("May I?")
    filler.fill("bob", "new", 20, begin=_BEGIN + 12 * _DAYS_28)
    for number in range(months):
        folder = filler.fill("bob", "archive", _MONTH, begin=_BEGIN + number * _DAYS_28)
    views: dict[str, Step] = {
        "log": lambda: conductor.log(limit=_PAGE),
        "status": conductor.status,
        "pending-approval": conductor.pending,
    }
    return folder, views
