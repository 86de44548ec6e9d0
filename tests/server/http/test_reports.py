"""The Stop hook and the webhooks: signals that are on disk before they are acknowledged."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from scene import KEY

from agent_bus.errors import Busy, StorageError
from agent_bus.openhands.gateway import capability

HOOK = "/completion-hook"


def stop(child: Any, **changes: Any) -> dict[str, Any]:
    """What the agent server gives a Stop hook."""
    return {
        "event_type": "Stop",
        "tool_name": None,
        "message": None,
        "session_id": str(child.id),
        "working_dir": "/x",
        "metadata": {"reason": "agent_finished"},
    } | changes


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def intents(stage: Any) -> list[str]:
    return [path.name for path in (stage.bus.path / "openhands/gateway/intents").iterdir()]


# -- the hook


def test_a_hook_is_on_disk_and_no_more_when_it_is_acknowledged(
    served: Any, stage: Any, child: Any
) -> None:
    before = len(stage.server.calls)
    answer = served.post(HOOK, stop(child), **bearer(child.completion))

    assert (answer.status, answer.json()) == (202, {"accepted": True})
    (name,) = intents(stage)
    assert name.startswith(str(child.id))
    assert len(stage.server.calls) == before
    assert served.warnings == []


def test_a_hook_of_the_earlier_form_is_understood(served: Any, stage: Any, child: Any) -> None:
    assert served.post(HOOK, {"capabilityRef": child.completion}).status == 202
    assert len(intents(stage)) == 1
    wrong = {"capabilityRef": child.completion, "session_id": str(uuid4())}
    assert served.post(HOOK, wrong).status == 403


def test_a_finished_run_becomes_one_wake_however_often_the_hook_calls(
    served: Any, stage: Any, child: Any
) -> None:
    """Scenario: the hook ten times, fifty at once, the webhook and a round: one wake."""
    stage.server.finish(child.id, "all done")
    for _ in range(10):
        assert served.post(HOOK, stop(child), **bearer(child.completion)).status == 202
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(
                lambda _: served.post(HOOK, stop(child), **bearer(child.completion)).status,
                range(50),
            )
        )
    assert set(answers) == {202}
    event = {
        "kind": "ConversationStateUpdateEvent",
        "key": "execution_status",
        "value": "finished",
    }
    served.post(f"/webhooks/events/{child.id.hex}", [event], X_Session_API_Key=KEY)
    served.gateway.reconcile()
    served.gateway.reconcile()

    (wake,) = stage.wakes()
    assert wake["child"] == str(child.id)
    assert intents(stage) == []


BODIES = [
    (b"", 400),
    (b"{", 400),
    (b"not json!", 400),
    (b"[]", 400),
    (b'"text"', 400),
    (b"null", 400),
    (b"\xff\xfe{}", 400),
    (b"{}", 400),
    (b'{"session_id": 7}', 400),
    (b'{"session_id": "not-a-uuid"}', 400),
    (b"[" * 60_000, 400),
    (b'{"a":' * 10_000, 400),
    (b'{"session_id": "' + b"a" * 70_000 + b'"}', 413),
]


@pytest.mark.parametrize(("body", "status"), BODIES, ids=range(len(BODIES)))
def test_a_malformed_hook_is_refused_and_asks_nothing_upstream(
    served: Any, stage: Any, child: Any, body: bytes, status: int
) -> None:
    before = len(stage.server.calls)
    answer = served.request("POST", HOOK, body, **bearer(child.completion))

    assert answer.status == status
    assert intents(stage) == []
    assert len(stage.server.calls) == before
    assert child.completion.encode() not in answer.body


def test_whoever_may_not_tell_an_end_is_refused(
    served: Any, stage: Any, child: Any, main_token: str
) -> None:
    """No capability, a forged one, one of another secret, a Main's, a child's for its tools."""
    before = len(stage.server.calls)
    owner = stage.owner(served.gateway).subject
    foreign = capability.completion_token(
        "another secret, which is long enough too", owner, "writer-1", "writer", issued_at=1
    )
    forged = child.completion[:-2] + ("AA" if child.completion[-2:] != "AA" else "BB")
    for token, status in (
        (foreign, 401),
        (forged, 401),
        (child.completion[:40], 401),
        (main_token, 403),
        (child.token, 403),
    ):
        answer = served.post(HOOK, stop(child), **bearer(token))
        assert answer.status == status
        assert token.encode() not in answer.body
        assert served.post(HOOK, {"capabilityRef": token}).status == status
    assert served.post(HOOK, stop(child)).status == 401
    assert served.post(HOOK, {"capabilityRef": ""}).status == 401
    assert served.post(HOOK, {"capabilityRef": 7}).status == 401
    assert intents(stage) == []
    assert len(stage.server.calls) == before


def test_an_expired_capability_tells_no_end(served: Any, stage: Any, child: Any) -> None:
    stage.clock.advance(capability.COMPLETION_LIFETIME)

    answer = served.post(HOOK, stop(child), **bearer(child.completion))
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_hook_before_its_time_is_refused_and_the_round_wakes(
    served: Any, stage: Any, child: Any
) -> None:
    """The clock was set back an hour: the capability is of the future, and nothing is lost."""
    stage.clock.jump(-3600)
    stage.server.finish(child.id, "done")

    assert served.post(HOOK, stop(child), **bearer(child.completion)).status == 401
    assert intents(stage) == []
    served.gateway.reconcile()
    stage.clock.jump(3600)
    assert served.post(HOOK, stop(child), **bearer(child.completion)).status == 202
    served.gateway.reconcile()
    assert [wake["status"] for wake in stage.wakes()] == ["finished"]


def test_a_child_tells_no_end_of_another(
    served: Any, stage: Any, child: Any, make_child: Any
) -> None:
    other = make_child("writer-2")

    assert served.post(HOOK, stop(other), **bearer(child.completion)).status == 403
    assert intents(stage) == []


def test_a_child_that_the_journal_does_not_know_is_not_found(served: Any, stage: Any) -> None:
    owner = stage.owner(served.gateway).subject
    token = capability.completion_token(
        served.gateway.parts.signing.newest(),
        owner,
        "never-made",
        "writer",
        issued_at=stage.clock.now() // 1000,
    )
    ident = capability.child_id(owner, "never-made")

    answer = served.post(HOOK, {"session_id": str(ident)}, **bearer(token))
    assert answer.status == 404


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Busy("/secret/path is locked"), 429),
        (StorageError("/secret/path: No space left on device"), 503),
        (OSError(28, "No space left on device", "/secret/path"), 503),
    ],
)
def test_what_cannot_be_kept_is_not_acknowledged(
    served: Any, child: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(served.gateway, "signal", fail)
    answer = served.post(HOOK, stop(child), **bearer(child.completion))

    assert answer.status == status
    assert answer.headers["retry-after"]
    assert b"secret" not in answer.body


def test_an_error_that_nobody_foresaw_shows_its_name_alone(
    served: Any, child: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(child.completion)

    monkeypatch.setattr(served.gateway, "signal", fail)
    answer = served.post(HOOK, stop(child), **bearer(child.completion))

    assert answer.status == 500
    assert child.completion.encode() not in answer.body
    assert served.warnings == ["a request failed: RuntimeError"]
    out, err = capfd.readouterr()
    assert child.completion not in out + err
    assert "Traceback" not in err


def test_a_hundred_hooks_leave_no_thread_that_waits(served: Any, child: Any) -> None:
    for _ in range(3):
        served.post(HOOK, stop(child), **bearer(child.completion))
    before = threading.active_count()
    with ThreadPoolExecutor(50) as pool:
        statuses = set(
            pool.map(
                lambda _: served.post(HOOK, stop(child), **bearer(child.completion)).status,
                range(100),
            )
        )
    assert statuses <= {202, 429}
    # The application's own threads are bounded; those of this test have ended.
    assert threading.active_count() <= before + 16


# -- the webhooks


def state(key: str, value: Any) -> dict[str, Any]:
    return {"kind": "ConversationStateUpdateEvent", "key": key, "value": value}


ENDS = [
    state("execution_status", status) for status in ("paused", "finished", "error", "stuck")
] + [state("full_state", {"execution_status": "error"})]


@pytest.mark.parametrize("event", ENDS, ids=range(len(ENDS)))
@pytest.mark.parametrize("dashed", [True, False])
def test_an_event_that_tells_an_end_is_a_signal(
    served: Any, stage: Any, child: Any, event: dict[str, Any], dashed: bool
) -> None:
    ident = str(child.id) if dashed else child.id.hex
    other = {"kind": "MessageEvent", "source": "agent"}
    answer = served.post(f"/webhooks/events/{ident}", [other, event], X_Session_API_Key=KEY)

    assert answer.status == 202
    assert len(intents(stage)) == 1


NO_ENDS = [
    state("execution_status", "running"),
    state("execution_status", "idle"),
    state("execution_status", ["finished"]),
    state("stats", "finished"),
    state("full_state", "finished"),
    state("full_state", {"execution_status": "running"}),
    {"kind": "MessageEvent", "key": "execution_status", "value": "finished"},
    {"kind": ["ConversationStateUpdateEvent"]},
    "finished",
    None,
    7,
]


@pytest.mark.parametrize("event", NO_ENDS, ids=range(len(NO_ENDS)))
def test_any_other_event_is_none(served: Any, stage: Any, child: Any, event: Any) -> None:
    answer = served.post(f"/webhooks/events/{child.id.hex}", [event], X_Session_API_Key=KEY)

    assert answer.status == 204
    assert intents(stage) == []


def test_events_of_conversations_that_are_no_children_are_nobody_s(served: Any, stage: Any) -> None:
    """The agent server tells of all its conversations, and tries again what was refused."""
    answer = served.post(f"/webhooks/events/{uuid4().hex}", ENDS, X_Session_API_Key=KEY)
    assert answer.status == 204
    assert served.post("/webhooks/conversations", {"id": "x"}, X_Session_API_Key=KEY).status == 204
    assert intents(stage) == []


@pytest.mark.parametrize("key", [None, "", KEY + "x", KEY[:-1], "ä", f"{KEY} "[::-1]])
def test_a_webhook_without_the_server_s_key_is_refused(
    served: Any, stage: Any, child: Any, key: str | None
) -> None:
    for path in (f"/webhooks/events/{child.id.hex}", "/webhooks/conversations"):
        answer = served.post(path, ENDS, X_Session_API_Key=key)
        assert answer.status == 401
        assert KEY.encode() not in answer.body
    assert intents(stage) == []


def test_without_a_key_of_the_server_no_webhook_is_taken(opened: Any) -> None:
    served = opened(session_key="")

    assert served.post("/webhooks/conversations", {}, X_Session_API_Key="").status == 401


@pytest.mark.parametrize("value", [{}, "x", None, 7])
def test_a_body_that_is_no_list_of_events_is_refused(served: Any, child: Any, value: Any) -> None:
    path = f"/webhooks/events/{child.id.hex}"

    assert served.post(path, value, X_Session_API_Key=KEY).status == 400


@pytest.mark.parametrize("ident", ["x", "..", "0" * 31, "0" * 33])
def test_an_event_of_no_conversation_is_not_found(served: Any, ident: str) -> None:
    answer = served.post(f"/webhooks/events/{ident}", ENDS, X_Session_API_Key=KEY)

    assert answer.status == 404


def test_a_long_list_of_events_is_taken(served: Any, stage: Any, child: Any) -> None:
    """A tool's output can be large; beyond 8 MiB it is refused unread."""
    event = {"kind": "ObservationEvent", "text": "x" * 2_000_000}
    body = json.dumps([event, event, ENDS[1]]).encode()
    path = f"/webhooks/events/{child.id.hex}"

    assert served.request("POST", path, body, X_Session_API_Key=KEY).status == 202
    long = str(8 * 1024 * 1024 + 1)
    refused = served.request("POST", path, b"[]", X_Session_API_Key=KEY, Content_Length=long)
    assert refused.status in (400, 413)
