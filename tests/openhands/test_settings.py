"""The environment of the gateway: what is wrong with it is said, and never what is secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_bus.errors import ConfigurationError, UnsafePermissions
from agent_bus.openhands.gateway import settings

GOOD = {"OPENHANDS_URL": "http://127.0.0.1:8000/", "OPENHANDS_API_KEY": "a-key"}


def test_what_is_not_said_has_a_default() -> None:
    loaded = settings.load(GOOD)
    assert (loaded.url, loaded.public_url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8000")
    assert loaded.workspace == settings.WORKSPACE
    assert loaded.mirrors == settings.WORKSPACE / "mirrors"
    assert loaded.worktrees == settings.WORKSPACE / "delivery"
    assert (loaded.agent, loaded.runtime, loaded.gateway_url, loaded.secret) == (None,) * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENHANDS_URL", ""),
        ("OPENHANDS_URL", "127.0.0.1:8000"),
        ("OPENHANDS_URL", "ftp://127.0.0.1"),
        ("OPENHANDS_URL", "http://127.0.0.1:x"),
        ("OPENHANDS_URL", "http://user:secret-word@127.0.0.1"),
        ("OPENHANDS_PUBLIC_URL", "http://x/?q=1"),
        ("OPENHANDS_API_KEY", ""),
        ("OPENHANDS_API_KEY", "secret-word with spaces"),
        ("OPENHANDS_API_KEY", "secret-word\r\nX: y"),
        ("OPENHANDS_API_KEY", "secret-wörd"),
        ("AGENT_BUS_OPENHANDS_WORKSPACE", "relative"),
        ("AGENT_BUS_OPENHANDS_AGENT", "relative.json"),
        ("AGENT_BUS_OPENHANDS_RUN_LIMIT", "soon"),
        ("AGENT_BUS_OPENHANDS_GIT_HOSTS", "a b"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is_told(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        settings.load(GOOD | {name: value})
    assert "secret-w" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_credential_may_stand_in_a_file_of_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    file.chmod(0o600)
    given = {"OPENHANDS_URL": "http://127.0.0.1:8000", "OPENHANDS_API_KEY_FILE": str(file)}
    assert settings.load(given).api_key == "from-a-file"

    with pytest.raises(ConfigurationError, match="both set"):
        settings.load(GOOD | given)
    file.chmod(0o644)
    with pytest.raises(UnsafePermissions):
        settings.load(given)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigurationError):
        settings.load(given)
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings.load(given)


def test_hosts_are_told_all_but_secrets() -> None:
    given = GOOD | {
        "AGENT_BUS_OPENHANDS_WORKSPACE": "/srv/w",
        "EVEX_MESSAGING_SECRET": "x" * 40,
        "HOME": "/h",
    }
    assert settings.for_hosts(given) == {
        "OPENHANDS_URL": GOOD["OPENHANDS_URL"],
        "AGENT_BUS_OPENHANDS_WORKSPACE": "/srv/w",
    }


def test_no_secret_stands_in_a_representation() -> None:
    text = repr(settings.load(GOOD | {"EVEX_MESSAGING_SECRET": "y" * 40}))
    assert "a-key" not in text
    assert "yyyy" not in text
