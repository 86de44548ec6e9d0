"""`agent-bus openhands serve`: its sockets, its name, its life."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent_bus.errors import UsageError
from agent_bus.httpd import Server, bind
from agent_bus.openhands.gateway import announcement
from agent_bus.reading import storage_errors
from agent_bus.server.http.app import Door
from agent_bus.server.http.guard import host_name

if TYPE_CHECKING:
    from agent_bus.openhands.gateway.gateway import Gateway

PORT = 3101
HOST = "127.0.0.1"

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_CONNECTIONS = 256

Ready = Callable[[str], contextlib.AbstractContextManager[None]]


def serve(
    gateway: Gateway,
    *,
    host: str = HOST,
    port: int = PORT,
    allowed_hosts: Sequence[str] = (),
    url: str | None = None,
    session_key: str,
    ready: Ready,
    warn: Callable[[str], None],
) -> None:
    """Serve children and signals until SIGINT, SIGTERM or SIGHUP, and reconcile meanwhile.

    Port 0 takes a free one. `url` is under what children reach it, where that is not the
    address itself; `allowed_hosts` are further names, without a port, that requests may use.
    `ready` gets the base URL; it is entered when children can come, and left at the end. The
    gateway stays open. Raises UsageError for an address or name that cannot be used, and
    AgentBusError.
    """
    names = [_name(entry) for entry in allowed_hosts]
    sockets = listen(host, port)
    try:
        base = (url or own_url(host, sockets[0])).rstrip("/")
        here = own_address(host, sockets[0])
        hosts = {*_LOOPBACK, *names, _name_of(base), _name_of(here)}
        _quiet()
        with gateway.run_in_background(warn), announced(gateway, base):
            asyncio.run(
                _run(gateway, sockets, base, hosts, session_key=session_key, ready=ready, warn=warn)
            )
    finally:
        for each in sockets:
            each.close()


async def _run(
    gateway: Gateway,
    sockets: list[socket.socket],
    base: str,
    hosts: set[str],
    *,
    session_key: str,
    ready: Ready,
    warn: Callable[[str], None],
) -> None:
    door = Door(gateway, hosts=hosts, session_key=session_key, warn=warn)
    server = Server(door.app, connections=_CONNECTIONS)
    async with door.running():
        with server.ended_by_signals(), ready(base):
            await server.serve(sockets)


@contextlib.contextmanager
def announced(gateway: Gateway, url: str) -> Iterator[None]:
    """Let the other gateways of this bus know where children reach this one."""
    with contextlib.ExitStack() as stack:
        with storage_errors():
            told = announcement.announce(gateway.parts.folder, url, gateway.bus.clock)
            stack.enter_context(told)
        yield


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of a host, under one number. Raises UsageError."""
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((each[0], str(each[4][0])) for each in found):
            number = made[0].getsockname()[1] if made else port
            made.append(bind(family, address, number))
    except OSError as error:
        for each in made:
            each.close()
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such host"
        raise UsageError(
            f"{host!a} port {port} cannot be used ({why}): give another --host or --port"
        ) from None
    return made


def own_url(host: str, listening: socket.socket) -> str:
    """The base URL at which it listens. Raises UsageError where that is no single address."""
    address = listening.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise UsageError(
            f"{host} is every address of this machine, and none that children could call: "
            "give the URL under which they reach it"
        )
    return own_address(host, listening)


def own_address(host: str, listening: socket.socket) -> str:
    """The address as a URL."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def _name_of(url: str) -> str:
    """What a request names as its host, without the port. Raises UsageError."""
    return _name(urlsplit(url).netloc)


def _name(entry: str) -> str:
    """A name for the guard. Raises UsageError."""
    name = host_name(entry.strip())
    if name is None:
        raise UsageError(f"{entry[:80]!a} is no name of a host: write it like gateway.internal")
    return name


def _quiet() -> None:
    # The SDK logs its errors with tracebacks, which hold what was sent.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
