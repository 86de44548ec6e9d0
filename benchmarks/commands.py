"""Verbs of the command line, each a whole process, beside an empty typer program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from agent_bus.sending import Draft
from benchmarks.client import ROOT
from benchmarks.measuring import Result, Scale, Step, compared, in_turn
from benchmarks.sending import BODY, box_and_bus

_VERBS = {
    "cli-send": ("send", "--to", "bob", "--subject", "green", "--body", BODY),
    "cli-inbox": ("inbox", "--limit", "20"),
}


def figures(scale: Scale) -> Iterator[Result]:
    """All of this module."""
    with box_and_bus(scale, "alice", "bob") as (_, bus):
        environment = bus.environment | {"AGENT_MSG_AS": "alice"}
        for number in range(20):
            bus.as_agent("bob").send_one("alice", Draft(subject=f"number {number}", body=BODY))
        for figure, words in _VERBS.items():
            steps = [
                _run("benchmarks.empty_program", words, environment),
                _run("agent_bus", words, environment),
            ]
            floor, ours = in_turn(steps, scale.rounds(25, 9))
            yield compared(figure, f"agent-bus {words[0]}, whole process", floor, ours, 1.4)


def _run(module: str, words: tuple[str, ...], environment: Mapping[str, str]) -> Step:
    command = [sys.executable, "-m", module, *words]

    def run() -> None:
        subprocess.run(
            command, check=True, cwd=ROOT, env=os.environ | environment, capture_output=True
        )

    return run
