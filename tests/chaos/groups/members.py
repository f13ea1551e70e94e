"""The members of groups: a process each, in one of several client libraries."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from testbed.debian import ensure_installed
from tests.chaos.groups.consumers.member import Task
from tests.integration.node_packages import node_modules

_FOLDER = Path(__file__).parent / "consumers"

LIBRARIES: Mapping[str, Sequence[str]] = {
    "pika": (sys.executable, "-m", "tests.chaos.groups.consumers.with_pika"),
    "aio-pika": (sys.executable, "-m", "tests.chaos.groups.consumers.with_aio_pika"),
    "amqplib": ("node", str(_FOLDER / "with_amqplib.js")),
    # Debian's libraries belong to Debian's interpreters, whichever others come first on the PATH.
    "php-amqplib": ("/usr/bin/php", str(_FOLDER / "with_php_amqplib.php")),
    "bunny": ("/usr/bin/ruby", str(_FOLDER / "with_bunny.rb")),
}
WORKERS: Mapping[str, Sequence[str]] = {
    "workers-pika": (sys.executable, "-m", "tests.chaos.groups.consumers.workers_with_pika"),
    "workers-aio-pika": (sys.executable, "-m", "tests.chaos.groups.consumers.workers_with_aio_pika"),
}
"""The programs of members in series."""
PACKAGES = ("php-cli", "php-amqplib", "ruby-bunny")

PREFETCH = (20,)
"""The prefetches of members, in turn: the first of each library gets the first."""
ACK_WITHIN = 0.02
"""Seconds."""
NACKED = 0.005
IN_SERIES = {"prefetch": 50, "nacked": 0.05, "workers": 10, "hopeless": 0.002}
"""The part of the job of members in series that is the same in all runs, and wins over that of the others."""
HEALS = 4
"""The number of the try at which a hopeless message succeeds, if nothing limits the tries."""
HEARTBEAT = 10
"""Seconds: more than half of the longest time in which a member reads nothing."""
JOINED_WITHIN = 60.0
ENDED_WITHIN = 20.0
"""Seconds for a member that closes its connection in good order, on a machine whose processors are all busy."""


def libraries() -> None:
    """Install what the members need, where it is missing."""
    for package in PACKAGES:
        ensure_installed(package)
    node_modules()


@dataclass
class Member:
    """One member's process, and what it writes."""

    name: str
    group: str
    sidecar: int
    """Which sidecar it connects to."""
    process: "subprocess.Popen[bytes]"
    lines: Path
    killed: float | None = None
    """When it was about to be killed, if it was."""

    @property
    def joined(self) -> bool:
        """Whether it has ever had its consume-ok."""
        return any(line.startswith("j ") for line in self.lines.read_text().splitlines())

    def tell(self, command: str) -> None:
        """Say something to it; `consumers/member.py` says what there is to say."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is found out elsewhere
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.killed = time.monotonic()
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        """Return what its library and its interpreter complained of."""
        return self.lines.with_suffix(".log").read_text(errors="replace")


@dataclass
class Group:
    """All members of a run, of one group or of several, those that have ended as well."""

    ports: Sequence[Sequence[int]]
    """Where members connect to, by sidecar."""
    sources: Mapping[str, Sequence[str]]
    """The names that each member consumes, by its group."""
    folder: Path
    seed: int
    workers: Collection[str] = ()
    """The groups whose members have ten workers each, who fail at times."""
    in_series: bool = False
    """Whether such members ask for messages in series."""
    heals: int = 0
    """The number of the try at which a hopeless message succeeds; 0 for none."""
    running: list[Member] = field(default_factory=list)
    ended: list[Member] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """The mistakes of members, in words."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def start(self) -> Member:
        """Start one more member of the group that has the fewest, in the library whose turn it is."""
        number = next(self._numbers)
        group = self._smallest()
        works = group in self.workers
        programs = WORKERS if works else LIBRARIES
        library = list(programs)[number // len(self.sources) % len(programs)]
        name = f"{library}-{number}"
        sidecar = self._next_sidecar(group)
        todo = Task(
            name=name,
            ports=list(self.ports[sidecar]),
            sources=list(self.sources[group]),
            prefetch=PREFETCH[number // len(LIBRARIES) % len(PREFETCH)],
            ack_within=ACK_WITHIN,
            nacked=NACKED,
            heartbeat=HEARTBEAT,
            seed=self.seed + number,
        )
        told = vars(todo)
        if works:
            # They draw alike, so that a message fails whoever works on it.
            told |= {**IN_SERIES, "in_series": self.in_series, "heals": self.heals, "seed": self.seed}
        if works and not self.in_series:
            # Nothing tells them the number of a try, so that what fails would fail for ever.
            told |= {"nacked": 0.0, "hopeless": 0.0}
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = self.folder / f"{name}.lines"
        environment = os.environ | {"NODE_PATH": str(node_modules()), "LC_ALL": "C.UTF-8"}
        with lines.open("wb") as out, lines.with_suffix(".log").open("wb") as log:
            # Behind all else, and ended with this process, as publishers are.
            command = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "5", *programs[library], json.dumps(told)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=log, env=environment)
        member = Member(name, group, sidecar, process, lines)
        self.running.append(member)
        return member

    def _smallest(self) -> str:
        counts = Counter(member.group for member in self.running)
        return min(self.sources, key=lambda group: counts[group])

    def _next_sidecar(self, group: str) -> int:
        """Return the sidecar whose turn it is, so that a group has members at each."""
        started = sum(member.group == group for member in (*self.running, *self.ended))
        return (started + list(self.sources).index(group)) % len(self.ports)

    async def joins(self) -> Member:
        """Start one more member, and wait until it has joined."""
        member = self.start()
        deadline = time.monotonic() + JOINED_WITHIN
        while not member.joined:
            if member.process.poll() is not None or time.monotonic() > deadline:
                self.faults.append(f"{member.name} did not join within {JOINED_WITHIN:g} s: {member.said()[-2000:]}")
                break
            await asyncio.sleep(0.05)
        return member

    async def ends(self, member: Member, command: str) -> None:
        """Have a member end in good order."""
        self.running.remove(member)
        self.ended.append(member)
        member.tell(command)
        try:
            await asyncio.to_thread(member.process.wait, ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            self.faults.append(f"{member.name} was told to {command} and had not ended {ENDED_WITHIN:g} s later")
            member.kill()
            return
        if member.process.returncode:
            self.faults.append(f"{member.name} ended with status {member.process.returncode}: {member.said()[-2000:]}")

    def kill(self, member: Member) -> None:
        self.running.remove(member)
        self.ended.append(member)
        member.kill()

    def check(self) -> None:
        """Write down which members have ended without being told to."""
        for member in self.running:
            if member.process.poll() is not None:
                self.faults.append(f"{member.name} ended by itself: {member.said()[-2000:]}")

    def of(self, group: str) -> list[str]:
        """Return the running members of a group."""
        return [member.name for member in self.running if member.group == group]

    def names(self, sidecar: int | None = None) -> frozenset[str]:
        """Return the members that ever connected through a sidecar, or through any."""
        return frozenset(
            member.name for member in (*self.running, *self.ended) if sidecar is None or member.sidecar == sidecar
        )

    def kill_all(self) -> None:
        """Leave no process behind, whatever happened."""
        for member in self.running:
            member.process.send_signal(signal.SIGCONT)
            member.process.kill()
            member.process.wait()
