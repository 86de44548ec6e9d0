"""What the played server has besides what every provider does."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from agent_bus.errors import ServerRefused, Unavailable
from agent_bus.openhands.gateway.provider import Order, StopHook
from agent_bus.openhands.gateway.testing import Call, PlayedServer


def order(child: UUID | None = None) -> Order:
    return Order(
        child=child or uuid4(),
        folder=Path("/work"),
        title="",
        tags={},
        instructions="",
        servers=(),
        gate=Path("/gate"),
        hook=StopHook("http://hook", Path("/header")),
        agent=None,
    )


def test_a_script_plays_each_run_that_starts() -> None:
    heard = []

    def play(server: PlayedServer, child: UUID, text: str) -> None:
        heard.append(text)
        server.finish(child, f"to {text}")

    server, made = PlayedServer(play=play), order()
    server.create(made)
    server.post(made.child, "idle", run=False)
    server.post(made.child, "one")
    assert server.run_end(made.child, None).answer == "to one"
    server.post(made.child, "two")
    assert server.run_end(made.child, None).answer == "to two"
    assert heard == ["one", "two"]
    assert server.messages(made.child) == ["idle", "one", "two"]


def test_the_stop_hook_is_called_when_a_run_finishes_and_then_alone() -> None:
    stopped: list[tuple[UUID, StopHook]] = []
    server, made = PlayedServer(on_stop=lambda *stop: stopped.append(stop)), order()
    server.create(made)
    server.post(made.child, "go")
    server.fail(made.child, "code", "text")
    server.post(made.child, "go")
    server.stick(made.child)
    server.post(made.child, "go")
    server.pause(made.child)
    assert not stopped
    server.post(made.child, "go")
    server.finish(made.child, "done")
    assert stopped == [(made.child, made.hook)]
    server.run(made.child)
    assert len(stopped) == 2


def test_what_was_asked_is_kept_in_order() -> None:
    server, made = PlayedServer(), order()
    server.conversation(made.child)
    server.create(made)
    server.post(made.child, "go")
    assert server.calls == [
        Call("conversation", made.child),
        Call("create", made.child),
        Call("post", made.child, "go"),
    ]
    assert server.orders == {made.child: made}


def test_a_lost_reply_took_effect_and_one_that_was_refused_did_not() -> None:
    server, made = PlayedServer(), order()
    server.lose_reply("create")
    with pytest.raises(Unavailable):
        server.create(made)
    assert not server.create(made)
    server.lose_reply("post")
    with pytest.raises(Unavailable):
        server.post(made.child, "one")
    server.refuse("post", 422)
    with pytest.raises(ServerRefused):
        server.post(made.child, "two")
    server.refuse("post", 503)
    with pytest.raises(Unavailable):
        server.post(made.child, "three")
    assert server.messages(made.child) == ["one"]


def test_while_it_is_down_nothing_is_done() -> None:
    server, made = PlayedServer(), order()
    server.down()
    with pytest.raises(Unavailable):
        server.create(made)
    server.down(False)
    assert server.conversation(made.child) is None


def test_a_run_that_is_not_on_cannot_be_played() -> None:
    server, made = PlayedServer(), order()
    server.create(made)
    with pytest.raises(ValueError, match="idle"):
        server.finish(made.child, "done")


def test_a_conversation_that_nobody_ordered() -> None:
    server, main = PlayedServer(acp=True), uuid4()
    server.add_conversation(main, Path("/main"), {"a": "b"})
    found = server.conversation(main)
    assert found
    assert (found.folder, found.tags, found.is_acp) == ("/main", {"a": "b"}, True)
