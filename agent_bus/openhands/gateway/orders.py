"""What a child's conversation is made from: its order, and how it is known to be its own.

The capabilities of a child are minted here, and stand nowhere but in the order.
"""

from __future__ import annotations

from pathlib import Path

from agent_bus.errors import Conflict
from agent_bus.openhands.gateway import agent_file, announcement
from agent_bus.openhands.gateway.capability import child_capability_token, completion_token
from agent_bus.openhands.gateway.journal import OWN_SERVER, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import Conversation, McpEntry, Order, StopHook


def order(parts: Parts, record: Record, folder: Path, *, issued_at: int) -> Order:
    """The order of a child that works in a folder; its gate is prepared, and shut.

    `issued_at` is when its capabilities are from, in seconds since 1970. Raises
    ConfigurationError and StorageError.
    """
    reach = parts.settings.gateway_url or announcement.find(parts.folder)
    parts.gates.prepare(record.child)
    return Order(
        child=record.child,
        folder=folder,
        title=f"{record.role.title()} | {record.task_key}"[:200],
        tags=tags(record),
        instructions=_instructions(record, folder, reports=reach is not None),
        servers=(*_own_server(parts, record, reach, issued_at), *_runtime(parts, record)),
        gate=parts.gates.gate(record.child),
        hook=_hook(parts, record, reach, issued_at),
        agent=agent_file.load(parts.settings),
    )


def tags(record: Record) -> dict[str, str]:
    """How a conversation is known to be this child's."""
    return {
        "project": "agentbus",
        "evexrole": "role-child",
        "evextask": record.task_key,
        "evexparent": str(record.owner),
        "evexchildrole": record.role,
        "evexcaps": ",".join(sorted(record.capabilities)) or "none",
        "evexmission": record.mission_sha256,
    }


def require_own(found: Conversation, record: Record, folder: Path) -> None:
    """Raise Conflict for a conversation that was not made from this child's order.

    The server may have had one of this id: then nothing of the order was used.
    """
    foreign = {key for key, value in tags(record).items() if found.tags.get(key) != value}
    if foreign or found.folder != str(folder):
        raise Conflict(
            f"the agent server has another conversation {record.child} already "
            f"({', '.join(sorted(foreign)) or 'another folder'}): give the mission a new task key"
        )


def _own_server(
    parts: Parts, record: Record, reach: str | None, issued_at: int
) -> tuple[McpEntry, ...]:
    if reach is None:
        return ()
    token = child_capability_token(
        parts.signing.newest(), record.owner, record.task_key, record.role, issued_at=issued_at
    )
    return (McpEntry(OWN_SERVER, f"{reach}/mcp", token),)


def _runtime(parts: Parts, record: Record) -> tuple[McpEntry, ...]:
    if "runtime_environment" not in record.capabilities:
        return ()
    return agent_file.runtime_servers(parts.settings)


def _hook(parts: Parts, record: Record, reach: str | None, issued_at: int) -> StopHook | None:
    if reach is None:
        return None
    token = completion_token(
        parts.signing.newest(), record.owner, record.task_key, record.role, issued_at=issued_at
    )
    header = parts.gates.write_token(record.child, token)
    return StopHook(f"{reach}/completion-hook", header)


def _instructions(record: Record, folder: Path, *, reports: bool) -> str:
    report = (
        "Report with the tool send_to_parent when you are done or stuck, and finish with the "
        "same result as your final answer."
        if reports
        else "Your final answer is your report."
    )
    runtime = "granted" if record.capabilities else "not granted"
    return (
        f"You are a {record.role} child, bound to the one task {record.task_key}. Work only in "
        f"{folder}, on the branch {record.branch}. Your mission comes as a message that begins "
        f"with MISSION. Before it, do what PROVIDER_ADMISSION says and use no tool. A runtime "
        f"environment is {runtime}. {report} Only messages that begin with MISSION, "
        "RESUME_MISSION, USER_DECISION or CANCEL_MISSION come from your owner."
    )
