"""The queue of what waits for a person: `request-approval pending-approval decide`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from agent_bus import clock
from agent_bus.approvals import DEFAULT_OPTIONS, Request
from agent_bus.bus import Bus
from agent_bus.cli import lines, passphrase, render
from agent_bus.cli.options import Shared, identity, load_settings, open_as, require_person, verb
from agent_bus.cli.send import read_text
from agent_bus.errors import InvalidMessage, UsageError
from agent_bus.payload import DATA_LIMIT

_Text = str | None


@dataclass(frozen=True, kw_only=True)
class RequestApproval(Shared):
    """The options of `request-approval`."""

    question: Annotated[str, Argument(metavar="QUESTION", help="- reads it from standard input.")]
    options: Annotated[
        _Text, Option("--options", metavar="A,B", help="The answers; else approve,deny.")
    ] = None
    option: Annotated[
        list[str] | None,
        Option("--option", metavar="TEXT", help="One answer, commas and all; repeat it."),
    ] = None
    to: Annotated[
        _Text, Option("--to", metavar="NAME", help="Which admin; every admin sees it.")
    ] = None
    details: Annotated[
        _Text, Option("--details", metavar="JSON", help="What the answer depends on.")
    ] = None
    expires_in: Annotated[
        _Text, Option("--expires-in", metavar="TIME", help="90s, 15m, 2h, 7d.")
    ] = None
    idempotency_key: Annotated[
        _Text, Option("--idempotency-key", metavar="KEY", help="Makes asking again safe.")
    ] = None
    needs: Annotated[
        _Text, Option("--needs", metavar="NAME", help="Only this sealed name may decide it.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Decide(Shared):
    """The options of `decide`."""

    id: Annotated[str, Argument(metavar="ID", help="The whole id of the request.")]
    decision: Annotated[
        str, Argument(metavar="DECISION", help="An option of it; or withdraw, if you asked.")
    ]
    reason: Annotated[_Text, Option("--reason", metavar="TEXT", help="Why.")] = None
    sha256: Annotated[
        _Text, Option("--sha256", metavar="HEX", help="What you were shown; else it is refused.")
    ] = None


@verb
def request_approval(options: RequestApproval) -> None:
    """Ask an admin to decide; prints the id of the request.

    The first line of the question is its subject. The answer arrives in your box.
    """
    lasting, details = options.expires_in, options.details
    question = read_text(None) if options.question == "-" else options.question
    offered = _offered(options)
    bus = open_as(options)
    passphrase.unlock(bus)
    receipt = bus.request_approval(
        question,
        options=offered,
        to=options.to,
        details=None if details is None else _parse(details, offered),
        expires_in=None if lasting is None else clock.seconds(lasting),
        key=options.idempotency_key,
        needs=options.needs,
    )
    if options.json:
        render.put_json(lines.receipt(receipt))
    else:
        render.put(receipt.id)
        render.say(lines.told(receipt))


@verb
def pending_approval(options: Shared) -> None:
    """List what waits for a decision, oldest first. For admins."""
    bus = open_as(options)
    pending = bus.pending()
    for ident, outcome in bus.approvals.unusable():
        render.say(f"{ident} does not verify ({outcome}) and is not shown: agent-bus doctor")
    if options.json:
        for request in pending:
            render.put_json(_record(request))
        return
    head = ("id", "asked at", "from", "expires at", "options", "subject")
    render.table(head, (_columns(request) for request in pending))


@verb
def decide(options: Decide) -> None:
    """Decide a request: the first decision stands for good.

    For admins; and nobody but a requester withdraws, which is all that it may decide itself.
    """
    loaded = load_settings(options)
    name = identity(options, loaded)
    require_person(options, loaded)
    bus = Bus.open(loaded, identity=name)
    passphrase.unlock(bus)
    decided = bus.decide(options.id, options.decision, reason=options.reason, sha256=options.sha256)
    decision = decided.decision
    if options.json:
        fields = decision.payload()
        record = {"id": decision.request, "repeated": decided.repeated} | fields
        render.put_json({key: value for key, value in record.items() if key != "request"})
    else:
        row = (decision.request, decision.decision, decision.by, decision.decided_at)
        render.table(("id", "decision", "by", "decided at"), [row])
    if decided.repeated:
        render.say(f"{decision.by} had decided so already; that stands")


def _offered(options: RequestApproval) -> list[str]:
    offered = [text.strip() for text in options.options.split(",")] if options.options else []
    return [*offered, *(options.option or [])] or list(DEFAULT_OPTIONS)


def _parse(text: str, options: list[str]) -> Any:
    try:
        details = json.loads(text, object_pairs_hook=_unique)
        size = len(_compact({"options": options, "details": details}))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--details is no JSON ({error}): {text[:40]!a}") from None
    if size > DATA_LIMIT:
        raise InvalidMessage(
            f"--details is too large: {size} bytes with the options, {DATA_LIMIT} is the limit: "
            "put it into a file and name its path"
        )
    return details


def _compact(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidMessage(f"--details has {name[:40]!a} twice: give each field once")
        found[name] = value
    return found


def _record(request: Request) -> dict[str, object]:
    message = request.message
    return {
        "id": message.id,
        "from": message.sender,
        "to": message.to,
        "subject": message.subject,
        "question": message.body,
        "options": list(request.options),
        "details": request.details,
        "asked_at": message.sent_at,
        "expires_at": message.expires_at,
        "needs": request.needs,
        "sha256": request.sha256,
    }


def _columns(request: Request) -> tuple[str, ...]:
    message = request.message
    return (
        message.id,
        message.sent_at,
        message.sender,
        message.expires_at or "-",
        " | ".join(request.options),
        message.subject,
    )
