"""Rounds in the background: signs are heeded at once, and nothing is needed for the rest."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from scene import Scene

from agent_bus.errors import Busy, NoSuchChild
from agent_bus.openhands.gateway import intents, reconciliation


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds; the limit only keeps a broken test from hanging."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.01)


def test_a_sign_is_heeded_without_waiting_for_a_round(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "INTERVAL", 3600.0)
    gateway = stage.gateway()
    child = stage.create(gateway)
    lines: list[str] = []
    with gateway.run_in_background(lines.append):
        until(lambda: gateway.child("writer-1").seen == "running")
        stage.server.finish(child, "done")
        gateway.signal(child, "hook")
        until(lambda: len(stage.wakes()) == 1)
    assert lines == []


def test_what_nobody_tells_is_found_by_the_next_round(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook was lost, or there never was one."""
    monkeypatch.setattr(reconciliation, "INTERVAL", 0.05)
    gateway = stage.gateway()
    child = stage.create(gateway)
    with gateway.run_in_background(pytest.fail):
        stage.server.stick(child)
        until(lambda: len(stage.wakes()) == 1)


def test_signs_that_never_stop_do_not_keep_the_rounds(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One child is signed again and again; another that nobody tells of is found all the same."""
    monkeypatch.setattr(reconciliation, "INTERVAL", 0.2)
    stage.clock.monotonic = time.monotonic  # type: ignore[method-assign]
    gateway = stage.gateway()
    noisy, quiet = stage.create(gateway, "noisy"), stage.create(gateway, "quiet")
    ending = threading.Event()

    def storm() -> None:
        while not ending.is_set():
            with contextlib.suppress(Busy):
                gateway.signal(noisy, "hook")
            time.sleep(0.01)

    noise = threading.Thread(target=storm)
    with gateway.run_in_background(lambda _: None):
        noise.start()
        try:
            stage.server.fail(quiet, "X", "y")
            until(lambda: len(stage.wakes()) == 1)
        finally:
            ending.set()
            noise.join()


def test_a_decision_reaches_the_child_at_once(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "INTERVAL", 3600.0)
    gateway = stage.gateway()
    child = stage.create(gateway)
    with gateway.run_in_background(pytest.fail):
        until(lambda: gateway.child("writer-1").seen == "running")
        asked = gateway.request_user_decision(
            stage.child_caller(gateway), question="Which?", options=["a", "b"]
        )
        stage.as_agent().decide(asked.id, "a")
        until(lambda: any("USER_DECISION" in text for text in stage.server.messages(child)))


def test_a_problem_is_told_once_and_again_after_it_was_gone(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "INTERVAL", 0.02)
    gateway = stage.gateway()
    stage.create(gateway)
    lines: list[str] = []
    with gateway.run_in_background(lines.append):
        for count in (1, 2):
            stage.server.down()
            until(lambda wanted=count: len(lines) == wanted)  # type: ignore[misc]
            before = len(stage.server.calls)
            until(lambda seen=before: len(stage.server.calls) > seen + 3)  # type: ignore[misc]
            assert len(lines) == count
            stage.server.down(False)
            before = len(stage.server.calls)
            until(lambda seen=before: len(stage.server.calls) > seen + 3)  # type: ignore[misc]


def test_a_child_that_is_done_costs_no_request(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "done")
    gateway.reconcile()
    before = len(stage.server.calls)
    for _ in range(3):
        gateway.reconcile()
        stage.gateway().reconcile()
    assert len(stage.server.calls) == before


def test_one_record_that_is_damaged_does_not_keep_the_others(stage: Scene) -> None:
    gateway = stage.gateway()
    good, bad = stage.create(gateway, "good"), stage.create(gateway, "bad")
    path = gateway.parts.folder.path / "children" / f"{bad}.json"
    path.write_text("{")
    stage.server.finish(good, "done")

    done = gateway.reconcile()

    assert done.ended == [good]
    assert [problem.count(str(bad)) for problem in done.problems] == [1]
    assert path.read_text() == "{"


def test_a_lock_that_cannot_be_had_is_told_and_does_not_keep_the_others(stage: Scene) -> None:
    gateway = stage.gateway()
    good, bad = stage.create(gateway, "good"), stage.create(gateway, "bad")
    lock = gateway.parts.folder.path / "locks" / f"{bad}.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    for child in (good, bad):
        stage.server.finish(child, "done")

    done = gateway.reconcile()

    assert done.ended == [good]
    (problem,) = done.problems
    assert problem.startswith(f"child {bad} cannot be locked (")


def test_what_goes_wrong_unexpectedly_with_one_does_not_keep_the_others(stage: Scene) -> None:
    gateway = stage.gateway()
    good, bad = stage.create(gateway, "good"), stage.create(gateway, "bad")
    stage.server.finish(good, "done")
    real = stage.server.conversation

    def conversation(ident: UUID) -> Any:
        if ident == bad:
            raise RuntimeError("surprise")
        return real(ident)

    stage.server.conversation = conversation  # type: ignore[method-assign]
    done = gateway.reconcile()
    assert done.ended == [good]
    assert "surprise" in done.problems[0]


def test_a_sign_of_an_unknown_child_is_refused(stage: Scene) -> None:
    gateway = stage.gateway()
    with pytest.raises(NoSuchChild):
        gateway.signal(uuid4(), "hook")
    assert gateway._intents.pending() == {}


def test_a_storm_of_signs_is_bounded(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    for _ in range(intents._MOST):
        gateway.signal(child, "hook")
    with pytest.raises(Busy):
        gateway.signal(child, "hook")
    assert len(gateway._intents.pending()[child]) == intents._MOST

    stage.server.finish(child, "done")
    gateway.reconcile()
    assert gateway._intents.pending() == {}
    assert len(stage.wakes()) == 1


def test_a_clock_that_jumps_back_changes_nothing_about_ends(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.clock.jump(-3600)
    stage.server.finish(child, "done")
    gateway.signal(child, "hook")
    gateway.reconcile()
    stage.clock.jump(7200)
    gateway.reconcile()
    assert [wake["status"] for wake in stage.wakes()] == ["finished"]
