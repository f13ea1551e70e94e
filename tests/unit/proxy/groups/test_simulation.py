"""Many members in several sidecars on a model of the broker: they find a balance, keep it, and move little."""

from random import Random

import pytest

from tests.unit.proxy.groups.world import GHOST, STEP, World

PROMISE = 5.0
"""Seconds within which a group is balanced after a member has joined or left; a prefetch is acked at once here."""

SILENCE = 5.0
"""Seconds until the others take a sidecar for gone that has crashed: four beats, and the calm before a decision."""


def grown(world: World, members: int, sidecars: int = 2) -> None:
    """Let members join one after the other, each in the next sidecar, until they are balanced."""
    for number in range(members):
        name = f"sidecar-{number % sidecars}"
        (world.sidecars.get(name) or world.sidecar(name)).join(f"member-{number}")
        world.run(PROMISE)
        assert world.is_balanced()
    world.forget()


@pytest.mark.parametrize("seed", range(5))
def test_a_member_that_joins_gets_its_quota_and_nothing_else_moves(seed: int) -> None:
    world = World(12, Random(seed))
    grown(world, 3)
    world.sidecar("another").join("newcomer")
    world.run(PROMISE)
    assert world.counts() == [3, 3, 3, 3]
    moved = [move for shard in world.shards.values() for move in shard.takeovers]
    assert len(moved) == 3
    assert {to for _, to in moved} == {"newcomer"}
    world.forget()
    world.run(60)
    assert (world.raises(), world.takeovers()) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_only_the_shards_of_a_member_that_leaves_move(seed: int) -> None:
    world = World(12, Random(seed))
    grown(world, 4)
    before = world.actives()
    world.sidecars["sidecar-1"].leave("member-1")
    world.run(PROMISE)
    assert world.counts() == [4, 4, 4]
    after = world.actives()
    assert {before[shard] for shard in before if before[shard] != after[shard]} == {"member-1"}
    world.forget()
    world.run(60)
    assert (world.raises(), world.takeovers()) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_only_the_shards_of_a_sidecar_that_crashes_move(seed: int) -> None:
    world = World(13, Random(seed))
    grown(world, 4, sidecars=4)
    before = world.actives()
    world.crash("sidecar-2")
    world.run(SILENCE + PROMISE)
    assert world.counts() == [4, 4, 5]
    after = world.actives()
    assert {before[shard] for shard in before if before[shard] != after[shard]} == {"member-2"}
    world.forget()
    world.run(60)
    assert (world.raises(), world.takeovers()) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_balance_is_found_and_kept(seed: int) -> None:
    """Joins, leaves and crashes come at random, beats come late or never; then it is quiet."""
    random = Random(seed)
    world = World(random.randint(1, 30), random, latest=random.choice([0.05, 0.5, 1.5]), lost=random.choice([0, 0.2]))
    numbers = iter(range(1000))
    for _ in range(random.randint(5, 25)):
        match random.choice(["join", "join", "leave", "crash", "wait"]):
            case "join":
                name = f"sidecar-{random.randrange(4)}"
                (world.sidecars.get(name) or world.sidecar(name)).join(f"member-{next(numbers)}", random.randint(1, 20))
            case "leave" if world.members:
                gone = random.choice(sorted(world.members))
                next(each for each in world.sidecars.values() if gone in each.state.local).leave(gone)
            case "crash" if world.sidecars:
                world.crash(random.choice(sorted(world.sidecars)))
            case _:
                pass
        world.run(random.choice([0.0, 0.05, 0.4, 3.0, 10.0]))
    world.run(90)
    assert world.is_balanced()
    world.forget()
    world.run(60)
    assert world.is_balanced()
    if not world.lost:
        assert (world.raises(), world.takeovers()) == (0, 0)


@pytest.mark.parametrize("are_others_stuck", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_member_that_acks_nothing_loses_its_shards_to_whom_the_broker_chooses(
    seed: int, are_others_stuck: bool
) -> None:
    """These claim them, also if they ack nothing; nothing is raised. It has as many again once all ack."""
    random = Random(seed)
    world = World(12, random)
    grown(world, 6)
    name = f"member-{random.randrange(6)}"
    sidecar = next(each for each in world.sidecars.values() if name in each.state.local)
    world.stuck = {name}
    world.run(5.0)
    if are_others_stuck:
        world.stuck = {f"member-{number}" for number in range(6)}
    member = sidecar.state.local[name]
    for shard in [shard for shard, link in member.links.items() if link.unacked]:
        sidecar.release(member, shard, until=world.now + 5.0)
    released, agreed = world.now, False
    while not agreed:
        world.run(STEP)
        agreed = all(each.state.claims.holders == world.actives() for each in world.sidecars.values())
        assert world.now < released + 4.0
    assert name not in world.actives().values()
    world.run(random.uniform(0.0, 10.0))
    world.stuck = set()
    world.run(5.0 + PROMISE)
    assert world.counts() == [2] * 6
    assert world.raises() == 0


def test_a_shard_whose_holder_acks_nothing_moves_once_that_acks() -> None:
    world = World(4, Random(1))
    grown(world, 1)
    world.stuck = {"member-0"}
    world.run(1)
    world.sidecar("another").join("newcomer")
    world.run(20)
    assert world.counts() == [0, 4]
    assert world.raises() == 0
    moves = world.sidecars["another"].state.decision.moves
    assert [(move.holder, move.target, move.why) for move in moves] == 2 * [
        ("member-0", "newcomer", "the old member has yet to ack 5 of its messages")
    ]
    world.stuck = set()
    world.run(PROMISE)
    assert world.counts() == [2, 2]
    assert world.sidecars["another"].state.decision.moves == []


def test_nobody_moves_shards_while_no_beats_come_through_and_the_group_is_as_it_was_afterwards() -> None:
    """As while the broker has a memory alarm: publishes wait, consumers go on."""
    world = World(12, Random(1))
    grown(world, 4)
    before, send = world.actives(), world.send
    world.send = lambda body: None  # type: ignore[method-assign]
    world.run(30)
    assert (world.actives(), world.raises()) == (before, 0)
    world.send = send  # type: ignore[method-assign]
    world.run(30)
    assert (world.actives(), world.raises()) == (before, 0)


def test_a_sidecar_that_hears_nobody_yet_takes_nothing() -> None:
    world = World(12, Random(1))
    grown(world, 2)
    late = world.sidecar("late")
    late.is_deaf = True
    late.join("newcomer")
    world.run(20)
    assert world.counts() == [0, 6, 6]
    late.is_deaf = False
    world.run(PROMISE)
    assert world.counts() == [4, 4, 4]


def test_the_shards_of_a_sidecar_that_is_not_heard_for_a_while_go_to_the_others_and_come_back() -> None:
    world = World(12, Random(1))
    grown(world, 2)
    world.sidecars["sidecar-1"].is_deaf = True
    world.run(60)
    assert world.counts() == [0, 12]
    world.sidecars["sidecar-1"].is_deaf = False
    world.run(2 * PROMISE)
    assert world.counts() == [6, 6]


def test_a_shard_that_comes_is_consumed_and_one_that_goes_leaves_a_balance() -> None:
    world = World(6, Random(1))
    grown(world, 3)
    shard = world.shards.pop("orders.00")
    for sidecar in world.sidecars.values():
        for member in sidecar.state.local.values():
            shard.close(member.links.pop("orders.00"))
            sidecar.state.link_ended(member.id, "orders.00", "404 NOT_FOUND", is_missing=True, now=world.now)
    world.run(PROMISE)
    assert world.counts() == [1, 2, 2]
    world.shards["orders.00"] = type(shard)("orders.00")
    world.run(PROMISE)
    assert world.counts() == [2, 2, 2]


def test_shards_that_have_left_the_ring_are_consumed_on_and_nothing_moves_to_and_fro() -> None:
    """A sidecar that comes later has never seen them, and so lets none of its members consume them."""
    world = World(16, Random(1))
    grown(world, 2)
    world.ring -= {"orders.00", "orders.01", "orders.02", "orders.03"}
    world.run(PROMISE)
    late = world.sidecar("late")
    late.join("newcomer")
    world.run(60)
    assert world.actives().keys() == world.shards.keys()
    assert not {"orders.00", "orders.01", "orders.02", "orders.03"} & late.state.local["newcomer"].links.keys()
    world.forget()
    world.run(60)
    assert (world.raises(), world.takeovers()) == (0, 0)


def ghosts(world: World) -> list[str]:
    return [shard.name for shard in world.shards.values() for link in shard.links if link.member.id == GHOST]


@pytest.mark.parametrize("seed", range(5))
def test_whoever_ends_in_the_midst_of_a_move_leaves_no_consumer_that_the_broker_keeps(seed: int) -> None:
    """The old member gives the shard up, and nobody waits above it meanwhile."""
    world = World(6, Random(seed))
    grown(world, 3, sidecars=3)
    world.stuck = set(world.members)
    world.run(1)
    world.sidecar("sidecar-4").join("newcomer")
    while not (moving := [member for member in world.members.values() if member.held]):
        world.turn()
    assert world.raises() == 0
    world.run(4 * STEP)
    world.crash("sidecar-4")
    world.crash(moving[0].id.replace("member", "sidecar"))
    assert not ghosts(world)
    world.stuck = set()
    for _ in range(round((SILENCE + PROMISE) / STEP)):
        world.turn()
        assert not ghosts(world)
    assert sorted(world.counts()) == [3, 3]


@pytest.mark.parametrize("leaving", ["leave", "crash"])
def test_a_consumer_that_the_broker_keeps_never_gets_a_shard(leaving: str) -> None:
    """A sidecar is not heard, so others raise its shards, and it ends. These leave later: those who waited go on."""
    world = World(6, Random(1))
    grown(world, 2)
    world.stuck = {"member-1"}
    world.sidecar("sidecar-3").join("newcomer")
    world.run(1)
    world.sidecars["sidecar-1"].is_deaf = True
    world.run(60)
    world.crash("sidecar-1")
    assert ghosts(world)
    world.run(SILENCE + PROMISE)
    world.sidecars["sidecar-3"].leave("newcomer") if leaving == "leave" else world.crash("sidecar-3")
    world.run(SILENCE + 2 * PROMISE)
    assert world.counts() == [6]
    assert GHOST not in world.actives().values()
