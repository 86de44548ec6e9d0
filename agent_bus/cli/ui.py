"""`ui`: the bus in a browser, under one identity."""

from __future__ import annotations

import contextlib
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from agent_bus import sealing
from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.cli.options import (
    Shared,
    identity,
    load_settings,
    port_number,
    require_person,
    verb,
)
from agent_bus.errors import AgentBusError
from agent_bus.reading import reason
from agent_bus.web.door import Door, redirect_file
from agent_bus.web.serve import serve

_IN_THE_TERMINAL = ("www-browser", "links", "elinks", "lynx", "w3m")


@dataclass(frozen=True, kw_only=True)
class Ui(Shared):
    """The options of `ui`."""

    port: Annotated[
        str, Option("--port", metavar="N", help="Which port on loopback; 0 takes a free one.")
    ] = "0"
    no_open: Annotated[bool, Option("--no-open", help="Only print the link.")] = False


@verb
def ui(options: Ui) -> None:
    """Show approvals, agents, messages and the log in a browser, until you press Ctrl-C.

    The link that is printed works once, on this machine. What you decide there is decided
    under your name.
    """
    port = port_number(options.port)
    loaded = load_settings(options)
    name = identity(options, loaded)
    require_person(options, loaded)
    bus = Bus.open(loaded, identity=name)
    if bus.is_locked:
        # Before a passphrase can come, and not only when one has.
        sealing.harden()

    @contextlib.contextmanager
    def ready(door: Door) -> Iterator[None]:
        if options.json:
            fields = {"url": door.url, "identity": bus.identity, "bus": str(bus.address.path)}
            render.put_json(fields, flush=True)
        else:
            render.put(door.url, flush=True)
            render.say(f"you are {bus.identity}; the link works once; Ctrl-C ends this")
        with contextlib.nullcontext() if options.no_open else _opened(bus, door):
            yield

    serve(bus, port, ready=ready, warn=render.say)


@contextlib.contextmanager
def _opened(bus: Bus, door: Door) -> Iterator[None]:
    """Lead a browser to the link. Where none can be started, the printed link is left."""
    with contextlib.ExitStack() as stack:
        try:
            page = stack.enter_context(redirect_file(bus.address.path, door, bus.clock))
        except (OSError, AgentBusError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            render.say(f"no browser is started ({why}): open the link yourself")
        else:
            # Some browsers are waited for until they are closed.
            threading.Thread(target=_open, args=(page,), daemon=True).start()
        yield


def _open(page: Path) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        browser = None
    if browser is None or getattr(browser, "name", "") in _IN_THE_TERMINAL:
        render.say("no browser is found: open the link yourself")
    else:
        browser.open(page.as_uri())
