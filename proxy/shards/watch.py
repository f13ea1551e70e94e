"""`apply --watch`: look again and again, and do what a file asks for, such as shards for a node that has joined.

With `--ordered` as well, another number of shards in the file becomes a new generation. The change may take as long as
members take to work off the old shards, and holds the lock: no other change is made until then.
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import choose_encoder

from proxy.http.admission.limits import Limits
from proxy.http.admission.pages import HostNames
from proxy.http.formats.problems import problem_middleware
from proxy.http.server import ConnectionBounds, ProblemRunner
from proxy.process.memory import ADMIN_CONNECTIONS, ADMIN_UNREAD
from proxy.settings.config import Settings
from proxy.settings.parse import Address, ConfigError
from proxy.shards.apply import StoppedError, apply
from proxy.shards.broker import Broker, LockedError, LockLostError, locked, reached
from proxy.shards.document import DocumentError, load
from proxy.shards.fence import fence
from proxy.shards.generation import begun, differs
from proxy.shards.plan import Plan, make_plan
from proxy.shards.reshard import Manner, reshard
from proxy.shards.shard import Sharded
from proxy.shards.state import State
from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError

log = logging.getLogger(__name__)

_SECONDS = 5.0
"""Seconds that a client of the listener may take to send a request, and to read its answer."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_FAULTS = (StoppedError, DocumentError, LockLostError, ManagementError, TopologyError, OSError)


class Watch:
    """The looks at one file and its cluster, for as long as the process lives, and what is told of them."""

    def __init__(self, settings: Settings, file: Path, manner: Manner | None = None) -> None:
        """Take the file, which is read anew at each look, and how shards are changed in order, if they are."""
        self._settings, self._file, self._manner = settings, file, manner
        self._told: tuple[str, ...] = ()
        self._differed: list[Sharded] = []
        """The exchanges of the file that had other shards after the last look."""
        self._is_fenced = False
        """Whether all nodes have told, since the last step, that they know the bindings of groups."""
        self.fault = "no look has ended yet"
        """Why the last look found or left something undone; empty if all is as the file says."""
        self.registry = CollectorRegistry()
        self._looks = Counter(
            "ringproxy_topology_looks", "Looks at the file and the cluster.", ["result"], registry=self.registry
        )
        self._steps = Counter(
            "ringproxy_topology_steps", "Steps that were taken, but for those in order.", registry=self.registry
        )
        self._ok_at = Gauge(
            "ringproxy_topology_last_ok_timestamp_seconds",
            "When all was last as the file says.",
            registry=self.registry,
        )
        self._shards = Gauge(
            "ringproxy_topology_shards", "Shards that the file asks for.", ["vhost", "exchange"], registry=self.registry
        )
        self._nodes = Gauge(
            "ringproxy_topology_nodes",
            "Nodes that run, and nodes that do not run and have replicas of shards.",
            ["state"],
            registry=self.registry,
        )
        for result in ("ok", "fault", "locked"):
            self._looks.labels(result)

    async def run(self) -> None:
        """Look for ever, at random intervals of up to the setting `sync_interval`."""
        while True:
            await self.look()
            await asyncio.sleep(random.uniform(0.5, 1.0) * self._settings.sync_interval)

    async def look(self) -> None:
        """Compare the file with what exists, and do what it asks for; tell what fails, and try it at the next look.

        While another process holds the lock, such as `retire`, nothing has failed: whether this one is ready stays.
        """
        try:
            async with reached(self._settings) as broker:
                plan, lines = await self._looked(broker)
        except LockedError as error:
            self._looks.labels("locked").inc()
            if str(error) not in self._told:
                log.info("%s", error)
            self._told = (str(error),)
        except (*_FAULTS, ConfigError) as error:
            self._ended(error.lines if isinstance(error, DocumentError | StoppedError) else [str(error)])
        except Exception as error:
            unexpected = f"unexpected error, see the log: {type(error).__name__}: {error}"
            if unexpected not in self._told:
                log.exception("unexpected error during a look at the file and the cluster; the next look follows")
            self._ended([unexpected])
        else:
            self._ended([*plan.refusals, *lines], plan.warnings)

    async def _looked(self, broker: Broker) -> tuple[Plan, list[str]]:
        """Return the plan of the file once its steps are taken, and why exchanges of the file were left out of it."""
        document = load(self._file)
        vhosts = [exchange.vhost for exchange in document]
        states = await broker.states(vhosts)
        plan = make_plan(document, states)
        self._show(plan)
        lines: list[str] = []
        if self._manner is not None and await self._reshard(broker, document, states, self._manner, lines):
            # The change may have taken hours, so the file and all the rest are read anew.
            return make_plan((), states), lines
        rest = document
        if self._differed:
            rest = tuple(exchange for exchange in document if exchange not in self._differed)
            plan = make_plan(rest, states)
        if plan.steps and not plan.refusals:
            async with locked(broker, vhosts, "apply --watch") as lock:
                self._is_fenced = False
                plan = await apply(broker, lock, rest, self._step, moves=self._manner is None)
        if not self._is_fenced and not plan.refusals and rest == document:
            await fence(broker, document, log.info)
            self._is_fenced = True
        return plan, lines

    async def _reshard(
        self,
        broker: Broker,
        document: Sequence[Sharded],
        states: Mapping[str, State],
        manner: Manner,
        lines: list[str],
    ) -> bool:
        """Change the shards of each exchange that has other ones than the file says, in order; return whether any was.

        A change begins at the second look that finds the difference: the management API may leave out what is there.
        `lines` get why a change was not made, and `_differed` the exchanges of which it was not.
        """
        before, self._differed = self._differed, []
        is_changed = False
        for exchange in document:
            state = states[exchange.vhost]
            is_begun = begun(exchange, state) is not None
            if exchange.numbers is None:
                self._differed.append(exchange)
                lines.append(
                    f"{exchange.place}: shards_per_node: --ordered changes a number of shards; write shards = N"
                )
            elif exchange.name in state.exchanges and (is_begun or differs(exchange, state)):
                self._differed.append(exchange)
                if not is_begun and exchange not in before:
                    lines.append(f"{exchange.name}: has other shards than the file says; they change at the next look")
                elif not state.generations(exchange.name):
                    self._differed.remove(exchange)  # it has none, so that nothing can lose its order
                else:
                    self.fault = f"{exchange.name}: its shards are being changed in order"
                    try:
                        async with locked(broker, [exchange.vhost], "apply --watch --ordered") as lock:
                            await reshard(broker, lock, exchange, manner, log.info)
                    except (StoppedError, LockedError) as error:
                        lines += error.lines if isinstance(error, StoppedError) else [str(error)]
                    else:
                        self._differed.remove(exchange)
                        self._is_fenced, is_changed = False, True
        return is_changed

    def _step(self, line: str) -> None:
        self._steps.inc()
        log.info("%s", line)

    def _ended(self, faults: Sequence[str], warnings: Sequence[str] = ()) -> None:
        """Note how a look ended, and log what was not so at the one before."""
        self._looks.labels("fault" if faults else "ok").inc()
        self.fault = "; ".join(faults)
        for line in (*faults, *warnings):
            if line not in self._told:
                log.warning("%s", line)
        if not faults:
            self._ok_at.set(time.time())
            if not self._told or any(line not in warnings for line in self._told):
                log.info("all is as %s says", self._file)
        self._told = (*faults, *warnings)

    def _show(self, plan: Plan) -> None:
        self._shards.clear()
        running: set[str] = set()
        gone: set[str] = set()
        for planned in plan.exchanges:
            exchange = planned.difference.exchange
            self._shards.labels(exchange.vhost, exchange.name).set(len(planned.difference.shards))
            running |= planned.difference.running
            gone |= planned.difference.gone
        self._nodes.labels("running").set(len(running))
        self._nodes.labels("gone").set(len(gone))

    def application(self) -> web.Application:
        names = HostNames(self._settings.admin_listen, self._settings.host_names)

        async def livez(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(_: web.Request) -> web.Response:
            return web.Response(text=f"{self.fault or 'ok'}\n", status=503 if self.fault else 200)

        async def metrics(request: web.Request) -> web.Response:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            return web.Response(body=encode(self.registry), headers={"Content-Type": content_type})

        @web.middleware
        async def named(request: web.Request, handler: _Handler) -> web.StreamResponse:
            names.check(request)
            response = await handler(request)
            response.force_close()
            return response

        app = web.Application(middlewares=[problem_middleware, named])
        app.router.add_get("/livez", livez)
        app.router.add_get("/readyz", readyz)
        app.router.add_get("/metrics", metrics)
        return app


async def watch(settings: Settings, file: Path, manner: Manner | None = None) -> None:
    """Watch until SIGTERM or SIGINT, with `Watch`. Raises ConfigError if the listener cannot be bound."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    made = Watch(settings, file, manner)
    bounds = ConnectionBounds(
        _SECONDS,
        ADMIN_CONNECTIONS,
        Limits(ADMIN_CONNECTIONS, ADMIN_UNREAD),
        "the admin listener's limit",
        lingering=0.0,
    )
    runner = ProblemRunner(made.application(), bounds, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await runner.listen(settings.admin_listen)
        except OSError as error:
            raise ConfigError(f"admin_listen: {settings.admin_listen} cannot be bound: {error.strerror}") from None
        for bound in runner.addresses:
            log.info("admin listens on %s", Address(bound[0], bound[1]))
        looking = asyncio.create_task(made.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        # Between two steps or in the middle of one: the next start goes on from there.
        for task in (looking, stopping):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    finally:
        await runner.cleanup()
