"""`python -m tests.chaos.groups --seed=N --faults=N`: groups of an exchange under faults, and a judgement.

docs/development/chaos.md says what it does.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from urllib.parse import quote

import uvloop

import proxy
from proxy.groups.model import LinkEvent
from ring.compiled import kind
from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.chaos import arena as arenas
from tests.chaos.arena import LASTING, PROGRAMS, Arena, Program, arena
from tests.chaos.groups import dead_letters, generations
from tests.chaos.groups.faults import ACK_TIMEOUT, WANTED, Injector
from tests.chaos.groups.generations import Growth
from tests.chaos.groups.history import Calm, History
from tests.chaos.groups.judge import BALANCED_WITHIN, Limits, Verdict
from tests.chaos.groups.members import HEALS, Group, libraries
from tests.chaos.groups.plant import unseen
from tests.chaos.groups.rows import CLOSED, Row, missed, taken, times
from tests.chaos.groups.several import FURTHER, Named, judge_each, named, part_of
from tests.chaos.groups.works import Worked
from tests.chaos.oracle import Told
from tests.chaos.queues import EXCHANGE
from tests.chaos.schedule import DECK_OF_GROUPS, Fault, Kind, schedule
from tests.integration.broker_api import BrokerApi
from tests.integration.rings import owner
from tests.integration.sidecar import COMMAND

SHARDS = 12
"""The shards of each group."""

RATES = {"pika": 50.0, "aio-pika": 150.0, "php-amqplib": 300.0, "http-batch": 300.0}
"""Messages a second of each publisher, divided by the number of groups: fewer than the members take together."""

ROUND = 20
"""Faults between two calms."""
WARM = 2.0
CALM = BALANCED_WITHIN + 8.0
"""Seconds without a fault: until the shards must be spread over the members, and some to see that they are."""
IDLE = 100.0
"""Seconds in which the shards become no emptier, once nothing is published, after which the judge says what is missing.

A shard whose member was connected to a lost node may wait for it for 60 s.
"""
TRIES = 4
"""How often a member in series gets a message before it is dead-lettered."""
WINDOW = 50
"""The window of a shard in series, divided by the number of groups: a member then has the more shards."""
DEAD = f"{EXCHANGE}.dead"
"""The dead-letter exchange, and its queue."""
RETRIES = {
    "groups_retry_delay": "0.1",
    "groups_retry_delay_max": "1",
    "groups_retry_limit": f"{TRIES}",
    "groups_dead_letter": DEAD,
}
"""The settings of a run in series. A larger window's messages are not done in the time for acks on a busy machine."""
SHOWN = 20


class Members(StrEnum):
    """The kinds of members, of which a run has one."""

    ORDINARY = "a group"
    DIRECT = "members of the shards themselves"
    IN_SERIES = "a group in series, ten workers a member"
    MIXED = "a group, and one in series with ten workers a member"
    AT_ONCE = "a group, ten workers a member, not in series"
    """The judge must find what in series is for."""


KINDS = (
    ("--direct", Members.DIRECT, "members consume the shards themselves, to show what is possible"),
    (
        "--in-series",
        Members.IN_SERIES,
        "members have ten workers each, who fail at times, and consume in series",
    ),
    (
        "--mixed",
        Members.MIXED,
        "the exchange's own group has ordinary members, and the others have workers in series; with --groups 2",
    ),
    (
        "--at-once",
        Members.AT_ONCE,
        "the same members, not in series, to show that the judge finds the difference: this run is red",
    ),
)
"""The flags that choose another kind of members than ordinary ones, with their help."""


@dataclass(frozen=True)
class Run:
    """The parameters of one run."""

    seed: int
    faults: list[Fault]
    members: "Members"
    groups: tuple[Named, ...]
    folder: Path
    generations: int = 0
    """How often the exchange changes its shards at least; 0 for never."""

    @property
    def direct(self) -> bool:
        """Whether members consume the shards themselves."""
        return self.members is Members.DIRECT

    @property
    def settings(self) -> dict[str, str]:
        """Those of each sidecar, beside those of all sidecars of the suite."""
        own = {"ring_max_age": f"{LASTING}"}
        group = {"groups": f"%2F/{EXCHANGE}", "groups_ack_timeout": f"{ACK_TIMEOUT:g}", "log_level": "debug"}
        group |= {**RETRIES, "groups_window": f"{self.window}"} if self.in_series else {}
        group |= {"sync_interval": f"{generations.SYNC_INTERVAL:g}"} if self.generations else {}
        return own if self.direct else own | group

    @property
    def window(self) -> int:
        """How many messages of a shard in series are in a sidecar at most."""
        return WINDOW // len(self.groups)

    @property
    def publishers(self) -> Mapping[str, Program]:
        return {name: replace(PROGRAMS[name], rate=rate / len(self.groups)) for name, rate in RATES.items()}

    @property
    def shards(self) -> tuple[str, ...]:
        """The queues of all groups."""
        return tuple(shard for each in self.groups for shard in each.shards)

    @property
    def in_series(self) -> frozenset[str]:
        """The groups whose members consume in series."""
        of = {Members.IN_SERIES: self.groups, Members.MIXED: self.groups[1:]}
        return frozenset(each.name for each in of.get(self.members, ()))

    @property
    def working(self) -> frozenset[str]:
        """The groups whose members have workers, who write down when they begin."""
        return frozenset(each.name for each in self.groups) if self.members is Members.AT_ONCE else self.in_series

    @property
    def limits(self) -> Mapping[str, Limits]:
        """The limits for the judge of each group."""
        ring, places = self.groups[0].shards, dict[str, int]()

        def place(key: str) -> int:
            if key not in places:
                places[key] = ring.index(owner(ring, key))
            return places[key]

        if self.direct:
            return {each.name: Limits(each.shards, each.shard_of(place), balanced=False) for each in self.groups}
        told = Limits((), str, EXCHANGE, ACK_TIMEOUT, window=self.window, moves=bool(self.generations))
        return {
            each.name: replace(
                told,
                shards=each.shards,
                shard_of=each.shard_of(place) if not self.generations else lambda _: EXCHANGE,
                in_series=each.name in self.working,
                tries=TRIES if each.name in self.in_series else 0,
            )
            for each in self.groups
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.groups", description="Groups under faults, and a judgement.")
    parser.add_argument("--seed", type=int, required=True, help="seed of the schedule")
    parser.add_argument("--faults", type=int, required=True, help="how many")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the cluster; 1 by default")
    numbers = range(1, len(FURTHER) + 2)
    parser.add_argument(
        "--groups", type=int, default=1, choices=numbers, help="how many groups the exchange has; 1 by default"
    )
    parser.add_argument("--queues", choices=("quorum", "classic"), default="quorum", help="the type of the shards")
    text = "have the exchange change its shards in order all the while, so often at least"
    parser.add_argument("--generations", type=int, default=0, help=text)
    kinds = parser.add_mutually_exclusive_group()
    for flag, members, text in KINDS:
        kinds.add_argument(flag, dest="members", action="store_const", const=members, help=text)
    parser.set_defaults(members=Members.ORDINARY)
    arguments = parser.parse_args()
    if arguments.members is Members.MIXED and arguments.groups == 1:
        parser.error("--mixed: a second group is needed: give --groups 2")
    if arguments.members is Members.DIRECT and arguments.generations:
        parser.error("--generations: members consume by the exchange's name, so not with --direct")
    libraries()
    arenas.libraries()
    choice = os.environ.get("BROKER", "")
    if choice.startswith(("amqp:", "docker:")):
        sys.exit(f"nodes are killed and clustered here, and BROKER={choice} is none of the testbed's own")
    rabbitmq = installation(choice)
    folder = Path(tempfile.mkdtemp(prefix="ringproxy-groups-"))
    faults = schedule(arguments.seed, arguments.faults, DECK_OF_GROUPS)
    groups = named(EXCHANGE, arguments.groups, SHARDS)
    todo = Run(arguments.seed, faults, arguments.members, groups, folder, arguments.generations)
    begun = time.monotonic()
    with private_cluster(rabbitmq, arguments.nodes) as nodes:
        where = f"{arguments.queues} queues, nodes: {len(nodes)}, {rabbitmq.source}"
        say(f"seed {todo.seed}, {len(todo.faults)} faults, {todo.members}, groups: {len(groups)}, {where}")
        say(f"set up in {time.monotonic() - begun:.0f} s; the sidecars' hot loop: {kind()}")
        say(f"notes and logs are in {folder}, and stay there unless all is green")
        apply(nodes[0], folder, arguments.queues, FURTHER[: len(groups) - 1])
        if todo.in_series:
            dead_letters.declare(nodes[0], DEAD)
        green = uvloop.run(run(todo, nodes))
        for node in nodes:
            shutil.copy(node.log, folder / f"{node.name}.log")
            if (kept := node.folder / "rabbitmqctl.log").exists():
                shutil.copy(kept, folder / f"{node.name}.ctl")
    say(f"{'green' if green else 'RED'} after {time.monotonic() - begun:.0f} s")
    if green:
        shutil.rmtree(folder)
    return 0 if green else 1


def apply(node: Node, folder: Path, queues: str, further: Sequence[str]) -> None:
    """Make the exchange and its shards, with further groups beside its own, as users do."""
    file = folder / "topology.toml"
    lines = ["[[exchange]]", f'name = "{EXCHANGE}"', f'queue_type = "{queues}"', f"shards = {SHARDS}"]
    lines += [f"groups = {json.dumps(further)}"] if further else []
    file.write_text("\n".join(lines) + "\n")
    flags = [f"--broker-url={node.amqp_url}", f"--management-url={node.management_url}"]
    environment = os.environ | {"PYTHONPATH": str(Path(proxy.__file__).parents[1])}
    command = [COMMAND, "topology", "apply", *flags, str(file)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


async def run(todo: Run, nodes: list[Node]) -> bool:
    """One arena, from the first member to the verdict: whether nothing was wrong."""
    history = History()
    async with arena(nodes, todo.folder, [todo.settings] * 2) as made:
        if todo.direct:
            ports = [[leg.port for leg in made.legs]]
        else:
            ports = [[member.relays["amqp"].port] for member in made.members]
        sources = {each.name: each.shards if todo.direct else (each.name,) for each in todo.groups}
        group = Group(
            ports,
            sources,
            todo.folder / "members",
            todo.seed,
            workers=todo.working,
            in_series=bool(todo.in_series),
            heals=0 if todo.in_series else HEALS,
        )
        injector = Injector(made, group, history, say, direct=todo.direct)
        growth = Growth(made, todo.folder, todo.seed, [each.name.partition("/")[2] for each in todo.groups[1:]], say)
        try:
            for _ in range(WANTED):
                await group.joins()
            made.start_publishers(todo.publishers)
            await asyncio.sleep(WARM)
            async with growth.meanwhile(todo.generations):
                await rounds(made, group, todo, injector, history)
            await end(made, group, todo)
            if todo.in_series:
                history.dead_letters = await asyncio.to_thread(dead_letters.read, nodes[0], DEAD)
        finally:
            group.kill_all()
    history.notes = [note for name in RATES for note in made.noted(name)]
    for member in group.ended:
        with member.lines.open() as lines:
            history.read(member.name, lines, member.killed)
    history.groups = {member.name: member.group for member in group.ended}
    logs = [sidecar.log() for each in made.members for sidecar in each.started]
    epoch, rows = time.monotonic() - time.time(), taken(logs)
    history.closed, history.given_up = times(logs, epoch, CLOSED), times(logs, epoch, {LinkEvent.GIVE_UP})
    limits = todo.limits
    verdicts = judge_each(history, limits)
    for name, verdict in verdicts.items():
        if name in todo.in_series and not verdict.faults and not todo.generations:
            verdict.faults += unseen(part_of(history, name), limits[name])
    faults = [*group.faults, *growth.faults, *(fault for verdict in verdicts.values() for fault in verdict.faults)]
    if not todo.direct and not todo.generations:
        faults += [f"no link took the event {row[1].name} in the state {row[0].name}" for row in missed(rows)]
    (todo.folder / "faults").write_text("".join(f"{fault}\n" for fault in faults))
    report(verdicts, history, injector.done, group, rows)
    for fault in faults[:SHOWN]:
        say(f"  FAULT: {fault}")
    say(f"  {len(faults)} faults")
    return not faults


async def rounds(made: Arena, group: Group, todo: Run, injector: Injector, history: History) -> None:
    """Do all faults, with a calm after each round unless shards are moved all the while."""
    for first in range(0, len(todo.faults), ROUND):
        await injector.run(todo.faults[first : first + ROUND])
        if not todo.generations:
            history.calms += await calm(made, group, todo)


async def calm(made: Arena, group: Group, todo: Run) -> list[Calm]:
    """A time without faults, for the judge to see the balance of each group."""
    begin = time.monotonic()
    await asyncio.sleep(CALM)
    shown = {each.name: await asyncio.to_thread(holders, made, each, begin, todo.folder) for each in todo.groups}
    consumers = {each.name: await asyncio.to_thread(counted, made.nodes[0], each) for each in todo.groups}
    if any(count != 1 for counts in consumers.values() for count in counts.values()):
        # Its log then has the node of the channel of each consumer.
        await asyncio.to_thread(made.nodes[0].control, "list_consumers", "queue_name", "channel_pid", "arguments")
    end, members = time.monotonic(), {name: frozenset(group.of(name)) for name in shown}
    return [Calm(begin, end, members[name], shown[name], consumers[name], name) for name in shown]


def counted(node: Node, group: Named) -> dict[str, int]:
    """Return how many consumers each shard of a group has."""
    shown = BrokerApi(node.management_url).ask("GET", "queues", "/")
    its = [queue for queue in shown if queue["name"] in group.shards and "consumers" in queue]
    return {queue["name"]: queue["consumers"] for queue in its}


def holders(made: Arena, group: Named, begin: float, folder: Path) -> list[dict[str, str | None]]:
    """Return which member has which shard, as each sidecar shows it that has members; keep all that they say."""
    answers = [sidecar.now.admin(f"/groups/%2F/{quote(group.name, safe='')}") for sidecar in made.members]
    kept = folder / f"calm at {begin:.3f} of {quote(group.name, safe='')}.json"
    kept.write_text("\n".join(answer.text for answer in answers))
    shown = []
    for answer in answers:
        if answer.status == 200 and answer.json["joined"]:
            # Each member names its connection after itself.
            names = {member["id"]: member["client"].rpartition(" ")[2] for member in answer.json["members"]}
            shown.append({shard["shard"]: names.get(shard["holder"]) for shard in answer.json["shards"]})
    return shown


async def end(made: Arena, group: Group, todo: Run) -> None:
    """End the publishers, and once the shards are empty the members and the sidecars."""
    await asyncio.to_thread(made.end_clients)
    shards = todo.shards if not todo.generations else await asyncio.to_thread(generations.shards, made.nodes[0])
    if await drained(made.nodes[0], shards):
        await asyncio.to_thread(leave_word, made, todo)
    group.check()
    for member in list(group.running):
        await group.ends(member, "close")
    for sidecar in made.members:
        await asyncio.to_thread(sidecar.end)


async def drained(node: Node, shards: Sequence[str]) -> int:
    """Wait until the shards are empty, or become no emptier; return how many messages are left in them."""
    there, fewest, since, empty = 1, float("inf"), time.monotonic(), 0
    while empty < 2 and time.monotonic() < since + IDLE:
        await asyncio.sleep(6)  # the nodes count every 5 s
        there = await asyncio.to_thread(waiting, node, shards)
        empty = empty + 1 if there == 0 else 0
        if there < fewest:
            fewest, since = there, time.monotonic()
    say(f"{time.monotonic():.3f}: {there:,} messages are in the shards")
    return there


def leave_word(made: Arena, todo: Run) -> None:
    """Write down what the broker and the sidecars say of shards that members do not empty."""
    shown = BrokerApi(made.nodes[0].management_url)
    said: dict[str, object] = {shard: shown.ask("GET", "queues", "/", shard) for shard in todo.shards}
    for number, sidecar in enumerate(made.members):
        for each in todo.groups:
            answer = sidecar.now.admin(f"/groups/%2F/{quote(each.name, safe='')}")
            said[f"sidecar {number}, {each.name}"] = answer.json
    (todo.folder / "left").write_text(json.dumps(said, indent=1))


def waiting(node: Node, shards: Sequence[str]) -> int:
    """Return the messages in the shards, as far as the management API knows."""
    shown = BrokerApi(node.management_url).ask("GET", "queues", "/")
    return sum(queue.get("messages", 1) for queue in shown if queue["name"] in shards)


def report(
    verdicts: Mapping[str, Verdict], history: History, done: Counter[Kind], group: Group, rows: Counter[Row]
) -> None:
    """Print what was done, and how much of each group was judged."""
    say("")
    for name, count in sorted(done.items()):
        say(f"  {name:<30} {count:>5}")
    say(f"  {'all faults':<30} {done.total():>5}\n")
    told = Counter(note.outcome for note in history.notes)
    say(f"  {'publishes':<40}" + "".join(f"{outcome:>11}" for outcome in Told))
    say(f"  {'told':<40}" + "".join(f"{told[outcome]:>11,}" for outcome in Told))
    say(f"  {len(history.deliveries):,} deliveries to {len(group.ended)} members, {len(history.lives)} connections")
    for its, verdict in verdicts.items():
        counts = "".join(f"{verdict.delivered[outcome]:>11,}" for outcome in Told)
        say(f"  {f'delivered to members of {its}':<40}{counts}")
        print_verdict(verdict, sum(each.group == its for each in history.calms))
    by_library = Counter(delivery.holder.member.rpartition("-")[0] for delivery in history.deliveries)
    for library, count in sorted(by_library.items()):
        say(f"  {library:<18}{count:>11,} deliveries")
    for (state, event), count in rows.items():
        say(f"  links: {f'{event.name} in {state.name}':<22} {count:>8,} times")


def print_verdict(verdict: Verdict, calms: int) -> None:
    say(f"  {verdict.in_order:,} pairs of first deliveries of a key were in order")
    say(f"  redelivered: {dict(verdict.redelivered)}; sent before, and seen by nobody: {verdict.unseen:,}")
    say(f"  a shard's holder was another than before {verdict.takeovers:,} times")
    say(f"  the slowest balance took {verdict.slowest_balance:.1f} s, in {calms} calms")
    for how, gaps in sorted(verdict.gaps.items()):
        most = max(gaps)
        figures = f"median {median(gap.seconds for gap in gaps):.2f} s, most {most.seconds:.2f} s"
        figures += f" ({most.shard}, until {most.until:.3f})"
        say(f"  until the next one's first delivery, where it {how:<12} {len(gaps):>6,} times: {figures}")
    if verdict.worked.tries:
        print_work(verdict.worked)


def print_work(worked: Worked) -> None:
    say(f"  {worked.tries:,} tries, {worked.failed:,} failed; {worked.completed:,} messages completed")
    say(f"  {worked.repeats:,} completed again; dead letters: {worked.dead:,}, and {worked.dead_again:,} again")
    say(f"  {worked.in_order:,} pairs of first completions of a key were in order, of which")
    say(f"  {worked.close:,} were of messages that were published before the one before was done")
    say(f"  no more their member's when another was begun: {dict(worked.taken)}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
