"""A passphrase, typed at the terminal of this process, and what is done with it.

It comes from the terminal alone: never from an argument, a variable or a pipe, where other
programs could read it or an agent could put it.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace

from agent_bus import keeping, sealing
from agent_bus.bus import Bus
from agent_bus.cli import render
from agent_bus.errors import AgentBusError, NotPermitted, UsageError
from agent_bus.keys import Keys
from agent_bus.names import AgentName
from agent_bus.sealing import Opened
from agent_bus.settings import Settings

_BUSES = "buses"


def unlock(bus: Bus) -> None:
    """Open the sealed key of this identity, if it has one and somebody sits at a terminal.

    Without a terminal nothing is asked, and signing is refused later. Raises NotPermitted.
    """
    if bus.is_locked and has_terminal():
        bus.unlock(ask(f"Passphrase of {bus.identity}: "))


def has_terminal() -> bool:
    """Whether a person can be asked here."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    if os.name == "posix":
        try:
            os.close(os.open("/dev/tty", os.O_RDONLY))
        except OSError:
            return False
    return True


def ask(question: str) -> str:
    """What is typed, without showing it. Raises NotPermitted where there is no terminal."""
    if not has_terminal():
        raise NotPermitted("a passphrase is typed at a terminal, and this process has none")
    import getpass

    sealing.harden()
    try:
        with warnings.catch_warnings():
            # It would go on with standard input, and show what is typed.
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(render.visible(question))
    except getpass.GetPassWarning:
        raise NotPermitted("this terminal cannot hide what is typed: use another one") from None
    except EOFError:
        raise NotPermitted("no passphrase was typed") from None
    except UnicodeDecodeError:
        raise UsageError("the passphrase is no text in UTF-8") from None


def ask_new(name: AgentName, *, keep: str | None = None) -> str:
    """A new passphrase, typed twice. Enter gives `keep`, if there is one. Raises UsageError."""
    enter = " (Enter keeps the old one)" if keep is not None else ""
    first = ask(f"New passphrase of {name}{enter}: ")
    if not first and keep is not None:
        return keep
    sealing.check_passphrase(first)
    if ask("The same again: ") != first:
        raise UsageError("the two differ: nothing was changed")
    return first


def opened(keys: Keys, name: AgentName) -> Opened:
    """The key of a name that was opened here. Raises NotPermitted for one without a seal."""
    signer = keys.signer(name)
    if not isinstance(signer, Opened):
        raise NotPermitted(f"{name} is not sealed: agent-bus keygen {name} --sealed")
    return signer


def pin_everywhere(loaded: Settings, name: AgentName, signer: Opened) -> int:
    """Pin a sealed key on every bus that is found here. Returns on how many."""
    pinned = 0
    for bus in _buses(loaded):
        try:
            kept = keeping.pin(bus.store, name, signer)
        except AgentBusError as error:
            render.say(f"not pinned: {error}")
            continue
        pinned += 1
        render.say(
            f"pinned on {bus.address.path}; of what older keys of {name} signed there, "
            f"{kept} files count"
        )
    return pinned


def _buses(loaded: Settings) -> list[Bus]:
    """The bus of this project, and all that stand at the usual place."""
    folder = loaded.data / _BUSES
    places = sorted(folder.iterdir()) if folder.is_dir() else []
    found: dict[str, Bus] = {}
    for chosen in (loaded, *(replace(loaded, bus=place) for place in places)):
        try:
            bus = Bus.open(replace(chosen, allow_create=False))
        except AgentBusError as error:
            if chosen is not loaded:
                render.say(f"passed over {chosen.bus}: {error}")
            continue
        found.setdefault(os.path.realpath(bus.address.path), bus)
    return list(found.values())
