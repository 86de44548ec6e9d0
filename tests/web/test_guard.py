"""What is not let through: other names, other pages, other methods, too much, no cookie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_bus.web import app as pages
from agent_bus.web.guard import HEADERS

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "host",
    [
        "localhost:4000",
        "127.0.0.1:4000",
        "evil.example:4000",
        "{name}:4001",
        "{name}",
        "",
        "x{host}",
    ],
)
def test_another_host_gets_nothing(web: Any, host: str) -> None:
    """A name that somebody else points at this machine (DNS rebinding) is no way in."""
    named = host.format(name=web.door.host.partition(":")[0], host=web.door.host)
    web.ask(question="secret question")
    page = web.get("/", status=421, host=named)
    assert "secret" not in page.text
    assert web.door.host not in page.text


def test_the_host_is_judged_before_the_assets_and_the_entrance(web: Any) -> None:
    for path in (*pages.ASSETS, "/open", "/events"):
        web.get(path, status=421, host="localhost:4000")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused(web: Any, method: str) -> None:
    answer = web.client.request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_a_page_takes_no_form_that_is_not_for_it(web: Any) -> None:
    headers = {"origin": web.door.origin, "content-type": FORM}
    for path in ("/", "/log", "/open", "/events"):
        assert web.client.post(path, content="", headers=headers).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/", "/inbox", "/log", "/agents", "/agents/alice", "/events", "/nothing", "/approvals/x"],
)
def test_nothing_is_shown_without_the_cookie(web: Any, path: str) -> None:
    for cookie in ("", "a=b", f"{web.door.cookie}=", f"{web.door.cookie}=wrong\xff"):
        answer = web.client.get(path, headers={"cookie": cookie.encode("latin-1")})
        assert answer.status_code == 401
        assert "agent-bus ui" in answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_cannot_even_look(web: Any, site: str) -> None:
    web.get("/", status=403, sec_fetch_site=site)
    web.get("/events", status=403, sec_fetch_site=site)
    web.get("/style.css", status=403, sec_fetch_site=site)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_own_links_and_typed_addresses_work(web: Any, site: str) -> None:
    web.get("/", sec_fetch_site=site)


def _deciding(web: Any) -> tuple[str, dict[str, str], dict[str, str]]:
    ident = web.ask()
    (form,) = web.get(f"/approvals/{ident}").forms
    headers = {"origin": web.door.origin, "sec-fetch-site": "same-origin", "content-type": FORM}
    return form.action, form.pressed("approve"), headers


def _send(web: Any, path: str, fields: dict[str, str], headers: dict[str, str]) -> int:
    answer = web.client.post(path, data=fields, headers=headers, follow_redirects=False)
    return int(answer.status_code)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("origin", None),
        ("origin", "null"),
        ("origin", "http://evil.example"),
        ("origin", "http://localhost:4000"),
        ("origin", "https://{host}"),
        ("origin", "http://{host}.evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
    ],
)
def test_a_form_from_elsewhere_decides_nothing(web: Any, name: str, value: str | None) -> None:
    path, fields, headers = _deciding(web)
    headers.pop(name)
    if value is not None:
        headers[name] = value.format(host=web.door.host)
    assert _send(web, path, fields, headers) == 403
    assert len(web.bus.pending()) == 1


def test_an_older_browser_that_says_no_site_can_decide(web: Any) -> None:
    path, fields, headers = _deciding(web)
    del headers["sec-fetch-site"]
    assert _send(web, path, fields, headers) == 303


@pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
def test_a_form_without_its_token_decides_nothing(web: Any, token: str | None) -> None:
    path, fields, headers = _deciding(web)
    del fields["token"]
    if token is not None:
        fields["token"] = token
    assert _send(web, path, fields, headers) == 403
    assert len(web.bus.pending()) == 1


def test_the_token_of_one_form_is_not_good_for_another(web: Any) -> None:
    path, fields, headers = _deciding(web)
    other, others, _ = _deciding(web)
    assert _send(web, path, fields | {"token": others["token"]}, headers) == 403
    assert _send(web, other, others, headers) == 303


def test_a_form_without_the_cookie_decides_nothing(web: Any) -> None:
    path, fields, headers = _deciding(web)
    assert _send(web, path, fields, headers | {"cookie": ""}) == 401
    assert len(web.bus.pending()) == 1


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (65537, 413),
        (10**12, 413),
        ("000000000000001", 413),
        ("-1", 413),
        ("1e3", 413),
        ("²", 413),
        ("", 413),
    ],
)
def test_a_form_has_a_size_and_a_limit(web: Any, length: object, status: int) -> None:
    path, _, headers = _deciding(web)
    named = {**headers, "content-length": str(length).encode("latin-1")}
    assert web.client.post(path, content=b"a=b", headers=named).status_code == status


def test_a_form_of_no_stated_length_is_refused(web: Any) -> None:
    path, _, headers = _deciding(web)
    answer = web.client.post(path, content=iter([b"a=b"]), headers=headers)
    assert answer.status_code == 411


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data", ""])
def test_only_forms_are_taken(web: Any, kind: str) -> None:
    path, _, headers = _deciding(web)
    answer = web.client.post(path, content=b"{}", headers=headers | {"content-type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "body",
    [b"token=a&token=b", b"a", b"a=%FF", b"\xff=a", b"&".join(b"a%d=1" % n for n in range(50))],
)
def test_a_form_that_cannot_be_read_is_refused(web: Any, body: bytes) -> None:
    path, _, headers = _deciding(web)
    assert web.client.post(path, content=body, headers=headers).status_code == 400


def test_a_look_with_a_body_is_refused(web: Any) -> None:
    assert web.client.request("GET", "/", content=b"a").status_code == 400
    assert web.client.request("GET", "/", content=iter([b"a"])).status_code == 400


def test_every_answer_has_the_headers(web: Any) -> None:
    ident = web.ask()
    for path, host in (
        ("/", web.door.host),
        (f"/approvals/{ident}", web.door.host),
        ("/nothing", web.door.host),
        ("/style.css", web.door.host),
        ("/open?token=x", web.door.host),
        ("/", "elsewhere"),
    ):
        answer = web.client.get(path, headers={"host": host})
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_the_policy_allows_no_foreign_and_no_inline_code() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    for word in ("unsafe", "http", "data:", "*"):
        assert word not in policy
    for rule in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
        assert rule in policy
    assert HEADERS["Cache-Control"] == "no-store"


def test_a_fault_says_its_name_and_nothing_else(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("text of a message")

    monkeypatch.setattr(web.bus, "status", broken)
    answer = web.client.get("/agents")
    assert answer.status_code == 500
    assert "text of a message" not in answer.text
    assert web.said == ["a page failed: RuntimeError"]


def test_the_pages_load_nothing_from_elsewhere(web: Any, parse: Callable[[str], Any]) -> None:
    ident = web.ask()
    for path in ("/", f"/approvals/{ident}", "/inbox", "/agents", "/log"):
        for tag, attributes in web.get(path).tags:
            for name in ("src", "href", "action"):
                value = attributes.get(name)
                assert value is None or value in ("", "#content") or value.startswith("/"), tag
            assert not any(name.startswith("on") or name == "style" for name in attributes)
