"""The gateway's doctor: what it needs, and what it has left behind, as findings.

    findings = doctor.examine(bus, settings)

Nothing is changed. The agent server is asked what it is, and for a conversation that nobody
has, with the key and with a wrong one. Everything else is read from disk.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from agent_bus.access import check_access
from agent_bus.bus import Bus
from agent_bus.clock import duration, from_text
from agent_bus.doctor.finding import Finding, Severity
from agent_bus.errors import AgentBusError, IdentityMissing, ServerRefused, Unavailable
from agent_bus.files import Folder
from agent_bus.names import RESERVED
from agent_bus.openhands.gateway import agent_file, announcement, children, mirror
from agent_bus.openhands.gateway.exchange import Exchange
from agent_bus.openhands.gateway.journal import LIVING, UNSTARTED, Record
from agent_bus.openhands.gateway.settings import GatewaySettings
from agent_bus.openhands.gateway.signing import FILE, SigningKeys
from agent_bus.reading import reason
from agent_bus.visible import cut, visible

IDEMPOTENT = "idempotent_conversation_create_v1"
"""What a server says of itself if two requests for one conversation make one."""
SECONDS = 5.0
LATE = 600
"""Seconds after which a child that has not begun is worth a line."""

_NOBODY = UUID(int=0)
_WRONG_KEY = "agent-bus-openhands-doctor"
_CHILD = "child-"


def examine(
    bus: Bus, settings: GatewaySettings | None, problem: str = "", *, secret: str | None = None
) -> list[Finding]:
    """Look at everything. Without settings (`problem` says why) at what needs none.

    `secret` is EVEX_MESSAGING_SECRET. Raises StorageError only if the bus cannot be read.
    """
    ex = _Examination(bus)
    if settings is None:
        ex.note("settings", "error", "environment", problem)
    else:
        _server(ex, settings)
        _workspace(ex, settings)
        _files(ex, settings)
    _keys(ex, settings.secret if settings else secret)
    records, unfit = children.of_bus(bus.address.path, bus.clock)
    for line in unfit:
        folder = bus.address.path.joinpath(*children.FOLDERS, "children")
        ex.note("bad-record", "error", folder, line)
    _children(ex, records, settings)
    _serving(ex)
    if settings is not None:
        _mirrors(ex, settings)
        _worktrees(ex, settings, records, complete=not unfit)
    return ex.findings


def exit_code(findings: Iterable[Finding]) -> int:
    """0 without errors, 69 where only the agent server is away, else 65 (sysexits.h)."""
    wrong = {one.code for one in findings if one.severity == "error"}
    if not wrong:
        return 0
    return Unavailable.exit_code if wrong == {"unreachable"} else 65


@dataclass(slots=True)
class _Examination:
    bus: Bus
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, severity: Severity, where: object, text: str) -> None:
        message = cut(visible(" ".join(text.split())), 500)
        self.findings.append(Finding(code, severity, visible(str(where)), message))

    def seconds_since(self, moment: str) -> float:
        """How long ago that was, by the wall clock."""
        return self.bus.clock.now() / 1000 - from_text(moment) / 1000


# -- the agent server


def _server(ex: _Examination, settings: GatewaySettings) -> None:
    where = settings.url
    if not _is_confidential(settings.url):
        text = "OPENHANDS_API_KEY goes there over plain http: use https, or a tunnel to loopback"
        ex.note("plain-http", "warning", where, text)
    with contextlib.closing(Exchange(settings.url, settings.api_key, SECONDS)) as server:
        try:
            info = server.send("say what it is", "GET", "/server_info").json()
        except (Unavailable, ServerRefused) as error:
            ex.note("unreachable", "error", where, str(error))
            return
        version = info.get("version")
        ex.note("server", "note", where, f"is an agent server, version {str(version)[:40]}")
        if IDEMPOTENT not in (info.get("capabilities") or ()):
            text = f"does not say {IDEMPOTENT}: a create that is tried again may make two"
            ex.note("old-server", "warning", where, f"{text}; take a newer one")
        _credential(ex, server, where)
    with contextlib.closing(Exchange(settings.url, _WRONG_KEY, SECONDS)) as stranger:
        if _lets_in(stranger) is None:
            text = "takes any key, so whoever reaches it runs what he likes: set its session keys"
            ex.note("unsecured", "warning", where, text)


def _is_confidential(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        return parts.scheme == "https" or ipaddress.ip_address(host).is_loopback
    return parts.scheme == "https" or host == "localhost"


def _credential(ex: _Examination, server: Exchange, where: str) -> None:
    error = _lets_in(server)
    if isinstance(error, ServerRefused) and error.status in (401, 403):
        ex.note("bad-key", "error", where, str(error))
    elif error is not None:
        ex.note("unreachable", "error", where, str(error))


def _lets_in(server: Exchange) -> AgentBusError | None:
    """Whether it looks for a conversation, which none is, or what it says instead."""
    try:
        path = f"/api/conversations/{_NOBODY}"
        server.send("look for a conversation", "GET", path, accept=(404,))
    except (Unavailable, ServerRefused) as error:
        return error
    return None


# -- the workspace


def _workspace(ex: _Examination, settings: GatewaySettings) -> None:
    if not _is_fit(ex, settings.workspace, 0o022):
        if not os.path.lexists(settings.workspace):
            text = "is no folder: make it, on the same path for the agent server and for this one"
            ex.note("no-workspace", "error", settings.workspace, text)
        return
    for folder in (settings.mirrors, settings.worktrees):
        _is_fit(ex, folder, 0o022)
    if _is_fit(ex, settings.gates, 0o077):
        for child in _names(ex, settings.gates):
            token = settings.gates / child / "completion"
            if _is_fit(ex, token.parent, 0o077):
                _is_fit(ex, token, 0o077)


def _is_fit(ex: _Examination, path: Path, forbidden: int) -> bool:
    """Whether this is there, no link, this user's, and closed to others."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            ex.note("link", "error", path, "is a symbolic link: put the thing itself there")
            return False
        check_access(status, path, forbidden)
    except FileNotFoundError:
        return False
    except OSError as error:
        ex.note("unreadable", "error", path, reason(error))
        return False
    except AgentBusError as error:
        ex.note("loose-mode", "error", path, str(error))
    return True


def _names(ex: _Examination, path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        ex.note("unreadable", "error", path, reason(error))
        return []


def _mirrors(ex: _Examination, settings: GatewaySettings) -> None:
    try:
        found = mirror.mirrors(settings)
    except OSError:
        return  # the folder itself was told of
    if not found:
        text = "there is no mirror, so no child can begin: agent-bus openhands mirror OWNER/REPO"
        ex.note("no-mirror", "note", settings.mirrors, text)
    for one in found:
        if one.problem:
            ex.note("bad-mirror", "error", settings.mirrors / one.name, one.problem)


def _worktrees(
    ex: _Examination, settings: GatewaySettings, records: list[Record], *, complete: bool
) -> None:
    folders = {_CHILD + str(record.child): record for record in records}
    names = [name for name in _names(ex, settings.worktrees) if not name.startswith(".")]
    for name in sorted(set(names) - set(folders)) if complete else ():
        text = (
            "belongs to no child of this bus: remove it, if it is of no other bus and all that "
            "is in it was pushed"
        )
        ex.note("worktree-without-child", "note", settings.worktrees / name, text)
    for name, record in folders.items():
        if name not in names and record.state in LIVING and record.state != "begun":
            text = f"is gone, and child {record.task_key} is {record.state}: cancel it"
            ex.note("worktree-missing", "warning", settings.worktrees / name, text)


# -- keys and files


def _keys(ex: _Examination, secret: str | None) -> None:
    keys = ex.bus.keys
    try:
        listed = SigningKeys(keys.folder, ex.bus.clock, secret).listing()
    except AgentBusError as error:
        ex.note("gateway-keys", "error", keys.folder / FILE, str(error))
    else:
        if not listed:
            text = "is not there yet: it is made when the first capability is"
            ex.note("no-gateway-keys", "note", keys.folder / FILE, text)
    try:
        keys.load(RESERVED).signing_key()
    except IdentityMissing as error:
        is_new = not (keys.folder / f"{RESERVED}.json").exists()
        text = f"{RESERVED} has no key yet: the gateway makes it when it starts"
        severity: Severity = "note" if is_new else "error"
        ex.note("no-key", severity, keys.folder, text if is_new else str(error))
    except (AgentBusError, OSError) as error:
        ex.note("bad-keyring", "error", keys.folder / f"{RESERVED}.json", str(error))


def _files(ex: _Examination, settings: GatewaySettings) -> None:
    try:
        agent_file.load(settings)
    except AgentBusError as error:
        ex.note("agent-file", "error", settings.agent, str(error))
    if settings.runtime is not None:
        try:
            agent_file.runtime_servers(settings)
        except AgentBusError as error:
            ex.note("runtime-file", "error", settings.runtime, str(error))


# -- children


def _children(ex: _Examination, records: list[Record], settings: GatewaySettings | None) -> None:
    for record in records:
        for code, severity, text in _complaints(ex, record, settings):
            ex.note(code, severity, record.child, f"child {record.task_key} {text}")


def _complaints(
    ex: _Examination, record: Record, settings: GatewaySettings | None
) -> Iterator[tuple[str, Severity, str]]:
    if record.state in UNSTARTED and ex.seconds_since(record.created_at) > LATE:
        why = record.problem or "see whether agent-bus openhands serve runs"
        yield "not-started", "warning", f"has not begun after {LATE} s ({record.state}): {why}"
    elif record.problem and record.state != "cancelled":
        yield "child-problem", "warning", f"is {record.state}: {record.problem}"
    since = record.run_since
    limit = settings.run_limit if settings else None
    if record.state == "delivered" and limit and since and ex.seconds_since(since) > limit:
        yield (
            "overdue",
            "warning",
            f"is at work since {since}, longer than {duration(limit)}: look at it, or cancel it",
        )
    owed = len(record.owed_letters)
    if owed:
        count = "1 message" if owed == 1 else f"{owed} messages"
        yield "letters-owed", "note", f"has {count} still to be posted to a conversation"
    if settings and record.workspace != str(settings.workspace):
        where = f"has its worktree in {record.workspace}"
        yield "elsewhere", "note", f"{where}: a gateway with that workspace looks after it"
    elif settings and record.server != settings.url:
        yield "elsewhere", "note", f"was begun at {record.server}, and OPENHANDS_URL is another"


def _serving(ex: _Examination) -> None:
    where = ex.bus.address.path.joinpath(*children.FOLDERS)
    try:
        with Folder.open(where) as folder:
            url = announcement.find(folder)
            signs = len(folder.child("intents").names()) if folder.has_folder("intents") else 0
    except FileNotFoundError:
        url, signs = None, 0
    except (OSError, AgentBusError) as error:
        text = reason(error) if isinstance(error, OSError) else str(error)
        ex.note("unreadable", "error", where, text)
        return
    if url is None:
        text = (
            "agent-bus openhands serve does not run: children get no tools to report with, and "
            "their ends are seen by MCP servers with profile openhands and by reconcile alone"
        )
        ex.note("nobody-serves", "note", where, text)
        if signs:
            text = f"{signs} signs of an end wait for a look: agent-bus openhands reconcile"
            ex.note("signs-wait", "warning", where / "intents", text)
    else:
        ex.note("serving", "note", url, "agent-bus openhands serve runs")
