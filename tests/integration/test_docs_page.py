"""The interface's own page, as a real browser shows it, and its document, as a program fetches it."""

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.http.openapi import DOCUMENT
from testbed.debian import ensure_package
from tests.integration.broker_api import DEADLINE_SECONDS, wait_until
from tests.integration.sidecar import Sidecar

PNG = b"\x89PNG\r\n\x1a\n"

NO_NETWORK = (
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Tab:
    """A page of the browser, driven over its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0
        self.events: list[Any] = []

    async def ask(self, method: str, **params: Any) -> Any:
        """The command's result; events that come before it are kept."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params})
        while (message := await self._socket.receive_json(timeout=DEADLINE_SECONDS)).get("id") != self._asked:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    async def open(self, url: str) -> None:
        """Shows the page; returns once it is loaded and has told what it logs."""
        for domain in ("Page", "Log", "Runtime", "Network"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self.events.append(await self._socket.receive_json(timeout=DEADLINE_SECONDS))

    def named(self, method: str) -> list[Any]:
        """The events of this name so far."""
        return [event["params"] for event in self.events if event["method"] == method]

    async def value(self, expression: str) -> Any:
        """What an expression is worth in the page."""
        result = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"]["value"]

    async def look_like(self, width: int, *, dark: bool = False) -> None:
        """As on a screen of this width, in pixels."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """The whole page as a PNG."""
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A running browser that reaches this machine only; its DevTools port."""
    profile = tmp_path_factory.mktemp("browser")
    options = [*NO_NETWORK, "--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    if os.geteuid() == 0:
        # Its sandbox wants a plain user. It opens no page but ours.
        options.append("--no-sandbox")
    with (profile / "log").open("wb") as log:
        process = subprocess.Popen(
            [ensure_package("chromium", "chromium"), *options, "--remote-debugging-port=0"], stdout=log, stderr=log
        )
    try:
        yield wait_until("the browser", lambda: devtools_port(profile, process))
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def devtools_port(profile: Path, process: subprocess.Popen[bytes]) -> int | None:
    assert process.poll() is None, (profile / "log").read_text(errors="replace")
    told = profile / "DevToolsActivePort"
    lines = told.read_text().splitlines() if told.exists() else []
    return int(lines[0]) if len(lines) == 2 else None


@asynccontextmanager
async def opened(browser: int, url: str) -> AsyncIterator[Tab]:
    """A tab that shows this."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"http://127.0.0.1:{browser}/json/new") as made:
            target = await made.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await tab.open(url)
            yield tab


async def test_a_browser_shows_every_operation(sidecar: Sidecar, browser: int) -> None:
    async with opened(browser, f"http://127.0.0.1:{sidecar.port}/docs") as tab:
        await tab.look_like(1280)

        assert await tab.value("document.title") == DOCUMENT["info"]["title"]
        seen = await tab.value(
            "[...document.querySelectorAll('h3')].filter(h => h.checkVisibility()).map(h => h.innerText)"
        )
        assert seen == [o["summary"] for methods in DOCUMENT["paths"].values() for o in methods.values()]
        # The style sheet is let through by its hash.
        assert await tab.value("getComputedStyle(document.querySelector('nav')).position") == "sticky"

        assert tab.named("Log.entryAdded") == []
        assert tab.named("Runtime.consoleAPICalled") == []
        assert [r["request"]["url"].rpartition("/")[2] for r in tab.named("Network.requestWillBeSent")] == ["docs"]


async def test_it_is_readable_on_a_phone_and_in_the_dark(sidecar: Sidecar, browser: int) -> None:
    async with opened(browser, f"http://127.0.0.1:{sidecar.port}/docs") as tab:
        shots = []
        for width, dark in ((390, False), (390, True), (1280, True)):
            await tab.look_like(width, dark=dark)
            # Nothing sticks out sideways.
            assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
            shots.append(await tab.screenshot())

        assert all(shot.startswith(PNG) and len(shot) > 50_000 for shot in shots)
        assert len(set(shots)) == len(shots)


async def test_a_link_to_a_schema_unfolds_it(sidecar: Sidecar, browser: int) -> None:
    async with opened(browser, f"http://127.0.0.1:{sidecar.port}/docs#schema-Receipt") as tab:
        assert await tab.value("document.querySelector('#schema-Receipt').checkVisibility()") is True
        assert await tab.value("document.querySelector('#schema-Problem').checkVisibility()") is False


def test_the_document_is_served_as_it_is(sidecar: Sidecar) -> None:
    answer = sidecar.ask("GET", "/openapi.json")

    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.receipt() == DOCUMENT


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_who_has_it_already_gets_a_304(sidecar: Sidecar, path: str) -> None:
    answer = sidecar.ask("GET", path)
    assert answer.headers["cache-control"] == "no-cache"

    again = sidecar.ask("GET", path, headers={"If-None-Match": f'"another-version", {answer.headers["etag"]}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])

    assert sidecar.ask("GET", path, headers={"If-None-Match": '"another-version"'}).body == answer.body


def test_the_page_may_run_nothing(sidecar: Sidecar) -> None:
    policy = sidecar.ask("GET", "/docs").headers["content-security-policy"]

    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
