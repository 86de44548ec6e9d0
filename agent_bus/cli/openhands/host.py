"""`openhands serve|reconcile|mirror|doctor`: for whoever runs the gateway."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from agent_bus.cli import render
from agent_bus.cli.openhands.opening import opened, telling
from agent_bus.cli.options import (
    Shared,
    check_as,
    load_settings,
    open_anonymous,
    port_number,
    split_names,
    verb,
)
from agent_bus.errors import ConfigurationError, Unavailable, UsageError

if TYPE_CHECKING:
    from agent_bus.doctor.finding import Finding
    from agent_bus.openhands.gateway.settings import GatewaySettings

_Text = str | None

PORT = "3101"


@dataclass(frozen=True, kw_only=True)
class Serve(Shared):
    """The options of `openhands serve`."""

    host: Annotated[
        str, Option("--host", metavar="ADDRESS", help="Where to listen: loopback, if not given.")
    ] = "127.0.0.1"
    port: Annotated[str, Option("--port", metavar="N", help="Which port; 0 takes a free one.")] = (
        PORT
    )
    url: Annotated[
        _Text,
        Option(
            "--url",
            metavar="URL",
            help="Where children reach it; else AGENT_BUS_OPENHANDS_GATEWAY_URL.",
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        Option("--allow-host", metavar="NAME", help="A Host that requests may name; repeat it."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Mirror(Shared):
    """The options of `openhands mirror`."""

    repository: Annotated[str, Argument(metavar="OWNER/REPO", help="The repository.")]
    url: Annotated[
        _Text, Option("--url", metavar="URL", help="Where it is, if not on the first git host.")
    ] = None
    protocol: Annotated[
        str, Option("--protocol", metavar="https|ssh", help="How it is reached without --url.")
    ] = "https"


@verb
def serve(options: Serve) -> None:
    """Serve children their tools, and wake their owners.

    Prints the address when it can be reached, and ends with Ctrl-C. On another address than
    loopback anybody in the network can come: requests are let in by the names in
    --allow-host, and by what they carry.
    """
    from agent_bus.openhands.gateway import settings
    from agent_bus.openhands.gateway.terms import web_url
    from agent_bus.server.http.serve import serve as listen

    port = port_number(options.port)
    allowed = split_names(options.allow_host or [])
    _require_names(options.host, allowed)
    url = None if options.url is None else web_url(options.url, "--url")
    loaded = settings.load()

    @contextlib.contextmanager
    def ready(base: str) -> Iterator[None]:
        if options.json:
            render.put_json({"url": base, "agent_server": loaded.url}, flush=True)
        else:
            render.put(render.visible(base), flush=True)
            render.say(f"children of {loaded.url} are looked after; Ctrl-C ends this")
        yield

    with opened(options) as gateway:
        listen(
            gateway,
            host=options.host,
            port=port,
            allowed_hosts=allowed,
            url=url or loaded.gateway_url,
            session_key=loaded.api_key,
            ready=ready,
            warn=render.say,
        )


@verb
def reconcile(options: Shared) -> int:
    """Look at every child once, and do what is due.

    That is wakes, answers to questions, and steps that were cut off.
    `serve` and an MCP server with profile openhands do the same by themselves, every so often.
    """
    with opened(options) as gateway, telling("looking at the children"):
        done = gateway.reconcile()
    ended, begun = [str(child) for child in done.ended], [str(child) for child in done.begun]
    if options.json:
        lists = {"ended": ended, "begun": begun, "problems": done.problems}
        lists["elsewhere"] = done.elsewhere
        render.put_json({"looked": done.looked, **lists})
    else:
        rows = [(child, "its owner was woken") for child in ended]
        rows += [(child, "its mission was delivered") for child in begun]
        render.table(("child", "done"), rows)
        render.say(f"{done.looked} looked at, {len(ended)} woken for, {len(begun)} begun")
    for line in dict.fromkeys((*done.elsewhere, *done.problems)):
        render.say(line)
    return Unavailable.exit_code if done.problems else 0


@verb
def mirror(options: Mirror) -> None:
    """Make the mirror of a repository, or fetch into it.

    Children begin from it. No child fetches, and nothing is ever removed from it. It uses
    your own git: its configuration, its helpers, your keys.
    """
    from agent_bus.openhands.gateway import settings
    from agent_bus.openhands.gateway.mirror import Workspace
    from agent_bus.openhands.gateway.mirror import mirror as fetch

    check_as(options, load_settings(options))
    protocol: Literal["https", "ssh"] = "https" if options.protocol == "https" else "ssh"
    if options.protocol not in ("https", "ssh"):
        raise UsageError(f"--protocol is {options.protocol[:40]!a}: give https or ssh")
    workspace = Workspace(settings.workspace_of(), settings.git_hosts_of())
    asks = sys.stdin is not None and sys.stdin.isatty()
    with telling(f"fetching {options.repository}", still=asks):
        made = fetch(options.repository, workspace, url=options.url, protocol=protocol, prompt=asks)
    if options.json:
        render.put_json({"path": str(made.path), "created": made.created, "refs": made.refs})
        return
    render.put(render.visible(str(made.path)))
    render.say(f"{made.refs} branches; it {'was made' if made.created else 'was there already'}")


@verb
def doctor(options: Shared) -> int:
    """Check all that the gateway needs, without changing it.

    The agent server and its key, the workspace, mirrors, worktrees, keys and children. Ends
    with 69 if the agent server cannot be reached and all else is right, and with 65 for
    anything else that is wrong.
    """
    from agent_bus.doctor.finding import is_content
    from agent_bus.openhands.gateway import doctor as doctors
    from agent_bus.openhands.gateway.settings import secret_of

    bus = open_anonymous(options)
    with telling("examining the gateway") if not options.json else contextlib.nullcontext():
        settings, problem = _settings()
        findings = doctors.examine(bus, settings, problem, secret=secret_of())
    content = is_content(findings)
    if options.json:
        render.put_json({"ok": content, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
        right = "the gateway can work" if content else "the gateway cannot work: see the errors"
        render.say(right)
    return doctors.exit_code(findings)


def _settings() -> tuple[GatewaySettings | None, str]:
    from agent_bus.openhands.gateway import settings

    try:
        return settings.load(), ""
    except ConfigurationError as error:
        return None, str(error)


def _show(findings: list[Finding]) -> None:
    head = ("severity", "code", "path", "message")
    render.table(head, ((f.severity, f.code, f.path, f.message) for f in findings))


def _require_names(host: str, allowed: list[str]) -> None:
    """Refuse an address that others can reach, without the names under which they may come."""
    if not _is_loopback(host) and not allowed:
        raise UsageError(
            f"--host {host[:80]} can be reached from outside, where any page could come under a "
            "name of its own: say with --allow-host under which name children come"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
