"""The pages in a real Chromium: what a person sees and does, and what hostile text cannot do.

With AGENT_BUS_SCREENSHOTS=1 the pictures of the documentation are made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_bus.sending import Draft
from agent_bus.testing import TemporaryBus

GUARD = 60.0
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PHONE, DESK = (390, 844), (1000, 800)


def _missing() -> str:
    """Why no browser can be driven here, or nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    wanted = ("chromedriver",)
    absent = [name for name in wanted if shutil.which(name) is None]
    if _chromium() is None:
        absent.append("chromium")
    return f"{' and '.join(absent)} not installed" if absent else ""


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module", autouse=True)
def _needs_chromium() -> None:
    why = _missing()
    if why and "chromium" in os.environ.get("AGENT_BUS_REQUIRE", "").split(","):
        pytest.fail(f"required, and not there: {why}", pytrace=False)
    if why:
        pytest.skip(why)


class Browser:
    """One Chromium with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = _chromium() or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-prefers-reduced-motion",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(flag)
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(GUARD)

    def look(self, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        """Set the size of the window and the scheme of colours."""
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def fresh(self) -> Browser:
        """Forget what an earlier test has left."""
        self.driver.get("about:blank")
        self.complaints()
        self.look()
        return self

    def open(self, server: Any, path: str = "") -> None:
        """Follow the link that works once, and then go to a page."""
        self.driver.get(server.url)
        self.arrive(f"{server.origin}/")
        if path:
            self.driver.get(server.origin + path)

    def arrive(self, url: str) -> None:
        """Wait until a page that leads itself on has loaded."""
        ready = "return document.readyState"
        self.wait(lambda: self.driver.current_url == url and self.run(ready) == "complete")

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def one(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    @property
    def text(self) -> str:
        return str(self.one("main").text)

    def button(self, words: str) -> Any:
        (found,) = [button for button in self.all("button") if button.text == words]
        return found

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> Any:
        return self.driver.switch_to.active_element

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it holds. Its time limit is a guard against hanging."""
        from selenium.common.exceptions import WebDriverException

        until = time.monotonic() + GUARD
        while True:
            try:
                if condition():
                    return
            except WebDriverException:
                pass  # the page is just being replaced
            assert time.monotonic() < until, self.driver.page_source
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """What the page's console says: refused code and faults of scripts."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, name: str, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        """A picture of the whole page for the documentation, if that is wanted."""
        if os.environ.get("AGENT_BUS_SCREENSHOTS") != "1":
            return
        self.look((size[0], 1), scheme)
        height = self.run("return document.documentElement.scrollHeight")
        self.look((size[0], height), scheme)
        IMAGES.mkdir(exist_ok=True)
        self.driver.save_screenshot(str(IMAGES / f"{name}.png"))
        self.look()


@pytest.fixture(scope="module")
def chromium(_needs_chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.driver.quit()


@pytest.fixture(scope="module")
def second_chromium(
    _needs_chromium: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """A browser that shows nothing yet."""
    return chromium.fresh()


@pytest.fixture
def second_browser(second_chromium: Browser) -> Browser:
    """Another one."""
    return second_chromium.fresh()


def _decision(bus: TemporaryBus, ident: str) -> Any:
    approvals = bus.as_agent("user").approvals
    return approvals.decision(approvals.request(ident))


@pytest.fixture
def scene(tmp_path: Path) -> TemporaryBus:
    """A bus on which work is going on."""
    folder = tmp_path / "shop"
    folder.mkdir(mode=0o700)
    bus = TemporaryBus("backend-orch", "frontend-orch", folder=folder)
    backend, frontend = bus.as_agent("backend-orch"), bus.as_agent("frontend-orch")
    user = bus.as_agent("user")
    first = frontend.request_approval("Merge the branch `checkout-v2` into main?")
    user.decide(first.id, "deny", reason="Not before the tests on the staging server are green.")
    backend.request_approval(
        "Drop the table `sessions_old`?\n\nNobody has read its 41,233 rows since March. "
        "The dump lies in backups/sessions_old.sql and was restored once.",
        options=["drop it", "keep it"],
        details={"command": "psql -f drop_sessions_old.sql", "rows": 41233},
        expires_in=7200 + 60,
    )
    frontend.request_approval("Merge the branch `checkout-v2` into main?")
    asked = backend.send_one(
        "user",
        Draft(
            subject="Which port for the new API?",
            body="8443 is taken by the old one until Friday.\nIs 8444 fine with you?",
            kind="question",
        ),
    )
    answer = user.send_one("backend-orch", Draft(body="8444 it is.", reply_to=asked.id))
    backend.send_one("user", Draft(body="Done, it answers on 8444.", reply_to=answer.id))
    return bus


def _serve(serve: Any, scene: TemporaryBus) -> Any:
    return serve("user", "--no-open", **scene.environment)


# -- deciding

SERVER = [sys.executable, "-m", "agent_bus", "mcp"]


def test_a_click_decides_and_the_requester_s_bus_wait_returns(
    browser: Browser, serve: Any, bus: TemporaryBus, environment: dict[str, str]
) -> None:
    """The requester is a real MCP server, which waits when the button is clicked."""
    from mcp import Client, StdioServerParameters

    server = serve("user", "--no-open")
    browser.open(server)
    assert "Nothing waits for a decision." in browser.text
    parameters = StdioServerParameters(
        command=SERVER[0],
        args=SERVER[1:],
        env=environment | bus.environment | {"AGENT_MSG_AS": "alice"},
    )

    def click() -> None:
        # The page was empty: it shows by itself what has come.
        browser.wait(lambda: browser.all("article"))
        browser.one("textarea").send_keys("go ahead")
        browser.button("yes").click()
        browser.wait(lambda: "You decided: yes" in browser.text)

    async def play() -> Any:
        async with Client(parameters) as client:
            await client.call_tool(
                "bus_request_approval", {"question": "May I push?", "options": ["yes", "no"]}
            )
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, click)
                waited = await client.call_tool("bus_wait", {"timeout": 60})
            (message,) = waited.structured_content["messages"]
            read = await client.call_tool("bus_read", {"id": message["id"]})
            return read.structured_content

    told = str(anyio.run(play))
    assert "approval_decision" in told
    assert "go ahead" in told
    assert browser.complaints() == []


def test_two_browsers_that_decide_at_once_make_one_decision(
    browser: Browser, second_browser: Browser, serve: Any, bus: TemporaryBus
) -> None:
    ident = bus.as_agent("alice").request_approval("Blue or green?", options=["blue", "green"]).id
    sides = [(browser, "blue", "user"), (second_browser, "green", "conductor")]
    for one, _, me in sides:
        one.open(serve(me, "--no-open"))
    barrier = threading.Barrier(2)

    def click(one: Browser, words: str) -> None:
        button = one.button(words)
        barrier.wait()
        button.click()

    threads = [threading.Thread(target=click, args=side[:2]) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, _, _ in sides:
        one.wait(lambda one=one: one.all(".notice"))
    won = [(words, me) for one, words, me in sides if "You decided" in one.text]
    lost = [one for one, _, _ in sides if "that stands" in one.text]
    assert len(won) == len(lost) == 1
    decided = _decision(bus, ident)
    assert (decided.decision, decided.by) == won[0]
    assert f"decided by {won[0][1]}" in lost[0].text
    told = bus.as_agent("alice").inbox().messages
    assert [stored.judged.message.kind for stored in told] == ["approval_decision"]


def test_another_tab_learns_of_the_decision(
    browser: Browser, serve: Any, bus: TemporaryBus
) -> None:
    """It had the form as well; it is marked, does not move, and its button changes nothing."""
    bus.as_agent("alice").request_approval("Blue or green?", options=["blue", "green"])
    server = serve("user", "--no-open")
    browser.open(server)
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.driver.get(server.origin)
    browser.button("blue").click()
    browser.wait(lambda: "You decided: blue" in browser.text)
    browser.driver.close()
    browser.driver.switch_to.window(first)
    browser.wait(lambda: browser.one("#news").is_displayed())
    browser.button("green").click()
    browser.wait(lambda: "that stands" in browser.text)
    assert "Decided: blue by user" in browser.text


def test_the_keyboard_alone_decides(browser: Browser, serve: Any, bus: TemporaryBus) -> None:
    from selenium.webdriver.common.keys import Keys

    ident = bus.as_agent("alice").request_approval("May I?").id
    browser.open(serve("user", "--no-open"))
    browser.press(Keys.TAB)
    assert browser.focused.text == "Skip to the content"
    assert browser.focused.location["x"] >= 0
    browser.press(Keys.ENTER)
    for _ in range(20):
        browser.press(Keys.TAB)
        assert _outlined(browser), browser.focused.get_attribute("outerHTML")
        if browser.focused.tag_name == "textarea":
            browser.press("for now", Keys.ENTER, "only")
        if browser.focused.text == "deny":
            break
    else:
        pytest.fail("the button was not reached")
    browser.press(Keys.ENTER)
    browser.wait(lambda: "You decided: deny" in browser.text)
    assert _decision(bus, ident).reason == "for now\nonly"


def _outlined(browser: Browser) -> bool:
    style = "return getComputedStyle(document.activeElement)"
    return bool(browser.run(f"{style}.outlineStyle") == "solid")


def test_it_works_without_a_script(browser: Browser, serve: Any, bus: TemporaryBus) -> None:
    ident = bus.as_agent("alice").request_approval("May I?").id
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(serve("user", "--no-open"))
        browser.button("approve").click()
        browser.wait(lambda: "You decided: approve" in browser.text)
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert _decision(bus, ident).decision == "approve"


# -- arrival


def test_an_arrival_shows_by_itself(browser: Browser, serve: Any, bus: TemporaryBus) -> None:
    browser.open(serve("user", "--no-open"), "/inbox")
    assert "Nothing lies here." in browser.text
    bus.as_agent("alice").send_one("user", Draft(subject="It is here", body="x"))
    browser.wait(lambda: "It is here" in browser.text)
    assert browser.one("[data-count=unread]").text == "1"


def test_what_is_being_written_is_not_lost_to_an_arrival(
    browser: Browser, serve: Any, bus: TemporaryBus
) -> None:
    alice = bus.as_agent("alice")
    alice.request_approval("First?")
    browser.open(serve("user", "--no-open"))
    browser.one("textarea").send_keys("half a thou")
    alice.request_approval("Second?")
    browser.wait(lambda: browser.one("#news").is_displayed())
    assert browser.one("textarea").get_attribute("value") == "half a thou"
    assert browser.driver.title.startswith("(2) ")
    browser.one("#news a").click()
    browser.wait(lambda: "Second?" in browser.text)


def test_a_page_says_when_its_server_has_gone(browser: Browser, serve: Any) -> None:
    server = serve("user", "--no-open")
    browser.open(server)
    browser.wait(lambda: browser.run("return performance.getEntriesByType('resource').length"))
    assert server.end()[0] == 0
    browser.wait(lambda: "does not answer" in browser.one("#lost").text)
    browser.complaints()


# -- hostile text


def test_a_hostile_message_does_nothing(
    browser: Browser, serve: Any, bus: TemporaryBus, hostile: str
) -> None:
    alice = bus.as_agent("alice")
    tricks = hostile + (
        '<svg onload=alert(1)><a href="javascript:alert(1)">x</a><form action=//evil.example>'
        "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe><base href=//evil.example>"
        "<meta http-equiv=refresh content='0;url=//evil.example'><style>*{display:none}</style>"
    )
    plain = "".join(char for char in tricks[:200] if char.isprintable())
    message = alice.send_one("user", Draft(subject=plain, body=tricks, data={tricks[:40]: tricks}))
    request = alice.request_approval(
        tricks, options=["yes", "<b>no</b>", "\u202eseY"], details={"k": [tricks]}
    )
    forged = alice.send_one("user", Draft(subject="s", body=f"hello {tricks}"))
    path = bus.path / "messages" / "user" / "new" / f"{forged.id}.msg"
    path.write_bytes(path.read_bytes().replace(b"hello", b"hellp"))
    server = serve("user", "--no-open")
    browser.open(server)
    for page in (
        "/",
        f"/approvals/{request.id}",
        f"/messages/{message.id}",
        f"/messages/{forged.id}",
        f"/threads/{message.id}",
        "/inbox",
        "/log",
        "/agents/alice",
    ):
        browser.driver.get(server.origin + page)
        assert browser.driver.current_url == server.origin + page
        assert "agent" in browser.one("nav").text.lower()
        assert not browser.all("main script, main svg, main iframe, main base, main style, main b")
        assert not browser.all("main meta, main img, main [onload], a[href^=javascript]")
        for field in browser.all("form"):
            assert str(field.get_attribute("action")).startswith(server.origin)
        shown = str(browser.run("return document.documentElement.textContent"))
        assert not any(char in shown for char in "\x1b\x07\x9b\u202e\u200b\u2066\ufeff\u2028")
        assert browser.complaints() == [], page
        assert not browser.run("return document.documentElement.scrollWidth > innerWidth"), page
    browser.driver.get(server.origin)
    assert [button.text for button in browser.all("button")] == ["yes", "<b>no</b>", "\\u202eseY"]


def test_a_message_that_does_not_verify_warns_before_its_text(
    browser: Browser, serve: Any, scene: TemporaryBus
) -> None:
    draft = Draft(subject="Pay", body="hello world")
    sent = scene.as_agent("backend-orch").send_one("user", draft)
    path = scene.path / "messages" / "user" / "new" / f"{sent.id}.msg"
    path.write_bytes(path.read_bytes().replace(b"hello", b"hellp"))
    browser.open(_serve(serve, scene), f"/messages/{sent.id}")
    assert "Warning: this does not verify (bad-signature)" in browser.one("[role=alert]").text
    assert "hellp" not in browser.text
    browser.one("summary").click()
    browser.wait(lambda: "hellp world" in browser.text)
    browser.picture("message-that-does-not-verify")


# -- being let in


def test_the_redirect_file_leads_in_and_the_link_is_dead_then(
    browser: Browser, second_browser: Browser, serve: Any, tmp_path: Path
) -> None:
    """As `agent-bus ui` does it: a browser is started with the path of a file."""
    program, noted = tmp_path / "browser", tmp_path / "noted"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {noted}.tmp && mv {noted}.tmp {noted}\n')
    program.chmod(0o755)
    server = serve("user", BROWSER=f"{program} %s")
    browser.wait(noted.exists)
    browser.driver.get(noted.read_text())
    browser.arrive(f"{server.origin}/")
    assert "Waiting for a decision" in browser.text
    second_browser.driver.get(server.url)
    assert "has been used" in second_browser.text
    second_browser.driver.get(server.origin)
    assert "Open this with the link" in second_browser.text
    second_browser.complaints()


def test_no_script_can_read_the_cookie(browser: Browser, serve: Any) -> None:
    browser.open(serve("user", "--no-open"))
    assert browser.run("return document.cookie") == ""
    (cookie,) = browser.driver.get_cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"


def test_another_page_cannot_decide(
    browser: Browser, serve: Any, bus: TemporaryBus, tmp_path: Path
) -> None:
    """It even knows the address and the form's token, and has the user's browser."""
    ident = bus.as_agent("alice").request_approval("May I?").id
    server = serve("user", "--no-open")
    browser.open(server)
    fields = {
        name: browser.one(f"input[name={name}]").get_attribute("value")
        for name in ("token", "sha256")
    }
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method=post action="{server.origin}/approvals/{ident}">{inputs}'
        '<input name="choice" value="0"></form><script>document.forms[0].submit()</script>'
    )
    with Foreign(tmp_path) as port:
        browser.driver.get(f"http://localhost:{port}/evil.html")
        browser.arrive(f"{server.origin}/approvals/{ident}")
    assert "another page" in browser.text
    assert _decision(bus, ident) is None
    browser.complaints()


class Foreign:
    """A web server of somebody else, for one folder."""

    def __init__(self, folder: Path) -> None:
        code = (
            "import functools, http.server as h, sys\n"
            "server = h.HTTPServer(('127.0.0.1', 0), functools.partial(\n"
            "    h.SimpleHTTPRequestHandler, directory=sys.argv[1]))\n"
            "print(server.server_port, flush=True)\n"
            "server.serve_forever()\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=GUARD)


# -- looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone_and_all_can_be_read(
    browser: Browser, serve: Any, scene: TemporaryBus, scheme: str
) -> None:
    asked = scene.as_agent("backend-orch").send_one(
        "user", Draft(subject="w" * 200, body="x" * 3000 + "\n" + "| " * 300)
    )
    server = _serve(serve, scene)
    browser.open(server)
    browser.look(PHONE, scheme)
    for page in ("/", "/inbox", "/agents", "/log", f"/messages/{asked.id}", f"/threads/{asked.id}"):
        browser.driver.get(server.origin + page)
        width = browser.run("return document.documentElement.scrollWidth")
        assert width <= PHONE[0], page
        faint = browser.run(CONTRAST)
        assert faint == [], page
    for button in browser.all("button, nav a"):
        assert button.size["height"] >= 34
    browser.look()


CONTRAST = """
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const faint = [];
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
  const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) faint.push([walker.currentNode.data.slice(0, 40), ratio]);
}
return faint;
"""
"""Text whose contrast is under 4.5 to 1 (WCAG 2.2, 1.4.3)."""


def test_the_pictures_of_the_documentation(
    browser: Browser, serve: Any, scene: TemporaryBus
) -> None:
    server = _serve(serve, scene)
    browser.open(server)
    assert [button.text for button in browser.all("button")] == [
        "drop it",
        "keep it",
        "approve",
        "deny",
    ]
    assert "Asked before, in the same words: deny" in browser.text
    browser.picture("approvals-light")
    browser.picture("approvals-dark", scheme="dark")
    browser.picture("approvals-phone", PHONE)
    browser.driver.get(server.origin + "/inbox")
    browser.one("main li a").click()
    browser.wait(lambda: "wrote this" in browser.text)
    browser.one(".fields a[href^='/threads/']").click()
    browser.wait(lambda: "Conversation" in browser.text)
    assert [turn.get_attribute("class") for turn in browser.all(".turn")] == [
        "turn",
        "turn own",
        "turn",
    ]
    browser.picture("conversation", scheme="dark")
