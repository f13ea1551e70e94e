"""The console as a real browser shows it: what it says of a sidecar at work, and of five faults, on the page alone."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel

from testbed.axe import axe_script
from testbed.browser import Tab, opened, running_browser
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, Login, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, publish, sharded
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

SHOTS = os.environ.get("CONSOLE_SHOTS")
"""A folder that the screenshots are written to, for who wants to look at them."""

WITHIN = 60.0
"""Seconds in which the page must show something on a busy machine; half of the two minutes that a person has."""

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[int]:
    """Its DevTools port."""
    with running_browser() as port:
        yield port


@asynccontextmanager
async def page(browser: int, sidecar: Sidecar, where: str = "", width: int = 1280) -> AsyncIterator[Tab]:
    """Show the console once its first snapshot is there; at the end it has logged nothing, and asked nobody else."""
    async with opened(browser, "about:blank") as tab:
        await tab.look_like(width)
        tab.events.clear()
        await tab.open(f"{sidecar.admin_url}/{where}")
        await until(tab, "document.getElementById('status').textContent.startsWith('Live')")
        yield tab
        assert tab.named("Log.entryAdded") == []
        assert tab.named("Runtime.consoleAPICalled") == []
        assert tab.named("Runtime.exceptionThrown") == []
        urls = {request["request"]["url"] for request in tab.named("Network.requestWillBeSent")}
        assert {url for url in urls if not url.startswith(f"{sidecar.admin_url}/")} <= {"about:blank"}


async def until(tab: Tab, expression: str, within: float = WITHIN) -> Any:
    """Return the first true value of an expression in the page."""
    deadline = time.monotonic() + within
    while not (found := await tab.value(expression)):
        assert time.monotonic() < deadline, f"{expression}:\n{await text(tab)}"
        await asyncio.sleep(0.1)
    return found


async def text(tab: Tab) -> str:
    return str(await tab.value("document.getElementById('main').innerText"))


async def says(tab: Tab, *what: str) -> str:
    """Return the page's text once it has all of this."""
    for each in what:
        await until(tab, f"document.getElementById('main').innerText.includes({each!r})")
    return await text(tab)


async def go(tab: Tab, where: str) -> None:
    await tab.value(f"location.hash = {where!r}")
    await until(tab, "document.activeElement === document.querySelector('main h1')")


async def shoot(tab: Tab, name: str) -> bytes:
    shot = await tab.screenshot()
    if SHOTS:
        await asyncio.to_thread(Path(SHOTS, f"{name}.png").write_bytes, shot)
    return shot


async def is_accessible(tab: Tab) -> None:
    """Check that axe finds no violation on the page as it is now."""
    if not await tab.value("typeof axe === 'object'"):
        await tab.value(f"{axe_script().read_text()}; 0")
    found = await tab.value(
        "axe.run().then(r => r.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html + n.failureSummary).join()}`))"
    )
    assert found == []


def place(kind: str, vhost: VirtualHost, exchange: str = "orders") -> str:
    return f"#/{kind}/{quote(vhost.name, safe='')}/{quote(exchange, safe='')}"


async def test_nothing_is_there_yet(start_sidecar: StartSidecar, browser: int) -> None:
    sidecar = start_sidecar()
    sidecar.wait_ready()
    async with page(browser, sidecar) as tab:
        await says(tab, "Nothing, as far as this sidecar sees.", "No exchange is known yet", "No group has a member")
        for where in ("", "#/exchanges", "#/groups", "#/about", "#/fleet"):
            await go(tab, where or "#/")
            for width, dark in ((1280, False), (400, True)):
                await tab.look_like(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                await is_accessible(tab)
        await go(tab, "#/about")
        told = await says(tab, "Passwords are hidden.", 'broker_url = "amqp://')
        assert "***" in told


async def test_an_exchange_and_a_group_at_work(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int
) -> None:
    sharded(vhost)
    may_balance(vhost)
    vhost.ring("payments", [f"payments.{number}" for number in range(4)])
    vhost.ring(HOSTILE, ["queue of <b>a stranger</b>"])
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as one, client.session(sidecar.amqp_port, vhost.name) as other:
        for wire in (one, other):
            wire.channel(1, confirm=False)
            consume(wire, 1, prefetch=20)
        publish(client, sidecar.amqp_port, vhost, [*numbered(range(200)), *numbered(range(400), "payments")])
        assert sidecar.publish(HOSTILE, "k", vhost=vhost.name).status == 200
        async with page(browser, sidecar) as tab:
            await says(tab, "orders", "payments", HOSTILE)
            assert await tab.value("document.querySelectorAll('main img, main b b').length") == 0
            for width, dark, name in ((1280, False, "now"), (400, False, "now-400"), (1280, True, "now-dark")):
                await tab.look_like(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                await shoot(tab, name)
                await is_accessible(tab)

            await go(tab, place("exchange", vhost, "payments"))
            told = await says(tab, "Where a key goes", "payments.3", "Observed are the publishes")
            assert "400" in told
            await tab.value("document.querySelector('input').value = 'customer-4711'")
            await tab.value("(document.querySelector('form button').click(), true)")
            assert "If that queue left, it would go to payments." in await says(tab, "Slot ")
            for width, dark, name in ((1280, False, "exchange"), (400, True, "exchange-400-dark")):
                await tab.look_like(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                await shoot(tab, name)
                await is_accessible(tab)
            assert await tab.value("document.querySelector('input').value") == "customer-4711"

            await go(tab, place("group", vhost))
            await says(tab, "Members and shards", "What has changed of late", "joined", *SHARDS)
            assert await tab.value("document.querySelectorAll('.members > li').length") == 2
            await until(tab, "document.querySelectorAll('.members .cells li').length === 3")
            for width, dark, name in ((1280, False, "group"), (400, False, "group-400"), (1280, True, "group-dark")):
                await tab.look_like(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                await shoot(tab, name)
                await is_accessible(tab)
            other.close()
            await until(tab, "document.querySelectorAll('.members > li').length === 1")
            await says(tab, "left")

            await go(tab, "#/fleet")
            await tab.value("(document.querySelector('main button').click(), true)")
            await says(tab, "(this one)", "Connections", "RabbitMQ")
            await shoot(tab, "fleet")
            await is_accessible(tab)


def may_balance(vhost: VirtualHost) -> None:
    """Give the sidecar's user its rights for the group orders."""
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")


async def found(tab: Tab, title: str, section: str) -> None:
    """Check that the page names a fault, and that its link leads to the section of the runbook about it."""
    await says(tab, title)
    link = f"document.querySelector('a[href=\"#/runbook/{section}\"]')"
    await until(tab, f"{link} !== null")
    await is_accessible(tab)
    await shoot(tab, f"fault-{section}")
    await tab.value(f"({link}.click(), true)")
    await says(tab, "Do")
    assert await tab.value("document.querySelector('h1').innerText") != section
    await is_accessible(tab)


async def test_a_member_that_acks_nothing(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int
) -> None:
    sharded(vhost)
    may_balance(vhost)
    sidecar = start_sidecar(groups="orders", groups_ack_timeout="2")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        publish(client, sidecar.amqp_port, vhost, numbered(range(10)))
        async with page(browser, sidecar) as tab:
            await found(tab, "A member of orders does not ack", "member-not-acking")


async def test_a_missing_right(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int) -> None:
    sharded(vhost)
    who = Client("poor", "pw-poor")
    vhost.api.ask("PUT", "users", who.user, body={"password": who.password, "tags": ""})
    try:
        vhost.permit(who.user, "", "^orders$", "^orders(\\.[01])?$")
        sidecar = start_sidecar(groups="orders")
        with who.session(sidecar.amqp_port, vhost.name) as wire, client.session(sidecar.amqp_port, vhost.name) as rich:
            rich.channel(1, confirm=False)
            consume(rich, 1)
            wire.channel(1)
            wire.publish(1, "orders", "key", b"")
            closed = wire.expect(1, Channel.Close)
            assert closed.reply_code == 403
            wire.tell(1, Channel.CloseOk())
            async with page(browser, sidecar) as tab:
                await found(tab, "A publisher over AMQP lacks a right", "a-permission-is-missing")
    finally:
        vhost.api.ask("DELETE", "users", who.user)


async def test_a_hung_management_api(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, browser: int
) -> None:
    vhost.ring("payments", ["payments.1"])
    with relay(login.management_url) as (link, url):
        sidecar = start_sidecar(management_url=url, management_timeout="1")
        sidecar.wait_ready()
        assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
        async with page(browser, sidecar) as tab:
            await says(tab, "Nothing, as far as this sidecar sees.")
            link.freeze()
            await found(tab, "The management API does not answer", "lost-management-api")
            link.thaw()
            await go(tab, "#/")
            await says(tab, "Nothing, as far as this sidecar sees.")


async def test_a_blocked_key(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int) -> None:
    sharded(vhost)
    may_balance(vhost)
    sidecar = start_sidecar(
        groups="orders", groups_in_series="orders", groups_retry_limit="1", groups_retry_then="stop"
    )
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        publish(
            client, sidecar.amqp_port, vhost, [("orders", "customer-4711", b"1"), ("orders", "customer-4711", b"2")]
        )
        wire.tell(1, Basic.Nack(deliveries(wire, 1, 1)[0].number, False, True))
        async with page(browser, sidecar) as tab:
            await found(tab, "Keys of orders are blocked", "key-blocked")
            await go(tab, place("group", vhost))
            await says(tab, "Keys that are blocked", "customer-4711", "stopped")
            await shoot(tab, "group-blocked")
            await is_accessible(tab)


async def test_a_queue_that_dead_letters(start_sidecar: StartSidecar, vhost: VirtualHost, browser: int) -> None:
    vhost.exchange("payments")
    vhost.queue("payments.1", x_dead_letter_exchange="dead")
    vhost.bind("payments", "payments.1")
    sidecar = start_sidecar()
    assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
    async with page(browser, sidecar) as tab:
        await found(tab, "payments is not routed (dead_letter)", "not-routed")
        await go(tab, "#/")
        await says(tab, "These queues would dead-letter under their own names: 'payments.1'")


async def test_many_exchanges_and_shards_stay_readable(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int
) -> None:
    vhost.ring("wide", [f"wide.{number}" for number in range(200)])
    for number in range(60):
        vhost.ring(f"ring.{number}", ["wide.0"])
    sidecar = start_sidecar(groups="wide", lookup_timeout="30")
    for number in range(60):
        assert sidecar.publish(f"ring.{number}", "k", vhost=vhost.name).status == 200
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, exchange="wide")
        publish(client, sidecar.amqp_port, vhost, numbered(range(500), "wide"))
        async with page(browser, sidecar, "#/exchanges") as tab:
            told = await says(tab, "more exchanges are not shown")
            assert told.count("ring.") + told.count("wide") - told.count("wide.") >= 49
            for where, what in (
                (place("exchange", vhost, "wide"), "wide.199"),
                (place("group", vhost, "wide"), "wide.199"),
            ):
                await go(tab, where)
                await says(tab, what)
                await until(tab, "document.querySelectorAll('tbody tr').length >= 200")
                for width in (1280, 400):
                    await tab.look_like(width)
                    assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                    await shoot(tab, f"wide-{where.split('/')[1]}-{width}")
                await is_accessible(tab)


def test_it_can_be_switched_off(start_sidecar: StartSidecar) -> None:
    sidecar = start_sidecar(admin_console="false")
    for path in ("/", "/console/events", "/console/page.js", "/console/about", "/console/fleet"):
        assert sidecar.admin(path).status == 404
    assert wait_until("probes", lambda: sidecar.admin("/livez").status == 200)
