"""The console as a real browser shows it: what it says of a sidecar at work, and of five faults, on the page alone."""

import asyncio
import os
import pty
import select
import shlex
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic

from proxy.http.admin.console.streams import MOST_STREAMS
from testbed.axe import axe_script
from testbed.browser import Tab, opened, running_browser
from tests.integration import generations
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import SECRETS, USER, Login, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, publish, refused, shard_queue, sharded
from tests.integration.relay import management_front, relay
from tests.integration.sidecar import COMMAND, Sidecar
from tests.integration.wire_client import Client

SHOTS = os.environ.get("CONSOLE_SHOTS")
"""A folder that the screenshots are written to, for who wants to look at them."""

WITHIN = 60.0
"""Seconds in which the page must show something on a busy machine; half of the two minutes that a person has."""

LAG_CHARTS = "document.querySelectorAll('.charts svg[role=img]')"

HOUR = """(() => {
  const at = (f) => Array.from({ length: 240 }, (_, i) => (i >= 100 && i < 110 ? null : f(i)));
  const ready = at((i) => (i < 200 ? Math.round(70 * i * (1 - i / 239)) + 80 : 0)), parse = JSON.parse;
  const seconds_to_empty = ready.map((n, i) => (n === null || (n && i < 130) ? null : n / 80));
  const told = { since: 1e9, until: 1e9 + 3585, ready, unacked: at(() => 40), publish_rate: at((i) => 100 - i / 4),
    consume_rate: at((i) => 40 + i / 4), seconds_to_empty };
  JSON.parse = (text) => { const it = parse(text); if (it.detail) it.detail.lag_history = told; return it; };
  return true;
})()"""
"""Gives the group on the page an hour of samples, with a gap in which nothing was known."""

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
        assert not [secret for secret in SECRETS if secret in told]
        for strange in ("#/constructor", "#/nothing/at/all", "#/exchange/%ff/%", "#/runbook/none"):
            await go(tab, strange)


async def test_the_keyboard_is_enough(sidecar: Sidecar, browser: int) -> None:
    async with page(browser, sidecar, "#/groups") as tab:

        async def press(key: str, code: int, text: str = "") -> None:
            for kind in ("keyDown", "keyUp"):
                await tab.ask(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
                )

        await press("Tab", 9)
        assert await tab.value("document.activeElement.innerText") == "Skip to the content"
        assert await tab.value("getComputedStyle(document.activeElement).left") == "8px"
        await press("Enter", 13, "\r")
        assert await tab.value("document.activeElement.id") == "main"
        assert await tab.value("location.hash") == "#/groups"
        await tab.value("(document.querySelector('.brand a').focus(), true)")
        await press("Tab", 9)
        await press("Tab", 9)
        await press("Enter", 13, "\r")
        await until(tab, "location.hash === '#/exchanges'")
        await until(tab, "document.activeElement === document.querySelector('main h1')")
        assert await tab.value("document.activeElement.innerText") == "Exchanges"
        assert await tab.value("document.querySelector('[aria-current]').innerText") == "Exchanges"


async def test_an_exchange_and_a_group_at_work(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int
) -> None:
    sharded(vhost)
    may_balance(vhost)
    vhost.ring("payments", [f"payments.{number}" for number in range(4)])
    vhost.ring(HOSTILE, ["queue of <b>a stranger</b>"])
    # An exchange that nobody uses is forgotten after 40 intervals.
    sidecar = start_sidecar(groups="orders", sync_interval="15")
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
            await until(tab, f"/Messages: wait [0-9]+, at work [0-9]+/.test({LAG_CHARTS}[0]?.ariaLabel)")
            assert await tab.value(f"{LAG_CHARTS}.length") == 3
            await tab.value(HOUR)
            await until(tab, f"{LAG_CHARTS}[0].ariaLabel === 'Messages: wait 0, at work 40'")
            assert await tab.value(f"[...{LAG_CHARTS}].map(c => c.querySelectorAll('polyline').length)") == [4, 4, 1]
            await says(tab, "up to 4,262", "up to 100/s", "up to 53 s")
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


async def test_a_settings_file_that_changes(start_sidecar: StartSidecar, tmp_path: Path, browser: int) -> None:
    file = tmp_path / "ringproxy.toml"
    file.write_text("max_sessions = 7\n")
    sidecar = start_sidecar(config=str(file))
    async with page(browser, sidecar) as tab:
        await go(tab, "#/about")
        await says(tab, "max_sessions = 7\n")
        file.write_text("max_sessions = 8\ndrain_time = 3\n")
        sidecar.signal(signal.SIGHUP)
        await go(tab, "#/")
        await says(tab, "the settings file: needs a restart: drain_time")
        await go(tab, "#/about")
        await says(tab, "max_sessions = 8\n", "drain_time = 20.0\n")
        file.write_text("max_sesions = 9\n")
        sidecar.signal(signal.SIGHUP)
        await go(tab, "#/")
        await found(tab, "The settings file has a mistake", "a-reload-failed")
        await go(tab, "#/about")
        await says(tab, "max_sessions = 8\n")


def holders(sidecar: Sidecar, vhost: VirtualHost) -> dict[str, str]:
    """The members of the group orders by the shard that each consumes."""
    shards = sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json["shards"]
    return {each["shard"]: each["holder"] for each in shards if each["holder"]}


async def test_a_missing_right(start_sidecar: StartSidecar, vhost: VirtualHost, browser: int) -> None:
    """The page names the right that clients, members of a group or the sidecar's user lack, whatever the names."""
    sharded(vhost)
    who = Client(HOSTILE, "pw-poor")
    vhost.api.ask("PUT", "users", who.user, body={"password": who.password, "tags": ""})
    try:
        vhost.permit(USER, configure=r"^orders\.group", write=r"^orders\.group", read=r"^orders\.group")
        vhost.permit(who.user, "", "^orders$", "")
        sidecar = start_sidecar(groups="orders", sync_interval="3")
        with who.session(sidecar.amqp_port, vhost.name) as wire:
            wire.channel(1)
            wire.publish(1, "orders", "key", b"")
            refused(wire, 1, 403)
            wire.channel(2, confirm=False)
            consume(wire, 2)
            refused(wire, 2, 403)
            vhost.permit(who.user, "", "^orders$", r"^orders(\.[0-2])?$")
            wire.channel(3, confirm=False)
            consume(wire, 3)
            wait_until("all shards", lambda: holders(sidecar, vhost).keys() == set(SHARDS))
            # A member that gets messages of other shards is not refused as a whole.
            vhost.permit(who.user, "", "^orders$", r"^orders(\.[01])?$")
            vhost.api.ask("DELETE", "queues", vhost.name, "orders.2")
            shard_queue(vhost, "orders.2")
            vhost.bind("orders", "orders.2")
            sidecar.publish("orders", "key", vhost=vhost.name).problem(403, "forbidden", "invalid", retryable=False)
            async with page(browser, sidecar) as tab:
                to = f"-p {shlex.quote(vhost.name)} {shlex.quote(who.user)} CONFIGURE WRITE READ."
                told = await says(
                    tab,
                    f"User '{who.user}' lacks write on exchange 'amq.default'",
                    rf"Grant write on ^amq\.default$: rabbitmqctl set_permissions {to}",
                    f"User '{who.user}' lacks read on group 'orders'",
                    r"Grant read on the exchange's name and its shards, ^orders(\.[0-9]+)?$: ",
                    "The broker refuses consumers of orders",
                    r"Grant read on ^orders(\.[0-9]+)?$: ",
                    f"The sidecar's user '{USER}' lacks write on exchange 'amq.default'",
                )
                assert not [secret for secret in (*SECRETS, who.password) if secret in told]
                assert await tab.value("document.querySelectorAll('main img').length") == 0
                for width, dark in ((1280, False), (400, True)):
                    await tab.look_like(width, dark=dark)
                    assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                    await shoot(tab, f"rights-{width}")
                await found(tab, "lacks write on exchange 'amq.default'", "a-permission-is-missing")
            command = [COMMAND, "top", "--sidecar", sidecar.admin_url]
            shown = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
            assert f"User '{who.user}' lacks read on group 'orders'" in shown.stdout.decode()
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


async def test_a_change_of_generation_is_told(start_sidecar: StartSidecar, vhost: VirtualHost, browser: int) -> None:
    generations.made(vhost, 2)
    generations.declare(vhost, 2, 3)
    generations.bind(vhost, 2, 0, 3)
    sidecar = start_sidecar(sync_interval="1")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    async with page(browser, sidecar) as tab:
        await says(tab, "changes from generation 1 to 2: 1 of 3 lanes bound")
        for shard in (1, 2):
            generations.bind(vhost, 2, shard, 3)
        await says(tab, "changes from generation 1 to 2: 2 old shards left to drain")


async def test_a_finding_that_appears_leaves_a_form_alone(
    start_sidecar: StartSidecar, vhost: VirtualHost, browser: int
) -> None:
    vhost.ring("payments", ["payments.1", "payments.2"])
    sidecar = start_sidecar(sync_interval="1")
    assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
    async with page(browser, sidecar, place("exchange", vhost, "payments")) as tab:
        await says(tab, "Where a key goes")
        assert await tab.value("document.querySelector('.findings') === null") is True
        await tab.value(
            "(document.querySelector('input').focus(), document.querySelector('input').value = 'custom', true)"
        )
        vhost.queue("payments.3", x_dead_letter_exchange="dead")
        vhost.bind("payments", "payments.3")
        await says(tab, "payments is not routed (dead_letter)")
        assert await tab.value("document.activeElement.name") == "key"
        assert await tab.value("document.activeElement.value") == "custom"
        await tab.value("(document.querySelector('form button').click(), true)")
        await says(tab, "As of ")


async def test_a_finding_that_ends_leaves_the_others_where_they_are(
    start_sidecar: StartSidecar, vhost: VirtualHost, browser: int
) -> None:
    """The keyboard stays on the finding that it is on, also while one above ends, comes or changes places."""
    for name in ("a", "b"):
        vhost.exchange(name)
        vhost.queue(f"{name}.1", x_dead_letter_exchange="dead")
        vhost.bind(name, f"{name}.1")
    sidecar = start_sidecar(sync_interval="3")
    for name in ("a", "b"):
        assert sidecar.publish(name, "k", vhost=vhost.name).status == 200
    async with page(browser, sidecar) as tab:
        await says(tab, "a is not routed (dead_letter)", "b is not routed (dead_letter)")
        await tab.value("(window.of_b = [...document.querySelectorAll('.findings li')].at(-1), true)")
        await tab.value("(of_b.querySelector('a').focus(), true)")
        on_b = "document.activeElement.closest('li') === of_b && of_b.innerText.includes('b is not routed')"
        assert await tab.value(on_b) is True
        vhost.api.ask("DELETE", "queues", vhost.name, "a.1")
        await until(tab, "!document.querySelector('.findings').innerText.includes('a is not routed')")
        assert await tab.value(on_b) is True
        vhost.queue("a.2", x_dead_letter_exchange="dead")
        vhost.bind("a", "a.2")
        await says(tab, "a is not routed (dead_letter)")
        assert await tab.value(on_b) is True
        # The browser moves a node that changes places, and takes the focus away from it.
        await tab.value("(snapshot.overview.findings.shown.reverse(), draw(), true)")
        assert await tab.value(on_b) is True
        assert await tab.value("document.querySelector('.findings li') === of_b") is True


async def test_a_sidecar_that_hangs_is_not_live(sidecar: Sidecar, browser: int) -> None:
    async with page(browser, sidecar) as tab:
        sidecar.signal(signal.SIGSTOP)
        try:
            await until(tab, "document.getElementById('status').textContent.includes('the sidecar says nothing')")
        finally:
            sidecar.signal(signal.SIGCONT)
        await until(tab, "document.getElementById('status').textContent.startsWith('Live')")


async def test_a_snapshot_of_the_view_before_is_not_shown_as_one_of_this(
    start_sidecar: StartSidecar, vhost: VirtualHost, browser: int
) -> None:
    vhost.ring("payments", ["payments.1"])
    sidecar = start_sidecar()
    assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
    async with page(browser, sidecar, place("exchange", vhost, "payments")) as tab:
        await says(tab, "Where a key goes")
        # The event of a new address comes once the page has nothing else to do; here it never does.
        await tab.value(f"(history.replaceState(null, '', {place('group', vhost, 'payments')!r}), true)")
        await says(tab, "No client of this sidecar is a member")


async def test_a_view_that_fails_is_tried_again(sidecar: Sidecar, browser: int) -> None:
    async with page(browser, sidecar) as tab:
        await tab.value("(window.whole = views[''], views[''] = () => { throw new Error('a defect'); }, true)")
        await until(tab, "document.getElementById('status').textContent === 'Not live: a defect. Trying again.'")
        # It is again there after more than one failed try.
        await asyncio.sleep(5)
        await tab.value("(views[''] = window.whole, true)")
        await until(tab, "document.getElementById('status').textContent.startsWith('Live')")
        assert tab.named("Runtime.exceptionThrown")
        tab.events[:] = [event for event in tab.events if event["method"] != "Runtime.exceptionThrown"]


async def test_many_exchanges_and_shards_stay_readable(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, browser: int
) -> None:
    vhost.ring("wide", [f"wide.{number}" for number in range(200)])
    for number in range(60):
        vhost.ring(f"ring.{number}", ["wide.0"])
    sidecar = start_sidecar(groups="wide", lookup_timeout="30", sync_interval="60")
    for number in range(60):
        assert sidecar.publish(f"ring.{number}", "k", vhost=vhost.name).status == 200
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, exchange="wide")
        publish(client, sidecar.amqp_port, vhost, numbered(range(500), "wide"))
        async with page(browser, sidecar, "#/exchanges") as tab:
            told = await says(tab, "more exchanges are not shown")
            assert told.count("ring.") + told.count("wide") - told.count("wide.") >= 49
            hidden = next(f"ring.{number}" for number in range(60) if f"ring.{number}\t" not in told)
            field = "document.querySelector('form[role=search] input')"
            await tab.value(
                f"({field}.value = {hidden.upper()!r}, document.querySelector('form button').click(), true)"
            )
            await until(tab, f"[...document.querySelectorAll('main ul a')].some(a => a.innerText === {hidden!r})")
            for width, dark in ((1280, False), (400, True)):
                await tab.look_like(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth <= innerWidth") is True
                await shoot(tab, f"search-{width}")
                await is_accessible(tab)
            assert await tab.value(f"{field}.value") == hidden.upper()
            await tab.value("(document.querySelector('main ul a').click(), true)")
            await says(tab, "Where a key goes")
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
                    assert await tab.value("[...document.querySelectorAll('tbody tr')].at(-1).offsetHeight") < 90
                    await shoot(tab, f"wide-{where.split('/')[1]}-{width}")
                await is_accessible(tab)


def test_it_can_be_switched_off(start_sidecar: StartSidecar) -> None:
    sidecar = start_sidecar(admin_console="false")
    for path in ("/", "/console/events", "/console/page.js", "/console/about", "/console/fleet"):
        assert sidecar.admin(path).status == 404
    assert wait_until("probes", lambda: sidecar.admin("/livez").status == 200)


def test_500_streams_are_bounded_and_keep_no_probe_out(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """Nor do they take memory, although nobody reads them."""
    vhost.ring("payments", [f"payments.{number}" for number in range(20)])
    sidecar = start_sidecar()
    assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
    where = f"/console/events?kind=exchange&vhost={quote(vhost.name, safe='')}&exchange=payments"
    before, statuses = sidecar.memory(), Counter[bytes]()
    with ExitStack() as stack:
        for number in range(500):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.admin_port), DEADLINE_SECONDS))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(f"GET {where} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            statuses[one.recv(12).rpartition(b" ")[2]] += 1
            if not number % 50:
                assert sidecar.admin("/livez").status == sidecar.admin("/readyz").status == 200
        assert statuses == {b"200": MOST_STREAMS, b"429": 500 - MOST_STREAMS}
        detail = sidecar.admin(where).problem(429, "too-many", "rejected", retryable=True)
        assert "which is the limit of a sidecar; close one" in detail
        time.sleep(3)
        assert sidecar.memory() - before < 16 << 20
    assert wait_until("room for one more", lambda: opens(sidecar, where))


def opens(sidecar: Sidecar, where: str) -> bool:
    with socket.create_connection(("127.0.0.1", sidecar.admin_port), DEADLINE_SECONDS) as one:
        one.sendall(f"GET {where} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return one.recv(12).endswith(b"200")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Host": "evil.example"}, 421),
        ("/console/events", {"Host": "evil.example"}, 421),
        ("/console/events", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/console/fleet", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/console/about", {"Origin": "https://evil.example"}, 403),
        ("/console/events?kind=queue&exchange=x", {}, 400),
        ("/console/events?kind=group", {}, 400),
        ("/console/search?kind=queue&contains=x", {}, 400),
        ("/console/search?kind=exchange", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/console/events?exchange=x", {}, 400),
        ("/console/static/page.py", {}, 404),
        ("/console/../console.py", {}, 404),
    ],
)
def test_the_guards_of_the_admin_listener_hold(
    sidecar: Sidecar, path: str, headers: dict[str, str], status: int
) -> None:
    assert sidecar.admin(path, headers).status == status


def test_the_page_may_load_nothing_but_its_own_files(sidecar: Sidecar) -> None:
    answer = sidecar.admin("/", {"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ")
    assert "unsafe" not in policy
    assert sidecar.admin("/", {"If-None-Match": answer.headers["etag"]}).status == 304
    assert sidecar.admin("/console/runbook.md").text.startswith("# Troubleshoot an alert\n")


def test_open_pages_do_not_ask_the_management_api(start_sidecar: StartSidecar, login: Login) -> None:
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, sync_interval="86400")
        sidecar.wait_ready()
        with ExitStack() as stack:
            for _ in range(5):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.admin_port), DEADLINE_SECONDS))
                one.sendall(b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert one.recv(12).endswith(b"200")
            before = len(front.asked)
            time.sleep(3)
            assert len(front.asked) == before
        assert sidecar.admin("/console/fleet").json["sidecars_of"] >= 0
        assert len(front.asked) > before
        asked = len(front.asked)
        assert sidecar.admin("/console/fleet").status == 200
        assert len(front.asked) == asked


def test_the_terminal_page_takes_keys(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("payments", ["payments.1", "payments.2"])
    sidecar = start_sidecar()
    assert sidecar.publish("payments", "k", vhost=vhost.name).status == 200
    master, slave = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "LINES": "40", "COLUMNS": "120"}
        command = [COMMAND, "top", "--sidecar", sidecar.admin_url]
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
            screen = b""

            def shows(what: bytes) -> bool:
                nonlocal screen
                while select.select([master], [], [], 0.1)[0]:
                    screen += os.read(master, 1 << 16)
                return what in screen

            try:
                wait_until("the exchange", lambda: shows(b"payments"))
                os.write(master, b"\r")
                wait_until("its ring", lambda: shows(b"OBSERVED"))
                os.write(master, b"q")
                wait_until("its end", lambda: shows(b"payments.2") and process.poll() is not None)
            finally:
                process.kill()
        assert process.returncode == 0
    finally:
        os.close(master)
        os.close(slave)
