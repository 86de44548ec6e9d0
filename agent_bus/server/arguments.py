"""What a tool takes, as pydantic models, and how its arguments are read.

Some clients send `"10"` for 10 or `'["a"]'` for a list now and then. What can mean only one
thing is taken as that; anything else is refused with the form that is wanted. A null counts
as left out. No tool has an argument that says who sends: the process is bound to its name.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from agent_bus.errors import UsageError
from agent_bus.payload import Priority

_NUMBER = re.compile(r"\s*\d{1,9}(\.\d{1,6})?\s*", re.ASCII)
_FLAGS = {"true": True, "false": False, "1": True, "0": False}
_SENDERS = ("from", "sender", "as", "agent", "author", "from_agent", "identity")


def _text(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"is text, not {_shown(value)}")


def _number(value: object) -> object:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is a number like 10, not {_shown(value)}")
    return value


def _integer(value: object) -> object:
    number = _number(value)
    if not isinstance(number, int) and not (isinstance(number, float) and number.is_integer()):
        raise ValueError(f"is a whole number like 10, not {_shown(value)}")
    return int(number)


def _flag(value: object) -> object:
    known = value if isinstance(value, bool) else _FLAGS.get(str(value).strip().lower())
    if known is None:
        raise ValueError(f"is true or false, not {_shown(value)}")
    return known


def _texts(value: object) -> object:
    """A list of texts; one text alone counts as a list of one, JSON text as what it says."""
    given = value
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f'is a list like ["a", "b"], not {_shown(value)}') from None
    elif isinstance(value, str) and "," not in value:
        given = [value]
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise ValueError(f'is a list like ["a", "b"], not {_shown(value)}')
    return given


def _details(value: object) -> object:
    """An object or text; text that is a JSON object is that object."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _shown(value: object) -> str:
    return ascii(value)[:80]


Text = Annotated[str, BeforeValidator(_text)]
OptionalText = Annotated[str | None, BeforeValidator(_text)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_integer)]
Seconds = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Texts = Annotated[list[str], BeforeValidator(_texts)]
_NAMES = {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "string"}]}
OneOrMore = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema(_NAMES)]
Details = Annotated[dict[str, Any] | str | None, BeforeValidator(_details)]

LIMIT = 20
"""Messages in an answer, where the caller asks for no number."""
Duration = Annotated[OptionalText, Field(description="90s, 15m, 2h, 7d")]


class Arguments(BaseModel):
    """What a tool was called with."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoArguments(Arguments):
    """Nothing."""


class SendArguments(Arguments):
    """A message to one or several."""

    to: OneOrMore
    body: Text
    subject: Text = ""
    kind: Annotated[Text, Field(description="note, task, question, answer, status, result ...")] = (
        "note"
    )
    reply_to: Annotated[OptionalText, Field(description="id of what you answer")] = None
    thread: OptionalText = None
    priority: Priority | None = None
    expires_in: Duration = None
    idempotency_key: Annotated[
        OptionalText, Field(description="same key on a retry: one message")
    ] = None
    force: Annotated[Flag, Field(description="send to an unknown name")] = False


class InboxArguments(Arguments):
    """A page of one's own box."""

    limit: Count = LIMIT
    unread: Flag = False
    sender: OptionalText = None
    kind: OptionalText = None
    page: Count = 1


class ReadArguments(Arguments):
    """One message."""

    id: Text
    archive: Flag = False


class IdArguments(Arguments):
    """One id, in full."""

    id: Text


class OptionalIdArguments(Arguments):
    """One id, or none."""

    id: OptionalText = None


class LogArguments(Arguments):
    """A page of all messages."""

    limit: Count = LIMIT
    thread: OptionalText = None
    agent: Annotated[OptionalText, Field(description="sender or recipient")] = None
    kind: OptionalText = None
    page: Count = 1


class WaitArguments(Arguments):
    """How to wait."""

    timeout: Annotated[Seconds, Field(description="seconds, at most 300")] = 60
    include_existing: Annotated[Flag, Field(description="unread mail from before too")] = False
    limit: Count = LIMIT
    thread: OptionalText = None


class RequestArguments(Arguments):
    """A question to an admin."""

    question: Text
    options: Texts = Field(default=["approve", "deny"])
    to: Annotated[OptionalText, Field(description="an admin")] = None
    details: Details = None
    expires_in: Duration = None
    idempotency_key: OptionalText = None
    needs: OptionalText = None


class DecideArguments(Arguments):
    """A decision."""

    id: Text
    decision: Text
    reason: OptionalText = None
    sha256: Annotated[OptionalText, Field(description="as you were shown it")] = None


Given = TypeVar("Given", bound=Arguments)


def parse(tool: str, model: type[Given], given: dict[str, Any] | None) -> Given:
    """Read the arguments of a call. Raises UsageError, one line for all that is wrong."""
    present = {name: value for name, value in (given or {}).items() if value is not None}
    try:
        return model.model_validate(present)
    except ValidationError as error:
        faults = dict.fromkeys(_fault(tool, model, fault) for fault in error.errors())
        raise UsageError(f"{tool}: {'; '.join(faults)}") from None


def _fault(tool: str, model: type[Arguments], fault: Any) -> str:
    name = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return f"{name} is missing"
    if fault["type"] == "extra_forbidden":
        fields = model.model_fields.items()
        known = ", ".join(field.alias or name for name, field in fields) or "none"
        why = _why_no_sender(model) if name in _SENDERS else ""
        return f"there is no argument {name[:40]!a}{why}; {tool} takes: {known}"
    text = str(fault["msg"]).removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    return f"{name} {text}".replace("input should be", "has to be")


def _why_no_sender(model: type[Arguments]) -> str:
    if "sender" in model.model_fields:
        return ": it is called sender"
    if "agent" in model.model_fields:
        return ": agent is the sender or a recipient"
    return "; who sends is fixed for this server"
