"""The SDK's server over a toolbox: what it says of itself is the same on every transport."""

from __future__ import annotations

from typing import Any

import mcp.types as t
from mcp.server import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import agent_bus
from agent_bus.server.tools import Toolbox

NAME = "agent-bus"


def make_server(
    toolbox: Toolbox, *, instructions: str, capabilities: dict[str, Any], **handlers: Any
) -> Server[Any]:
    """A server whose tools never change. `handlers` are further arguments of `Server`."""
    server: Server[Any] = Server(
        NAME,
        version=agent_bus.__version__,
        instructions=instructions,
        on_list_tools=toolbox.list,
        on_call_tool=toolbox.call,
        **handlers,
    )

    async def discover(_: object, __: object) -> t.DiscoverResult:
        # The SDK's own answer says that the tools may change, which they never do.
        return t.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=t.ServerCapabilities.model_validate(capabilities),
            instructions=server.instructions,
        )

    server.add_request_handler("server/discover", t.RequestParams, discover)
    return server
