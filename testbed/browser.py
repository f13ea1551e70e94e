"""A real browser: Debian's Chromium, headless, driven over its DevTools protocol; it reaches this machine only."""

import asyncio
import base64
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from testbed import SetupError
from testbed.debian import ensure_package

DEADLINE = 30.0
"""Seconds for whatever it must do, on a busy machine."""

NO_NETWORK = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


class Tab:
    """A page of the browser. Raises SetupError where the browser refuses a command, or a page's script fails."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take the address of the page's own DevTools socket."""
        self._socket = socket
        self._asked = 0
        self.events: list[Any] = []

    async def ask(self, method: str, **params: Any) -> Any:
        """Return the command's result; events that come before it are kept."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params})
        while (message := await self._socket.receive_json(timeout=DEADLINE)).get("id") != self._asked:
            self.events.append(message)
        if "error" in message:
            raise SetupError(f"the browser: {method}: {message['error']}")
        return message["result"]

    async def open(self, url: str) -> None:
        """Show the page; return once it is loaded and has told what it logs."""
        for domain in ("Page", "Log", "Runtime", "Network"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self.events.append(await self._socket.receive_json(timeout=DEADLINE))

    def named(self, method: str) -> list[Any]:
        """Return the events of this name so far."""
        return [event["params"] for event in self.events if event["method"] == method]

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, of a promise the value that it resolves to."""
        result = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SetupError(f"the browser: {expression}: {result['exceptionDetails']}")
        return result["result"]["value"]

    async def look_like(self, width: int, *, dark: bool = False) -> None:
        """Lay the page out as on a screen of this width, in pixels."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """Return the whole page as a PNG."""
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextmanager
def running_browser(*here: str) -> Iterator[int]:
    """Start a browser, with Debian's package where there is none, and stop it at the end; its DevTools port.

    These names lead to this machine, and no other names anywhere.
    """
    with tempfile.TemporaryDirectory(prefix="ringproxy-browser-", ignore_cleanup_errors=True) as folder:
        profile = Path(folder)
        rules = [*(f"MAP {name} 127.0.0.1" for name in here), "MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1"]
        options = [
            *NO_NETWORK,
            f"--host-resolver-rules={', '.join(rules)}",
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
        ]
        if os.geteuid() == 0:
            # Its sandbox wants a plain user. It opens no page but ours.
            options.append("--no-sandbox")
        with (profile / "log").open("wb") as log:
            process = subprocess.Popen(
                [ensure_package("chromium", "chromium"), *options, "--remote-debugging-port=0"], stdout=log, stderr=log
            )
        try:
            yield _devtools_port(profile, process)
        finally:
            process.terminate()
            process.wait(DEADLINE)


def _devtools_port(profile: Path, process: "subprocess.Popen[bytes]") -> int:
    """Wait until the browser has told its DevTools port, and return that."""
    told = profile / "DevToolsActivePort"
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            return int(lines[0])
        time.sleep(0.05)
    log = (profile / "log").read_text(errors="replace")
    raise SetupError(f"the browser did not start within {DEADLINE:g} s:\n{log}")


@asynccontextmanager
async def opened(browser: int, url: str) -> AsyncIterator[Tab]:
    """Yield a tab of the browser with that DevTools port, which shows this."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"http://127.0.0.1:{browser}/json/new") as made:
            target = await made.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            async with asyncio.timeout(DEADLINE):
                await tab.open(url)
            yield tab
