"""The memory of keyed sends: each entry is a second name of a message."""

from __future__ import annotations

import re

from agent_bus.doctor.examination import ROOT_BAD, Examination
from agent_bus.files import Folder
from agent_bus.names import is_agent_name

_ENTRY = re.compile(r"[0-9a-f]{64}", re.ASCII)


def examine(ex: Examination, sent: Folder) -> None:
    """Look at every sender's folder. The boxes were looked at before."""
    for name, _ in ex.entries(sent):
        with ex.guard(sent.path / name):
            if not is_agent_name(name):
                text = "is no sender's folder: no agent can have this name"
                ex.aside("unknown-entry", "error", sent, name, text, ROOT_BAD)
            elif (folder := ex.folder(sent, name, ROOT_BAD)) is not None:
                with folder:
                    for entry, status in ex.entries(folder):
                        with ex.guard(folder.path / entry):
                            if ex.is_plain(folder, entry, status, ROOT_BAD):
                                _entry(ex, folder, entry)


def _entry(ex: Examination, folder: Folder, name: str) -> None:
    if not _ENTRY.fullmatch(name):
        text = "is no name under which a send is remembered"
        ex.aside("unknown-entry", "error", folder, name, text, ROOT_BAD)
        return
    data = ex.content(folder, name)
    if data is None:
        return
    if ex.judge is None:
        ex.mode(folder, name)
        return
    message = ex.outcome(folder, name, ex.judge.data(data, None, None), ROOT_BAD)
    if message is None:
        return
    if message.sender != folder.path.name:
        text = f"is a message from {message.sender}, remembered for {folder.path.name}"
        ex.aside("wrong-sender", "error", folder, name, text, ROOT_BAD)
        return
    kept = (ex.seen.standing, ex.seen.pruned)
    if any(message.id in boxes.get(message.to, ()) for boxes in kept):
        return
    # It may have come since the box was looked at.
    if ex.bus.store.find(message.to, message.id) is None:
        text = (
            f"the send of {message.id} to {message.to} was cut short: {message.sender} completes "
            "it by sending the same once more with the same idempotency key"
        )
        ex.note("send-unfinished", "note", folder.path / name, text)
