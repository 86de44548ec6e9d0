"""The hosts: which version, how each is led to a model on loopback, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from desk import KEY, Desk, dump

Ask = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Host:
    """A host program."""

    name: str
    era: str
    """The revision of the protocol that it agrees on with our server."""
    ask: Ask
    """The command for one prompt, without a screen."""
    look: tuple[str, ...]
    """The command that shows whether the server is there."""
    arrange: Callable[[Desk], None]
    """Puts into the home what leads it to the model, and nowhere else."""
    variables: Callable[[Desk], dict[str, str]]
    """What it is to be started with."""

    is_quiet: bool = True
    """Whether it can be told to want nothing from elsewhere."""

    @property
    def version(self) -> str:
        """The version that is installed and tested."""
        return _versions()[self.name]


def _versions() -> dict[str, str]:
    lines = Path(__file__).with_name("versions").read_text().splitlines()
    return {name: version for name, _, version in map(str.split, lines)}


def _arrange_claude(desk: Desk) -> None:
    project = {"hasTrustDialogAccepted": True}
    approved = {"approved": [KEY[-20:]], "rejected": []}
    desk.write(
        ".claude.json",
        dump(
            {
                "hasCompletedOnboarding": True,
                "customApiKeyResponses": approved,
                "projects": {str(desk.project): project},
            }
        ),
    )
    desk.write(".claude/settings.json", dump({"permissions": {"allow": ["mcp__agent-bus"]}}))


def _claude_variables(desk: Desk) -> dict[str, str]:
    off = (
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL",
        "DISABLE_AUTOUPDATER",
        "DISABLE_ERROR_REPORTING",
        "DISABLE_TELEMETRY",
    )
    model = {"ANTHROPIC_BASE_URL": desk.model, "ANTHROPIC_API_KEY": KEY}
    return model | dict.fromkeys(off, "1")


_CODEX = """\
model = "stand-in"
model_provider = "loopback"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false

[model_providers.loopback]
name = "loopback"
base_url = "{model}/v1"
wire_api = "responses"

[projects."{project}"]
trust_level = "trusted"
"""


def _arrange_codex(desk: Desk) -> None:
    desk.write(".codex/config.toml", _CODEX.format(model=desk.model, project=desk.project))


def _arrange_gemini(desk: Desk) -> None:
    desk.write(
        ".gemini/settings.json",
        dump(
            {
                "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
                "privacy": {"usageStatisticsEnabled": False},
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "telemetry": {"enabled": False},
            }
        ),
    )


def _gemini_variables(desk: Desk) -> dict[str, str]:
    return {
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": desk.model,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


def _arrange_opencode(desk: Desk) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{desk.model}/v1", "apiKey": "none"},
        "models": {"one": {"name": "one"}},
    }
    desk.write(
        ".config/opencode/opencode.json",
        dump(
            {
                "autoupdate": False,
                "model": "loopback/one",
                "small_model": "loopback/one",
                "provider": {"loopback": provider},
                "share": "disabled",
            }
        ),
    )


def _opencode_variables(_: Desk) -> dict[str, str]:
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE", "DEFAULT_PLUGINS")
    return {f"OPENCODE_DISABLE_{word}": "1" for word in off}


CLAUDE = Host(
    "claude",
    "2026-07-28",
    lambda prompt: ["claude", "-p", prompt],
    ("claude", "mcp", "list"),
    _arrange_claude,
    _claude_variables,
)
CODEX = Host(
    "codex",
    "2025-06-18",
    lambda prompt: ["codex", "exec", "--color", "never", prompt],
    # `codex mcp list` starts no server.
    ("codex", "exec", "--color", "never", "go"),
    _arrange_codex,
    lambda _: {},
)
GEMINI = Host(
    "gemini",
    "2025-06-18",
    lambda prompt: [
        "gemini",
        "--model",
        "gemini-2.5-flash",
        "--approval-mode",
        "yolo",
        "-p",
        prompt,
    ],
    ("gemini", "mcp", "list"),
    _arrange_gemini,
    _gemini_variables,
)
OPENCODE = Host(
    "opencode",
    "2025-11-25",
    lambda prompt: ["opencode", "run", prompt],
    ("opencode", "mcp", "list"),
    _arrange_opencode,
    _opencode_variables,
    # It asks for a package at each start.
    is_quiet=False,
)
HOSTS = {host.name: host for host in (CLAUDE, CODEX, GEMINI, OPENCODE)}
