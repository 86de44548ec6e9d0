"""The environment, read once. No other module of the core looks at it.

What a variable means stands in docs/operations.md. Reading never guesses: where a variable
is set but unusable, the error names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from agent_bus.clock import seconds
from agent_bus.errors import ConfigurationError, IdentityMissing, InvalidName, UsageError
from agent_bus.names import RESERVED, AgentName, agent_name

UNREAD_AFTER = 600
DEFAULT_ADMINS = (AgentName("conductor"), AgentName("user"))
PROFILES = ("bus", "coordination", "terminal", "orchestration", "openhands")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. Build it with `load`, or by hand in a test."""

    data: Path
    """Where buses stand: their parent's parent (`<data>/buses/<bus>`)."""
    keys: Path
    """The folder of keyrings."""
    identity: str | None = None
    """AGENT_MSG_AS as it stands; `require_identity` judges it."""
    project: Path | None = None
    """From where the bus is resolved; None means the working directory."""
    bus: Path | None = None
    """The bus folder, named outright."""
    bus_variable: str = "AGENT_MSG_BUS"
    """The variable that named it, for messages."""
    admins: tuple[AgentName, ...] | None = None
    """AGENT_BUS_ADMIN_NAMES; None where it is not set."""
    allow_create: bool = False
    profiles: tuple[str, ...] = ("bus",)
    poll: bool = False
    unread_after: int = UNREAD_AFTER
    """Seconds after which the sender of a message is told that nobody has read it."""
    session: str | None = None
    """The session of the host that started this process, where the host says so."""

    def require_identity(self) -> AgentName:
        """The identity of this process. Raises IdentityMissing."""
        return identity_of(self.identity, "AGENT_MSG_AS")


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment. Raises ConfigurationError."""
    env = os.environ if environ is None else environ
    data = user_data_path("agent-bus")
    variable, bus = _bus(env)
    return Settings(
        data=data,
        keys=_absolute(env, "AGENT_MSG_KEYS") or data / "keys",
        identity=env.get("AGENT_MSG_AS"),
        project=_path(env, "AGENT_BUS_PROJECT_DIR"),
        bus=bus,
        bus_variable=variable,
        admins=_admins(env),
        allow_create=_flag(env, "AGENT_BUS_ALLOW_CREATE"),
        profiles=_profiles(env),
        poll=polls(env),
        unread_after=_seconds(env, "AGENT_BUS_UNREAD_AFTER", UNREAD_AFTER),
        # Claude Code gives it to servers and hooks alike.
        session=env.get("CLAUDE_CODE_SESSION_ID") or None,
    )


def child_environment() -> dict[str, str]:
    """The environment for a git that is asked something: a copy without any GIT_* variable.

    A hook of git inherits GIT_DIR and its like, and they would beat the folder that is asked
    about. The C locale keeps git's words such as they are compared; git never prompts.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def polls(environ: Mapping[str, str] | None = None) -> bool:
    """Whether AGENT_BUS_POLL turns file events off. Raises ConfigurationError."""
    return _flag(os.environ if environ is None else environ, "AGENT_BUS_POLL")


def identity_of(text: str | None, source: str) -> AgentName:
    """Judge a name that a process is to act under. Raises IdentityMissing.

    `source` is where it came from, for the message. A placeholder that nobody expanded is
    told apart, since it means that the host was started without the variable. The reserved
    name is nobody's to choose: the gateway gets it by `Bus.open_gateway`.
    """
    if text is None or not text.strip():
        raise IdentityMissing(
            f"{source} is not set: say who this process is, e.g. export AGENT_MSG_AS=backend-orch"
        )
    if "${" in text:
        raise IdentityMissing(
            f"{source} is {text[:80]!a}, which nobody expanded: "
            "export AGENT_MSG_AS before the program that starts this one"
        )
    try:
        name = agent_name(text)
    except InvalidName as error:
        raise IdentityMissing(f"{source}: {error}") from None
    if name == RESERVED:
        raise IdentityMissing(
            f"{source} is {RESERVED}, which is reserved for the gateway: choose another name"
        )
    return name


def _bus(env: Mapping[str, str]) -> tuple[str, Path | None]:
    named = {name: env[name] for name in ("AGENT_MSG_BUS", "ASTRA_AGENT_BUS") if env.get(name)}
    if len({os.path.normpath(text) for text in named.values()}) > 1:
        raise ConfigurationError(
            "AGENT_MSG_BUS and ASTRA_AGENT_BUS name two different buses: unset one of them"
        )
    for name, text in named.items():
        if not os.path.isabs(text):
            raise ConfigurationError(f"{name} is the relative path {text!a}: give an absolute one")
        return name, Path(text)
    return "AGENT_MSG_BUS", None


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name)
    if not text:
        return None
    if "${" in text:
        raise ConfigurationError(f"{name} is {text[:80]!a}, which nobody expanded")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{name} is {text[:80]!a}, and that home is unknown") from None


def _absolute(env: Mapping[str, str], name: str) -> Path | None:
    path = _path(env, name)
    if path is not None and not path.is_absolute():
        raise ConfigurationError(f"{name} is the relative path {env[name]!a}: give an absolute one")
    return path


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "")
    if text not in ("", "0", "1"):
        raise ConfigurationError(f"{name} is {text[:80]!a}: use 1, or leave it unset")
    return text == "1"


def _seconds(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        return seconds(text)
    except UsageError:
        raise ConfigurationError(
            f"{name} is {text[:80]!a}: write it like 90s, 15m, 2h or 7d"
        ) from None


def _admins(env: Mapping[str, str]) -> tuple[AgentName, ...] | None:
    if "AGENT_BUS_ADMIN_NAMES" not in env:
        return None
    words = (word.strip() for word in env["AGENT_BUS_ADMIN_NAMES"].split(","))
    try:
        names = tuple(dict.fromkeys(agent_name(word) for word in words if word))
    except InvalidName as error:
        raise ConfigurationError(f"AGENT_BUS_ADMIN_NAMES: {error}") from None
    if RESERVED in names:
        raise ConfigurationError(
            f"AGENT_BUS_ADMIN_NAMES: {RESERVED} is reserved for the gateway, which asks and never "
            "decides"
        )
    return names


def _profiles(env: Mapping[str, str]) -> tuple[str, ...]:
    words = (word.strip() for word in env.get("AGENT_BUS_PROFILES", "bus").split(","))
    chosen = tuple(dict.fromkeys(word for word in words if word))
    unknown = [word for word in chosen if word not in PROFILES]
    if unknown:
        raise ConfigurationError(
            f"AGENT_BUS_PROFILES: no profile {unknown[0][:80]!a}; there are {', '.join(PROFILES)}"
        )
    return chosen or ("bus",)
