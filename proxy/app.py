"""One sidecar: makes the parts, starts the listeners, and at SIGTERM answers what is in flight and stops."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from proxy import __version__
from proxy.groups.onlooker import Onlooker
from proxy.http.admin.console.console import Console
from proxy.http.admin.console.snapshot import Parts
from proxy.http.admin.metrics import ProxyCollector, registry
from proxy.http.admin.probes import SECONDS, Admin
from proxy.http.admin.readiness import Readiness
from proxy.http.admin.unsettled import UnsettledCount
from proxy.http.admission.gate import Gate
from proxy.http.admission.limits import Limits
from proxy.http.admission.pages import HostNames
from proxy.http.admission.sizes import Sizes
from proxy.http.application import application
from proxy.http.sending.dispatch import Dispatch
from proxy.http.server import ConnectionBounds, ProblemRunner
from proxy.http.unix_socket import unix_socket
from proxy.journal.journaling import Journaling
from proxy.process import descriptors, memory
from proxy.process.identity import process_id
from proxy.process.logs import set_level
from proxy.publisher.dial import Brokers
from proxy.publisher.pool import Publisher
from proxy.reload import Reload, named_by
from proxy.routing.counters import Counts
from proxy.routing.forgetting import SWEEP_INTERVAL, Forgetting
from proxy.routing.routes import RouteTables
from proxy.session.kept import KeptConnections
from proxy.session.listener import Listener
from proxy.session.shared import Shared
from proxy.settings.config import Settings, is_loopback
from proxy.settings.files import Files
from proxy.settings.parse import Address, ConfigError
from proxy.settings.patterns import Selection
from proxy.settings.reload import SettingsInForce
from proxy.settings.tls import ServerTls
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.readings import Readings
from proxy.topology.ring_cache import RingCache
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Router
from proxy.tracing.tracer import Tracer
from proxy.tracing.tracing import Tracing
from ring.compiled import PURE, kind
from ring.hashing import RING_FORMAT

if TYPE_CHECKING:
    from proxy.groups.consuming.attendant import Attendants
    from proxy.groups.groups import Groups

log = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT = 0.5
"""Seconds for the last requests of open connections and the last bytes of answers, once the drain is over."""


TOUCH_INTERVAL = 5.0
"""Seconds between the times that the router hears which exchanges are in use."""


async def run(in_force: SettingsInForce) -> None:
    """Run a sidecar until SIGTERM or SIGINT; a second one ends it at once. Raises ConfigError for a busy address."""
    settings = in_force.now.with_secrets()
    log.info("ringproxy %s, ring format %d, %s, id %s", __version__, RING_FORMAT, kind(), process_id())
    if kind() == "python" and os.environ.get(PURE) != "1":
        log.info(
            "the hot modules are not compiled: under full load a message over AMQP takes four times the CPU time; "
            "install with RINGPROXY_COMPILE=1 to compile them"
        )
    stop = _stop_at_signals()
    files = Files(settings, *([in_force.watched] if in_force.watched is not None else []))
    _reload_at_sighup(files, in_force)
    _warn_of_open_doors(settings)
    descriptors.warn_beyond(settings, descriptors.raise_limit())
    memory.warn_beyond(settings, memory.limit())
    async with (
        files.logging_in(),
        Management(
            settings.management_url,
            settings.management_timeout,
            files.management_authorization,
            files.management_tls,
            files.refused,
        ) as api,
    ):
        router = Router(settings.ring_max_age, settings.on_stale == "refuse")
        selection = Selection(settings.route, settings.shadow, settings.pass_, settings.groups)
        selection.take_share(settings.route_share)
        reader = _reader(settings, api, router, selection)
        scheduler = Scheduler(reader, router, interval=settings.sync_interval, named=named_by(settings))
        journaling, tracing = Journaling(settings, files), Tracing(settings)
        brokers = Brokers(settings.brokers, files.broker_tls, settings.lookup_timeout)
        publisher = _publisher(settings, brokers, files)
        counts = Counts()
        tables = {
            ingress: RouteTables(
                router,
                selection,
                counter_table,
                reader.identity.mismatch,
                scheduler.want,
                journaling.journal,
                tracing.tracer,
            )
            for ingress, counter_table in counts.counter_table.items()
        }
        groups = _groups(settings, files, scheduler, router, api)
        readings = Readings(scheduler, reader.identity, settings.lookup_timeout)
        attendants = _attendants(settings, groups, publisher, tracing.tracer)
        listener = _listener(settings, tables["amqp"], readings, brokers, counts, attendants)
        limits, sizes = Limits(settings.max_in_flight, settings.max_in_flight_bytes), Sizes.of(settings)
        # With client certificates there is TLS, and no certificate is for a name that a page has made up.
        names = HostNames(settings.http_listen, settings.host_names) if settings.client_ca_file is None else None
        gate = Gate(router, files.access, limits, counts, sizes=sizes, body_timeout=settings.body_timeout, names=names)
        dispatch = Dispatch(router, readings, tables["http"], publisher)
        ingress = application(settings, gate, dispatch, counts)
        readiness = Readiness(
            in_force,
            router,
            scheduler,
            reader,
            publisher,
            default_vhost=settings.default_vhost,
            draining=lambda: gate.draining,
            access_token=files.access_token,
        )
        onlooker = Onlooker(settings, api)
        parts = Parts(
            router, scheduler, reader, publisher, listener, counts, journaling, files, readiness, in_force, groups
        )
        console = Console(in_force, parts, api) if settings.admin_console else None
        admin = Admin(
            router,
            scheduler,
            readiness,
            registry(
                ProxyCollector(
                    counts,
                    router,
                    scheduler,
                    reader,
                    publisher,
                    listener,
                    journaling,
                    limits,
                    files,
                    groups,
                    tracing,
                    in_force,
                )
            ),
            names=HostNames(settings.admin_listen, settings.host_names),
            default_vhost=settings.default_vhost,
            lookup_timeout=settings.lookup_timeout,
            groups=groups,
            onlooker=onlooker,
            console=console,
            in_force=in_force,
            unsettled=UnsettledCount(router, listener, publisher, dispatch, tables["http"]),
        )
        bounds = ConnectionBounds(settings.body_timeout, settings.max_http_connections, limits)
        probed = ConnectionBounds(
            SECONDS, memory.ADMIN_CONNECTIONS, admin.unread, "the admin listener's limit", lingering=0.0
        )
        async with (
            _listening("admin", admin.application(), settings.admin_listen, probed, counts),
            console.running() if console is not None else contextlib.nullcontext(),
            _running(scheduler.run()),
            _running(_touching(tables.values())),
            _running(_forgetting(Forgetting(counts, router, reader, lambda: _in_use(tables.values())))),
            journaling.running(),
            tracing.running(),
            _closed_in_time(publisher),
            _grouping(groups),
            _listening("http", ingress, settings.http_listen, bounds, counts, files.server_tls) as http,
            _listening_on_socket(http, settings.http_socket),
            _listening_amqp(listener, settings.amqp_listen, files.server_tls) as amqp,
            _running(files.watch()),
        ):
            log.info(
                "publish to amqp%s://%s, or over HTTP with POST http%s://%s/v1/exchanges/EXCHANGE/publish",
                *("s" if files.server_tls else "", amqp),
                *("s" if files.server_tls else "", Address(*http.addresses[0][:2])),
            )
            in_force.set_level = set_level
            in_force.apply = Reload(
                selection, router, scheduler, tables.values(), onlooker, attendants, listener, http, gate
            )
            publisher.connect(settings.default_vhost)
            admin.started = True
            await stop.wait()
            gate.draining = True
            http.drain()
            await asyncio.gather(_drain(gate, publisher, settings.drain_time), listener.drain(settings.drain_time))
            await http.take_leave(_SHUTDOWN_TIMEOUT)


def _reader(settings: Settings, api: Management, router: Router, selection: Selection) -> Reader:
    """Return the reader of exchanges, set up as the settings say."""
    return Reader(
        api,
        router,
        selection,
        settle_time=settings.settle_time,
        on_dead_letter=settings.on_dead_letter,
        cache=RingCache(settings.ring_cache_dir) if settings.ring_cache_dir is not None else None,
        max_age=settings.ring_max_age,
    )


def _publisher(settings: Settings, brokers: Brokers, files: Files) -> Publisher:
    """Return the publisher of HTTP's messages, set up as the settings say; nothing is connected yet."""
    return Publisher(
        brokers.dial,
        files.broker_login,
        connections=settings.broker_connections,
        connect_timeout=settings.lookup_timeout,
        confirm_timeout=settings.confirm_timeout,
        opened=files.follow,
        refused=files.refused,
    )


def _groups(settings: Settings, files: Files, scheduler: Scheduler, router: Router, api: Management) -> "Groups | None":
    """Return the groups of the sidecar; None where the setting `groups` is empty."""
    if not settings.groups:
        return None
    # Imported only where they are needed: aio-pika takes 10 MiB of memory.
    from proxy.groups.groups import Groups
    from proxy.journal.stream import connector

    return Groups(
        settings,
        scheduler,
        router,
        api,
        lambda vhost: connector(settings, files, vhost, "ringproxy groups"),
        process_id(),
    )


def _attendants(
    settings: Settings, groups: "Groups | None", publisher: Publisher, tracer: Tracer | None
) -> "Attendants | None":
    """Return what gives each session its part in groups; None where the setting `groups` is empty."""
    if groups is None:
        return None
    from proxy.groups.consuming.attendant import Attendants
    from proxy.groups.consuming.dead_letters import DeadLetters

    exchange, times = settings.groups_dead_letter or "", (settings.lookup_timeout, settings.confirm_timeout)
    return Attendants(groups, settings, DeadLetters(publisher, exchange, *times, groups), tracer)


def _listener(
    settings: Settings,
    tables: RouteTables,
    readings: Readings,
    brokers: Brokers,
    counts: Counts,
    attendants: "Attendants | None",
) -> Listener:
    """Return the AMQP listener, which does not listen yet."""
    kept = None
    if settings.kept_connections is not None:
        limits = settings.kept_connections, settings.kept_connection_time
        kept = KeptConnections(brokers.dial, *limits, readings.identity)
    shared = Shared(
        tables,
        readings,
        kept.dial if kept is not None else brokers.dial,
        frozenset(mechanism.encode() for mechanism in settings.allow_mechanisms),
        counts.amqp_latency.add,
        settings.confirm_timeout,
        kept,
        attendants,
    )
    return Listener(shared, settings.max_sessions)


def _stop_at_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; the second of them ends the process at once."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, stop)
    return stop


def _reload_at_sighup(files: Files, in_force: SettingsInForce) -> None:
    """Have SIGHUP, which would end the process, read all files again."""

    def hang_up() -> None:
        if in_force.watched is None:
            log.info("SIGHUP: there is no settings file to read again (--config, RINGPROXY_CONFIG)")
        files.asked.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def _on_signal(stop: asyncio.Event) -> None:
    """Begin the shutdown at the first SIGTERM or SIGINT; at the second one, end the process at once."""
    if stop.is_set():
        log.warning("a second signal: ending at once")
        logging.shutdown()
        os._exit(1)
    log.info("shutting down: answering what is in flight")
    stop.set()


def _warn_of_open_doors(settings: Settings) -> None:
    """Log for each way by which more clients may publish, or see tokens, than the operator may want."""
    if settings.is_open:
        log.warning(
            "insecure: ANYONE who reaches %s may publish with this sidecar's rights; to prevent it, set tokens_file",
            settings.http_listen,
        )
    elif settings.tokens_file and not settings.tls_cert_file and not is_loopback(settings.http_listen.host):
        log.warning("tokens_file: clients send tokens to %s unencrypted; set tls_cert_file", settings.http_listen)
    if settings.tokens_file and settings.takes_management_publish:
        log.warning(
            "management_publish: any broker user may publish at %s with name and password, and needs no token",
            settings.http_listen,
        )
    token_url = settings.oauth_token_url
    if token_url is not None and token_url.scheme == "http" and not is_loopback(token_url.host or ""):
        log.warning("oauth_token_url: the client's secret and tokens pass unencrypted to %s; use https://", token_url)


@contextlib.asynccontextmanager
async def _listening_amqp(listener: Listener, address: Address, tls: ServerTls | None) -> AsyncIterator[Address]:
    """Run the AMQP listener, and yield its address. Raises ConfigError where that cannot be bound."""
    try:
        bound = await listener.start(address, tls.context if tls else None)
    except OSError as error:
        raise ConfigError(f"amqp_listen: {address} cannot be bound: {_why_not(error)}") from None
    log.info("amqp listens on %s", bound)
    try:
        yield bound
    finally:
        listener.close()


def _why_not(error: OSError) -> str:
    """Return why an address cannot be bound, in the system's words: asyncio's own repeat the address."""
    # A name that is not found has a negative number of its own.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


async def _touching(tables: Iterable[RouteTables]) -> None:
    while True:
        await asyncio.sleep(TOUCH_INTERVAL)
        for each in tables:
            each.touch()


def _in_use(tables: Iterable[RouteTables]) -> set[str]:
    """Return the virtual hosts that an AMQP session or an HTTP publisher of this sidecar uses."""
    return {vhost for each in tables for vhost in each.vhosts()}


async def _forgetting(forgetting: Forgetting) -> None:
    while True:
        await asyncio.sleep(SWEEP_INTERVAL)
        forgetting.sweep()


@contextlib.asynccontextmanager
async def _running(forever: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine that has no end of its own in a task, for as long as the context lasts."""
    task = asyncio.create_task(forever)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _grouping(groups: "Groups | None") -> AsyncIterator[None]:
    """Take leave of the other sidecars of each group once the context ends."""
    try:
        yield
    finally:
        if groups is not None:
            await groups.aclose()


@contextlib.asynccontextmanager
async def _closed_in_time(publisher: Publisher) -> AsyncIterator[None]:
    """Close the publisher on exit, within `_SHUTDOWN_TIMEOUT` as HTTP clients are: a broker may not answer."""
    try:
        yield
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT):
                await publisher.aclose()


@contextlib.asynccontextmanager
async def _listening(
    what: str,
    app: web.Application,
    address: Address,
    bounds: ConnectionBounds,
    counts: Counts,
    tls: ServerTls | None = None,
) -> AsyncIterator[ProblemRunner]:
    """Serve an application on an address while the context lasts. Raises ConfigError where it cannot be bound."""
    runner = ProblemRunner(app, bounds, shutdown_timeout=_SHUTDOWN_TIMEOUT, answers=counts.http_answers[what])
    await runner.setup()
    try:
        try:
            await runner.listen(address, tls.context if tls else None)
        except OSError as error:
            raise ConfigError(f"{what}_listen: {address} cannot be bound: {_why_not(error)}") from None
        for bound in runner.addresses:
            log.info("%s listens on %s", what, Address(bound[0], bound[1]))
        yield runner
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _listening_on_socket(http: ProblemRunner, path: Path | None) -> AsyncIterator[None]:
    """Serve the HTTP listener on a unix socket too, if a path is set. Raises ConfigError where it cannot be bound."""
    if path is None:
        yield
        return
    with unix_socket("http_socket", path) as bound:
        await http.listen_on(bound)
        log.info("http listens on %s", path)
        yield


async def _drain(gate: Gate, publisher: Publisher, drain_time: float) -> None:
    """Wait until all requests are answered, `drain_time` seconds at most; new ones are refused meanwhile."""
    try:
        async with asyncio.timeout(drain_time):
            await gate.idle.wait()
    except TimeoutError:
        log.warning(
            "drain_time is over, and %d HTTP requests still wait for a confirm: their outcome is unknown", gate.active
        )
        publisher.abandon()
