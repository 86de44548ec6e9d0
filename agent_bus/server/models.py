"""What a tool answers, as pydantic models, and the schemas that clients are shown.

Claude Code and Codex hand the model the structured part of a result alone, so whatever it
must read (a warning, an outcome, a hint, what is left over) is a field here. A field that
has nothing to say is left out.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

ANY_JSON = WithJsonSchema({"type": ["object", "array", "string", "number", "boolean"]})


class Result(BaseModel):
    """What a tool answers."""

    def wire(self) -> dict[str, Any]:
        """The JSON object, without the fields that have nothing to say."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _only_texts(schema: dict[str, Any]) -> None:
    """Say of a model with text fields only just that: three tools have lists of these."""
    del schema["properties"]
    schema["additionalProperties"] = {"type": "string"}


class Listed(Result):
    """A message in a list, without its body. What does not verify has no content here."""

    model_config = ConfigDict(json_schema_extra=_only_texts)

    id: str
    sender: str | None = Field(default=None, serialization_alias="from")
    to: str
    kind: str | None = None
    subject: str | None = None
    sent_at: str | None = None
    state: str
    outcome: str
    priority: str | None = None
    thread: str | None = None
    reply_to: str | None = None
    warning: str | None = None


class Receipt(Result):
    """What became of a message to one recipient: it is there, or why it is not."""

    to: str
    id: str | None = None
    durability: str | None = None
    duplicate: bool | None = None
    attached: bool | None = None
    code: str | None = None
    error: str | None = None


class SendResult(Result):
    """A receipt for each recipient."""

    receipts: list[Receipt]


class InboxResult(Result):
    """A page of one's own box."""

    messages: list[Listed]
    total: int
    next: int | None = None
    hint: str | None = None


class LogResult(Result):
    """A page of all messages."""

    messages: list[Listed]
    next: int | None = None
    hint: str | None = None


class ReadResult(Result):
    """One message that verifies; `message` is what its sender signed."""

    outcome: str
    state: str
    message: dict[str, Any]
    warning: str | None = None


class ArchiveResult(Result):
    """Where the message stands now."""

    id: str
    state: str


class WaitResult(Result):
    """What has come."""

    messages: list[Listed]
    timed_out: bool
    remaining: int
    unread: int
    unread_before_start: int
    warning: str | None = None
    hint: str | None = None


class RequestResult(Result):
    """The request that stands in the queue now."""

    id: str
    to: str
    duplicate: bool
    attached: bool


class Request(Result):
    """A request that waits. Where `cut` is true, what is left out stands in the message."""

    id: str
    sender: str = Field(serialization_alias="from")
    to: str
    subject: str
    question: str | None = None
    options: list[str]
    details: Annotated[Any, ANY_JSON] = None
    asked_at: str
    expires_at: str | None = None
    needs: str | None = None
    sha256: str
    cut: bool | None = None


class PendingResult(Result):
    """What waits for a decision, oldest first."""

    pending: list[Request]
    remaining: int | None = None
    warning: str | None = None
    hint: str | None = None


class DecideResult(Result):
    """The decision that stands."""

    id: str
    decision: str
    by: str
    decided_at: str
    hint: str | None = None


class Failed(Result):
    """A stored file that does not verify."""

    model_config = ConfigDict(json_schema_extra=_only_texts)

    id: str
    box: str
    outcome: str
    detail: str | None = None


class VerifyResult(Result):
    """What was judged. `next` goes on where this answer ends, as `id` of another call."""

    checked: int
    ok: int
    expired: int | None = None
    failed: list[Failed]
    warning: str | None = None
    next: str | None = None


class Agent(Result):
    """How an agent stands."""

    agent: str
    unread: int
    oldest_unread: str | None = None
    attached_since: str | None = None
    last_seen: str | None = None
    bad: int | None = None


class Trace(Result):
    """What became of a message in one box."""

    id: str
    to: str
    outcome: str
    delivered_at: str
    read_at: str | None = None
    archived_at: str | None = None
    attached: bool


class Unread(Result):
    """A message of one's own that its recipient has not read."""

    model_config = ConfigDict(json_schema_extra=_only_texts)

    id: str
    to: str
    subject: str
    sent_at: str
    recipient: str
    """Attached, or since when not."""


class StatusResult(Result):
    """The server and all agents, or one message."""

    identity: str | None = None
    admin: bool | None = None
    bus: str | None = None
    watching: str | None = None
    warning: str | None = None
    agents: list[Agent] | None = None
    unread_by_others: list[Unread] | None = None
    messages: list[Trace] | None = None
    hint: str | None = None
    remaining: int | None = None


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of arguments."""
    return _slim(model.model_json_schema(mode="validation"))


def output_schema(model: type[Result]) -> dict[str, Any]:
    """The JSON schema of a result. Nothing is said about further fields."""
    return _slim(model.model_json_schema(mode="serialization"))


def _slim(schema: dict[str, Any]) -> dict[str, Any]:
    """Without titles, docstrings, null branches and references: each costs every agent."""
    definitions = schema.pop("$defs", {})
    slim: dict[str, Any] = _slim_node(schema, definitions)
    slim.pop("description", None)
    return slim


def _slim_node(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_slim_node(entry, definitions) for entry in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        inlined = _slim_node(target, definitions)
        inlined.pop("description", None)
        return inlined
    slim = {
        name: _slim_properties(value, definitions)
        if name == "properties"
        else _slim_node(value, definitions)
        for name, value in node.items()
        if name != "title"
        and not (name == "default" and value in (None, "", False))
        and not (name == "additionalProperties" and value is True)
    }
    branches: list[Any] = [one for one in slim.get("anyOf", []) if one != {"type": "null"}]
    if len(branches) == 1:
        del slim["anyOf"]
        return {**branches[0], **slim}
    return slim | ({"anyOf": branches} if branches else {})


def _slim_properties(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    # A property may itself be named `title` or `default`.
    return {name: _slim_node(value, definitions) for name, value in properties.items()}
