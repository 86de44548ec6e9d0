"""What every provider does, whoever runs the conversations.

A class of tests inherits `ProviderConformance` and has a fixture `stage`. The tests say how a
run goes on through `stage.player`; a stage over a real server makes its model do that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest

from agent_bus.errors import ServerRefused
from agent_bus.openhands.gateway.provider import Conversation, Order, Provider, Status

GUARD = 30.0
"""Seconds after which something counts as never happening."""
MARKER = "MISSION\nof one child"


class Player(Protocol):
    """Makes a run go on; returns when the provider shows it."""

    def finish(self, ident: UUID, answer: str) -> None: ...
    def fail(self, ident: UUID, code: str, text: str) -> None: ...
    def stick(self, ident: UUID) -> None: ...
    def pause(self, ident: UUID) -> None: ...
    def wait_for_confirmation(self, ident: UUID) -> None: ...
    def use_tool(self, ident: UUID) -> None: ...
    def vanish(self, ident: UUID) -> None: ...
    def full(self, full: bool) -> None: ...


@dataclass(frozen=True)
class Stage:
    """A provider, who plays its runs, and which agent a child is there."""

    provider: Provider
    player: Player
    agent: Mapping[str, Any] | None
    folder: Path


def order(stage: Stage, **changes: Any) -> Order:
    """An order for a new child, in a folder of its own."""
    child = uuid4()
    folder = stage.folder / f"child-{child}"
    folder.mkdir()
    gate = stage.folder / f"{child}.gate"
    gate.write_text("open\n")
    made = Order(
        child=child,
        folder=folder,
        title="a child",
        tags={"parent": "main", "role": "writer"},
        instructions="Do what the mission says.",
        servers=(),
        gate=gate,
        hook=None,
        agent=stage.agent,
    )
    return replace(made, **changes)


class ProviderConformance:
    """The tests. Each makes conversations of its own."""

    @pytest.fixture
    def stage(self) -> Stage:
        raise NotImplementedError

    @pytest.fixture
    def child(self, stage: Stage) -> UUID:
        """A conversation, made and idle."""
        made = order(stage)
        assert stage.provider.create(made)
        return made.child

    def standing(self, stage: Stage, child: UUID) -> Conversation:
        found = stage.provider.conversation(child)
        assert found
        return found

    def becomes(self, stage: Stage, child: UUID, status: Status) -> None:
        """It says so at once, or when it is done with what it is at."""
        until = time.monotonic() + GUARD
        while self.standing(stage, child).status != status:
            assert time.monotonic() < until, f"it is not {status}"
            time.sleep(0.05)

    def test_a_conversation_that_nobody_made_is_none(self, stage: Stage) -> None:
        assert stage.provider.conversation(uuid4()) is None

    def test_one_is_made_idle_as_ordered(self, stage: Stage) -> None:
        made = order(stage)
        assert stage.provider.create(made)
        found = self.standing(stage, made.child)
        assert (found.id, found.status) == (made.child, "idle")
        assert found.folder == str(made.folder)
        assert found.tags == made.tags
        assert found.last_user_message is None

    def test_made_twice_it_stays_as_it_was_made_first(self, stage: Stage) -> None:
        made = order(stage)
        assert stage.provider.create(made)
        assert not stage.provider.create(replace(made, tags={"parent": "other"}))
        assert self.standing(stage, made.child).tags == made.tags

    def test_a_message_starts_a_run_and_names_it(self, stage: Stage, child: UUID) -> None:
        assert stage.provider.post(child, MARKER)
        found = self.standing(stage, child)
        assert found.status == "running"
        assert found.last_user_message
        assert stage.provider.find_message(child, MARKER) == found.last_user_message

    def test_a_message_can_be_left_without_a_run(self, stage: Stage, child: UUID) -> None:
        assert stage.provider.post(child, MARKER, run=False)
        found = self.standing(stage, child)
        assert found.status == "idle"
        assert stage.provider.find_message(child, MARKER) == found.last_user_message
        assert stage.provider.run(child)
        assert self.standing(stage, child).status == "running"

    def test_a_message_is_found_by_exact_text_alone(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, f"before\n{MARKER}\nafter", run=False)
        assert stage.provider.find_message(child, MARKER)
        assert stage.provider.find_message(child, MARKER.upper()) is None
        assert stage.provider.find_message(child, MARKER + " two") is None
        assert stage.provider.find_message(child, "MISSION\nof another") is None

    def test_what_the_agent_said_is_no_user_message(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.player.finish(child, f"done: {MARKER}")
        assert stage.provider.find_message(child, MARKER) is None

    def test_a_finished_run_has_its_answer(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        run = self.standing(stage, child).last_user_message
        stage.player.finish(child, "all is well\nüñ")
        assert self.standing(stage, child).status == "finished"
        end = stage.provider.run_end(child, run)
        assert (end.answer, end.error_code, end.used_tools) == ("all is well\nüñ", None, False)
        assert stage.provider.run_end(child, None) == end

    def test_a_run_that_is_on_has_no_end_yet(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        assert not stage.provider.run_end(child, None).answer

    def test_tools_that_were_used_show(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.player.use_tool(child)
        stage.player.finish(child, "done")
        assert stage.provider.run_end(child, None).used_tools

    def test_a_failed_run_has_its_error_and_no_older_answer(
        self, stage: Stage, child: UUID
    ) -> None:
        stage.provider.post(child, "first")
        stage.player.finish(child, "READY")
        stage.provider.post(child, "second")
        run = self.standing(stage, child).last_user_message
        stage.player.fail(child, "LLMAuthenticationError", "bad key")
        assert self.standing(stage, child).status == "error"
        end = stage.provider.run_end(child, run)
        assert end.answer == ""
        assert end.error_code == "LLMAuthenticationError"
        assert end.error_text

    def test_a_later_run_has_an_end_of_its_own(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "first")
        stage.player.finish(child, "one")
        first = self.standing(stage, child).last_user_message
        stage.provider.post(child, "second")
        second = self.standing(stage, child).last_user_message
        assert first != second
        assert stage.provider.run_end(child, second).answer == ""
        stage.player.finish(child, "two")
        assert stage.provider.run_end(child, second).answer == "two"

    def test_a_stuck_run_has_no_answer(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "first")
        stage.player.finish(child, "READY")
        stage.provider.post(child, "second")
        stage.player.stick(child)
        assert self.standing(stage, child).status == "stuck"
        assert stage.provider.run_end(child, None).answer == ""

    def test_of_a_run_that_is_not_there_nothing_is_known(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.player.finish(child, "done")
        end = stage.provider.run_end(child, str(uuid4()))
        assert (end.answer, end.error_code, end.used_tools) == ("", None, True)

    def test_without_room_nothing_is_made(self, stage: Stage) -> None:
        made = order(stage)
        stage.player.full(True)
        with pytest.raises(ServerRefused) as refused:
            stage.provider.create(made)
        assert refused.value.status == 429
        assert stage.provider.conversation(made.child) is None
        stage.player.full(False)
        assert stage.provider.create(made)

    def test_without_room_a_message_is_saved_and_run_later(self, stage: Stage, child: UUID) -> None:
        stage.player.full(True)
        assert not stage.provider.post(child, MARKER)
        assert self.standing(stage, child).status == "idle"
        assert stage.provider.find_message(child, MARKER)
        assert not stage.provider.run(child)
        stage.player.full(False)
        assert stage.provider.run(child)
        assert self.standing(stage, child).status == "running"
        assert stage.provider.run(child)

    def test_a_message_while_it_runs_is_queued(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "first")
        assert stage.provider.post(child, MARKER)
        found = self.standing(stage, child)
        assert found.status == "running"
        queued = stage.provider.find_message(child, MARKER)
        assert queued
        stage.player.finish(child, "done")
        # While it is at a step, a server may still name the message before.
        assert self.standing(stage, child).last_user_message == queued

    def test_an_interrupt_pauses_and_a_message_goes_on(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.provider.interrupt(child)
        assert self.standing(stage, child).status == "paused"
        assert stage.provider.post(child, "again")
        assert self.standing(stage, child).status == "running"

    def test_an_interrupt_does_nothing_to_a_run_that_has_ended(
        self, stage: Stage, child: UUID
    ) -> None:
        stage.provider.post(child, "go")
        stage.player.finish(child, "done")
        stage.provider.interrupt(child)
        assert self.standing(stage, child).status == "finished"

    def test_a_pause_shows(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.player.pause(child)
        assert self.standing(stage, child).status == "paused"

    def test_what_waits_for_confirmation_can_be_refused(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "do something")
        stage.player.wait_for_confirmation(child)
        stage.provider.reject(child, "not now")
        assert self.standing(stage, child).status == "idle"
        # Where nothing waits, nothing happens.
        stage.provider.reject(child, "not now")
        assert self.standing(stage, child).status == "idle"

    def test_a_message_approves_what_waits_for_confirmation(
        self, stage: Stage, child: UUID
    ) -> None:
        """Why nobody posts to a conversation that waits."""
        stage.provider.post(child, "go")
        stage.player.wait_for_confirmation(child)
        assert self.standing(stage, child).status == "waiting_for_confirmation"
        stage.provider.interrupt(child)
        assert self.standing(stage, child).status == "waiting_for_confirmation"
        assert stage.provider.post(child, "hello")
        self.becomes(stage, child, "running")

    def test_a_run_of_a_finished_one_changes_nothing(self, stage: Stage, child: UUID) -> None:
        stage.provider.post(child, "go")
        stage.player.finish(child, "done")
        assert stage.provider.run(child)
        assert stage.provider.run_end(child, None).answer == "done"

    def test_one_that_has_vanished_is_unknown_and_can_be_made_anew(self, stage: Stage) -> None:
        made = order(stage)
        stage.provider.create(made)
        stage.provider.post(made.child, "go")
        stage.player.vanish(made.child)
        assert stage.provider.conversation(made.child) is None
        for ask in (
            lambda: stage.provider.post(made.child, "hello"),
            lambda: stage.provider.run(made.child),
            lambda: stage.provider.interrupt(made.child),
            lambda: stage.provider.find_message(made.child, MARKER),
            lambda: stage.provider.run_end(made.child, None),
        ):
            with pytest.raises(ServerRefused) as refused:
                ask()
            assert refused.value.status == 404
        assert stage.provider.create(made)
        assert self.standing(stage, made.child).last_user_message is None

    def test_people_open_it_under_the_public_url(self, stage: Stage, child: UUID) -> None:
        assert stage.provider.url(child).endswith(f"/conversations/{child}")
