"""One broker or cluster with two sidecars, and relays on every way between them and their clients."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from testbed.debian import ensure_installed
from testbed.node import Node
from tests.chaos.history import Limits
from tests.chaos.hostile import Target
from tests.chaos.management import ManagementFront, management_front
from tests.chaos.oracle import Fleet, Note, Told
from tests.chaos.publishers.notes import Task
from tests.chaos.queues import EXCHANGE
from tests.chaos.relay import Relay, relay
from tests.integration.sidecar import Sidecar

SYNC_INTERVAL, SETTLE_TIME, RING_MAX_AGE = 1.0, 1.0, 3.0
LASTING = 3600.0
"""Seconds of `ring_max_age` of the sidecar whose rings no outage of a run makes too old."""
SLACK = 3.0
"""Seconds for a sidecar to end, on a machine whose processors are all busy."""
SLOW_READING = 2.0
"""Seconds between two readings on such a machine. A removal needs three, as such a pause counts for half a settle time.
"""
DRAIN_TIME, CLOSING = 5.0, 2.0
"""Seconds for what is in flight at SIGTERM, and for the closing behind it: docs/how-to/operate.md says so."""
LOOKUP_TIMEOUT = 2.0
LIMITS = Limits(SYNC_INTERVAL + 3 * SLOW_READING, stale_after=RING_MAX_AGE + 1.0, waits=LOOKUP_TIMEOUT)

SETTINGS = {
    "route": f"%2F/{EXCHANGE}",  # by name, so that a sidecar is not ready until it has read the bindings
    "sync_interval": f"{SYNC_INTERVAL}",
    "settle_time": f"{SETTLE_TIME}",
    "on_stale": "refuse",
    "management_timeout": "1",
    "lookup_timeout": f"{LOOKUP_TIMEOUT}",
    "confirm_timeout": "4",
    "drain_time": f"{DRAIN_TIME}",
}

CLIENTS_END_WITHIN = 60.0


@dataclass(frozen=True)
class Program:
    """A publisher: what runs it, through which sidecar and listener, and at most how fast."""

    command: tuple[str, ...]
    sidecar: int | None
    """None for one that publishes at the broker itself."""
    listener: str
    rate: float


def _python(name: str) -> tuple[str, ...]:
    return sys.executable, "-m", f"tests.chaos.publishers.{name}"


# Debian's library belongs to Debian's interpreter, whichever other comes first on the PATH.
_PHP = ("/usr/bin/php", str(Path(__file__).parent / "publishers" / "with_php_amqplib.php"))

PROGRAMS = {
    "pika": Program(_python("with_pika"), 0, "amqp", 100),
    "aio-pika": Program(_python("with_aio_pika"), 1, "amqp", 300),
    "php-amqplib": Program(_PHP, 0, "amqp", 2500),
    "http-single": Program(_python("http_single"), 1, "http", 100),
    "http-batch": Program(_python("http_batch"), 0, "http", 4000),
    "native-pika": Program(_python("with_pika"), None, "amqp", 50),
    "native-aio-pika": Program(_python("with_aio_pika"), None, "amqp", 200),
}

AGES = (RING_MAX_AGE, LASTING)
"""`ring_max_age` of each sidecar."""

FOR_PUBLISHERS = tuple({"ring_max_age": f"{age}"} for age in AGES)
"""The settings of each sidecar in a run that judges publishes."""

FLEET = Fleet(
    EXCHANGE,
    lasting=frozenset(
        name for name, program in PROGRAMS.items() if program.sidecar is not None and AGES[program.sidecar] == LASTING
    ),
    native=frozenset(name for name, program in PROGRAMS.items() if program.sidecar is None),
    order_of_confirmed=frozenset({"http-single"}),
)


def libraries() -> None:
    """Install what the publishers and the clock need, where it is missing."""
    for package in ("php-cli", "php-amqplib", "libfaketime"):
        ensure_installed(package)


@dataclass
class Member:
    """A sidecar that is started again and again, behind relays whose ports stay."""

    settings: Mapping[str, str]
    folder: Path
    relays: Mapping[str, Relay]
    """By listener: amqp and http, and amqp once more for whom the network's faults spare, a hostile client."""
    running: bool = False
    """Whether it is ready, and nobody is about to end it."""
    started: list[Sidecar] = field(default_factory=list)
    rerouted: int = 0
    """Messages that came back and were published again, by those that have ended."""

    @property
    def clock(self) -> Path:
        """The file that says how far its wall clock is off."""
        return self.folder / "clock"

    def start(self) -> None:
        """Blocks until it is ready; its relays lead to it as soon as it listens."""
        folder = self.folder / str(len(self.started))
        folder.mkdir(parents=True)
        if not self.clock.exists():
            self.clock.write_text("+0\n")
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        additions = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # as a clock that is set, it jumps alone
        }
        self.started.append(Sidecar(self.settings, folder, additions=additions))
        self.relays["amqp"].target, self.relays["http"].target = self.now.amqp_port, self.now.port
        self.relays["hostile"].target = self.now.amqp_port
        self.now.wait_ready()
        self.running = True

    @property
    def now(self) -> Sidecar:
        """The one that runs."""
        return self.started[-1]

    def count(self) -> None:
        """Add what the one that runs has published again; it is about to end."""
        self.running = False
        self.rerouted += int(self.now.metric("ringproxy_rerouted_total"))

    def stop(self) -> None:
        """End it in good order, and in time."""
        self.count()
        asked = time.monotonic()
        self.now.stop()
        took = time.monotonic() - asked
        assert took < DRAIN_TIME + CLOSING + SLACK, f"a sidecar took {took:.1f} s to end"

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.count()
        self.now.signal(signal.SIGKILL)
        self.now.process.wait()

    def end(self) -> None:
        """End it for good and check what every one of them logged."""
        self.stop()
        for sidecar in self.started:
            sidecar.check_log()


@dataclass
class Arena:
    """Everything that faults are done to."""

    nodes: Sequence[Node]
    front: ManagementFront
    legs: Sequence[Relay]
    """To each node."""
    members: Sequence[Member]
    folder: Path
    clients: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """The publishers, and the hostile one."""

    def start_clients(self) -> None:
        """Start every publisher, and the hostile client."""
        self.start_publishers(PROGRAMS)
        listeners = [member.relays["hostile"].port for member in self.members]
        target = Target(listeners, EXCHANGE, str(self._stop), str(self.folder / "hostile.report"))
        self._start("hostile", (sys.executable, "-m", "tests.chaos.hostile"), vars(target))

    def start_publishers(self, programs: Mapping[str, Program]) -> None:
        for name, program in programs.items():
            if program.sidecar is None:
                ports = [urlsplit(node.amqp_url).port or 0 for node in self.nodes]
            else:
                ports = [self.members[program.sidecar].relays[program.listener].port]
            todo = Task(name, ports, EXCHANGE, program.rate, str(self.notes(name)), str(self._stop))
            self._start(name, program.command, vars(todo))

    def _start(self, name: str, command: Sequence[str], told: Mapping[str, object]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            # Behind all else: they take what the broker and the sidecars leave of the processors. They end with this
            # process, however it ends: else they would slow the next run.
            whole = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "5", *command, json.dumps(told)]
            self.clients[name] = subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def attacks(self) -> Counter[str]:
        """Return how many attacks of each kind the hostile client made."""
        return Counter(json.loads((self.folder / "hostile.report").read_text()))

    def notes(self, name: str) -> Path:
        """Return the file in which a publisher writes down what it is told."""
        return self.folder / f"{name}.notes"

    def noted(self, name: str) -> list[Note]:
        """Return what a publisher wrote down, read."""
        notes = []
        with self.notes(name).open() as file:
            for line in file:
                channel, number, key, sent, told, outcome = line.split()
                notes.append(
                    Note(
                        name, sys.intern(channel), int(number), sys.intern(key), float(sent), float(told), Told(outcome)
                    )
                )
        return notes

    @property
    def _stop(self) -> Path:
        return self.folder / "stop"

    def end_clients(self) -> None:
        """Wait until each publisher has its answers; raises where a client failed."""
        self._stop.touch()
        for name, process in self.clients.items():
            status = process.wait(CLIENTS_END_WITHIN)
            said = (self.folder / f"{name}.log").read_text(errors="replace")
            assert status == 0, f"{name} ended with status {status}:\n{said[-4000:]}"

    def kill_all(self) -> None:
        """Kill all that this started: whatever happened, none of it is left."""
        for process in self.clients.values():
            process.kill()
            process.wait()
        for member in self.members:
            for sidecar in member.started:
                sidecar.kill()


@asynccontextmanager
async def arena(
    nodes: Sequence[Node], folder: Path, settings_of_each: Sequence[Mapping[str, str]] = FOR_PUBLISHERS
) -> AsyncIterator[Arena]:
    """Two sidecars, ready, beside running nodes, with settings of their own; nothing of it is left behind."""
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(management_front(nodes[0].management_url))
        legs = [await stack.enter_async_context(relay(urlsplit(node.amqp_url).port or 0)) for node in nodes]
        settings = SETTINGS | {
            "broker_url": "amqp://guest:guest@127.0.0.1/",
            "broker_addresses": ",".join(f"127.0.0.1:{leg.port}" for leg in legs),
            "management_url": f"http://guest:guest@127.0.0.1:{front.port}",
        }
        members = []
        for number, own in enumerate(settings_of_each):
            relays = {what: await stack.enter_async_context(relay(0)) for what in ("amqp", "http", "hostile")}
            members.append(Member({**settings, **own}, folder / f"sidecar-{number}", relays))
        made = Arena(nodes, front, legs, members, folder)
        try:
            for member in members:
                await asyncio.to_thread(member.start)
            yield made
        finally:
            await asyncio.to_thread(made.kill_all)
