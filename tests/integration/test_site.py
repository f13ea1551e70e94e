"""The documents as a site: a strict build, in which a real browser draws every drawing and asks no other host."""

import asyncio
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.browser import DEADLINE, Tab, opened, running_browser
from tests.integration.documents import ROOT

DOCS = ROOT / "docs"
DRAWINGS = {
    str(page.relative_to(DOCS).with_suffix(".html")): page.read_text().count("\n```mermaid\n")
    for page in sorted(DOCS.rglob("*.md"))
    if "\n```mermaid\n" in page.read_text()
}
"""The number of drawings of each page of the site that has any."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, which fails on a broken link or a missing page, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site's folder, and yield the host and port."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        """A handler of requests that logs nothing."""

        def log_message(self, *_: object) -> None:
            """Leave the request out of the tests' output."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[int]:
    """Start a browser, and yield its DevTools port."""
    with running_browser() as port:
        yield port


async def faults(tab: Tab, address: str, drawings: int) -> list[Any]:
    """Wait until the page has drawn so many drawings, or has a fault; return its faults."""
    while True:
        await asyncio.sleep(0.05)
        drawn = svgs(await tab.ask("DOM.getDocument", depth=-1, pierce=True))
        logged = [entry for entry in tab.named("Log.entryAdded") if entry["entry"]["level"] == "error"]
        said = [call for call in tab.named("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")]
        urls = [request["request"]["url"] for request in tab.named("Network.requestWillBeSent")]
        elsewhere = [url for url in urls if not url.startswith((f"http://{address}/", "data:", "blob:"))]
        found = [*logged, *said, *tab.named("Runtime.exceptionThrown"), *elsewhere]
        if found or drawn == drawings:
            return found


def svgs(tree: Any) -> int:
    """Return how many drawings the page has: those are within shadow roots, which are closed to its scripts."""
    if isinstance(tree, list):
        return sum(svgs(each) for each in tree)
    if not isinstance(tree, dict):
        return 0
    attributes = tree.get("attributes", [])
    if tree.get("nodeName") == "DIV" and "mermaid" in attributes and "shadowRoots" in tree:
        return int(any(child["nodeName"] == "svg" for root in tree["shadowRoots"] for child in root["children"]))
    return sum(svgs(each) for each in tree.values())


@pytest.mark.parametrize("page", DRAWINGS)
async def test_every_drawing_is_drawn(page: str, address: str, browser: int) -> None:
    async with opened(browser, f"http://{address}/{page}") as tab:
        async with asyncio.timeout(DEADLINE):
            assert await faults(tab, address, DRAWINGS[page]) == []


@pytest.mark.parametrize(
    ("tag", "other"),
    [
        ('<pre class="mermaid"><code>', '<pre class="mermaid"><code>no drawing begins so '),
        ("</article>", '<img src="http://another.invalid/picture.png"></article>'),
        ("</article>", '<script>throw new Error("a fault of the page")</script></article>'),
    ],
)
async def test_a_fault_is_found(tag: str, other: str, site: Path, address: str, browser: int) -> None:
    page = (site / "architecture.html").read_text()
    assert tag in page
    (site / "faulty.html").write_text(page.replace(tag, other, 1))

    async with opened(browser, f"http://{address}/faulty.html") as tab:
        async with asyncio.timeout(DEADLINE):
            assert await faults(tab, address, DRAWINGS["architecture.html"]) != []
