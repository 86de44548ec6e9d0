"""The link works once; the cookie is for this server alone; the redirect file is private."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agent_bus.testing import ManualClock, TemporaryBus
from agent_bus.web.door import Door, redirect_file


def _token(door: Door) -> str:
    return door.url.partition("token=")[2]


@pytest.fixture
def stranger(web_as: Any) -> Any:
    """A browser that was not let in, before a door that was not used."""
    web = web_as("user")
    door = Door(4000)
    # The same application behind a fresh door.
    from agent_bus.web.app import make_app

    app = make_app(web.bus, door, web.live, warn=web.said.append)
    client = TestClient(app, base_url=door.origin)
    yield client, door
    client.close()


def test_every_start_has_its_own_name_token_and_cookie() -> None:
    doors = [Door(4000) for _ in range(5)]
    for what in ("host", "cookie", "url"):
        assert len({getattr(door, what) for door in doors}) == 5
    assert all(re.fullmatch(r"[0-9a-f]{16}\.localhost:4000", door.host) for door in doors)
    assert all(len(_token(door)) >= 43 for door in doors)


def test_a_browser_leaves_out_the_usual_port() -> None:
    assert re.fullmatch(r"http://[0-9a-f]{16}\.localhost", Door(80).origin)


def test_the_token_is_good_once() -> None:
    door = Door(4000)
    assert door.open("wrong") is None
    assert door.open("") is None
    assert not door.used
    assert door.open(_token(door)) is not None
    assert door.used
    assert door.open(_token(door)) is None


def test_of_many_that_come_at_once_one_is_let_in() -> None:
    door = Door(4000)
    token, barrier, given = _token(door), threading.Barrier(8), []

    def come() -> None:
        barrier.wait()
        given.append(door.open(token))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cookie is not None for cookie in given) == 1


def test_the_link_sets_the_cookie_and_goes_on(stranger: Any, parse: Any) -> None:
    client, door = stranger
    answer = client.get(door.url)
    assert answer.status_code == 200
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert name == door.cookie
    words = [word.strip() for word in rest.split(";")[1:]]
    assert sorted(words) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert ("meta", {"http-equiv": "refresh", "content": "0; url=/"}) in parse(answer.text).tags
    assert _token(door) not in answer.text


def test_the_link_may_come_from_anywhere_but_only_once(stranger: Any) -> None:
    client, door = stranger
    first = client.get(door.url, headers={"sec-fetch-site": "cross-site"})
    client.cookies.clear()
    second = client.get(door.url, headers={"sec-fetch-site": "cross-site"})
    assert (first.status_code, second.status_code) == (200, 403)
    assert "set-cookie" not in second.headers
    assert "end agent-bus ui" in second.text


def test_whoever_is_in_may_follow_the_used_link(web: Any) -> None:
    page = web.get(web.door.url)
    assert "You are in" in page.text


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%FF", "?x=1"])
def test_a_wrong_link_lets_nobody_in_and_uses_nothing_up(stranger: Any, query: str) -> None:
    client, door = stranger
    assert client.get(f"/open{query}").status_code == 403
    assert not door.used


def test_a_browser_that_looks_ahead_does_not_use_the_link_up(stranger: Any) -> None:
    client, door = stranger
    assert client.get(door.url, headers={"sec-purpose": "prefetch"}).status_code == 503
    assert client.head(door.url).status_code == 503
    assert not door.used


def test_form_tokens_belong_to_a_path_and_a_start() -> None:
    door = Door(4000)
    token = door.form_token("/a")
    assert door.is_own_form("/a", token)
    assert not door.is_own_form("/b", token)
    assert not Door(4000).is_own_form("/a", token)


def test_the_redirect_file_is_private_leads_to_the_link_and_goes(
    bus: TemporaryBus, parse: Any
) -> None:
    door = Door(4000)
    with redirect_file(bus.path, door, bus.clock) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent == bus.path / "cache"
        assert _token(door) not in path.name
        page = parse(path.read_text())
        assert page.links("http") == [door.url]
        assert ("meta", {"http-equiv": "refresh", "content": f"0; url={door.url}"}) in page.tags
    assert not path.exists()


def test_what_a_crash_left_goes_with_the_next_start(bus: TemporaryBus, tmp_path: Path) -> None:
    cache = bus.path / "cache"
    cache.mkdir(mode=0o700)
    old, fresh, other = (cache / name for name in ("open-a.html", "open-b.html", "index"))
    for path in (old, fresh, other):
        path.touch()
    clock = ManualClock(bus.clock.now())
    os.utime(old, (clock.now() / 1000 - 90000,) * 2)
    with redirect_file(bus.path, Door(4000), clock):
        assert not old.exists()
        assert fresh.exists()
        assert other.exists()
