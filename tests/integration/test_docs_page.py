"""The interface's own page, as a real browser shows it, and its document, as a program fetches it."""

from collections.abc import Iterator

import pytest

from proxy.http.endpoints.docs import openapi_document
from testbed.browser import opened, running_browser
from tests.integration.sidecar import Sidecar

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[int]:
    """Its DevTools port."""
    with running_browser() as port:
        yield port


async def test_a_browser_shows_every_operation(sidecar: Sidecar, browser: int) -> None:
    async with opened(browser, f"http://127.0.0.1:{sidecar.port}/docs") as tab:
        await tab.look_like(1280)

        assert await tab.value("document.title") == openapi_document()["info"]["title"]
        seen = await tab.value(
            "[...document.querySelectorAll('h3')].filter(h => h.checkVisibility()).map(h => h.innerText)"
        )
        assert seen == [o["summary"] for methods in openapi_document()["paths"].values() for o in methods.values()]
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
    assert answer.receipt() == openapi_document()


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
