"""The errors: stable codes and exit codes that other programs rely on."""

from __future__ import annotations

import inspect

import pytest

from agent_bus import errors
from agent_bus.errors import AgentBusError, DeliveryUncertain, VerificationError

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, AgentBusError)
]
SYSEXITS = {64, 65, 66, 67, 69, 70, 73, 74, 75, 76, 77, 78}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in ALL]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_exit_codes_are_those_of_sysexits_and_never_two(error: type[AgentBusError]) -> None:
    assert error.exit_code in SYSEXITS


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_explained_in_a_sentence(error: type[AgentBusError]) -> None:
    assert (error.__doc__ or "").rstrip().endswith(".")


def test_an_uncertain_delivery_names_its_key_and_a_failed_verification_its_outcome() -> None:
    assert DeliveryUncertain("text", key="k").key == "k"
    assert VerificationError("text", outcome="misfiled").outcome == "misfiled"
