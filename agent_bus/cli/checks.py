"""Looking after a bus: `verify doctor prune export`. None of them needs an identity."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

from typer import Argument, Option

from agent_bus import clock, doubts
from agent_bus.cli import render
from agent_bus.cli.options import (
    ID_HELP,
    Shared,
    as_path,
    open_anonymous,
    open_as,
    optional_name,
    verb,
)
from agent_bus.errors import NoSuchMessage, UsageError, VerificationError
from agent_bus.reading import Stored

_Text = str | None

_PASSING = ("ok", "expired")


@dataclass(frozen=True, kw_only=True)
class Verify(Shared):
    """The options of `verify`."""

    id: Annotated[_Text, Argument(metavar="[ID]", help=ID_HELP)] = None
    box: Annotated[_Text, Option("--box", metavar="NAME", help="Only the box of this agent.")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class Doctor(Shared):
    """The options of `doctor`."""

    repair: Annotated[
        bool, Option("--repair", help="Move aside what is wrong, and close open modes.")
    ] = False
    ping: Annotated[
        bool, Option("--ping", help="Also send yourself a message, and measure the wake.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Prune(Shared):
    """The options of `prune`."""

    archived: Annotated[
        _Text, Option("--archived", metavar="AGE", help="Archived messages older than this: 30d.")
    ] = None
    read: Annotated[
        _Text, Option("--read", metavar="AGE", help="Read messages older than this: 90d.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Export(Shared):
    """The options of `export`."""

    file: Annotated[str, Argument(metavar="FILE.tar.gz", help="The archive to write.")]


@verb
def verify(options: Verify) -> int:
    """Check the signatures and places of messages: all, those of a box, or one.

    Lists what does not verify (65), and what has expired or is a wake of anybody but the
    gateway (no failure). With --json, or an id, lists every message that was checked.
    """
    box = optional_name(options.box)
    bus = open_anonymous(options)
    counted: Counter[str] = Counter()
    found = bus.verify(options.id, box=box)
    rows: list[tuple[str, ...]] = []
    with render.progress("verifying", lambda: bus.count(box), shown=not options.json) as done:
        for stored in found:
            done(1)
            if box not in (None, stored.place.box):
                continue
            counted[stored.judged.outcome] += 1
            if options.json:
                render.put_json(_record(stored))
            elif options.id is not None or not stored.judged.ok or _doubt(stored):
                rows.append(_columns(stored))
    if options.id is not None and not counted:
        raise NoSuchMessage(f"no message {options.id[:80]!a} in the box of {box}")
    render.table(("id", "box", "state", "outcome", "why"), rows)
    failed = sum(number for outcome, number in counted.items() if outcome not in _PASSING)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
    render.say(f"checked {counted.total()}: {summary or 'there is nothing'}")
    return VerificationError.exit_code if failed else 0


@verb
def doctor(options: Doctor) -> int:
    """Check every promise on the whole bus, without changing it; 65 if one does not hold.

    --repair only ever moves things aside, and closes modes that are open to others.
    """
    from agent_bus import doctor as doctors

    bus = open_as(options) if options.ping else open_anonymous(options)
    with render.progress("examining", bus.count) as done:
        findings = doctors.examine(bus, repair=options.repair, progress=done)
    content = doctors.is_content(findings)
    measured = doctors.ping(bus) if options.ping else None
    if options.json:
        record = {"ok": content, "findings": [asdict(finding) for finding in findings]}
        render.put_json(record | ({"ping": asdict(measured)} if measured else {}))
    else:
        head = ("severity", "code", "path", "message", "repaired")
        rows = ((f.severity, f.code, f.path, f.message, f.repaired or "-") for f in findings)
        render.table(head, rows)
        if measured:
            render.say(f"a message to yourself woke you after {measured.wake_ms:.0f} ms")
        render.say("every promise holds" if content else "not every promise holds: see the errors")
    return 0 if content else VerificationError.exit_code


@verb
def prune(options: Prune) -> None:
    """Remove old messages that are done, and keep their ids.

    Unread messages, undecided requests and what does not verify stay. Age is counted from
    the time in the id.
    """
    if options.archived is None and options.read is None:
        raise UsageError("nothing to prune: give --archived AGE or --read AGE, for example 30d")
    ages = [None if age is None else clock.seconds(age) for age in (options.archived, options.read)]
    bus = open_anonymous(options)
    with render.progress("pruning", bus.count) as done:
        pruned = bus.prune(archived=ages[0], read=ages[1], progress=done)
    if options.json:
        render.put_json(asdict(pruned))
        return
    names = ("removed", "kept undecided", "kept bad", "leftovers removed")
    numbers = asdict(pruned).values()
    render.put(", ".join(f"{name} {n}" for name, n in zip(names, numbers, strict=True)))


@verb
def export(options: Export) -> None:
    """Write all messages, and which keys there are (no secrets), into one new archive."""
    from agent_bus import export as exports

    file = as_path(options.file)
    bus = open_anonymous(options)
    with render.progress("exporting", bus.count) as done:
        exported = exports.export(bus, file, progress=done)
    if options.json:
        render.put_json(asdict(exported))
        return
    render.put(render.visible(exported.path))
    render.say(f"{exported.messages} messages, {exported.bytes} bytes")
    for line in exported.skipped:
        render.say(f"left out: {line}")


def _record(stored: Stored) -> dict[str, object]:
    place, judged = stored.place, stored.judged
    record: dict[str, object] = {
        "id": place.id,
        "box": place.box,
        "outcome": judged.outcome,
        "state": place.state,
        "detail": judged.detail,
    }
    doubt = _doubt(stored)
    return record | {"warning": doubt} if doubt else record


def _columns(stored: Stored) -> tuple[str, ...]:
    place, judged = stored.place, stored.judged
    why = _doubt(stored) or judged.detail
    return (place.id, place.box, place.state, judged.outcome, why)


def _doubt(stored: Stored) -> str | None:
    return doubts.of_wake(stored.judged.message)
