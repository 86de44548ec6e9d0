"""The environment of the gateway, read once. No other module of the gateway looks at it.

What a variable means stands in docs/openhands-gateway.md. The credential of the agent server
is read here and handed to the provider alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from agent_bus.clock import seconds
from agent_bus.errors import ConfigurationError, UsageError
from agent_bus.files import Folder, UnfitFile

WORKSPACE = Path("/home/openhands/workspace")
RUN_LIMIT = 6 * 3600
_KEY_LIMIT = 4096
GIT_HOSTS = ("github.com",)

_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?", re.ASCII)
_PERSONS = re.compile(
    "HOME|USER|LOGNAME|XDG_CONFIG_HOME|XDG_RUNTIME_DIR|DBUS_SESSION_BUS_ADDRESS|SSH_AUTH_SOCK|"
    "GIT_ASKPASS|GIT_CONFIG_GLOBAL|GIT_SSH|GIT_SSH_COMMAND|GIT_SSL_CAINFO|SSL_CERT_(FILE|DIR)|"
    "GH_TOKEN|GITHUB_TOKEN|GH_CONFIG_DIR|(?i:https?_proxy|all_proxy|no_proxy)"
)
"""What a person's git needs to reach a private repository."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What the environment says. Build it with `load`, or by hand in a test."""

    url: str
    """OPENHANDS_URL: the agent server, without a slash at the end."""
    api_key: str = field(repr=False)
    """OPENHANDS_API_KEY, or the line in OPENHANDS_API_KEY_FILE: its session key, which only
    the provider gets."""
    public_url: str
    """OPENHANDS_PUBLIC_URL: what people open a conversation under."""
    workspace: Path = WORKSPACE
    """AGENT_BUS_OPENHANDS_WORKSPACE: mirrors, worktrees and gates, on the same path for the
    gateway and for the agent server."""
    agent: Path | None = None
    """AGENT_BUS_OPENHANDS_AGENT: a JSON file that says which agent a child is."""
    runtime: Path | None = None
    """AGENT_BUS_OPENHANDS_RUNTIME: a JSON file with the MCP servers of a granted runtime."""
    gateway_url: str | None = None
    """AGENT_BUS_OPENHANDS_GATEWAY_URL: where children reach `agent-bus openhands serve`."""
    run_limit: int = RUN_LIMIT
    """AGENT_BUS_OPENHANDS_RUN_LIMIT: seconds after which a run that has not ended is overdue."""
    git_hosts: tuple[str, ...] = GIT_HOSTS
    """AGENT_BUS_OPENHANDS_GIT_HOSTS: where the origin of a mirror may be, comma separated."""
    secret: str | None = field(default=None, repr=False)
    """EVEX_MESSAGING_SECRET: one more secret that capabilities may be signed with."""

    @property
    def mirrors(self) -> Path:
        """The folder of the bare mirrors."""
        return self.workspace / "mirrors"

    @property
    def worktrees(self) -> Path:
        """The folder of the children's worktrees."""
        return self.workspace / "delivery"

    @property
    def gates(self) -> Path:
        """The folder of what a child's hooks read: its gate, and the token of its Stop hook."""
        return self.workspace / ".agent-bus"


def load(environ: Mapping[str, str] | None = None) -> GatewaySettings:
    """Read the environment. Raises ConfigurationError, never with a value that is secret."""
    env = os.environ if environ is None else environ
    url = _url(env, "OPENHANDS_URL")
    if url is None:
        _missing("OPENHANDS_URL", "http://127.0.0.1:8000")
    return GatewaySettings(
        url=url,
        api_key=_credential(env),
        public_url=_url(env, "OPENHANDS_PUBLIC_URL") or url,
        workspace=_folder(env, "AGENT_BUS_OPENHANDS_WORKSPACE") or WORKSPACE,
        agent=_folder(env, "AGENT_BUS_OPENHANDS_AGENT"),
        runtime=_folder(env, "AGENT_BUS_OPENHANDS_RUNTIME"),
        gateway_url=_url(env, "AGENT_BUS_OPENHANDS_GATEWAY_URL"),
        run_limit=_run_limit(env),
        git_hosts=git_hosts_of(env),
        secret=env.get("EVEX_MESSAGING_SECRET") or None,
    )


def secret_of(environ: Mapping[str, str] | None = None) -> str | None:
    """EVEX_MESSAGING_SECRET alone: for who mints and needs no agent server."""
    return (os.environ if environ is None else environ).get("EVEX_MESSAGING_SECRET") or None


def workspace_of(environ: Mapping[str, str] | None = None) -> Path:
    """AGENT_BUS_OPENHANDS_WORKSPACE alone: for who keeps mirrors and needs no agent server."""
    env = os.environ if environ is None else environ
    return _folder(env, "AGENT_BUS_OPENHANDS_WORKSPACE") or WORKSPACE


def git_hosts_of(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """AGENT_BUS_OPENHANDS_GIT_HOSTS alone: for who keeps mirrors and needs no agent server."""
    text = (os.environ if environ is None else environ).get("AGENT_BUS_OPENHANDS_GIT_HOSTS")
    if not text:
        return GIT_HOSTS
    hosts = tuple(part.strip().lower() for part in text.split(","))
    if not all(_HOST.fullmatch(host) for host in hosts):
        raise ConfigurationError(
            f"AGENT_BUS_OPENHANDS_GIT_HOSTS is {text[:80]!a}: write it like "
            "github.com,git.example.com"
        )
    return hosts


def git_environment(
    environ: Mapping[str, str] | None = None, *, person: bool = False
) -> dict[str, str]:
    """The whole environment of a git: a fixed one, of which only PATH is the caller's.

    `person` adds what the git of a person at a shell needs to reach a repository: its own
    configuration, credential helpers, agents and proxies. Nothing of the gateway is in either.
    """
    env = os.environ if environ is None else environ
    given = {"PATH": env.get("PATH", os.defpath)}
    if person:
        given |= {name: env[name] for name in env if _PERSONS.fullmatch(name)}
    else:
        given |= {
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
        }
    return given | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_COMMITTER_NAME": "agent-bus",
        "GIT_COMMITTER_EMAIL": "agent-bus@localhost",
        "SSH_ASKPASS_REQUIRE": "never",
    }


def public_url_of(environ: Mapping[str, str] | None = None) -> str | None:
    """What people open a conversation under, where the environment says it: for who looks."""
    env = os.environ if environ is None else environ
    return _url(env, "OPENHANDS_PUBLIC_URL") or _url(env, "OPENHANDS_URL")


def server_url_of(environ: Mapping[str, str] | None = None) -> str | None:
    """The agent server, where the environment says it: for who looks."""
    return _url(os.environ if environ is None else environ, "OPENHANDS_URL")


def _missing(name: str, example: str) -> NoReturn:
    raise ConfigurationError(f"{name} is not set: export {name}={example}")


def for_hosts(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a host's configuration has to hand on so that its server finds the gateway.

    No secret is among it: a credential that does not stand in a file stays where it is.
    """
    env = os.environ if environ is None else environ
    names = ("OPENHANDS_URL", "OPENHANDS_PUBLIC_URL", "OPENHANDS_API_KEY_FILE")
    ours = sorted(name for name in env if name.startswith("AGENT_BUS_OPENHANDS_"))
    return {name: env[name] for name in (*names, *ours) if env.get(name)}


def _credential(env: Mapping[str, str]) -> str:
    name, path = "OPENHANDS_API_KEY", _folder(env, "OPENHANDS_API_KEY_FILE")
    key = env.get(name)
    if key and path:
        raise ConfigurationError(f"{name} and {name}_FILE are both set: unset one of them")
    if path:
        name = f"{name}_FILE"
        key = private_file(path, name, _KEY_LIMIT).decode("ascii", "replace").strip()
        if not key:
            raise ConfigurationError(f"{name}: the file is empty")
    if not key:
        raise ConfigurationError(
            f"{name} is not set: export it, or OPENHANDS_API_KEY_FILE, a file of mode 0600 that "
            "holds the session key of the agent server"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(f"{name} holds characters that no header can carry")
    return key


def private_file(path: Path, name: str, limit: int) -> bytes:
    """What a file holds that a variable names, and that is this user's alone.

    Raises ConfigurationError, which names the variable, and UnsafePermissions.
    """
    try:
        with Folder.open(path.parent, shared=True) as folder:
            return folder.read(path.name, limit, private=True)
    except OSError as error:
        raise ConfigurationError(f"{name}: the file cannot be read ({error.strerror})") from None
    except UnfitFile as error:
        raise ConfigurationError(f"{name}: the file {error}") from None


def _url(env: Mapping[str, str], name: str) -> str | None:
    text = env.get(name)
    if not text:
        return None
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{name} is no URL: {text[:80]!a}") from None
    if parts.username or parts.password:
        raise ConfigurationError(f"{name} holds a credential: it belongs into OPENHANDS_API_KEY")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(f"{name} is {text[:80]!a}: write it like http://127.0.0.1:8000")
    return text.rstrip("/")


def _folder(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name)
    if not text:
        return None
    if not os.path.isabs(text):
        raise ConfigurationError(f"{name} is the relative path {text[:80]!a}: give an absolute one")
    return Path(text)


def _run_limit(env: Mapping[str, str]) -> int:
    text = env.get("AGENT_BUS_OPENHANDS_RUN_LIMIT")
    if not text:
        return RUN_LIMIT
    try:
        return seconds(text)
    except UsageError:
        raise ConfigurationError(
            f"AGENT_BUS_OPENHANDS_RUN_LIMIT is {text[:80]!a}: write it like 90s, 15m, 2h or 7d"
        ) from None
