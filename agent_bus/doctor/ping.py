"""A message to oneself, and how long it took to be noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agent_bus.arrivals import Mode
from agent_bus.bus import Bus
from agent_bus.errors import TimedOut
from agent_bus.reading import Stored
from agent_bus.sending import Draft
from agent_bus.watch import Watch

SUBJECT = "doctor ping"
_EXPIRES_IN = 600


@dataclass(frozen=True, slots=True)
class Ping:
    """How long it took, in milliseconds, and by which means."""

    sent_ms: float
    """From the call of `send` to its receipt."""
    wake_ms: float
    """From the call of `send` until the waiting side had the message; it may be first."""
    mode: Mode
    why: str
    """Why it is polling; empty under events."""


def ping(bus: Bus, timeout: float = 10.0) -> Ping:
    """Send oneself a message, notice it by watching, and archive it.

    Raises IdentityMissing, what `Bus.send_one` raises, and TimedOut if it was not noticed
    in `timeout` seconds.
    """
    clock = bus.clock
    with bus.watch(warn=lambda _: None) as watch, ThreadPoolExecutor(1) as threads:
        began = clock.monotonic()
        try:
            waiting = threads.submit(_noticed, bus, watch, timeout)
            draft = Draft(subject=SUBJECT, body="Nothing to do.", expires_in=_EXPIRES_IN)
            receipt = bus.send_one(bus.identity, draft)
            sent = clock.monotonic()
        except BaseException:
            watch.close()
            raise
        try:
            woken = waiting.result()
        finally:
            bus.archive(receipt.id)
    if woken is None:
        raise TimedOut(
            f"message {receipt.id} was not noticed in {timeout:g} s: look at the warnings of "
            "agent-bus doctor, or set AGENT_BUS_POLL=1"
        )
    return Ping((sent - began) * 1000, (woken - began) * 1000, watch.mode, watch.why)


def _noticed(bus: Bus, watch: Watch, timeout: float) -> float | None:
    def is_ping(stored: Stored) -> bool:
        message = stored.judged.message
        return message is not None and message.sender == bus.identity and message.subject == SUBJECT

    found = watch.next(timeout=timeout, accept=is_ping)
    return bus.clock.monotonic() if found.messages else None
