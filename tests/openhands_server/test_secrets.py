"""The tokens and keys are in nothing that a reader of a conversation can see."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from desk import Desk, until
from secrets_of import Processes, Seen, in_files, listening, secrets_of, shown_by_rest

REPORT = '[[mcp:send_to_parent {"result":{"summary":"done"}}]]'
SCRIPT = f"[[hold]] {REPORT} [[tool:env]] [[tool:cat /proc/$$/environ]] [[tool:ps -ef]] [[401]]"
HOOK = "the environment of a hook: curl"
AGAIN = "[[tool:cat ~/.bash_history]] [[finish:all done]]"


def test_no_secret_is_anywhere_that_a_reader_sees(desk: Desk, program: Path) -> None:
    """Over a run that fails and one that ends well."""
    desk.settings = replace(desk.settings, secret="messaging-secret-" + "x7Kq" * 8)
    served = desk.serve()
    gateway = desk.gateway()
    with Processes() as running:
        child = desk.start(gateway, SCRIPT)
        with listening(desk, program, child) as frames:
            desk.model.release()
            desk.wait_for(child, "error")
            # Else it could be stopped while it holds the lock of the child.
            until("the first wake", lambda: len(desk.wakes()) == 1)
            # The hook waits for an answer meanwhile, so that it is seen however short it is.
            served.process.send_signal(signal.SIGSTOP)
            try:
                resume(desk, child, AGAIN)
                until("the hook", lambda: any(HOOK in where for where, _ in list(running.seen)))
            finally:
                served.process.send_signal(signal.SIGCONT)
            until("two wakes", lambda: len(desk.wakes()) == 2)
            time.sleep(0.5)
    assert desk.messages("result"), "its capability was good for something"

    secrets = secrets_of(desk, gateway, child)
    assert len(set(secrets.values())) == 5
    seen = [*everything(desk, child, frames, served.log), *running.seen]
    leaks = [(where, name) for where, text in seen for name in secrets if secrets[name] in text]
    assert leaks == []
    # What is searched for is found where it does stand.
    for part in ("GET", "a file of the server", "a frame", "a request to the model", "a bus"):
        assert any(where.startswith(part) and str(child) in text for where, text in seen), part
    commands = "\n".join(text for where, text in running.seen if where == "a command line")
    assert f"{desk.settings.gates}/{child}/completion" in commands


def resume(desk: Desk, child: UUID, script: str) -> None:
    gateway = desk.gateway()
    gateway.resume_mission(
        desk.owner(gateway),
        target=str(child),
        task_key="writer-1",
        message_key="again",
        context={"script": script},
    )


def everything(desk: Desk, child: UUID, frames: Path, log: Path) -> Iterator[Seen]:
    for where, text in shown_by_rest(desk, child):
        yield f"GET {where}", text
    for where, text in in_files(desk.real.folder):
        yield f"a file of the server: {where}", text
    for number, line in enumerate(frames.read_text().splitlines()):
        yield f"a frame: {number}", line
    for number, text in enumerate(desk.model.heard):
        yield f"a request to the model: {number}", text
    for where, text in in_files(desk.bus.path):
        yield f"a bus: {where}", text
    # One file there is for the hook alone, 0600: its line is the token.
    for where, text in in_files(desk.settings.workspace, "completion"):
        yield f"a file of the workspace: {where}", text
    yield "the log of serve", log.read_text()
