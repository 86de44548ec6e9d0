"""Four ways to talk to a model, each as far as a coding agent needs it.

A dialect reads a request (which tools are offered, what tools have answered) and writes a
reply that is either text or one tool call. Bodies are JSON as it stands on the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as a host offers it: its name there, and the group that it stands in, if any."""

    name: str
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A model's wish to call a tool."""

    tool: Tool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Find:
    """A model's wish to be shown a tool that it knows by name only."""

    query: str


Answer = str | Use | Find
"""What a model says: a text that ends its turn, a tool call, or a search for a tool."""


class Dialect(Protocol):
    """One model API."""

    def speaks(self, path: str) -> bool:
        """Whether a POST to this path asks the model for an answer."""

    def offered(self, body: Body) -> list[Tool]:
        """The tools of a request that can be called at once."""

    def search(self, body: Body, ending: str) -> Find | None:
        """How to be shown the tool whose name ends so, where the host shows tools late."""

    def results(self, body: Body) -> list[str]:
        """What tools have answered, oldest first, as the model reads it."""

    def streams(self, path: str, body: Body) -> bool:
        """Whether the answer is wanted as server-sent events."""

    def reply(self, body: Body, answer: Answer, number: int) -> list[Body]:
        """The events of an answer; one event where nothing is streamed."""

    def whole(self, events: list[Body]) -> Body:
        """The same answer in one piece."""


class Anthropic:
    """Messages, as Claude Code uses it."""

    def speaks(self, path: str) -> bool:
        return path.endswith("/v1/messages")

    def offered(self, body: Body) -> list[Tool]:
        return [Tool(tool["name"]) for tool in body.get("tools") or () if "name" in tool]

    def search(self, body: Body, ending: str) -> Find | None:
        # The names stand in a text of the conversation, if the server was there in time.
        said = texts(body["messages"])
        if name := re.search(rf"\bmcp__[\w-]+__{ending}\b", said):
            return Find(f"select:{name[0]}")
        return Find(ending) if "MCP servers are still connecting" in said else None

    def results(self, body: Body) -> list[str]:
        blocks = (block for message in body["messages"] for block in _blocks(message["content"]))
        return [_text(block.get("content")) for block in blocks if block["type"] == "tool_result"]

    def streams(self, path: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def reply(self, body: Body, answer: Answer, number: int) -> list[Body]:
        if isinstance(answer, str):
            block: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": answer}
            reason = "end_turn"
        else:
            if isinstance(answer, Find):
                answer = Use(Tool("ToolSearch"), {"query": answer.query})
            name = answer.tool.name
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
            reason = "tool_use"
        stop = {"stop_reason": reason, "stop_sequence": None}
        return [
            {"type": "message_start", "message": self._message(body, number)},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    def whole(self, events: list[Body]) -> Body:
        block, delta = events[1]["content_block"], events[2]["delta"]
        filled = {"text": delta["text"]} if block["type"] == "text" else {}
        if block["type"] == "tool_use":
            filled = {"input": json.loads(delta["partial_json"])}
        return {**events[0]["message"], "content": [block | filled], **events[4]["delta"]}

    def _message(self, body: Body, number: int) -> Body:
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }


class Responses:
    """OpenAI's Responses, as Codex uses it. A server's tools stand in a namespace."""

    def speaks(self, path: str) -> bool:
        return path.endswith("/responses")

    def offered(self, body: Body) -> list[Tool]:
        found: list[Tool] = []
        shown = (item["tools"] for item in body["input"] if item["type"] == "tool_search_output")
        for tool in (*(body.get("tools") or ()), *(tool for group in shown for tool in group)):
            if tool.get("type") == "namespace":
                found += [Tool(inner["name"], tool["name"]) for inner in tool["tools"]]
            elif "name" in tool:
                found.append(Tool(tool["name"]))
        return found

    def search(self, body: Body, ending: str) -> Find | None:
        searches = (tool for tool in body.get("tools") or () if tool["type"] == "tool_search")
        return next((Find(ending) for _ in searches), None)

    def results(self, body: Body) -> list[str]:
        items = (item for item in body["input"] if item.get("type") == "function_call_output")
        return [_text(item["output"]) for item in items]

    def streams(self, path: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def reply(self, body: Body, answer: Answer, number: int) -> list[Body]:
        response = {"id": f"resp_{number}", "output": [self._item(answer, number)]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        done = {"type": "response.output_item.done", "output_index": 0}
        return [
            {"type": "response.created", "response": {"id": response["id"]}},
            done | {"item": response["output"][0]},
            {"type": "response.completed", "response": response | {"usage": usage}},
        ]

    def whole(self, events: list[Body]) -> Body:
        whole: Body = events[-1]["response"]
        return whole

    def _item(self, answer: Answer, number: int) -> Body:
        if isinstance(answer, str):
            content = [{"type": "output_text", "text": answer}]
            return {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "content": content,
            }
        shared = {"id": f"fc_{number}", "call_id": f"call_{number}"}
        if isinstance(answer, Find):
            arguments = {"query": answer.query}
            shared |= {"type": "tool_search_call", "execution": "client"}
            return {**shared, "arguments": arguments}
        group = {} if answer.tool.group is None else {"namespace": answer.tool.group}
        return {
            **shared,
            "type": "function_call",
            "name": answer.tool.name,
            "arguments": json.dumps(answer.arguments),
            **group,
        }


class Gemini:
    """generateContent and streamGenerateContent, as Gemini CLI uses them."""

    def speaks(self, path: str) -> bool:
        return re.search(r":(stream)?[gG]enerateContent$", path) is not None

    def offered(self, body: Body) -> list[Tool]:
        groups = (tool.get("functionDeclarations", ()) for tool in body.get("tools") or ())
        return [Tool(declared["name"]) for group in groups for declared in group]

    def search(self, body: Body, ending: str) -> Find | None:
        return None

    def results(self, body: Body) -> list[str]:
        parts = (part for content in body["contents"] for part in content["parts"])
        answers = (part["functionResponse"] for part in parts if "functionResponse" in part)
        return [json.dumps(answer["response"]) for answer in answers]

    def streams(self, path: str, body: Body) -> bool:
        return "streamGenerateContent" in path

    def reply(self, body: Body, answer: Answer, number: int) -> list[Body]:
        part: Body = self._call(answer) if isinstance(answer, Use) else {"text": answer}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        counts = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return [{"candidates": [{**candidate, "index": 0}], "usageMetadata": counts}]

    def whole(self, events: list[Body]) -> Body:
        return events[0]

    def _call(self, use: Use) -> Body:
        return {"functionCall": {"name": use.tool.name, "args": dict(use.arguments)}}


class Completions:
    """OpenAI's chat completions, as opencode uses them for a provider of one's own."""

    def speaks(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def offered(self, body: Body) -> list[Tool]:
        return [Tool(tool["function"]["name"]) for tool in body.get("tools") or ()]

    def search(self, body: Body, ending: str) -> Find | None:
        return None

    def results(self, body: Body) -> list[str]:
        return [_text(said["content"]) for said in body["messages"] if said["role"] == "tool"]

    def streams(self, path: str, body: Body) -> bool:
        return bool(body.get("stream"))

    def reply(self, body: Body, answer: Answer, number: int) -> list[Body]:
        said: dict[str, Any] = {"role": "assistant", "content": answer}
        reason = "stop"
        if isinstance(answer, Use):
            said = {
                "role": "assistant",
                "content": None,
                "tool_calls": [self._call(answer, number)],
            }
            reason = "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        shared = {"id": f"chat_{number}", "object": "chat.completion.chunk", "model": body["model"]}
        return [
            {**shared, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {
                **shared,
                "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
                "usage": usage,
            },
        ]

    def whole(self, events: list[Body]) -> Body:
        said, ended = events[0]["choices"][0]["delta"], events[1]["choices"][0]
        choice = {"index": 0, "message": said, "finish_reason": ended["finish_reason"]}
        return {**events[1], "object": "chat.completion", "choices": [choice]}

    def _call(self, use: Use, number: int) -> Body:
        function = {"name": use.tool.name, "arguments": json.dumps(use.arguments)}
        return {"index": 0, "id": f"call_{number}", "type": "function", "function": function}


DIALECTS: tuple[Dialect, ...] = (Anthropic(), Responses(), Gemini(), Completions())


def texts(value: Any) -> str:
    """Every text in a piece of JSON, in order, a line each."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    return "\n".join(map(texts, value)) if isinstance(value, list) else ""


def _blocks(content: Any) -> Iterable[Body]:
    return () if isinstance(content, str) else content


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text") or json.dumps(block) for block in content or ())
