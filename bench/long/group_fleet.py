"""The costs of a large fleet of sidecars with one consumer group for the broker, and the time until it is balanced."""

import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from bench import BenchError
from bench.long.group_members import PREFETCH
from bench.long.scene import await_ring, remove
from bench.process import cpu_seconds, memory
from bench.tables import table
from bench.world import World, declare, running_compiled
from proxy.shards.defaults import DISCONNECTED_MILLISECONDS, DISCONNECTED_TIMEOUT
from testbed.readiness import DIRECT
from testbed.sidecar import Sidecar

FLEETS: Final = ((10, 40), (10, 400), (50, 40), (50, 400), (200, 40), (200, 400), (10, 1000))
"""How many sidecars there are, and how many shards."""
THOUSAND: Final = 1_000
REAL: Final = 10
"""How many sidecars share a thousand shards, each a process of its own."""

_A_PROCESS = 50
"""The most sidecars of one process."""
_ARGUMENTS: Final[Mapping[str, object]] = {
    "x-queue-type": "quorum",
    "x-single-active-consumer": True,
    "x-delivery-limit": -1,
    DISCONNECTED_TIMEOUT: DISCONNECTED_MILLISECONDS,
}
_RATE = 200
"""Messages a second while members come and go."""
_IDLE, _SETTLED, _REST = 5.0, 21.0, 30.0
"""Seconds in which the broker alone is measured; from the start of a fleet until its rest is measured; and of the rest,
which is twice the time from one reading of a sidecar's own shards to the next one."""
_BALANCED_WITHIN, _DRAINED_WITHIN = 600.0, 60.0
_TELL_EVERY: Final = 10.0
"""Seconds after which what a fleet looks like is printed, while it is not balanced."""
COSTS: Final = 10, 50, 200
"""The fleets whose beats and questions are measured by themselves, up to the largest that is measured."""
_BEATS: Final = 40.0
"""For how many seconds beats are sent."""
_READ: Final = 200
"""How many shards are read from the management API to measure one reading."""


class Process:
    """A process with some of the fleet's sidecars."""

    def __init__(self, world: World, exchange: str, count: int) -> None:
        """Start it; `ready` waits until it has the ring."""
        self.count = count
        node = world.node
        command = [sys.executable, "-m", "bench.long.group_members", node.amqp_url, node.management_url]
        self._process = subprocess.Popen(
            [*command, exchange, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ready(self) -> Self:
        """Return it once it has the ring."""
        if self._line() != "ready":
            raise BenchError("a process of sidecars did not start (see above)")
        return self

    def ask(self, command: str) -> dict[str, Any]:
        """Have it obey a command of `group_members`; return its answer."""
        self.tell(command)
        return self.answer()

    def tell(self, command: str) -> None:
        """Send it a command, whose answer is to be fetched."""
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last command."""
        line = self._line()
        if not line:
            raise BenchError("a process of sidecars has ended (see above)")
        found: dict[str, Any] = json.loads(line)
        return found

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Have all of its sidecars leave, and wait until it has ended."""
        if self._process.poll() is None:
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(60)


class Client:
    """A client that is a member through a sidecar that runs as a process of its own."""

    def __init__(self, sidecar: Sidecar, exchange: str) -> None:
        """Nothing is connected yet."""
        self.sidecar, self._exchange = sidecar, exchange
        self._connection = pika.BlockingConnection(pika.URLParameters(sidecar.amqp_url))
        self._got: list[tuple[float, str, bool]] = []
        self._thread = threading.Thread(target=self._consume, daemon=True)

    def join(self) -> None:
        """Ask to join the group; returns at once."""
        self._thread.start()

    def _consume(self) -> None:
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(self._exchange, self._received)
        channel.start_consuming()

    def _received(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        self._got.append((time.monotonic(), body.decode(), bool(method.redelivered)))
        channel.basic_ack(method.delivery_tag or 0)

    def messages(self) -> list[tuple[float, str, bool]]:
        """Return what it has got since the last call."""
        got, self._got = self._got, []
        return got

    @property
    def held(self) -> int:
        """The number of shards that it has, as its sidecar's metrics tell."""
        with DIRECT.open(f"{self.sidecar.admin_url}/metrics", timeout=30) as response:
            for line in response.read().decode().splitlines():
                if line.startswith("ringproxy_group_shards_held{") and f'exchange="{self._exchange}"' in line:
                    return int(float(line.rpartition(" ")[2]))
        return 0

    def close(self) -> None:
        """End the client's connection."""
        if self._thread.ident is None:
            self._connection.close()
            return
        self._connection.add_callback_threadsafe(self._connection.close)
        self._thread.join(10)


class Traffic:
    """A publisher that gives every shard its messages, numbered by shard, until it is stopped."""

    def __init__(self, amqp_url: str, shards: Sequence[str]) -> None:
        """Begin."""
        self.published: list[str] = []
        self._connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        self._shards, self._ended = shards, threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        channel, begun = self._connection.channel(), time.monotonic()
        for number, shard in enumerate(itertools.cycle(self._shards)):
            self._connection.sleep(max(begun + number / _RATE - time.monotonic(), 0))
            if self._ended.is_set():
                break
            body = f"{shard} {number} {time.monotonic():.6f}"
            channel.basic_publish("", shard, body.encode())
            self.published.append(body)
        self._connection.close()

    def stop(self) -> Sequence[str]:
        """Stop; return the bodies of all that was published."""
        self._ended.set()
        self._thread.join(30)
        return self.published


class Flow(NamedTuple):
    """How the messages of a traffic came."""

    longest: float
    """The longest time from the publish of a message to its first delivery, in seconds."""
    again: int
    """How many messages came more than once."""
    disorder: int
    """How many came, for the first time, behind a later one of their shard."""


def flow(published: Sequence[str], got: Sequence[tuple[float, str, bool]]) -> Flow:
    """Judge what was got. Raises BenchError where something that was published has not come."""
    first: dict[str, float] = {}
    for at, body, _ in sorted(got):
        first.setdefault(body, at)
    if missing := [body for body in published if body not in first]:
        raise BenchError(f"{len(missing)} of {len(published)} messages did not come, such as {missing[0]}")
    newest: dict[str, int] = {}
    disorder = 0
    for body in sorted(published, key=first.__getitem__):
        shard, number, _ = body.split()
        disorder += int(number) < newest.get(shard, -1)
        newest[shard] = max(newest.get(shard, -1), int(number))
    longest = max((first[body] - float(body.rpartition(" ")[2]) for body in published), default=0.0)
    wanted = set(published)
    return Flow(longest, sum(body in wanted for _, body, _ in got) - len(published), disorder)


class Phase(NamedTuple):
    """A change of a fleet until the group is balanced again."""

    seconds: float
    """From the change until the last link has changed its state."""
    beats: int
    """How many beats the sidecars sent in this time."""
    flow: Flow


class Rest(NamedTuple):
    """The figures of a fleet at rest."""

    broker: float
    """CPU time of the broker a second, less that of the idle broker."""
    sidecar: float
    """CPU time a second of the sidecar that is a process of its own."""
    member: float
    """CPU time a second of one of the other sidecars."""
    beats: float
    """How many beats all sidecars send in a second, without the one that is a process of its own."""
    size: float
    """The mean bytes of a beat."""
    reads: float
    """How many times a second the sidecars read something from the management API."""
    connections: int
    channels: int
    consumers: int
    memory: int
    """The bytes that the broker has more than before the fleet began."""


class Fleet:
    """The sidecars of one group: one of them runs as a process of its own, and the others share some processes."""

    def __init__(self, world: World, sidecar: Sidecar, exchange: str, shards: Sequence[str]) -> None:
        """There is no sidecar yet. The exchange must have been declared."""
        self._world, self._exchange, self._shards = world, exchange, shards
        self.client = Client(sidecar, exchange)
        self.processes: list[Process] = []

    def prepare(self, *counts: int) -> list[Process]:
        """Start processes with so many sidecars each; none of them is a member yet."""
        made = [Process(self._world, self._exchange, count) for count in counts]
        return [each.ready() for each in made]

    def join(self, processes: Sequence[Process]) -> None:
        """Let all sidecars of some processes join at once."""
        for each in processes:
            each.tell("join")
        for each in processes:
            each.answer()
        self.processes += processes

    def kill(self, process: Process) -> None:
        """Kill a process with all of its sidecars."""
        self.processes.remove(process)
        process.kill()

    def shards_of(self, process: Process) -> list[str]:
        """Return the shards that a process's members have."""
        return [shard for its in process.ask("state")["open"] for shard in its]

    def phase(self, title: str, change: Callable[[], None], shards: Sequence[str]) -> Phase:
        """Make a change while messages come to these shards, and return how it went."""
        self._messages()
        beats = sum(each["sent"] for each in self._states())
        begun = time.monotonic()
        change()
        traffic = Traffic(self._world.node.amqp_url, shards)
        try:
            seconds = self._balanced(begun) - begun
            sent = sum(each["sent"] for each in self._states()) - beats
        finally:
            published = traffic.stop()
        phase = Phase(seconds, sent, self._drained(published))
        print(f"{self._exchange}: {title}: {phase}", file=sys.stderr, flush=True)
        return phase

    def rest(self, idle: "Idle") -> Rest:
        """Let time go by, and return what that costs."""
        world, sidecar = self._world, self.client.sidecar.process.pid
        pids = [world.node.pid, sidecar, *(each.pid for each in self.processes)]
        states, cpu, begun = self._states(), [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(_REST)
        took = time.monotonic() - begun
        spent = [(cpu_seconds(pid) - before) / took for pid, before in zip(pids, cpu, strict=True)]
        after = self._states()
        sent, size, asked = (
            sum(each[what] for each in after) - sum(each[what] for each in states)
            for what in ("sent", "sent_bytes", "asked")
        )
        totals = [now - then for now, then in zip(_totals(world), idle.totals, strict=True)]
        members = sum(each.count for each in self.processes)
        used = memory(world.node.pid) - idle.memory
        found = Rest(
            *(spent[0] - idle.cpu, spent[1], sum(spent[2:]) / members),
            *(sent / took, size / max(sent, 1), asked / took, *totals, used),
        )
        print(f"{self._exchange}: at rest: {found}", file=sys.stderr, flush=True)
        return found

    def _states(self) -> list[dict[str, Any]]:
        for each in self.processes:
            each.tell("state")
        return [each.answer() for each in self.processes]

    def _balanced(self, begun: float) -> float:
        """Return when the last link has changed, once all shards are spread evenly."""
        told = begun
        while True:
            states = self._states()
            looked = time.monotonic()
            found = [its for each in states for its in each["open"]]
            every = [shard for its in found for shard in its]
            share = len(self._shards) / (len(found) + 1)
            even = {math.floor(share), math.ceil(share)}
            is_even = not any(each["moving"] for each in states) and {len(its) for its in found} <= even
            if is_even and len(set(every)) == len(every):
                held = self.client.held
                if held in even and held + len(every) == len(self._shards):
                    return max([begun, *(float(each["changed"]) for each in states)])
            if looked - told > _TELL_EVERY:
                told = looked
                counts = sorted(len(its) for its in found), sum(each["moving"] for each in states), self.client.held
                print(f"{self._exchange}: after {looked - begun:.0f} s: {counts}", file=sys.stderr, flush=True)
            if looked - begun > _BALANCED_WITHIN:
                raise BenchError(f"{self._exchange}: not balanced within {_BALANCED_WITHIN:g} s")
            time.sleep(0.2)

    def _messages(self) -> list[tuple[float, str, bool]]:
        found = self.client.messages()
        for each in self.processes:
            found += [(at, body, again) for at, body, again in each.ask("messages")["messages"]]
        return found

    def _drained(self, published: Sequence[str]) -> Flow:
        """Return the judgement once all has come."""
        got, deadline = self._messages(), time.monotonic() + _DRAINED_WITHIN
        while not {body for _, body, _ in got}.issuperset(published) and time.monotonic() < deadline:
            time.sleep(0.2)
            got += self._messages()
        return flow(published, got)

    def close(self) -> None:
        """Have all members leave."""
        self.client.close()
        for each in self.processes:
            each.close()


class Idle(NamedTuple):
    """The broker with all queues, and without the fleet."""

    cpu: float
    """CPU seconds a second."""
    totals: Sequence[int]
    memory: int
    """Resident bytes."""

    @classmethod
    def of(cls, world: World) -> Self:
        """Measure it."""
        begun, before = time.monotonic(), cpu_seconds(world.node.pid)
        time.sleep(_IDLE)
        cpu = (cpu_seconds(world.node.pid) - before) / (time.monotonic() - begun)
        return cls(cpu, _totals(world), memory(world.node.pid))


class Found(NamedTuple):
    """All figures of one fleet."""

    sidecars: int
    shards: int
    load: float
    """The load average at its end."""
    idle: float
    """CPU seconds a second of the broker without the fleet."""
    rest: Rest
    phases: Mapping[str, Phase]


START, JOIN, KILL, TEN, TEN_KILLED = "all start", "one more joins", "one is killed", "ten join", "ten are killed"


def group_fleet(world: World) -> str:
    """Measure fleets of several sizes, and a group of a thousand shards; return the section."""
    with running_compiled(world.node, {"groups": "bench.fleet*"}) as sidecar:
        found = [_fleet(world, sidecar, *each) for each in chosen()]
    costs = _costs(world)
    real = _thousand(world) if not os.environ.get("FLEETS") else ""
    return "\n\n".join(part for part in (markdown(found), costs, real) if part)


def chosen() -> Sequence[tuple[int, int]]:
    """Return the fleets to measure: those in the variable FLEETS, such as `10x40,200x400`, or all."""
    named = os.environ.get("FLEETS")
    if not named:
        return FLEETS
    found = [each.split("x") for each in named.split(",")]
    return [(int(sidecars), int(shards)) for sidecars, shards in found]


@contextmanager
def _declared(world: World, shards: int) -> Iterator[tuple[str, list[str]]]:
    exchange = f"bench.fleet{shards}"
    names = [f"{exchange}.{number}" for number in range(shards)]
    declare(world.node.amqp_url, exchange, names, arguments=_ARGUMENTS)
    try:
        yield exchange, names
    finally:
        remove(world.node.amqp_url, exchange, names)


def _fleet(world: World, sidecar: Sidecar, sidecars: int, shards: int) -> Found:
    with _declared(world, shards) as (exchange, names):
        await_ring(sidecar.http_url, exchange)
        idle, fleet = Idle.of(world), Fleet(world, sidecar, exchange, names)
        try:
            rest, phases = _figures(fleet, sidecars, names, idle)
        finally:
            fleet.close()
        return Found(sidecars, shards, os.getloadavg()[0], idle.cpu, rest, phases)


def _figures(fleet: Fleet, sidecars: int, names: Sequence[str], idle: Idle) -> tuple[Rest, dict[str, Phase]]:
    many, few = divmod(sidecars - 1, _A_PROCESS)
    every, (one, ten) = fleet.prepare(*[_A_PROCESS] * many, *([few] if few else [])), fleet.prepare(1, 10)
    phases = {}

    def start() -> None:
        fleet.client.join()
        fleet.join(every)

    began = time.monotonic()
    phases[START] = fleet.phase(START, start, names)
    time.sleep(max(began + _SETTLED - time.monotonic(), 0))
    rest = fleet.rest(idle)
    phases[JOIN] = fleet.phase(JOIN, lambda: fleet.join([one]), names)
    for title, process, more in ((KILL, one, TEN), (TEN_KILLED, ten, "")):
        its = fleet.shards_of(process) or names
        phases[title] = fleet.phase(title, lambda process=process: fleet.kill(process), its)  # type: ignore[misc]
        if more:
            phases[more] = fleet.phase(more, lambda: fleet.join([ten]), names)
    return rest, phases


def markdown(found: Sequence[Found]) -> str:
    """Return the tables of the fleets as Markdown."""
    heads = ["sidecars", "shards", "broker CPU, % of a core", "sidecar CPU, %", "other sidecars' CPU, % each"]
    heads += ["beats sent/s", "delivered/s", "bytes a beat", "delivered kB/s", "readings/s"]
    heads += ["connections", "channels", "consumers", "broker memory, MiB more", "a sidecar, kiB"]
    rows = []
    for one in found:
        rest, sent = one.rest, one.rest.beats * one.sidecars / max(one.sidecars - 1, 1)
        heard = sent * one.sidecars
        cpu = [f"{share:.1%}".rstrip("%") for share in (rest.broker, rest.sidecar, rest.member)]
        beats = [f"{sent:,.1f}", f"{heard:,.0f}", f"{rest.size:,.0f}", f"{heard * rest.size / 1e3:,.0f}"]
        totals = [f"{each:,}" for each in (rest.connections, rest.channels, rest.consumers)]
        used = [f"{rest.memory / 2**20:,.0f}", f"{rest.memory / 2**10 / one.sidecars:,.0f}"]
        rows.append([f"{one.sidecars}", f"{one.shards:,}", *cpu, *beats, f"{rest.reads:.1f}", *totals, *used])
    note = (
        f"At rest over {_REST:g} s, without messages. One sidecar is a process of its own, compiled; the others share"
        f" processes of {_A_PROCESS}, on the same machine. The broker's CPU is less what it takes with the same queues"
        f" and no fleet, {', '.join(f'{one.idle:.1%}' for one in found)} of a core."
    )
    phases: list[list[str]] = []
    for one in found:
        for title, phase in one.phases.items():
            flow = phase.flow
            cells = [f"{phase.seconds:.2f}", f"{flow.longest:.2f}", f"{flow.again}", f"{flow.disorder}"]
            beats = [f"{phase.beats:,}", f"{phase.beats * one.sidecars:,}", f"{one.load:.1f}"]
            phases.append([f"{one.sidecars}", f"{one.shards:,}", title, *cells, *beats])
    of_phases = ["sidecars", "shards", "", "balanced after, s", "longest wait of a message, s", "come again"]
    of_phases += ["out of order", "beats sent", "delivered", "load average at the end"]
    told = (
        f"{_RATE} messages a second go to the shards meanwhile: to all, or after a kill to those of the killed. All"
        f" sidecars share the cores of one machine with the broker, so the times of large fleets are upper bounds."
    )
    return f"{table(heads, rows)}\n\n{note}\n\n{table(of_phases, phases)}\n\n{told}"


def _costs(world: World) -> str:
    """Measure what one beat, one question and one reading cost; return the table."""
    rows = []
    largest = max(sidecars for sidecars, _ in chosen())
    for sidecars in (each for each in COSTS if each <= largest):
        command = [sys.executable, "-m", "bench.long.group_beats", world.node.amqp_url, f"{sidecars}", f"{_BEATS:g}"]
        idle = Idle.of(world)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for what in ("a beat that one sidecar gets", "a question whether a sidecar's queue is there"):
                _line(process.stdout, "begin")
                before, begun = cpu_seconds(world.node.pid), time.monotonic()
                _, count, own = _line(process.stdout, "end")
                spent = cpu_seconds(world.node.pid) - before - idle.cpu * (time.monotonic() - begun)
                each = (f"{seconds / int(count) * 1e6:,.0f}" for seconds in (spent, float(own)))
                rows.append([what, f"{sidecars}", *each])
                print(rows[-1], file=sys.stderr, flush=True)
    with _declared(world, _READ) as (_, names):
        idle = Idle.of(world)
        before, begun = cpu_seconds(world.node.pid), time.monotonic()
        for name in names:
            _get(world, f"/api/queues/%2F/{name}?columns=type,arguments,effective_policy_definition,consumer_details")
        spent = cpu_seconds(world.node.pid) - before - idle.cpu * (time.monotonic() - begun)
    rows.append(["a reading of a shard from the management API", "", f"{spent / len(names) * 1e6:,.0f}", ""])
    return table(["", "sidecars", "broker CPU, µs", "sidecar CPU, µs"], rows)


def _line(output: IO[str], word: str) -> list[str]:
    """Return the words of the next line, which must begin with this one."""
    words = output.readline().split()
    if words[:1] != [word]:
        raise BenchError(f"the senders of beats failed (see above): {words}")
    return words


def _thousand(world: World) -> str:
    """Measure how sidecars, each a process of its own, share a thousand shards; return the section."""
    with _declared(world, THOUSAND) as (exchange, _), ExitStack() as stack:
        made = [stack.enter_context(running_compiled(world.node, {"groups": exchange})) for _ in range(REAL + 1)]
        for sidecar in made:
            await_ring(sidecar.http_url, exchange)
        clients = [Client(sidecar, exchange) for sidecar in made]
        rows = []
        try:
            rows.append(["ten members start", *_shared(world, clients[:-1], clients[:-1])])
            rows.append(["an eleventh joins", *_shared(world, clients, clients[-1:])])
        finally:
            for client in clients:
                client.close()
    heads = [f"{THOUSAND:,} shards", "balanced after, s", "CPU of the broker meanwhile, s", "of all sidecars, s"]
    return table(heads, rows)


def _shared(world: World, clients: Sequence[Client], joining: Sequence[Client]) -> list[str]:
    """Let clients join; return the seconds until all have their share, and the CPU time of broker and sidecars."""
    pids = [each.sidecar.process.pid for each in clients]
    broker, own, begun = cpu_seconds(world.node.pid), sum(map(cpu_seconds, pids)), time.monotonic()
    for client in joining:
        client.join()
    share = THOUSAND / len(clients)
    even = {math.floor(share), math.ceil(share)}
    while not all(each.held in even for each in (*joining, *clients)):
        if time.monotonic() > begun + _BALANCED_WITHIN:
            raise BenchError(f"{THOUSAND:,} shards are not shared within {_BALANCED_WITHIN:g} s")
        time.sleep(0.2)
    took = time.monotonic() - begun
    spent = cpu_seconds(world.node.pid) - broker, sum(map(cpu_seconds, pids)) - own
    row = [f"{took:.1f}", *(f"{seconds:.1f}" for seconds in spent)]
    print(f"{THOUSAND:,} shards: {len(joining)} join {len(clients)}: {row}", file=sys.stderr, flush=True)
    return row


def _totals(world: World) -> tuple[int, int, int]:
    """Return how many connections, channels and consumers the broker has."""
    totals = _get(world, "/api/overview")["object_totals"]
    return totals["connections"], totals["channels"], totals["consumers"]


def _get(world: World, path: str) -> dict[str, Any]:
    url = urlsplit(world.node.management_url)
    request = urllib.request.Request(f"{url.scheme}://{url.hostname}:{url.port}{path}")
    request.add_header("Authorization", f"Basic {b64encode(f'{url.username}:{url.password}'.encode()).decode()}")
    with DIRECT.open(request, timeout=30) as response:
        found: dict[str, Any] = json.loads(response.read())
    return found
