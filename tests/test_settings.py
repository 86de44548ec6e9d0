"""The environment: read once, never guessed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_bus.errors import ConfigurationError, IdentityMissing
from agent_bus.settings import child_environment, identity_of, load


def test_an_empty_environment_gives_the_defaults() -> None:
    found = load({})

    assert found.bus is None
    assert found.identity is None
    assert found.admins is None
    assert found.profiles == ("bus",)
    assert not found.poll
    assert not found.allow_create
    assert found.keys == found.data / "keys"


def test_both_names_of_the_bus_may_agree() -> None:
    assert load({"AGENT_MSG_BUS": "/x", "ASTRA_AGENT_BUS": "/x"}).bus == Path("/x")
    assert load({"AGENT_MSG_BUS": "", "ASTRA_AGENT_BUS": "/x"}).bus_variable == "ASTRA_AGENT_BUS"


@pytest.mark.parametrize(
    "environ",
    [
        {"AGENT_MSG_BUS": "/x", "ASTRA_AGENT_BUS": "/y"},
        {"AGENT_MSG_BUS": "x"},
        {"ASTRA_AGENT_BUS": "./x"},
        {"AGENT_MSG_BUS": "${HOME}/x"},
        {"AGENT_BUS_PROJECT_DIR": "${CLAUDE_PROJECT_DIR}"},
        {"AGENT_MSG_KEYS": "${KEYS}"},
        {"AGENT_MSG_KEYS": "~nobody-of-this-name/keys"},
        {"AGENT_BUS_POLL": "yes"},
        {"AGENT_BUS_ALLOW_CREATE": "true"},
        {"AGENT_BUS_UNREAD_AFTER": "10"},
        {"AGENT_BUS_ADMIN_NAMES": "conductor,Bob"},
        {"AGENT_BUS_ADMIN_NAMES": "user,openhands"},
        {"AGENT_BUS_PROFILES": "bus,nothing"},
    ],
)
def test_a_variable_that_cannot_be_used_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environ)
    assert next(iter(environ)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_and_flags() -> None:
    found = load(
        {
            "AGENT_BUS_ADMIN_NAMES": " user , conductor,user,",
            "AGENT_BUS_PROFILES": "bus, terminal",
            "AGENT_BUS_POLL": "1",
            "AGENT_BUS_ALLOW_CREATE": "0",
            "AGENT_BUS_UNREAD_AFTER": "2h",
        }
    )

    assert found.admins == ("user", "conductor")
    assert found.profiles == ("bus", "terminal")
    assert found.poll
    assert found.unread_after == 7200
    assert not found.allow_create


def test_an_empty_list_of_admins_names_nobody() -> None:
    assert load({"AGENT_BUS_ADMIN_NAMES": ""}).admins == ()


def test_the_name_of_the_gateway_is_nobodys_to_choose() -> None:
    for source in ("AGENT_MSG_AS", "--as"):
        with pytest.raises(IdentityMissing, match=f"{source} is openhands, which is reserved"):
            identity_of("openhands", source)
    assert identity_of("openhands-2", "--as") == "openhands-2"


@pytest.mark.parametrize("text", [None, "", " ", "${AGENT_MSG_AS}", "a${X}b", "Bob", "../x"])
def test_no_identity(text: str | None) -> None:
    with pytest.raises(IdentityMissing) as caught:
        identity_of(text, "AGENT_MSG_AS")
    assert "AGENT_MSG_AS" in str(caught.value)
    with pytest.raises(IdentityMissing):
        load({} if text is None else {"AGENT_MSG_AS": text}).require_identity()


def test_a_git_that_is_asked_inherits_no_git_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("LC_ALL", "ru_RU.UTF-8")

    given = child_environment()

    assert "GIT_DIR" not in given
    assert given["LC_ALL"] == "C"
    assert given["PATH"] == os.environ["PATH"]
