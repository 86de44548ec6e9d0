"""The final answer of a run: bounded where it is sent, whole in a file where it was cut."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any

from agent_bus.files import Folder
from agent_bus.reading import storage_errors

BODY_LIMIT = 20_000
"""Characters of an answer in the body of a wake."""
DATA_LIMIT = 1200
"""Characters of it in the data, which has 16 KiB in all, and JSON may make six bytes of one."""
_HEAD, _TAIL = 15_000, 5000
"""Characters that are kept of a longer one. Results stand at its end."""
_HEAD_BYTES, _TAIL_BYTES = 38_000, 14_000
"""Of both in UTF-8: a body has 64 KiB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is sent."""

    text: str
    """At most `BODY_LIMIT` characters, and a note about what is left out."""
    beginning: str
    bytes: int
    """Of the whole answer in UTF-8."""
    sha256: str
    file: str | None
    """Where the whole of it stands, below the bus; None where nothing was cut."""

    def data(self) -> dict[str, Any]:
        """As it stands in the data of a wake."""
        facts: dict[str, Any] = {
            "text": self.beginning,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "cut": self.file is not None,
        }
        return facts | ({"file": self.file} if self.file else {})


@storage_errors()
def keep(folder: Folder, whole: str) -> Answer:
    """Bound an answer; a longer one is kept whole in `answers/`, durable on return.

    Raises StorageError.
    """
    data = whole.encode("utf-8", "replace")
    digest = hashlib.sha256(data).hexdigest()
    text = data.decode()
    if len(text) <= BODY_LIMIT and len(data) <= _HEAD_BYTES + _TAIL_BYTES:
        return Answer(text, text[:DATA_LIMIT], len(data), digest, _file(folder, text, digest))
    head = text[:_HEAD].encode()[:_HEAD_BYTES].decode(errors="ignore")
    tail = text[-_TAIL:].encode()[-_TAIL_BYTES:].decode(errors="ignore")
    left = len(text) - len(head) - len(tail)
    cut = f"{head}\n[… {left} characters are left out here …]\n{tail}"
    return Answer(cut, text[:DATA_LIMIT], len(data), digest, _file(folder, text, digest))


def _file(folder: Folder, text: str, digest: str) -> str | None:
    if len(text) <= DATA_LIMIT:
        return None
    name = f"{digest}.txt"
    with folder.make("answers") as answers, contextlib.suppress(FileExistsError):
        answers.put_new(name, text.encode())
        answers.sync()
    return f"openhands/gateway/answers/{name}"
