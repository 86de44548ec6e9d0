"""Which agent a child is, and what a granted runtime gives it: two JSON files of a person.

Both may hold credentials (of a model, of an MCP server), so they are 0600 and this user's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError

from agent_bus.errors import ConfigurationError
from agent_bus.openhands.gateway.provider import McpEntry
from agent_bus.openhands.gateway.settings import GatewaySettings, private_file

SOURCES = ("agent", "agent_settings", "agent_profile_id")
"""What the file of an agent may say, one of them: as the agent server takes it on creation."""
_FURTHER = ("max_iterations", "confirmation_policy", "security_analyzer")
_LIMIT = 1 << 20


class _Entry(BaseModel):
    """An MCP server over HTTP."""

    model_config = ConfigDict(extra="forbid")

    url: str
    bearer: SecretStr | None = None


_SERVERS = TypeAdapter(dict[str, _Entry])


def load(settings: GatewaySettings) -> Mapping[str, Any] | None:
    """What AGENT_BUS_OPENHANDS_AGENT says, or None where it is not set.

    Raises ConfigurationError and UnsafePermissions.
    """
    if settings.agent is None:
        return None
    name = "AGENT_BUS_OPENHANDS_AGENT"
    content = _json(settings.agent, name)
    if not isinstance(content, dict) or sum(key in content for key in SOURCES) != 1:
        raise ConfigurationError(f"{name}: the file holds one of {', '.join(SOURCES)}, and has not")
    unknown = [key for key in content if key not in (*SOURCES, *_FURTHER)]
    if unknown:
        raise ConfigurationError(
            f"{name}: {unknown[0][:80]!a} is not known; beside its agent the file may hold "
            f"{', '.join(_FURTHER)}"
        )
    return content


def runtime_servers(settings: GatewaySettings) -> tuple[McpEntry, ...]:
    """The MCP servers of AGENT_BUS_OPENHANDS_RUNTIME: `{"name": {"url": …, "bearer": …}}`.

    Raises ConfigurationError, also where it is not set: a mission was granted a runtime.
    """
    name = "AGENT_BUS_OPENHANDS_RUNTIME"
    if settings.runtime is None:
        raise ConfigurationError(f"the mission asks for a runtime environment: {name} is not set")
    try:
        entries = _SERVERS.validate_python(_json(settings.runtime, name))
    except ValidationError:
        raise ConfigurationError(
            f'{name}: the file is not of the form {{"name": {{"url": …, "bearer": …}}}}'
        ) from None
    return tuple(
        McpEntry(key, entry.url, entry.bearer.get_secret_value() if entry.bearer else None)
        for key, entry in entries.items()
    )


def _json(path: Path, name: str) -> Any:
    try:
        return json.loads(private_file(path, name, _LIMIT))
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{name}: the file is no JSON") from None
