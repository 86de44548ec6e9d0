"""What was said on the wire between hosts and their servers, as `recorder` has kept it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wire:
    """The conversation of one server."""

    path: Path

    def said(self, way: Literal["in", "out"]) -> list[Said]:
        """The messages of one side, oldest first."""
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        records = [json.loads(line) for line in whole.split(b"\n") if line]
        return [json.loads(record["said"]) for record in records if record["way"] == way]

    @property
    def methods(self) -> list[str]:
        """What the host asked for, and told."""
        return [said["method"] for said in self.said("in") if "method" in said]

    @property
    def era(self) -> str:
        """The revision of the protocol that host and server agreed on."""
        opening = self.said("in")[0]
        answers = [said for said in self.said("out") if said.get("id") == opening["id"]]
        result = answers[0]["result"]
        if opening["method"] == "server/discover":
            chosen = {_revision(said) for said in self.said("in")} & {*result["supportedVersions"]}
            return "".join(chosen)
        return str(result["protocolVersion"])

    def answer(self, method: str) -> Said:
        """The result of the first request of this method."""
        asked = next(said for said in self.said("in") if said.get("method") == method)
        result: Said = next(said for said in self.said("out") if said.get("id") == asked["id"])
        return result["result"]  # type: ignore[no-any-return]

    def calls(self, tool: str) -> list[Said]:
        """The calls of one tool."""
        asked = (said["params"] for said in self.said("in") if said.get("method") == "tools/call")
        return [params for params in asked if params["name"] == tool]


def wires(folder: Path) -> list[Wire]:
    """The servers of this test that were spoken to, in the order of their start."""
    files = [path for path in folder.glob("*.jsonl") if path.stat().st_size]
    return [Wire(path) for path in sorted(files, key=lambda path: path.stat().st_ctime_ns)]


def _revision(said: Said) -> str:
    meta = said.get("params", {}).get("_meta", {})
    return str(meta.get("io.modelcontextprotocol/protocolVersion", ""))
