"""The floor of a server: the SDK's low-level server with its own stdio, and one empty tool."""

from __future__ import annotations

from typing import Any

import anyio
import mcp.types as t
from mcp.server import Server
from mcp.server.stdio import stdio_server


async def _list(_: Any, __: Any) -> t.ListToolsResult:
    tool = t.Tool(name="nothing", description="Does nothing.", input_schema={"type": "object"})
    return t.ListToolsResult(tools=[tool])


async def _call(_: Any, __: Any) -> t.CallToolResult:
    return t.CallToolResult(content=[])


async def main() -> None:
    """Serve until stdin ends."""
    server: Server[Any] = Server("bare", on_list_tools=_list, on_call_tool=_call)
    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
