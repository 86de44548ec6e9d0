"""One operation between two marks that strace can see: the process that is harmed.

    workload.py '{"path": […], "root": "…", "operation": "send", "ident": "…", "defects": [],
                  "limits": {"NOFILE": 10}}'

Everything is imported and opened before the first mark. The last line of output is the
outcome, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys

task = json.loads(sys.argv[1])
sys.path[:0] = task["path"]

import _strptime  # type: ignore[import-not-found]  # noqa: E402, F401 - imported late by datetime
from pathlib import Path  # noqa: E402

import filelock  # noqa: E402, F401 - imported late by the core
import looking  # noqa: E402
import operations  # noqa: E402

BEGIN = "/agent-bus-mark/begin"
END = "/agent-bus-mark/end"


def main() -> None:
    """Do it."""
    operation = operations.named(task["operation"])
    if "folder-flush" in task["defects"]:
        looking.without_flushing_folders()
    act = operation.ready(Path(task["root"]), task["ident"], None)
    limits = {getattr(resource, f"RLIMIT_{name}"): n for name, n in task["limits"].items()}
    before = {limit: resource.getrlimit(limit) for limit in limits}
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, before[limit][1]))
    os.access(BEGIN, os.F_OK)
    outcome = looking.attempt(act)
    os.access(END, os.F_OK)
    for limit, pair in before.items():
        resource.setrlimit(limit, pair)
    said = [outcome.code, outcome.ident, outcome.key, outcome.text]
    os.write(1, json.dumps(said).encode() + b"\n")


main()
