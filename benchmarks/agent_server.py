"""The agent server of the tests, in a process of its own: it answers HTTP and is told what happens.

Prints its URL and its key. Then each line on stdin is something to do, and is answered with one:
`begin CHILD FOLDER` makes a conversation whose run goes on, and answers with the id of its message;
`finish CHILD` ends that run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "openhands"))

from fake_server import (  # type: ignore[import-not-found, unused-ignore]
    FakeServer,
    Received,
)

MISSION = (
    "MISSION\nMake the retry of the uploader idempotent.\n" + "Keep to what is allowed.\n" * 60
)
ANSWER = "The retry is idempotent now; a test that fails without it is in the branch. " * 10


def _begin(server: FakeServer, child: str, folder: str) -> str:
    base = "/api/conversations"
    message = {"role": "user", "content": [{"type": "text", "text": MISSION}], "run": True}
    made = {
        "conversation_id": child,
        "workspace": {"kind": "LocalWorkspace", "working_dir": folder},
        "agent": {"kind": "Agent"},
    }
    for path, body in ((base, made), (f"{base}/{child}/events", message)):
        headers = {"x-session-api-key": server.key}
        server.answer(Received("POST", path, {}, headers, body))
    return str(server.chats[child].info["last_user_message_id"])


def main() -> None:
    """Serve until stdin ends."""
    with FakeServer() as server:
        sys.stdout.write(f"{server.url} {server.key}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            what, child, *rest = line.split()
            if what == "begin":
                said = _begin(server, child, rest[0])
            else:
                server.finish(UUID(child), ANSWER)
                said = "finished"
            server.requests.clear()
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
