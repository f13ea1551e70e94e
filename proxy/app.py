"""One sidecar: makes the parts, starts the listeners, and at SIGTERM answers what is in flight and stops."""

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from proxy import __version__
from proxy.amqp.brokers import Brokers
from proxy.amqp.listener import Listener
from proxy.amqp.routes import RouteTables
from proxy.amqp.session import Shared
from proxy.config import Address, ConfigError, Settings
from proxy.http.admin import Admin
from proxy.http.ingest import Ingest
from proxy.http.problems import ProblemRunner
from proxy.management import Management
from proxy.metrics import Counts, ProxyCollector, registry
from proxy.publisher import Publisher
from proxy.router import Router
from proxy.selection import Selection, named
from proxy.sync import Sync
from ring.hashing import RING_FORMAT

log = logging.getLogger(__name__)

_LAST_WORDS = 0.5
"""Seconds for the last bytes of answers, once everything is answered or the drain time is over."""


async def run(settings: Settings) -> None:
    """Runs a sidecar until SIGTERM or SIGINT; a second one ends it at once. Raises ConfigError for a busy address."""
    log.info("ringproxy %s, ring format %d", __version__, RING_FORMAT)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    async with Management(settings.management_url, settings.management_timeout) as api:
        router = Router(settings.ring_max_age, settings.on_stale == "refuse")
        selection = Selection(settings.route, settings.shadow, settings.pass_)
        sync = Sync(
            api,
            router,
            selection,
            interval=settings.sync_interval,
            settle_time=settings.settle_time,
            rewrite_dead_letters=settings.on_dead_letter == "rewrite",
            named=named([*settings.route, *settings.shadow], settings.default_vhost),
        )
        publisher = Publisher(
            settings.broker_url, connect_timeout=settings.lookup_timeout, confirm_timeout=settings.confirm_timeout
        )
        counts = Counts()
        listener = _amqp_listener(settings, router, sync, selection, counts)
        ingest = Ingest(
            router,
            sync,
            publisher,
            counts,
            default_vhost=settings.default_vhost,
            lookup_timeout=settings.lookup_timeout,
        )
        admin = Admin(
            router,
            sync,
            publisher,
            registry(ProxyCollector(counts, router, sync, publisher, listener)),
            default_vhost=settings.default_vhost,
            draining=lambda: ingest.draining,
            lookup_timeout=settings.lookup_timeout,
        )
        async with (
            _listening("admin", admin.application(), settings.admin_listen),
            _syncing(sync),
            _closed_in_time(publisher),
            _listening("http", ingest.application(settings.max_body), settings.http_listen) as http,
            _listening_amqp(listener, settings.amqp_listen),
        ):
            publisher.connect(settings.default_vhost)
            admin.started = True
            await stop.wait()
            ingest.draining = True
            await asyncio.gather(
                _drain(http, ingest, publisher, settings.drain_time), listener.drain(settings.drain_time)
            )


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        log.warning("a second signal: ending at once")
        logging.shutdown()
        os._exit(1)
    log.info("shutting down: answering what is in flight")
    stop.set()


def _amqp_listener(settings: Settings, router: Router, sync: Sync, selection: Selection, counts: Counts) -> Listener:
    def mismatch(cluster: str | None) -> str:
        if cluster is None or sync.cluster is None or cluster == sync.cluster:
            return ""
        return f"the broker is of cluster {cluster!r}, the management API of {sync.cluster!r}"

    tls = ssl.create_default_context if settings.broker_url.scheme == "amqps" else None
    shared = Shared(
        RouteTables(router, selection, counts.tallies, mismatch),
        sync,
        Brokers(settings.brokers, tls, settings.lookup_timeout).dial,
        settings.lookup_timeout,
        frozenset(mechanism.encode() for mechanism in settings.allow_mechanisms),
        counts.amqp_latency.add,
    )
    return Listener(shared)


@contextlib.asynccontextmanager
async def _listening_amqp(listener: Listener, address: Address) -> AsyncIterator[None]:
    """The AMQP listener, up on entry. Raises ConfigError where its address cannot be bound."""
    try:
        bound = await listener.start(address)
    except OSError as error:
        raise ConfigError(f"amqp_listen: {address} cannot be bound: {error.strerror}") from None
    log.info("amqp listens on %s", bound)
    try:
        yield
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def _syncing(sync: Sync) -> AsyncIterator[None]:
    task = asyncio.create_task(sync.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _closed_in_time(publisher: Publisher) -> AsyncIterator[None]:
    """Closes the publisher on exit; a broker that does not answer gets no longer than a client would."""
    try:
        yield
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await publisher.aclose()


@contextlib.asynccontextmanager
async def _listening(what: str, app: web.Application, address: Address) -> AsyncIterator[ProblemRunner]:
    """A listener, up on entry. Raises ConfigError where its address cannot be bound."""
    # Bodies are payloads: they are published as they are, compressed or not.
    runner = ProblemRunner(app, access_log=None, shutdown_timeout=_LAST_WORDS, auto_decompress=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address.host, address.port).start()
        except OSError as error:
            raise ConfigError(f"{what}_listen: {address} cannot be bound: {error.strerror}") from None
        for bound in runner.addresses:
            log.info("%s listens on %s", what, Address(bound[0], bound[1]))
        yield runner
    finally:
        await runner.cleanup()


async def _drain(http: ProblemRunner, ingest: Ingest, publisher: Publisher, drain_time: float) -> None:
    """Stops accepting, then waits until all requests are answered, `drain_time` seconds at most."""
    for site in http.sites:
        await site.stop()
    try:
        async with asyncio.timeout(drain_time):
            await ingest.idle.wait()
    except TimeoutError:
        log.warning("%d requests were still unanswered at the end of the drain time", ingest.active)
        publisher.abandon()
