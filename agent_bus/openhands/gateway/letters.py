"""User messages in conversations: each once, and only where it neither approves nor overrides.

A message to a conversation that waits for a confirmation approves what it waits for; one to a
conversation that a person has paused starts it again; one to a running ACP agent throws away
what it was doing. So a letter waits until its conversation is open to it. It is posted after
its marker was looked for: whatever an earlier try that was cut off has left is found so.
"""

from __future__ import annotations

from agent_bus.errors import ServerRefused
from agent_bus.openhands.gateway.journal import Letter, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import OPEN_TO_MESSAGES, Conversation

MOST_DONE = 50
"""Letters that are done and still remembered, so that the same one is not written again."""


def post_once(parts: Parts, record: Record, marker: str, text: str) -> tuple[Record, str | None]:
    """Post a message to the child, unless an earlier try has; the id that it has there.

    Returns the record, saved. None for the id: the server has taken it and does not show it
    yet; come again. Hold the child's lock. Raises Unavailable and ServerRefused.
    """
    provider, child = parts.provider, record.child
    if record.owed == marker:
        found = provider.find_message(child, marker)
        if found is not None:
            return record, found
    else:
        record = parts.journal.save(record.model_copy(update={"owed": marker}))
    if not provider.post(child, text):
        record = parts.journal.save(record.model_copy(update={"run_owed": True}))
    return record, provider.find_message(child, marker)


def start_owed_run(parts: Parts, record: Record) -> Record:
    """Start the run of a message that was saved while there was no room for one."""
    if record.run_owed and parts.provider.run(record.child):
        return parts.journal.save(record.model_copy(update={"run_owed": False}))
    return record


def deliver(parts: Parts, record: Record) -> Record:
    """Bring the owed letters as far as they come now. Hold the child's lock.

    Raises Unavailable; what was done until then is saved.
    """
    for number, letter in enumerate(record.letters):
        if letter.state in ("owed", "saved"):
            moved = _moved(parts, letter)
            if moved is not letter:
                letters = (*record.letters[:number], moved, *record.letters[number + 1 :])
                record = parts.journal.save(record.model_copy(update={"letters": letters}))
    return record


def _moved(parts: Parts, letter: Letter) -> Letter:
    provider = parts.provider
    conversation = provider.conversation(letter.to)
    if conversation is None:
        return _done(letter, "gone")
    if letter.state == "saved":
        return _done(letter, "done") if provider.run(letter.to) else letter
    if not _is_open(conversation):
        return letter
    try:
        if provider.find_message(letter.to, letter.marker) or provider.post(letter.to, letter.text):
            return _done(letter, "done")
    except ServerRefused as error:
        if error.status == 404:
            return _done(letter, "gone")
        raise
    return letter.model_copy(update={"state": "saved"})


def _is_open(conversation: Conversation) -> bool:
    if conversation.status == "running":
        # A plain agent takes it up in the same run.
        return not conversation.is_acp
    return conversation.status in OPEN_TO_MESSAGES


def _done(letter: Letter, state: str) -> Letter:
    return letter.model_copy(update={"state": state, "text": ""})
