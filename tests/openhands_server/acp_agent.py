"""A small ACP agent on standard input and output, run as a program.

    acp_agent.py RECORD [--eager]

It writes the MCP servers that a session is given to the file RECORD, and does what its prompt
says in `[[tool:…]]` and `[[finish:…]]`. With `--eager` it calls a tool before its mission.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

STEP = re.compile(r"\[\[(\w+):(.*?)\]\]", re.DOTALL)
READY = "[[finish:PROVIDER_READY]]"
ABLE = {
    "protocolVersion": 1,
    "agentCapabilities": {
        "loadSession": False,
        "mcpCapabilities": {"http": True, "sse": False},
        "promptCapabilities": {},
    },
    "authMethods": [],
}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(session: str, what: str, **content: Any) -> None:
    told = {"sessionId": session, "update": {"sessionUpdate": what, **content}}
    send({"method": "session/update", "params": told})


def use_tool(session: str, command: str) -> None:
    call = {"toolCallId": "call-1", "title": command, "kind": "execute"}
    update(session, "tool_call", **call, status="in_progress", rawInput={"command": command})
    update(session, "tool_call_update", toolCallId="call-1", status="completed", rawOutput={})


def prompt(session: str, text: str, eager: bool) -> None:
    script = text
    if "MISSION\n{" not in text:
        script = f"[[tool:look around]] {READY}" if eager else READY
    for step in STEP.finditer(script):
        if step[1] == "tool":
            use_tool(session, step[2])
        else:
            update(session, "agent_message_chunk", content={"type": "text", "text": step[2]})


def answer(message: dict[str, Any], record: Path, eager: bool) -> dict[str, Any]:
    parameters = message.get("params") or {}
    match message["method"]:
        case "initialize":
            return ABLE
        case "session/new":
            record.write_text(json.dumps(parameters.get("mcpServers")))
            return {"sessionId": "session-1"}
        case "session/prompt":
            text = "\n".join(part.get("text", "") for part in parameters["prompt"])
            prompt(parameters["sessionId"], text, eager)
            return {"stopReason": "end_turn"}
        case _:
            return {}


def main() -> None:
    record, eager = Path(sys.argv[1]), "--eager" in sys.argv
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            send({"id": message["id"], "result": answer(message, record, eager)})


if __name__ == "__main__":
    main()
