"""One's own box, the log and the conversations: `inbox read archive log thread`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from agent_bus import clock
from agent_bus.bus import Bus
from agent_bus.cli import lines, render
from agent_bus.cli.options import (
    ID_HELP,
    Shared,
    number,
    open_anonymous,
    open_as,
    optional_name,
    verb,
)
from agent_bus.errors import AgentBusError, VerificationError
from agent_bus.history import Filter, Page
from agent_bus.names import kind_name, message_id
from agent_bus.payload import Message
from agent_bus.reading import Stored

_Text = str | None


@dataclass(frozen=True, kw_only=True)
class Paged(Shared):
    """The options of a list."""

    kind: Annotated[_Text, Option("--kind", metavar="KIND", help="Only messages of this kind.")] = (
        None
    )
    limit: Annotated[str, Option("--limit", metavar="N", help="Lines on a page.")] = "50"
    page: Annotated[str, Option("--page", metavar="N", help="Which page; the first is 1.")] = "1"


@dataclass(frozen=True, kw_only=True)
class Inbox(Paged):
    """The options of `inbox`."""

    unread: Annotated[bool, Option("--unread", help="Leave out what was read.")] = False
    sender: Annotated[_Text, Option("--from", metavar="NAME", help="Only from this agent.")] = None


@dataclass(frozen=True, kw_only=True)
class Log(Paged):
    """The options of `log`."""

    agent: Annotated[
        _Text, Option("--agent", metavar="NAME", help="Only from or to this agent.")
    ] = None
    thread: Annotated[_Text, Option("--thread", metavar="ID", help="One conversation.")] = None
    since: Annotated[
        _Text, Option("--since", metavar="TIME", help="2h, 2026-11-30 or 2026-11-30T12:00:00Z.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Read(Shared):
    """The options of `read`."""

    id: Annotated[str, Argument(metavar="ID", help=ID_HELP)]
    archive: Annotated[bool, Option("--archive", help="Acknowledge it as well.")] = False
    force: Annotated[
        bool, Option("--force", help="Show the text of a message that does not verify.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Archive(Shared):
    """The options of `archive`."""

    ids: Annotated[list[str], Argument(metavar="ID...", help="Whole ids.")]


@dataclass(frozen=True, kw_only=True)
class Thread(Shared):
    """The options of `thread`."""

    id: Annotated[str, Argument(metavar="ID", help="Any message of it; part of an id will do.")]


@verb
def inbox(options: Inbox) -> None:
    """List your messages that are not archived, oldest first. Moves nothing."""
    wanted = Filter(sender=optional_name(options.sender), kind=_kind(options.kind))
    limit, page = number(options.limit, "--limit"), number(options.page, "--page")
    found = open_as(options).inbox(wanted, unread=options.unread, limit=limit, page=page)
    _show_page(found, page, limit, json=options.json, spare=lines.SPARE_IN_BOX)


@verb
def log(options: Log) -> None:
    """List all messages of the bus, newest first. Needs no identity."""
    limit, page = number(options.limit, "--limit"), number(options.page, "--page")
    bus = open_anonymous(options)
    wanted = Filter(
        kind=_kind(options.kind),
        thread=None if options.thread is None else message_id(options.thread),
        agent=optional_name(options.agent),
        since=None if options.since is None else clock.moment(options.since, bus.clock.now()),
    )
    _show_page(bus.log(wanted, limit=limit, page=page), page, limit, json=options.json)


@verb
def thread(options: Thread) -> None:
    """Show a conversation, oldest first. Needs no identity."""
    lines.show(open_anonymous(options).thread(options.id), json=options.json)


@verb
def read(options: Read) -> int:
    """Read a message, which counts as read from then on.

    One's own sent messages, and for admins any message, can be read as well and stay as
    they are. What does not verify is reported (exit code 65) and not shown.
    """
    bus = open_as(options)
    stored = bus.read(options.id, archive=options.archive)
    if stored.judged.message is None:
        return _show_unverified(stored, options)
    doubt = bus.doubt(stored.judged.message)
    if doubt:
        render.say(f"warning: {doubt}")
    if options.json:
        warning = {"warning": doubt} if doubt else {}
        render.put_json(_payload(stored, stored.judged.message) | warning)
    else:
        if doubt:
            render.put(f"WARNING: {doubt}.")
        _show_message(stored, stored.judged.message)
    return 0


@verb
def archive(options: Archive) -> int:
    """Acknowledge messages of your box by their whole ids: they are done."""
    ids = [message_id(ident) for ident in options.ids]
    bus = open_as(options)
    failed = [error for ident in ids if (error := _archive(bus, ident, json=options.json))]
    return failed[0].exit_code if failed else 0


def _archive(bus: Bus, ident: str, *, json: bool) -> AgentBusError | None:
    try:
        place = bus.archive(ident)
    except AgentBusError as error:
        render.say(str(error))
        return error
    if json:
        render.put_json({"id": place.id, "state": place.state})
    else:
        render.put(place.id)
    return None


def _kind(text: str | None) -> str | None:
    return None if text is None else kind_name(text)


def _show_page(
    found: Page, page: int, limit: int, *, json: bool, spare: Sequence[str] = lines.SPARE
) -> None:
    lines.show(found.messages, json=json, spare=spare)
    if found.next is not None:
        of = "" if found.total is None else f" of {-(-found.total // limit)}"
        render.say(f"page {page}{of}; --page {found.next} shows more")


def _payload(stored: Stored, message: Message) -> dict[str, object]:
    return {
        "id": stored.place.id,
        "state": stored.place.state,
        "outcome": stored.judged.outcome,
        "message": message.payload(),
    }


def _show_message(stored: Stored, message: Message) -> None:
    state = stored.place.state
    fields = message.payload()
    body = fields.pop("body")
    fields["state"] = state if stored.judged.ok else f"{state}, {stored.judged.detail}"
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        render.put(f"{name}: {render.visible(text)}")
    render.put("")
    _show_text(body, "body")


def _show_text(text: str, name: str) -> None:
    """Text of somebody else: no line of it can pass for one of ours."""
    shown = render.visible(text.removesuffix("\n"), keep="\n\t")
    render.put(render.fenced(shown, name))


def _show_unverified(stored: Stored, options: Read) -> int:
    """The warning first, and the text only if it was asked for all the same."""
    place, judged = stored.place, stored.judged
    text = judged.raw.decode("utf-8", "backslashreplace")
    if options.json:
        fields = {"outcome": judged.outcome, "state": place.state, "message": None}
        asked = {"unverified": text} if options.force else {}
        render.put_json({"id": place.id, **fields, "detail": judged.detail, **asked})
    else:
        render.put(
            f"WARNING: {place.id} in the box of {place.box} does not verify: {judged.outcome} "
            f"({render.visible(judged.detail)}). Nobody vouches for it."
        )
        if options.force:
            render.put("")
            _show_text(text, "unverified")
    hint = "" if options.force else f"; agent-bus read --force {place.id} shows its text"
    failure = VerificationError(
        f"{place.id} in the box of {place.box} is {judged.outcome}: {judged.detail}{hint}",
        outcome=judged.outcome,
    )
    render.say(str(failure))
    return failure.exit_code
