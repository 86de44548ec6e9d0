"""What the parts of the demonstration share: how they speak, and how they call a tool."""

from __future__ import annotations

import json
from typing import Any

import typer
from mcp import Client
from mcp.types import CallToolResult, TextContent


def step(text: str) -> None:
    """Begin something new."""
    typer.echo(f"\n* {text}")


def say(text: str) -> None:
    """Say one line more about it."""
    typer.echo(f"  {text}")


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    """Call a tool; what it answers as JSON. Raises RuntimeError if it answers with an error."""
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        raise RuntimeError(f"{tool} failed: {text_of(result)}")
    found: dict[str, Any] = json.loads(json.dumps(result.structured_content))
    return found


def text_of(result: CallToolResult) -> str:
    """The text of an answer."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
