"""The answer to a client's first request, from static data and without the SDK.

Loading the SDK takes most of a second, and Codex leaves out the tools of a server whose
handshake takes about that long. What a server answers to `initialize` (2024-11-05 to
2025-11-25) and `server/discover` (2026-07-28) hangs on nothing but its name and its
capabilities, so it can be said at once. The SDK gets the same request later, for the state
of its session; its own answer is then dropped (see `stdio`).

Only a request that the SDK is sure to accept is answered here. Anything unusual waits for
the SDK, which knows every rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
DISCOVER_VERSION = "2026-07-28"

_PREFIX = "io.modelcontextprotocol/"
_CHECKED = ("elicitation", "experimental", "extensions", "roots", "sampling")
_TEXTS = ("description", "title", "websiteUrl")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a server says about itself; call it with a request.

    `capabilities` is JSON as it stands on the wire, the same in both eras. It must equal what
    the SDK says for the same server, and a test has to hold that.
    """

    name: str
    version: str
    instructions: str | None
    capabilities: dict[str, Any]

    def __call__(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The response to a JSON-RPC request, or None: the SDK is to answer it."""
        params = request.get("params")
        if not isinstance(params, dict):
            return None
        result = None
        if request["method"] == "initialize" and _is_plain_initialize(params):
            result = self._initialized(params["protocolVersion"])
        elif request["method"] == "server/discover" and _is_plain_discover(params):
            result = self._discovered()
        return result and {"jsonrpc": "2.0", "id": request["id"], "result": result}

    def _initialized(self, version: str) -> dict[str, Any]:
        known = version in HANDSHAKE_VERSIONS
        return {
            "protocolVersion": version if known else HANDSHAKE_VERSIONS[-1],
            "capabilities": self.capabilities,
            "serverInfo": self._info(),
            **self._instructions(),
        }

    def _discovered(self) -> dict[str, Any]:
        return {
            "supportedVersions": [DISCOVER_VERSION],
            "capabilities": self.capabilities,
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {_PREFIX + "serverInfo": self._info()},
            **self._instructions(),
        }

    def _info(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version}

    def _instructions(self) -> dict[str, Any]:
        return {} if self.instructions is None else {"instructions": self.instructions}


def _is_plain_initialize(params: dict[str, Any]) -> bool:
    return (
        isinstance(params.get("protocolVersion"), str)
        and _is_plain_client(params.get("clientInfo"))
        and _are_plain_capabilities(params.get("capabilities"))
        and _is_plain_meta(params.get("_meta", {}))
    )


def _is_plain_discover(params: dict[str, Any]) -> bool:
    meta = params.get("_meta", {})
    return (
        _is_plain_meta(meta)
        and meta.get(_PREFIX + "protocolVersion") == DISCOVER_VERSION
        and _are_plain_capabilities(meta.get(_PREFIX + "clientCapabilities"))
        and _is_plain_client(meta.get(_PREFIX + "clientInfo", {"name": "", "version": ""}))
        and _PREFIX + "logLevel" not in meta
    )


def _is_plain_meta(meta: Any) -> bool:
    return isinstance(meta, dict) and type(meta.get("progressToken", "")) in (str, int)


def _is_plain_client(info: Any) -> bool:
    return (
        isinstance(info, dict)
        and isinstance(info.get("name"), str)
        and isinstance(info.get("version"), str)
        and all(isinstance(info.get(text, ""), str) for text in _TEXTS)
        and "icons" not in info
    )


def _are_plain_capabilities(capabilities: Any) -> bool:
    return (
        isinstance(capabilities, dict)
        and "tasks" not in capabilities
        and all(_is_plain(name, capabilities.get(name, {})) for name in _CHECKED)
    )


def _is_plain(name: str, capability: Any) -> bool:
    if not isinstance(capability, dict):
        return False
    if name == "roots":
        return isinstance(capability.get("listChanged", True), bool)
    return all(isinstance(member, dict) for member in capability.values())
