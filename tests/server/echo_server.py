"""A tiny server under the project's stdio transport, for tests over raw pipes.

Started as a script. Options: `--opening` answers the first request from static data,
`--broken-opening` raises there;
`--slow S` makes the build take S seconds, `--fail usage|bug|lifespan` breaks it;
`--cleanup FILE` appends a line to FILE at the end, `--stuck-cleanup` hangs there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_bus.errors import UsageError
from agent_bus.server.opening import Opening
from agent_bus.server.stdio import Answer, run

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.models import InitializationOptions

OPENING = Opening(
    name="echo",
    version="1.2.3",
    instructions="Says what you say – é, 漢.",
    capabilities={
        "tools": {"listChanged": False},
        "resources": {"listChanged": False, "subscribe": False},
    },
)


def build(lifespan_fails: bool = False) -> tuple[Server[Any], InitializationOptions]:
    """The SDK server; imports the SDK."""
    import anyio
    import mcp.types as t
    from mcp.server import Server

    async def list_tools(_ctx: Any, _params: Any) -> t.ListToolsResult:
        tools = [
            t.Tool(name=name, input_schema={"type": "object"})
            for name in ("echo", "sleep", "block", "noise", "fail", "surrogate", "big", "push")
        ]
        return t.ListToolsResult(tools=tools)

    async def list_resources(_ctx: Any, _params: Any) -> t.ListResourcesResult:
        return t.ListResourcesResult(resources=[])

    def text(value: str) -> t.CallToolResult:
        return t.CallToolResult(content=[t.TextContent(type="text", text=value)])

    async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
        arguments = params.arguments or {}
        match params.name:
            case "sleep":
                sys.stderr.write("asleep\n")
                await anyio.sleep(arguments["seconds"])
            case "block":
                sys.stderr.write("blocked\n")
                await anyio.to_thread.run_sync(time.sleep, arguments["seconds"])
            case "noise":
                return text(await anyio.to_thread.run_sync(_make_noise))
            case "fail":
                raise RuntimeError("the handler broke")
            case "surrogate":
                return text("\ud800")
            case "big":
                return text("x" * arguments["size"])
            case "push":
                await ctx.session.send_resource_updated("test://\u2028")
        return text(str(arguments.get("text", "")))

    @contextlib.asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[None]:
        if lifespan_fails:
            raise RuntimeError("the lifespan broke")
        yield

    server: Server[Any] = Server(
        OPENING.name,
        version=OPENING.version,
        instructions=OPENING.instructions,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
    )
    return server, server.create_initialization_options()


_CHILD = """
import os, sys
os.write(1, b"child\\n")
inherited = []
for fd in range(3, 100):
    try:
        os.fstat(fd)
    except OSError:
        continue
    inherited.append(fd)
sys.stderr.write(f"{sys.stdin.read()!r} {inherited}")
"""


def _make_noise() -> str:
    """Write to stdout in every way there is; returns what a child sees of the wire."""
    print("printed", flush=True)  # noqa: T201
    print("printed and never flushed")  # noqa: T201
    os.write(1, b"written\n")
    # close_fds=False: whatever is inheritable is inherited.
    command = [sys.executable, "-c", _CHILD]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=True, close_fds=False)
    return done.stderr.decode()


def _break(_request: dict[str, Any]) -> dict[str, Any] | None:
    raise RuntimeError("the opening broke")


def _prepared(options: argparse.Namespace) -> tuple[Server[Any], InitializationOptions]:
    time.sleep(options.slow)
    if options.fail == "usage":
        raise UsageError("no such bus: make one with agent-bus init")
    if options.fail == "bug":
        raise RuntimeError("the build broke")
    return build(lifespan_fails=options.fail == "lifespan")


def _broken() -> None:
    raise RuntimeError("this cleanup broke")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--opening", action="store_true")
    parser.add_argument("--broken-opening", action="store_true")
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--fail", default="")
    parser.add_argument("--cleanup", type=Path)
    parser.add_argument("--stuck-cleanup", action="store_true")
    options = parser.parse_args()
    cleanup: list[Callable[[], None]] = []
    if options.cleanup:

        def note() -> None:
            with options.cleanup.open("a") as file:
                file.write("clean\n")

        cleanup = [_broken, note]
    if options.stuck_cleanup:
        cleanup.append(lambda: time.sleep(600))
    answer: Answer | None = OPENING if options.opening else None
    if options.broken_opening:
        answer = _break
    run(lambda: _prepared(options), opening=answer, cleanup=cleanup)


if __name__ == "__main__":
    print("never flushed before the wire was taken over")  # noqa: T201
    main()
