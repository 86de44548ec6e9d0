"""Who is attached, and how: good to know, and never an error by itself."""

from __future__ import annotations

from agent_bus.clock import to_text
from agent_bus.doctor.examination import ROOT_BAD, Examination
from agent_bus.files import Folder
from agent_bus.names import AgentName, is_agent_name
from agent_bus.presence import Process


def examine(ex: Examination, agents: Folder) -> None:
    """Look at the presence of every agent."""
    for name, _ in ex.entries(agents):
        with ex.guard(agents.path / name):
            if not is_agent_name(name):
                text = "is no agent's folder: no agent can have this name"
                ex.aside("unknown-entry", "error", agents, name, text, ROOT_BAD)
            elif (folder := ex.folder(agents, name, ROOT_BAD)) is not None:
                with folder:
                    for entry, status in ex.entries(folder):
                        with ex.guard(folder.path / entry):
                            if ex.is_plain(folder, entry, status, ROOT_BAD):
                                ex.mode(folder, entry)
                    _processes(ex, folder, AgentName(name))


def _processes(ex: Examination, folder: Folder, agent: AgentName) -> None:
    alive = [process for process in ex.bus.presence.processes(agent) if process.alive]
    for process in alive:
        ex.note("attached", "note", folder.path, f"{agent}: {_described(process)}")
        if process.mode == "polling":
            text = f"{agent}: process {process.pid} gets no file events and looks once a second"
            ex.note("polling", "note", folder.path, text)
    servers = [str(process.pid) for process in alive if process.role == "mcp"]
    if len(servers) > 1:
        text = (
            f"{agent} has {len(servers)} MCP servers (processes {', '.join(servers)}), and all of "
            "them see its messages: end those that nobody uses"
        )
        ex.note("second-server", "warning", folder.path, text)


def _described(process: Process) -> str:
    return (
        f"{process.role} (process {process.pid} on {process.host}, by {process.mode}) attached "
        f"since {process.started_at}, last busy {to_text(process.seen_at)}"
    )
