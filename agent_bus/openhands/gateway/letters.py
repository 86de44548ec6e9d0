"""User messages in conversations: each once, and only where it neither approves nor overrides.

A message to a conversation that waits for a confirmation approves what it waits for, and so
does a run; one to a conversation that a person has paused starts it again; one to a running ACP
agent throws away what it was doing. So a letter waits until its conversation is open to it. It
is posted after its marker was looked for: whatever an earlier try that was cut off has left is
found so.
"""

from __future__ import annotations

from agent_bus.clock import from_text, to_text
from agent_bus.errors import ServerRefused
from agent_bus.openhands.gateway.journal import Letter, Record
from agent_bus.openhands.gateway.parts import Parts
from agent_bus.openhands.gateway.provider import OPEN_TO_MESSAGES, Conversation, Status

_AT_REST: tuple[Status, ...] = ("idle", "error", "stuck")
"""How a conversation stands whose newest message was saved and not run. In any other state
somebody has run or stopped it since, who had that message before him."""


def post_once(parts: Parts, record: Record, marker: str, text: str) -> tuple[Record, str | None]:
    """Post a message to the child, unless an earlier try has; the id that it has there.

    Returns the record, saved. None for the id: the server has taken it and does not show it
    yet; come again. Hold the child's lock. Raises Unavailable and ServerRefused.
    """
    provider, child = parts.provider, record.child
    if record.owed == marker:
        found = provider.find_message(child, marker)
        if found is not None:
            if _is_idle(provider.conversation(child)):
                # It was cut off between a message that was saved and the note of that.
                record = parts.journal.save(record.model_copy(update={"run_owed": True}))
            return record, found
    else:
        record = parts.journal.save(record.model_copy(update={"owed": marker}))
    if not provider.post(child, text):
        record = parts.journal.save(record.model_copy(update={"run_owed": True}))
    return record, provider.find_message(child, marker)


def start_owed_run(parts: Parts, record: Record) -> Record:
    """Start the run of a message that was saved while there was no room for one.

    Hold the child's lock. Raises Unavailable and ServerRefused.
    """
    if not record.run_owed:
        return record
    found = parts.provider.conversation(record.child)
    if found is None or (found.status in _AT_REST and not parts.provider.run(record.child)):
        return record
    return parts.journal.save(record.model_copy(update={"run_owed": False}))


def deliver(parts: Parts, record: Record) -> Record:
    """Bring the owed letters as far as they come now. Hold the child's lock.

    Raises Unavailable, and ServerRefused after all letters were tried; what was done until
    then is saved.
    """
    refused: ServerRefused | None = None
    # One run for all that wait for a conversation: it begins with the last of them.
    last = {letter.to: letter for letter in record.owed_letters}
    for letter in record.owed_letters:
        own = letter.to == record.child
        try:
            moved = _moved(parts, letter, to_child=own, run=letter is last[letter.to])
        except ServerRefused as error:
            refused = error
            continue
        if moved != letter:
            letters = tuple(moved if old is letter else old for old in record.letters)
            record = parts.journal.save(record.model_copy(update={"letters": letters}))
    if refused is not None:
        raise refused
    return record


def _moved(parts: Parts, letter: Letter, *, to_child: bool, run: bool) -> Letter:
    provider = parts.provider
    conversation = provider.conversation(letter.to)
    if conversation is None:
        return _missed(parts, letter)
    found = letter.model_copy(update={"missing_since": None})
    if letter.state == "saved":
        waits = conversation.status in _AT_REST and not provider.run(letter.to)
        return found if waits else _done(letter, "done")
    if not _is_open(conversation, to_child=to_child):
        return found
    if provider.find_message(letter.to, letter.marker):
        # Posted by a try that was cut off, which may not have got it a run.
        is_run = not (run and _is_idle(conversation))
    else:
        is_run = provider.post(letter.to, letter.text, run=run)
    return _done(letter, "done") if is_run else found.model_copy(update={"state": "saved"})


def _missed(parts: Parts, letter: Letter) -> Letter:
    """Gone, if not only for a moment: a server that is just starting knows nobody either."""
    now = parts.clock.now()
    if letter.missing_since is None:
        return letter.model_copy(update={"missing_since": to_text(now)})
    since = abs(now - from_text(letter.missing_since)) / 1000
    return letter if since < parts.pauses.lost else _done(letter, "gone")


def _is_open(conversation: Conversation, *, to_child: bool) -> bool:
    if conversation.status == "running":
        # A child has asked for it, and takes it up in the same run; an owner is left alone.
        return to_child and not conversation.is_acp
    return conversation.status in OPEN_TO_MESSAGES


def _is_idle(conversation: Conversation | None) -> bool:
    return conversation is not None and conversation.status == "idle"


def _done(letter: Letter, state: str) -> Letter:
    return letter.model_copy(update={"state": state, "text": "", "missing_since": None})
