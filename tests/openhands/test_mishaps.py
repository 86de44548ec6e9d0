"""What goes wrong in the middle: no end is lost, nothing is said twice, nobody waits for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from scene import KEY, PAUSES, Scene, admit, scene

from agent_bus import delivery
from agent_bus.errors import (
    AdmissionFailed,
    BusFull,
    Busy,
    ConfigurationError,
    ServerRefused,
    StorageError,
    Unavailable,
)
from agent_bus.names import AgentName
from agent_bus.openhands.gateway import capability, decisions, journal, reconciliation, reports
from agent_bus.openhands.gateway.caller import MAIN_ACTIONS, Caller
from agent_bus.openhands.gateway.gateway import Gateway
from agent_bus.openhands.gateway.journal import Record
from agent_bus.openhands.gateway.testing import PlayedServer

MAIN = UUID("11111111-1111-4111-8111-111111111111")


def statuses(stage: Scene, name: str = "conductor") -> list[str]:
    return [wake["status"] for wake in stage.wakes(name)]


def resume(stage: Scene, gateway: Gateway, child: UUID, key: str = "again") -> str:
    return gateway.resume_mission(
        stage.owner(gateway),
        target=str(child),
        task_key="writer-1",
        message_key=key,
        context={"note": "go on"},
    ).outcome


def cancel(stage: Scene, gateway: Gateway, child: UUID) -> str:
    caller = stage.owner(gateway)
    return gateway.cancel_mission(caller, target=str(child), task_key="writer-1").outcome


def resumes(stage: Scene, child: UUID) -> int:
    return sum(text.startswith("RESUME_MISSION") for text in stage.server.messages(child))


@contextlib.contextmanager
def dying(gateway: Gateway, when: Callable[[Record], bool]) -> Iterator[None]:
    """The process ends instead of a save."""

    class Died(BaseException):
        pass

    real = gateway.journal.save

    def save(record: Record) -> Record:
        if when(record):
            raise Died
        return real(record)

    gateway.journal.save = save  # type: ignore[method-assign]
    with pytest.raises(Died):
        yield


def without_room(stage: Scene) -> None:
    """There is no room for the run of the mission."""

    real = stage.server.post

    def post(ident: UUID, text: str, *, run: bool = True) -> bool:
        if text.startswith("MISSION"):
            stage.server.full()
        return real(ident, text, run=run)

    stage.server.post = post  # type: ignore[method-assign]


def status(stage: Scene, child: UUID) -> str:
    found = stage.server.conversation(child)
    assert found is not None
    return found.status


def asked(stage: Scene, act: Callable[[], Any]) -> list[str]:
    """What the agent server is asked meanwhile."""
    before = len(stage.server.calls)
    act()
    return [call.operation for call in stage.server.calls[before:]]


# -- beginning


@pytest.mark.parametrize("lost", ["create", "conversation"])
def test_a_child_with_tools_begins_although_a_reply_was_lost(tmp_path: Path, lost: str) -> None:
    """What it was given stands in the record before it is asked for."""
    with scene(tmp_path, gateway_url="http://127.0.0.1:3101") as stage:
        stage.server.lose_reply(lost)
        gateway = stage.gateway()
        child = stage.create(gateway)

        record = gateway.journal.load(child)
        assert record.servers == {"agent_bus": "http://127.0.0.1:3101/mcp"}
        assert '"tool":"send_to_parent"' in stage.server.messages(child)[-1]


def test_an_attempt_keeps_what_an_earlier_one_was_given(tmp_path: Path) -> None:
    """The gateway is reached elsewhere by now; the conversation still has the old address."""
    with scene(tmp_path, gateway_url="http://127.0.0.1:3101") as stage:
        stage.server.play = lambda server, child, _: server.finish(child, "hello")
        with pytest.raises(AdmissionFailed):
            stage.create(stage.gateway())
        stage.server.play = admit
        stage.settings = dataclasses.replace(stage.settings, gateway_url="http://127.0.0.1:9")
        gateway = stage.gateway()
        record = gateway.journal.load(stage.create(gateway))
        assert record.servers == {"agent_bus": "http://127.0.0.1:3101/mcp"}


def test_who_writes_to_a_child_in_its_admission_is_named_at_once(stage: Scene) -> None:
    """Not after ten minutes of waiting; asking again begins anew."""

    def play(server: PlayedServer, child: UUID, message: str) -> None:
        if message.startswith("PROVIDER_ADMISSION"):
            server.post(child, "hello, what are you doing?")
            server.finish(child, "PROVIDER_READY")

    gateway, stage.server.play = stage.gateway(), play
    with pytest.raises(AdmissionFailed, match="somebody else wrote"):
        stage.create(gateway)
    stage.server.play = admit
    stage.create(gateway)


def test_a_child_that_the_gateway_is_not_set_up_for_is_refused_in_the_end(stage: Scene) -> None:
    """At first it may be another gateway's to begin it; its owner does not wait for ever."""
    gateway = stage.gateway()

    def create(_: Any) -> bool:
        raise ConfigurationError("the file /home/me/secret is not right")

    stage.server.create = create  # type: ignore[method-assign, assignment]
    with pytest.raises(ConfigurationError):
        stage.create(gateway)
    assert gateway.reconcile().problems
    assert gateway.child("writer-1").state == "begun"

    stage.clock.advance(601)
    gateway.reconcile()
    assert gateway.child("writer-1").state == "refused"
    (message,) = stage.messages("wake")
    assert "not set up" in message.body
    assert "/home" not in message.body


@pytest.mark.parametrize("number", [401, 403])
def test_a_wrong_key_refuses_nothing_that_another_gateway_may_begin(
    stage: Scene, number: int
) -> None:
    stage.server.refuse("create", number)
    with pytest.raises(ServerRefused):
        stage.create(stage.gateway())
    stage.gateway().reconcile()
    assert statuses(stage) == []
    assert stage.gateway().child("writer-1").state == "delivered"


def test_a_mission_that_was_saved_without_room_before_a_crash_is_run(stage: Scene) -> None:
    """It is found, and so not posted again; the run that it never got is started."""
    without_room(stage)
    gateway = stage.gateway()
    with dying(gateway, lambda record: record.run_owed):
        stage.create(gateway)
    stage.server.full(False)
    later = stage.gateway()
    child = stage.create(later)
    later.reconcile()
    assert status(stage, child) == "running"
    assert sum(text.startswith("MISSION") for text in stage.server.messages(child)) == 1


# -- runs that are owed


def test_a_child_that_is_gone_while_its_run_was_owed_is_lost(stage: Scene) -> None:
    without_room(stage)
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.vanish(child)
    gateway.reconcile()
    stage.clock.advance(31)
    gateway.reconcile()
    assert statuses(stage) == ["lost"]


def test_a_cancelled_child_is_not_started_when_there_is_room(stage: Scene) -> None:
    without_room(stage)
    gateway = stage.gateway()
    child = stage.create(gateway)
    assert cancel(stage, gateway, child) == "cancelled"
    stage.server.full(False)
    gateway.reconcile()

    assert status(stage, child) == "idle"
    assert gateway.journal.load(child).is_settled


def test_an_owed_run_approves_nothing(stage: Scene) -> None:
    """A person ran it meanwhile, and the agent wants to do something: a run would allow it."""
    without_room(stage)
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.full(False)
    stage.server.run(child)
    stage.server.wait_for_confirmation(child)
    gateway.reconcile()
    assert status(stage, child) == "waiting_for_confirmation"


def test_a_failed_child_that_is_resumed_without_room_has_not_failed_again(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.fail(child, "X", "first")
    gateway.reconcile()
    stage.server.full()
    resume(stage, gateway, child)
    gateway.reconcile()
    assert statuses(stage) == ["error"]

    stage.server.full(False)
    gateway.reconcile()
    assert status(stage, child) == "running"
    stage.server.finish(child, "done")
    gateway.reconcile()
    assert statuses(stage) == ["error", "finished"]


# -- cancelling


def test_a_sign_after_a_cancel_is_no_second_end(stage: Scene) -> None:
    """The server's webhook tells of the pause that the cancel itself has made."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    cancel(stage, gateway, child)
    gateway.signal(child, "webhook")
    gateway.reconcile()
    stage.clock.advance(100)
    gateway.reconcile()

    assert statuses(stage) == ["cancelled"]
    assert gateway.journal.load(child).state == "cancelled"


def test_a_decision_does_not_set_a_cancelled_child_to_work(stage: Scene) -> None:
    """It is told when its owner lets it go on."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    request = gateway.request_user_decision(
        stage.child_caller(gateway), question="Which?", options=["a", "b"]
    )
    stage.as_agent().decide(request.id, "a")
    cancel(stage, gateway, child)
    stage.server._conversations[child].status = "idle"
    gateway.reconcile()
    assert status(stage, child) == "idle"
    assert gateway.journal.load(child).is_settled

    resume(stage, gateway, child)
    gateway.reconcile()
    assert any("USER_DECISION" in text for text in stage.server.messages(child))


@pytest.mark.parametrize("trouble", ["refuse", "lose_reply"])
def test_a_cancel_does_not_depend_on_its_word(stage: Scene, trouble: str) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    getattr(stage.server, trouble)("post")
    assert cancel(stage, gateway, child) == "cancelled"
    assert statuses(stage) == ["cancelled"]


def test_a_refused_child_whose_conversation_was_never_made_is_cancelled(stage: Scene) -> None:
    gateway = stage.gateway()
    stage.server.refuse("create", 422)
    with pytest.raises(AdmissionFailed):
        stage.create(gateway)
    child = stage.child(gateway)
    assert cancel(stage, gateway, child) == "cancelled"
    assert gateway.journal.load(child).state == "cancelled"


def test_a_cancel_that_died_after_its_wake_is_one_cancel(stage: Scene) -> None:
    """Whoever comes next finds out what was told, and does not tell of a pause."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    with dying(gateway, lambda record: record.state == "cancelled"):
        cancel(stage, gateway, child)
    later = stage.gateway()
    later.reconcile()
    assert cancel(stage, later, child) == "replayed"
    assert statuses(stage) == ["cancelled"]


# -- ends


def test_an_end_after_a_wake_that_was_not_noted_is_told_as_well(stage: Scene) -> None:
    """Told as paused, then a crash; it has finished when the next process looks."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.pause(child)
    with dying(gateway, lambda record: bool(record.ends)):
        gateway.reconcile()
    stage.server.run(child)
    stage.server.finish(child, "done")
    later = stage.gateway()
    later.reconcile()
    later.reconcile()

    assert statuses(stage) == ["paused", "finished"]
    record = later.journal.load(child)
    assert [end.status for end in record.ends] == ["paused", "finished"]
    assert [end.wake for end in record.ends] == [wake.id for wake in stage.messages("wake")]


def test_a_child_that_was_deleted_after_its_end_is_not_lost(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.fail(child, "X", "y")
    gateway.reconcile()
    stage.server.vanish(child)
    gateway.reconcile()
    stage.clock.advance(31)
    gateway.reconcile()
    assert statuses(stage) == ["error"]


def test_a_child_that_nobody_confirms_is_overdue(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.wait_for_confirmation(child)
    gateway.reconcile()
    stage.clock.advance(stage.settings.run_limit + 1)
    gateway.reconcile()
    gateway.reconcile()
    assert statuses(stage) == ["overdue"]


def test_an_overdue_child_is_watched_to_its_end(stage: Scene) -> None:
    """However long that takes: it is at work, and nobody else will tell."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    gateway.reconcile()
    stage.clock.advance(stage.settings.run_limit + 1)
    gateway.reconcile()
    stage.clock.advance(8 * 24 * 3600)
    gateway.reconcile()
    stage.server.finish(child, "late")
    gateway.reconcile()
    assert statuses(stage) == ["overdue", "finished"]


def test_an_end_whose_answer_cannot_be_had_is_told_in_the_end(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)

    def run_end(*_: Any) -> Any:
        raise Unavailable("the agent server answered far too much")

    stage.server.finish(child, "x")
    stage.server.run_end = run_end  # type: ignore[method-assign, assignment]
    gateway.reconcile()
    assert statuses(stage) == []
    stage.clock.advance(601)
    gateway.reconcile()
    (wake,) = stage.wakes()
    assert (wake["status"], wake["error"]["code"]) == ("finished", "AnswerUnavailable")


@pytest.mark.parametrize("back", [120, 365 * 24 * 3600])
def test_a_clock_that_was_set_back_keeps_nobody_waiting(stage: Scene, back: float) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.vanish(child)
    gateway.reconcile()
    stage.clock.jump(-back)
    gateway.reconcile()
    assert statuses(stage) == ["lost"]


def test_a_full_box_still_has_room_for_the_end(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a question has none, and must not keep it."""
    gateway = stage.gateway()
    alice = gateway.identity_caller(AgentName("alice"))
    made = gateway.create_child(alice, task_key="writer-1", role="writer", mission=stage.mission())
    request = ask(stage, gateway, alice)
    stage.as_agent().decide(request, "a")
    monkeypatch.setattr(delivery, "UNREAD_LIMIT", 0)
    stage.server.finish(made.child, "done")
    assert gateway.reconcile().problems
    assert statuses(stage, "alice") == ["finished"]

    monkeypatch.undo()
    stage.clock.advance(2)
    gateway.reconcile()
    assert len(stage.messages("answer", "alice")) == 1


def ask(stage: Scene, gateway: Gateway, owner: Caller) -> str:
    token = capability.child_capability_token(
        gateway.parts.signing.newest(),
        owner.subject,
        "writer-1",
        "writer",
        issued_at=stage.clock.now() // 1000,
    )
    asked = gateway.request_user_decision(
        gateway.caller(token), question="Which?", options=["a", "b"]
    )
    return asked.id


def test_a_question_whose_copy_did_not_arrive_is_answered_all_the_same(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the queue; the child does not ask again, and is told what was decided."""
    gateway = stage.gateway()
    alice = gateway.identity_caller(AgentName("alice"))
    made = gateway.create_child(alice, task_key="writer-1", role="writer", mission=stage.mission())
    monkeypatch.setattr(delivery, "UNREAD_LIMIT", 0)
    with pytest.raises(BusFull):
        ask(stage, gateway, alice)
    monkeypatch.undo()
    stage.clock.advance(2)

    (pending,) = stage.as_agent().pending()
    stage.as_agent().decide(pending.message.id, "b")
    gateway.reconcile()
    assert any('"decision":"b"' in text for text in stage.server.messages(made.child))


# -- resuming


def test_a_resume_that_was_cut_off_and_has_ended_is_over(stage: Scene) -> None:
    """Posted, then a crash; the child has finished again when its owner asks once more."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "first")
    gateway.reconcile()
    with dying(gateway, lambda record: any(note.id for note in record.notes.values())):
        resume(stage, gateway, child)
    stage.server.finish(child, "second")
    later = stage.gateway()
    later.signal(child, "hook")
    later.reconcile()
    assert resume(stage, later, child) == "resumed"
    later.reconcile()

    assert [wake["answer"]["text"] for wake in stage.wakes()] == ["first", "second"]
    assert resumes(stage, child) == 1
    assert later.journal.load(child).is_settled


@pytest.mark.parametrize("end", ["finished", "cancelled"])
def test_the_end_of_a_resume_that_was_cut_off_is_told_unasked(stage: Scene, end: str) -> None:
    """Its owner has not asked again: the child works all the same."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    if end == "cancelled":
        cancel(stage, gateway, child)
    else:
        stage.server.finish(child, "first")
    gateway.reconcile()
    with dying(gateway, lambda record: any(note.id for note in record.notes.values())):
        resume(stage, gateway, child)
    stage.server.finish(child, "second")
    stage.gateway().reconcile()
    assert statuses(stage) == [end, "finished"]


def test_a_resume_that_never_got_there_leaves_a_child_that_has_ended(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "first")
    gateway.reconcile()
    stage.server.refuse("post", 503)
    with pytest.raises(Unavailable):
        resume(stage, gateway, child)
    gateway.reconcile()

    assert statuses(stage) == ["finished"]
    assert gateway.journal.load(child).is_settled
    assert resume(stage, gateway, child) == "resumed"


def test_an_end_that_nobody_has_seen_yet_is_told_before_a_resume(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "first")
    resume(stage, gateway, child)
    stage.server.finish(child, "second")
    gateway.reconcile()
    assert [wake["answer"]["text"] for wake in stage.wakes()] == ["first", "second"]


def test_two_resumes_of_which_one_was_cut_off_are_two_messages(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "first")
    gateway.reconcile()
    stage.server.lose_reply("post")
    with pytest.raises(Unavailable):
        resume(stage, gateway, child, "one")
    stage.server.finish(child, "second")
    gateway.reconcile()
    resume(stage, gateway, child, "two")
    stage.server.finish(child, "third")
    gateway.reconcile()
    assert resume(stage, gateway, child, "one") == "resumed"
    assert resumes(stage, child) == 2


def test_a_resume_that_is_tried_again_approves_nothing(stage: Scene) -> None:
    """Its first try has not arrived; meanwhile somebody has set the child to work."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.finish(child, "first")
    gateway.reconcile()
    stage.server.refuse("post", 503)
    with pytest.raises(Unavailable):
        resume(stage, gateway, child)
    stage.server.post(child, "go on")
    stage.server.wait_for_confirmation(child)
    with pytest.raises(Busy):
        resume(stage, gateway, child)
    assert status(stage, child) == "waiting_for_confirmation"


# -- rounds


def broken(stage: Scene, *children: UUID) -> None:
    """The server cannot show these."""
    real = stage.server.conversation

    def conversation(ident: UUID) -> Any:
        if ident in children:
            raise Unavailable("the agent server, asked to show a conversation, failed (HTTP 500)")
        return real(ident)

    stage.server.conversation = conversation  # type: ignore[method-assign]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_children_that_the_server_cannot_show_do_not_keep_the_others(
    stage: Scene, count: int, signed: bool
) -> None:
    gateway = stage.gateway()
    children = sorted(stage.create(gateway, f"task-{number}") for number in range(count + 2))
    broken(stage, *children[:count])
    if signed:
        for child in children[:count]:
            gateway.signal(child, "hook")
    for child in children[count:]:
        stage.server.finish(child, "done")
    for _ in range(3):
        assert gateway.reconcile().problems
    assert statuses(stage) == ["finished", "finished"]


def test_a_server_that_is_down_is_asked_a_few_times_only(stage: Scene) -> None:
    gateway = stage.gateway()
    for number in range(6):
        stage.create(gateway, f"task-{number}")
    stage.server.down()
    assert len(asked(stage, gateway.reconcile)) == 3


@pytest.mark.parametrize("end", ["fail", "pause", "stick"])
def test_an_end_that_was_told_costs_one_question_a_round(stage: Scene, end: str) -> None:
    """No second look, and no events are read again."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    getattr(stage.server, end)(child, *(["X", "y"] if end == "fail" else []))
    gateway.reconcile()
    assert asked(stage, gateway.reconcile) == ["conversation"]


def test_a_child_whose_end_is_old_is_looked_up_rarely(stage: Scene) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.fail(child, "X", "y")
    gateway.reconcile()
    stage.clock.advance(3600)
    gateway.reconcile()
    stage.clock.advance(5)
    assert asked(stage, gateway.reconcile) == []
    stage.clock.advance(60)
    assert asked(stage, gateway.reconcile) == ["conversation"]

    stage.server.run(child)
    stage.server.finish(child, "after all")
    gateway.signal(child, "hook")
    gateway.reconcile()
    assert statuses(stage) == ["error", "finished"]


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds; the limit only keeps a broken test from hanging."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.01)


@pytest.mark.parametrize("trouble", ["stderr", "surprise"])
def test_the_rounds_go_on_whatever_happens(
    stage: Scene, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Whoever started them has closed its stderr; something raises what nobody has foreseen."""
    monkeypatch.setattr(reconciliation, "INTERVAL", 0.02)
    gateway = stage.gateway()
    child = stage.create(gateway)
    happened = threading.Event()

    def warn(_: str) -> None:
        happened.set()
        if trouble == "stderr":
            raise BrokenPipeError

    def tidy(_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("surprise")

    if trouble == "stderr":
        stage.server.down()
    else:
        monkeypatch.setattr(decisions, "tidy", tidy)
    with gateway.run_in_background(warn):
        until(happened.is_set)
        stage.server.down(False)
        stage.server.stick(child)
        gateway.signal(child, "hook")
        until(lambda: len(stage.wakes()) == 1)


# -- letters to a Main that is a conversation


@pytest.fixture
def owned(stage: Scene) -> tuple[Gateway, UUID]:
    """A child of a Main that is a conversation; the child has finished, the Main is at rest."""
    stage.server.add_conversation(MAIN)
    gateway = stage.gateway()
    main = Caller(MAIN, MAIN, "root", "main", MAIN_ACTIONS)
    made = gateway.create_child(main, task_key="writer-1", role="writer", mission=stage.mission())
    stage.server.finish(made.child, "done")
    return gateway, made.child


def main_is(stage: Scene, status: str) -> None:
    stage.server._conversations[MAIN].status = status  # type: ignore[assignment]


def test_a_letter_without_room_approves_nothing_later(
    stage: Scene, owned: tuple[Gateway, UUID]
) -> None:
    gateway, child = owned
    stage.server.full()
    gateway.reconcile()
    assert len(stage.server.messages(MAIN)) == 1
    stage.server.full(False)
    main_is(stage, "waiting_for_confirmation")
    gateway.reconcile()
    assert status(stage, MAIN) == "waiting_for_confirmation"
    assert gateway.journal.load(child).is_settled


def test_a_letter_that_was_saved_without_room_before_a_crash_is_run(
    stage: Scene, owned: tuple[Gateway, UUID]
) -> None:
    gateway, _ = owned
    stage.server.full()
    with dying(gateway, lambda record: any(one.state == "saved" for one in record.letters)):
        gateway.reconcile()
    stage.server.full(False)
    later = stage.gateway()
    later.reconcile()
    later.reconcile()
    assert status(stage, MAIN) == "running"
    assert len(stage.server.messages(MAIN)) == 1


def test_a_main_that_is_not_known_for_a_moment_gets_its_letter(
    stage: Scene, owned: tuple[Gateway, UUID]
) -> None:
    """A server that is just starting knows nobody."""
    gateway, _ = owned
    main = stage.server._conversations.pop(MAIN)
    gateway.reconcile()
    stage.clock.advance(10)
    stage.server._conversations[MAIN] = main
    gateway.reconcile()
    assert len(stage.server.messages(MAIN)) == 1


def test_a_letter_that_is_refused_does_not_keep_the_others(
    stage: Scene, owned: tuple[Gateway, UUID]
) -> None:
    gateway, _ = owned
    main = Caller(MAIN, MAIN, "root", "main", MAIN_ACTIONS)
    request = ask(stage, gateway, main)
    gateway.reconcile()
    main_is(stage, "idle")
    gateway.send_to_parent(
        gateway.caller(token_of(stage, gateway)), result={"a": 1}, message_key="r"
    )
    stage.as_agent().decide(request, "a")
    real = stage.server.post

    def post(ident: UUID, text: str, *, run: bool = True) -> bool:
        if ident == MAIN:
            raise ServerRefused("too long", status=413)
        return real(ident, text, run=run)

    stage.server.post = post  # type: ignore[method-assign]
    assert gateway.reconcile().problems
    child = owned[1]
    assert any("USER_DECISION" in text for text in stage.server.messages(child))


def token_of(stage: Scene, gateway: Gateway) -> str:
    return capability.child_capability_token(
        gateway.parts.signing.newest(),
        MAIN,
        "writer-1",
        "writer",
        issued_at=stage.clock.now() // 1000,
    )


# -- what grows


def test_a_child_that_never_stops_talking_fills_no_record(
    stage: Scene, owned: tuple[Gateway, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner's conversation is paused, so that no copy gets there; the box has all."""
    monkeypatch.setattr(journal, "MOST_NOTES", 5)
    monkeypatch.setattr(journal, "MOST_OWED", 5)
    gateway, child = owned
    main_is(stage, "paused")
    speaker = gateway.caller(token_of(stage, gateway))
    said = [
        gateway.send_to_parent(speaker, result={"number": number}, message_key=f"k{number}")
        for number in range(12)
    ]
    record = gateway.journal.load(child)
    assert len(record.notes) <= 6
    assert len(record.letters) <= 6

    again = gateway.send_to_parent(speaker, result={"number": 0}, message_key="k0")
    assert again.id == said[0].id
    main_is(stage, "idle")
    gateway.reconcile()
    assert '"messageKey":"k11"' in "".join(stage.server.messages(MAIN))


def test_letters_that_are_done_are_forgotten(
    stage: Scene, owned: tuple[Gateway, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_DONE", 3)
    gateway, child = owned
    speaker = gateway.caller(token_of(stage, gateway))
    for number in range(8):
        gateway.send_to_parent(speaker, result={"number": number}, message_key=f"k{number}")
        main_is(stage, "idle")
        gateway.reconcile()
    assert len(gateway.journal.load(child).letters) <= 4
    gateway.send_to_parent(speaker, result={"number": 0}, message_key="k0")
    assert len([text for text in stage.server.messages(MAIN) if '"k0"' in text]) == 1


def test_a_child_cannot_flood_the_queue_of_approvals(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "OPEN_QUESTIONS", 2)
    gateway = stage.gateway()
    stage.create(gateway)
    speaker = stage.child_caller(gateway)

    def ask(number: int) -> Any:
        return gateway.request_user_decision(speaker, question=f"{number}?", options=["a", "b"])

    first = ask(0)
    ask(1)
    assert ask(0).replayed
    with pytest.raises(BusFull):
        ask(2)
    stage.as_agent().decide(first.id, "a")
    gateway.reconcile()
    ask(2)


def test_a_record_that_could_not_be_read_again_is_not_written(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = stage.gateway()
    child = stage.create(gateway)
    record = gateway.journal.load(child)
    monkeypatch.setattr(journal, "_LIMIT", 10_000)
    with pytest.raises(StorageError, match="too large"):
        gateway.journal.save(record.model_copy(update={"problem": "x" * 10_000}))
    assert gateway.journal.load(child) == record


# -- secrets


def test_what_a_child_calls_its_messages_hides_no_secret(
    stage: Scene, owned: tuple[Gateway, UUID]
) -> None:
    gateway, _ = owned
    token = token_of(stage, gateway)
    speaker = gateway.caller(token)
    gateway.send_to_parent(speaker, result={"a": 1}, message_key=token)
    gateway.request_user_decision(speaker, question="Which?", options=["a", KEY])
    gateway.reconcile()
    everything = [*stage.server.messages(MAIN)]
    for stored in stage.bus.as_gateway().log(limit=100).messages:
        message = stored.judged.message
        assert message is not None
        everything.append(f"{message.subject} {message.body} {message.data}")
    assert len(everything) > 3
    assert not any(token in text or KEY in text for text in everything)


# -- gateways of one bus with different settings


@pytest.mark.parametrize("what", ["server", "workspace"])
def test_a_child_of_a_gateway_with_other_settings_is_left_alone(
    stage: Scene, tmp_path: Path, what: str
) -> None:
    """Neither lost nor refused: that is for the one that has its server and its files."""
    gateway = stage.gateway()
    child = stage.create(gateway)
    stage.server.play = lambda *_: None
    made = gateway.create_child(
        stage.owner(gateway),
        task_key="writer-2",
        role="writer",
        mission=stage.mission(branch="fix/2"),
        wait=0,
    )
    assert made.state == "admitting"
    changes = {"server": {"url": "http://other:1"}, "workspace": {"workspace": tmp_path / "other"}}
    other = Gateway.open(
        stage.bus.settings,
        dataclasses.replace(stage.settings, **changes[what]),  # type: ignore[arg-type]
        provider=PlayedServer() if what == "server" else stage.server,
        clock=stage.clock,
        pauses=PAUSES,
    )
    with other:
        for _ in range(3):
            done = other.reconcile()
            assert (done.looked, done.problems, len(done.elsewhere)) == (0, [], 2)
            stage.clock.advance(20)
        with pytest.raises(ConfigurationError) as raised:
            cancel(stage, other, child)
        assert str(tmp_path) not in str(raised.value)
        with pytest.raises(ConfigurationError):
            resume(stage, other, child)
    assert stage.wakes() == []
    assert gateway.parts.gates.is_open(child)

    stage.server.finish(child, "done")
    stage.server.finish(made.child, "PROVIDER_READY")
    gateway.reconcile()
    assert statuses(stage) == ["finished"]
    assert gateway.journal.load(made.child).state == "delivered"


def test_a_server_under_another_address_is_the_same_one(stage: Scene) -> None:
    child = stage.create(stage.gateway())
    stage.settings = dataclasses.replace(stage.settings, url="http://localhost:1")
    stage.server.finish(child, "done")
    assert stage.gateway().reconcile().problems == []
    assert statuses(stage) == ["finished"]


def test_a_mission_that_was_begun_at_the_wrong_address_begins_at_the_right_one(
    stage: Scene,
) -> None:
    right = stage.settings
    stage.settings = dataclasses.replace(right, url="http://wrong:1")
    stage.server.down()
    made = stage.gateway().create_child(
        stage.owner(stage.gateway()),
        task_key="writer-1",
        role="writer",
        mission=stage.mission(branch="fix/writer-1"),
        wait=0,
    )
    assert made.state == "begun"
    stage.server.down(False)
    stage.settings = right
    (line,) = stage.gateway().reconcile().elsewhere
    assert "http://wrong:1: the same create_child again brings it here" in line
    stage.create(stage.gateway())
