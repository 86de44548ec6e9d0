"""A sealed name on screen: the passphrase comes with the form, and goes nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_bus import keeping
from agent_bus.bus import Bus
from agent_bus.names import AgentName
from agent_bus.sealing import FORGET_AFTER, Opened
from agent_bus.testing import ManualClock, TemporaryBus

USER = AgentName("user")
WORDS = "correct horse battery staple"


@pytest.fixture
def sealed(held: TemporaryBus, web_as: Callable[[str], Any]) -> Any:
    """The pages of `user`, whose name is sealed."""
    bus = Bus.open(held.settings, clock=held.clock)
    bus.keys.seal(USER, WORDS, 2**14)
    signer = bus.keys.signer(USER)
    assert isinstance(signer, Opened)
    keeping.pin(bus.store, USER, signer)
    return web_as("user")


def decided(web: Any, ident: str) -> Any:
    return web.bus.approvals.decision(web.bus.approvals.request(ident))


def fields(page: Any) -> list[str]:
    return [tag for tag, names in page.tags if names.get("type") == "password"]


def test_a_decision_takes_the_passphrase_once(sealed: Any, clock: ManualClock) -> None:
    first, second = sealed.ask(question="one?"), sealed.ask(question="two?", needs="user")
    page = sealed.get("/")
    assert len(fields(page)) == 2
    sealed.send(page.forms[0], "approve", passphrase=WORDS)
    assert decided(sealed, first).by == "user"

    page = sealed.get("/")
    assert fields(page) == []
    sealed.send(page.forms[0], "deny")
    assert decided(sealed, second).decision == "deny"

    third = sealed.ask(question="three?")
    clock.advance(FORGET_AFTER)
    page = sealed.get("/")
    assert len(fields(page)) == 1
    sealed.send(page.forms[0], "deny", status=403, passphrase="")
    assert decided(sealed, third) is None


def test_a_wrong_passphrase_decides_nothing_and_is_not_shown(sealed: Any) -> None:
    ident = sealed.ask()
    (form,) = sealed.get("/").forms
    for wrong in ("not the passphrase", "", "\U0001f512" * 3000):
        answer = sealed.send(form, "approve", status=403, passphrase=wrong)
        assert "is not the passphrase of key" in answer.text.replace("&#39;", "'")
        assert not wrong or wrong not in answer.text.replace("is not the passphrase of", "")
    assert decided(sealed, ident) is None
    assert not sealed.said


def test_a_form_without_its_token_unlocks_nothing(sealed: Any) -> None:
    sealed.ask()
    (form,) = sealed.get("/").forms
    form.fields["token"] = "0" * 64
    sealed.send(form, "approve", status=403, passphrase=WORDS)
    assert sealed.bus.is_locked


def test_who_is_not_needed_is_offered_no_button(sealed: Any, web_as: Callable[[str], Any]) -> None:
    sealed.ask(needs="user")
    page = web_as("conductor").get("/")
    assert page.forms == []
    assert "Only user may decide this." in page.text
