"""Random disturbances of a modelled group, and the judgement at rest; as a command, so many runs from a seed on:

.venv/bin/python -m tests.unit.proxy.groups.disturbances 1000 0 [pauses]
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from proxy.groups.pauses import Verb
from tests.unit.proxy.groups.world import Client, Queue, Session, Sidecar, World

Disturbance = Callable[[World, Random, int], str]


def _alive(world: World) -> list[Sidecar]:
    return [each for each in world.sidecars.values() if each.is_alive]


def _there(world: World) -> list[Session]:
    return [each for each in world.sessions if not each.member.leaving]


def _client(random: Random) -> Client:
    return Client(random.choice([0.05, 0.5, 2.0]), random.choice([1, 1, 5]))


def _kill(world: World, random: Random, number: int) -> str:
    alive = _alive(world)
    if len(alive) < 2:
        return ""
    sidecar = random.choice(alive)
    sidecar.kill()
    return f"{sidecar.name} is killed"


def _join(world: World, random: Random, number: int) -> str:
    skew = random.choice([0.0, 0.0, random.uniform(-3600, 3600)])
    name = f"S{len(world.sidecars)}"
    sidecar = random.choice(_alive(world)) if random.random() < 0.6 else world.sidecar(name, skew)
    sidecar.join(f"j{number}", _client(random), room=random.choice([1000, 1000, 2]), node=random.randrange(3))
    return f"j{number} joins at {sidecar.name}"


def _leave(world: World, random: Random, number: int) -> str:
    if len(there := _there(world)) < 2:
        return ""
    session = random.choice(there)
    way = random.choice([session.sidecar.cancel, session.sidecar.drop])
    way(session.member.id)
    return f"{session.member.id} leaves by {way.__name__}"


def _one_way(world: World, random: Random, number: int) -> str:
    sender, receiver = random.choice(_alive(world)), random.choice(_alive(world))
    world.lost[sender.name, receiver.name] = random.choice([0.5, 1.0])
    _later(world, random, 8, world.lost.clear, "all is heard again")
    return f"{receiver.name} does not hear {sender.name}"


def _late(world: World, random: Random, number: int) -> str:
    world.late = (0.01, random.choice([1.0, 5.0]))

    def in_time() -> None:
        world.late = (0.002, 0.01)

    _later(world, random, 10, in_time, "beats come in time")
    return f"beats are up to {world.late[1]} s late"


def _no_queue(world: World, random: Random, number: int) -> str:
    sidecar = random.choice(_alive(world))
    sidecar.disconnect()
    _later(world, random, 6, lambda: sidecar.connect() if sidecar.is_alive else None, f"{sidecar.name} beats again")
    return f"{sidecar.name} has no queue"


def _alarm(world: World, random: Random, number: int) -> str:
    world.alarm = True

    def over() -> None:
        world.alarm = False

    _later(world, random, 15, over, "the alarm is over")
    return "an alarm"


def _other_ring(world: World, random: Random, number: int) -> str:
    sidecar, queue = random.choice(_alive(world)), random.choice(list(world.queues))
    if len(sidecar.ring) < 2:
        return ""
    sidecar.group.missing(queue, world.now)
    sidecar.follow(sidecar.ring - {queue})

    def whole() -> None:
        if sidecar.is_alive:
            sidecar.follow(set(world.queues))

    if random.random() < 0.7:
        _later(world, random, 10, whole, f"the ring of {sidecar.name} is whole")
    return f"the ring of {sidecar.name} lacks {queue}"


def _refuse(world: World, random: Random, number: int) -> str:
    if not (there := _there(world)):
        return ""
    session, queue = random.choice(there), random.choice(list(world.queues))
    pair = session.member.id, queue
    pairs = random.choice([world.denied, world.hanging])
    pairs.add(pair)

    def allow() -> None:
        pairs.discard(pair)
        if (pause := session.member.pauses.get(queue)) is not None:
            world.paused[pair] = min(pause.until, world.now + 60.0)

    if random.random() < 0.7:
        _later(world, random, 20, allow, f"{pair[0]} may have {queue}")
    return f"{pair[0]} may not have {queue}"


def _stall(world: World, random: Random, number: int) -> str:
    if not (there := _there(world)):
        return ""
    session = random.choice(there)
    session.client.acks = False
    world.ack_timeout = 4.0

    def acks() -> None:
        session.client.acks = True
        world.ack_timeout = 600.0

    _later(world, random, 12, acks, f"{session.member.id} acks")
    return f"{session.member.id} does not ack"


def _node(world: World, random: Random, number: int) -> str:
    world.lose_node(random.randrange(3), random.uniform(0.5, 8.0), random.choice([2.0, 60.0]))
    return "a node"


def _new_shard(world: World, random: Random, number: int) -> str:
    name = f"s{len(world.queues):02}"
    world.queues[name] = Queue(name)
    for sidecar in _alive(world):
        world.after(random.uniform(0.0, 8.0), partial(_see, sidecar, name))
    world.over = max(world.over, world.now + 8.0)
    world.after(8.0, lambda: world.disturb(f"all have seen {name}"))
    return f"{name} is new"


def _see(sidecar: Sidecar, shard: str) -> None:
    if sidecar.is_alive:
        sidecar.follow(sidecar.ring | {shard})


def _later(world: World, random: Random, most: float, do: Callable[[], object], what: str) -> None:
    def later() -> None:
        do()
        world.disturb(what)

    seconds = random.uniform(0.5, most)
    world.over = max(world.over, world.now + seconds)
    world.after(seconds, later)


DISTURBANCES: dict[Disturbance, int] = {
    _kill: 4, _join: 5, _leave: 4, _one_way: 2, _late: 1, _no_queue: 2, _alarm: 1, _other_ring: 1, _refuse: 2,
    _stall: 1, _node: 2, _new_shard: 1,
}  # fmt: skip
"""The disturbances and how often each comes, beside the others."""


QUIET, LONGEST, WATCHED = 6.0, 75.0, 6.0
"""Seconds without a change after which a world is at rest, seconds after which it must be, and those in which its rest
is watched."""

CHUNK = 1_000
"""The runs that one line of the command tells of."""

EACH = 50
"""One of so many runs rests for `LONGEST` in any case, which tries whether a world that is quiet stays so."""


def disturbed(seed: int, *, pauses: bool = False) -> World:
    """Return a world after a random life and a rest, with what was wrong in `faults`.

    With `pauses` operators pause and resume shards meanwhile, and resume all before the rest.
    """
    random = Random(seed)
    world = World(seed, shards=random.choice([3, 7, 12]), prefetch=random.choice([1, 5, 10]))
    world.bound, world.leave_timeout = 11.0, 8.0
    for number in range(random.choice([2, 3, 4])):
        sidecar = world.sidecar(f"S{number}", random.choice([0.0, 0.0, random.uniform(-5, 5)]))
        for each in range(random.choice([1, 2])):
            sidecar.join(f"m{number}{each}", _client(random), node=random.randrange(3))
    world.idle |= {name for name in world.queues if random.random() < 0.3}
    if pauses:
        _pause(world, Random(f"{seed} paused"))
    kinds, weights = list(DISTURBANCES), list(DISTURBANCES.values())
    for number in range(random.randrange(3, 12)):
        world.run(random.choice([0.05, 0.3, 1.0, 2.5, 6.0]))
        if what := random.choices(kinds, weights)[0](world, random, number):
            world.disturb(what)
    world.run(max(world.over - world.now, 0.0) + 2.0)
    world.disturb("rest")
    _rest(world, always=seed % EACH == 0)
    _judge_rest(world)
    return world


def _pause(world: World, random: Random) -> None:
    at = 0.0
    for _ in range(random.randrange(1, 8)):
        at += random.choice([0.1, 1.0, 5.0, 20.0]) * random.random()
        shard = random.choice(["", *world.queues])
        # One that reads an order three seconds late takes the shards for orphans meanwhile.
        late = [random.choice([0.01, 0.01, 3.0]) * random.random() for _ in range(7)]
        world.after(at, world.order, random.choice([Verb.PAUSE, Verb.PAUSE, Verb.RESUME]), shard, late)
    world.over = at + random.choice([0.5, 15.0])
    world.after(world.over, world.order, Verb.RESUME, "")
    world.over += 3.0


def _rest(world: World, *, always: bool) -> None:
    """Let time go by until nothing changes by itself any more, or for `LONGEST` seconds, or `always` for so long.

    Refusals have pauses of up to a minute. While no pause or other limit of time runs, and no link and no consumer has
    changed for `QUIET` seconds, nothing is left that could change: all else happens within `BEATS_UNTIL_GONE` beats.
    """
    world.is_calm = True
    until = world.now + LONGEST
    while world.now < until and (always or world.now - world.changed < QUIET or world.is_waiting):
        world.run(1.0)


def _judge_rest(world: World) -> None:
    since = world.now
    world.run(WATCHED)
    if moves := world.moves(since):
        world.fault("moves at rest", moves)
    kept = sum(queue.kept for queue in world.queues.values())
    if kept:
        world.fault("kept", kept)
    there = _there(world)
    limited = world.denied or world.hanging or any(session.room < 100 for session in there)
    is_whole = all(session.sidecar.ring == world.queues.keys() for session in there)
    if there and not limited and is_whole and not world.is_balanced():
        consumers = {
            queue.name: [(each.session.member.id, each.link.state) for each in queue.consumers]
            for queue in world.queues.values()
            if len(queue.consumers) != 1
        }
        world.fault("not balanced", world.counts(), consumers)


def main(count: int, first: int, *, pauses: bool) -> None:
    """Print for every `CHUNK` seeds what was wrong in how many runs, and each such seed with its last disturbances.

    A command that was stopped goes on from the first seed of which no chunk was printed.
    """
    for start in range(first, first + count, CHUNK):
        seeds = range(start, min(start + CHUNK, first + count))
        kinds: Counter[object] = Counter()
        slowest = 0.0
        for seed in seeds:
            world = disturbed(seed, pauses=pauses)
            slowest = max(slowest, world.slowest)
            found = {fault[1]: fault for fault in reversed(world.faults)}
            for fault in found.values():
                print(f"seed {seed}: {fault}; {world.log[-6:]}")
            kinds.update(found.keys())
        wrong = dict(kinds) or "nothing wrong"
        print(f"seeds {seeds[0]} to {seeds[-1]}: {wrong}; longest without consumer {slowest:.1f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pauses="pauses" in sys.argv)
