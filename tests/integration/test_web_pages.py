"""A web page in a browser on the same machine: it publishes nothing and reads nothing."""

import asyncio
import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest

from testbed.browser import DEADLINE, Tab, opened, running_browser
from tests.certificates import Authority
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar, ask, publish_path

REBOUND, EVIL = "rebound.example", "evil.example"
"""Names that the browser finds at 127.0.0.1."""


@pytest.fixture(scope="module")
def browser() -> Iterator[int]:
    """Its DevTools port."""
    with running_browser(REBOUND, EVIL) as port:
        yield port


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def page() -> Iterator[int]:
    """A web server of somebody else's, with one page; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


async def fetched(tab: Tab, url: str, mode: str, **more: object) -> str:
    """Return the outcome of a fetch by the page: the status that it sees, or the error."""
    options = json.dumps({"method": "POST", "mode": mode, "body": "from a page", **more})
    return str(await tab.value(f"fetch({json.dumps(url)}, {options}).then(r => `${{r.type}} ${{r.status}}`, String)"))


async def form_posted(tab: Tab, url: str, name: str = "from a", value: str = "form") -> None:
    """Has the page post a form of plain text, and waits until the answer is shown in its place."""
    loaded = len(tab.named("Page.loadEventFired"))
    await tab.value(
        f"""{{
            const form = Object.assign(document.createElement("form"), {{
                action: {json.dumps(url)}, method: "POST", enctype: "text/plain"}});
            form.append(Object.assign(document.createElement("input"), {{
                name: {json.dumps(name)}, value: {json.dumps(value)}}}));
            document.body.append(form);
            form.submit();
            true
        }}"""
    )
    async with asyncio.timeout(DEADLINE):
        while len(tab.named("Page.loadEventFired")) == loaded:
            # Events come with the answer to whatever is asked.
            await tab.ask("Browser.getVersion")
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", ["127.0.0.1", EVIL], ids=["same site", "cross site"])
async def test_a_page_publishes_nothing(sidecar: Sidecar, vhost: VirtualHost, browser: int, host: str) -> None:
    vhost.ring("orders", ["q"])
    url = f"http://127.0.0.1:{sidecar.port}" + publish_path("orders", vhost.name, key="k")
    batch = f"http://127.0.0.1:{sidecar.port}" + publish_path("orders", vhost.name, "publish/batch")
    event = f"http://127.0.0.1:{sidecar.port}" + publish_path("orders", vhost.name, "events", key="k")
    before = sidecar.metric("ringproxy_publishes_total", ingress="http", outcome="invalid")
    with page() as port:
        async with opened(browser, f"http://{host}:{port}/") as tab:
            # It cannot see what came of this one; it is refused all the same.
            assert await fetched(tab, url, "no-cors") == "opaque 0"
            assert await fetched(tab, url, "cors") == "TypeError: Failed to fetch"
            assert await fetched(tab, url, "cors", headers={"Routing-Key": "k"}) == "TypeError: Failed to fetch"
            assert await fetched(tab, event, "no-cors") == "opaque 0"
            assert await fetched(tab, batch, "no-cors") == "opaque 0"
            await form_posted(tab, url)
    # Each of these five was told so; what has another header was not even sent.
    assert sidecar.metric("ringproxy_publishes_total", ingress="http", outcome="invalid") == before + 5
    assert vhost.drain_all() == {}
    assert sidecar.publish("orders", "k", b"from a program", vhost=vhost.name).status == 200


async def test_a_page_with_a_broker_users_login(sidecar: Sidecar, vhost: VirtualHost, browser: int) -> None:
    """In the address of a form's target, from where a browser sends it along."""
    vhost.queue("q")
    user = "for-a-page"
    vhost.api.ask("PUT", "users", user, body={"password": "guessed", "tags": ""})
    vhost.permit(user)
    path = f"/api/exchanges/{quote(vhost.name, safe='')}/amq.default/publish"
    url = f"http://{user}:guessed@127.0.0.1:{sidecar.port}{path}"
    name, value = '{"properties": {}, "routing_key": "q", "payload_encoding": "string", "payload": "a', '"}'
    try:
        # A program with the same does publish.
        login = {"Authorization": "Basic " + b64encode(f"{user}:guessed".encode()).decode()}
        assert sidecar.ask("POST", path, f"{name}={value}".encode(), login).receipt() == {"routed": True}
        assert len(vhost.drain("q")) == 1
        with page() as port:
            async with opened(browser, f"http://127.0.0.1:{port}/") as tab:
                await form_posted(tab, url, name, value)
                assert "a web page of another origin" in await tab.value("document.body.innerText")
        assert vhost.drain_all() == {}
    finally:
        vhost.api.ask("DELETE", "users", user)


async def test_a_page_whose_name_leads_here(sidecar: Sidecar, vhost: VirtualHost, browser: int) -> None:
    """DNS rebinding: for the browser the page is of the listener's own origin."""
    vhost.ring("orders", ["q"])
    path = publish_path("orders", vhost.name, key="k")
    async with opened(browser, f"http://{REBOUND}:{sidecar.port}/openapi.json") as tab:
        assert await fetched(tab, path, "same-origin", headers={"Routing-Key": "k"}) == "basic 421"
        assert await fetched(tab, path, "no-cors") == "basic 421"
        assert await fetched(tab, path.replace("publish?", "route?"), "cors", method="GET", body=None) == "basic 421"
    async with opened(browser, f"http://{REBOUND}:{sidecar.admin_port}/rings") as tab:
        shown = json.loads(await tab.value("document.body.innerText"))
        assert (shown["status"], shown["type"]) == (421, "urn:ringproxy:problem:misdirected")
        assert await fetched(tab, "/metrics", "cors", method="GET", body=None) == "basic 421"
    assert vhost.drain_all() == {}


def test_names_of_the_listeners(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(admin_listen="0.0.0.0:0", host_names="ringproxy.example")
    path = publish_path("orders", vhost.name, key="k")

    def publish(host: str) -> int:
        return ask(sidecar.port, "POST", path, b"", {"Host": host}).status

    def metrics(host: str) -> int:
        return sidecar.admin("/metrics", {"Host": host}).status

    assert {host: publish(host) for host in ("localhost:1", "ringproxy.example:80", "evil.example", "10.1.2.3")} == {
        "localhost:1": 200,
        "ringproxy.example:80": 200,
        "evil.example": 421,
        "10.1.2.3": 421,
    }
    # As Prometheus and the kubelet ask, by a pod's address or a Service's name.
    assert {host: metrics(host) for host in ("10.1.2.3:15681", "ringproxy.shop.svc:15681", "evil.example:15681")} == {
        "10.1.2.3:15681": 200,
        "ringproxy.shop.svc:15681": 200,
        "evil.example:15681": 421,
    }


def test_with_tokens_the_token_tells_who_asks_and_with_certificates_no_page_has_a_name_of_its_own(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", ["q"])
    path = publish_path("orders", vhost.name, key="k")
    file = tmp_path / "tokens.toml"
    file.write_text("[[tokens]]\nname = 'all'\ntoken = 's3cret'\npublish = '*'\n")
    tokens = start_sidecar(tokens_file=str(file))
    foreign = {"Host": "orders.example", "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    assert ask(tokens.port, "POST", path, b"", foreign | {"Authorization": "Bearer s3cret"}).status == 200
    assert ask(tokens.port, "POST", path, b"", foreign).status == 401
    authority = Authority(tmp_path)
    pair = authority.issue("sidecar")
    certificates = start_sidecar(
        tls_cert_file=f"{pair.certificate}", tls_key_file=f"{pair.key}", client_ca_file=f"{authority.certificate}"
    )
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(*authority.issue("client"))
    with closing(http.client.HTTPSConnection("localhost", certificates.port, timeout=10, context=context)) as asking:
        # A browser shows a certificate for any page.
        for headers, status in (({"Host": "orders.example"}, 200), ({"Origin": "https://app.example"}, 403)):
            asking.request("POST", path, b"", headers)
            answer = asking.getresponse()
            answer.read()
            assert answer.status == status
