"""Many members in several sidecars on a model of the broker: balance, order, and shards that do not stand still."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from proxy.groups.attempts import Attempt
from proxy.groups.model import TABLE, LinkEvent, LinkState, entered
from proxy.groups.pauses import Verb
from proxy.groups.timing import BEAT, LONGEST_ENDING
from tests.unit.proxy.groups.disturbances import disturbed
from tests.unit.proxy.groups.world import Client, Queue, World

SEEDS = range(3)


def grown(seed: int, sidecars: int = 3, members: int = 2, *, shards: int = 12, client: Client | None = None) -> World:
    """Return a world at rest, whose sidecars have so many members each."""
    world = World(seed, shards)
    for number in range(sidecars):
        sidecar = world.sidecar(f"S{number}")
        for each in range(members):
            sidecar.join(f"m{number}{each}", client)
    world.run(15)
    assert world.is_balanced()
    assert world.faults == []
    return world


def at_rest(world: World, seconds: float = 20.0) -> None:
    """Let time go by; then the group is balanced, nothing was wrong, and RabbitMQ has kept no consumer."""
    world.run(seconds)
    assert world.faults == []
    assert world.is_balanced()
    assert not any(queue.kept for queue in world.queues.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_joins_gets_its_share_and_nothing_else_moves(seed: int) -> None:
    world = grown(seed, shards=13)
    since = world.now
    world.disturb("a join")
    world.sidecar("S9").join("newcomer")
    at_rest(world)
    assert world.moves(since) <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_join_while_clients_ack_slowly(seed: int) -> None:
    world = grown(seed, members=1, client=Client(3.0))
    since = world.now
    world.disturb("two joins")
    for name in ("n0", "n1"):
        world.sidecar(f"S-{name}").join(name)
    at_rest(world)
    assert world.moves(since) <= 5


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_shards_of_a_sidecar_that_is_killed_move_and_within_three_seconds(seed: int) -> None:
    world = grown(seed)
    since = world.now
    world.disturb("a kill")
    world.sidecars["S0"].kill()
    world.slowest = 0.0
    at_rest(world)
    assert world.moves(since) == 4
    assert world.slowest < 3.0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_target_dies_while_the_owners_wait_for_acks(seed: int) -> None:
    world = grown(seed, members=1, client=Client(4.0))
    sidecar = world.sidecar("S9")
    sidecar.join("n0")
    world.run(world.random.uniform(0.5, 2.0))
    world.bound = 9.0
    world.disturb("the target is killed")
    sidecar.kill()
    at_rest(world, 30)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_acks_by_fives_holds_a_shard_back_no_longer_than_it_may(seed: int) -> None:
    """The acks that the client withholds while the link is LEAVING never fill its batch."""
    world = grown(seed, 2, 1, shards=3, client=Client(batch=5))
    world.leave_timeout, world.bound = 5.0, 8.0
    world.disturb("a join")
    world.sidecar("S9").join("n0")
    at_rest(world, 30)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_only_member_that_did_not_ack_gets_its_shards_again(seed: int) -> None:
    world = grown(seed, 1, 1)
    (session,) = world.sessions
    world.ack_timeout, session.client.acks = 4.0, False
    world.run(5.0)
    session.client.acks, world.ack_timeout = True, 600.0
    world.disturb("it acks again")
    at_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_without_channels_for_all_its_shards(seed: int) -> None:
    world = World(seed)
    sidecar = world.sidecar("S0")
    sidecar.join("few", room=2)
    world.sidecar("S1").join("many")
    world.bound = 8.0
    world.run(40)
    assert world.faults == []
    assert world.counts() == [2, 10]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_may_not_have_a_shard_and_no_moves_go_round(seed: int) -> None:
    world = grown(seed, members=1, shards=7)
    world.denied.add(("m00", "s03"))
    session = next(each for each in world.sessions if each.member.id == "m00")
    session.give_up("s03")
    world.disturb("m00 may not have s03")
    world.run(20)
    since = world.now
    world.run(60)
    assert (world.faults, world.moves(since)) == ([], 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_rings_differ_nothing_goes_round_and_all_is_consumed(seed: int) -> None:
    world = grown(seed)
    world.queues["s12"] = Queue("s12")
    world.sidecars["S0"].follow(set(world.queues))
    world.disturb("one ring has a new shard")
    world.run(3)
    world.sidecars["S2"].kill()
    world.disturb("a kill")
    world.run(15)
    since = world.now
    world.run(40)
    assert (world.faults, world.moves(since)) == ([], 0)
    world.sidecars["S1"].follow(set(world.queues))
    world.disturb("the rings agree")
    at_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_does_not_hear_another_moves_nothing_for_ever(seed: int) -> None:
    world = grown(seed)
    world.lost["S0", "S1"] = 1.0
    world.disturb("S1 does not hear S0")
    world.run(20)
    since = world.now
    world.run(30)
    assert (world.faults, world.moves(since)) == ([], 0)
    world.lost.clear()
    world.disturb("it hears again")
    at_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_no_beats_come_all_stay_and_what_nobody_consumes_is_found(seed: int) -> None:
    world = grown(seed)
    world.alarm = True
    world.disturb("an alarm")
    world.run(3)
    since = world.now
    world.sidecars["S1"].kill()
    world.bound = 9.0
    world.disturb("a kill")
    world.run(20)
    assert world.moves(since) == 4
    world.alarm = False
    world.disturb("the alarm is over")
    at_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_connection_for_beats_that_comes_back_moves_nothing(seed: int) -> None:
    world = grown(seed)
    since = world.now
    world.sidecars["S0"].disconnect()
    world.disturb("no beats of S0")
    # Three seconds are less than four beats, and its queue is there again when it is asked for twice.
    world.run(1.0)
    world.sidecars["S0"].connect()
    at_rest(world)
    assert world.moves(since) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_differ_by_an_hour(seed: int) -> None:
    world = World(seed)
    for number, skew in enumerate((-3600.0, 0.0, 3600.0)):
        sidecar = world.sidecar(f"S{number}", skew)
        for each in range(2):
            sidecar.join(f"m{number}{each}")
    at_rest(world)
    since = world.now
    world.disturb("a join")
    world.sidecar("S9", 7200.0).join("n0")
    at_rest(world)
    assert world.moves(since) <= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_members_that_come_and_go_within_a_second(seed: int) -> None:
    world = grown(seed)
    sidecars = [*world.sidecars.values(), world.sidecar("S9")]
    random = Random(seed)
    for number in range(10):
        sidecar = random.choice(sidecars)
        sidecar.join(f"c{number}")
        leave: Callable[[str], None] = random.choice([sidecar.cancel, sidecar.drop])
        world.after(random.uniform(0.05, 1.0), partial(leave, f"c{number}"))
        world.run(0.1)
    world.run(1.0)
    world.disturb("all have left again")
    at_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rolling_restart(seed: int) -> None:
    world = grown(seed, 4)
    random = Random(seed)
    for number in range(4):
        sidecar = world.sidecars[f"S{number}"]
        if random.random() < 0.5:
            for name in list(sidecar.sessions):
                sidecar.cancel(name)
            world.run(1.0)
        sidecar.kill()
        world.disturb("one is stopped")
        world.run(random.uniform(0.1, 2.0))
        again = world.sidecar(f"S{number} again")
        for each in range(2):
            again.join(f"m{number}{each} again")
        world.disturb("it is started")
        world.run(random.uniform(0.0, 2.0))
    at_rest(world)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_order_is_kept_and_a_balance_is_found(seed: int) -> None:
    """As `python -m tests.unit.proxy.groups.disturbances` tries by the thousand."""
    assert disturbed(seed).faults == []


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_what_is_paused_is_not_consumed_and_is_once_it_is_resumed(seed: int) -> None:
    assert disturbed(seed, pauses=True).faults == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pause_moves_no_other_shard_and_its_end_none_either(seed: int) -> None:
    world = grown(seed)
    since = world.now
    world.order(Verb.PAUSE, "s03")
    world.run(20)
    assert (world.faults, world.queues["s03"].consumers, world.moves(since)) == ([], [], 0)
    assert sorted(world.counts()) == [1, 2, 2, 2, 2, 2]
    world.order(Verb.RESUME, "")
    at_rest(world)
    assert world.moves(since) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_that_is_refused_does_not_take_the_last_channel_at_each_try_of_another(seed: int) -> None:
    """Both were tried at the same times, and the one that the broker refuses came first."""
    world = World(seed, shards=3)
    world.denied.add(("only", "s00"))
    world.sidecar("S0").join("only", room=2)
    world.run(40)
    assert world.faults == []
    assert world.counts() == [2]


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_owner_looks_at_a_shard_that_ends_and_no_shard_moves(seed: int) -> None:
    world = grown(seed)
    since, queue = world.now, world.queues["s03"]
    queue.has_command = True
    world.mark("s03")
    opened = queue.opened
    world.run(30)
    # The last acks before the marker may not have counted, and their messages come once more.
    assert queue.opened - opened <= 3
    queue.has_command, opened = False, queue.opened
    world.run(30)
    assert 2 <= queue.opened - opened <= 7
    assert (world.moves(since), world.faults, queue.consumers, queue.ready) == (0, [], [], [queue.marker])
    told = [sidecar.group.decision.owners["s03"] for sidecar in world.sidecars.values()]
    assert set(told) == {queue.actives[-1][1]}
    assert sum(sidecar.group.moves for sidecar in world.sidecars.values()) <= len(world.queues) + 6
    world.bound = LONGEST_ENDING + 2 * BEAT
    world.unmark("s03")
    at_rest(world)
    assert world.moves(since) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_that_ends_is_looked_at_by_another_member_once_its_owner_is_gone(seed: int) -> None:
    world = grown(seed)
    queue = world.queues["s03"]
    world.mark("s03")
    world.run(10)
    owner = queue.actives[-1][1]
    next(each for each in world.sessions if each.member.id == owner).sidecar.kill()
    world.disturb("the owner is killed")
    opened = queue.opened
    world.run(20)
    assert 3 <= queue.opened - opened <= 5
    world.bound = LONGEST_ENDING + 2 * BEAT
    world.unmark("s03")
    at_rest(world)


def test_a_seed_that_found_it() -> None:
    assert disturbed(23365).faults == []


@pytest.mark.parametrize("seed", [681, 2963, 3041, 28914])
def test_the_only_member_gets_a_shard_once_the_pause_after_its_last_refusal_is_over(seed: int) -> None:
    """Pauses double up to a minute, and the broker may allow the link right after one has begun, or right before.

    The judge took the shard for one that stands still, or took the world for one at rest as the pause ended.
    """
    assert disturbed(seed).faults == []


def test_the_world_takes_each_row_of_the_table_of_links_but_those_that_need_a_session() -> None:
    """The rows that the broker of the world never takes are taken by sessions, in `test_rows`."""
    entered.update(dict.fromkeys(entered, 0))
    world = World(0, shards=4)
    world.denied.add(("first", "s00"))
    world.sidecar("S0").join("first")
    world.run(5)
    slow = world.sidecar("S1")
    slow.join("slow", Client(5.0))
    world.run(5)
    world.hanging |= {("opening", shard) for shard in world.queues}
    slow.join("opening")
    world.run(2)
    slow.drop("opening")
    slow.cancel("slow")
    slow.drop("slow")
    session = world.sidecar("S2").join("closing", Client(100.0))
    world.run(5)
    for shard in list(session.member.links):
        session.give_up(shard)
    session.sidecar.drop("closing")
    world.sidecar("S3").join("last")
    world.run(5)
    world.sidecars["S3"].drop("last")
    by_sessions = {
        *((state, LinkEvent.CANCELLED) for state in (LinkState.OPENING, LinkState.OPEN, LinkState.LEAVING)),
        *((state, LinkEvent.REFUSED) for state in (LinkState.OPEN, LinkState.LEAVING, LinkState.CLOSING)),
        *((LinkState.CLOSING, event) for event in (LinkEvent.LET_GO, LinkEvent.GIVE_UP)),
        (LinkState.LEAVING, LinkEvent.CONSUMING),
        (LinkState.LEAVING, LinkEvent.ACKED),
        *(row for row in TABLE if row[0] is LinkState.FLUSHING),
        *((state, LinkEvent.LET_GO) for state in (LinkState.OPENING, LinkState.LEAVING)),
        *((state, LinkEvent.GIVE_UP) for state in (LinkState.OPENING, LinkState.LEAVING)),
    }
    assert {row for row in TABLE if not entered[row]} <= by_sessions


def test_a_client_that_crashes_with_a_message_of_a_shard_that_moves_is_counted_by_the_new_owner() -> None:
    world = World(0, shards=2)
    a = world.sidecar("a")
    a.join("m1", Client(slowest=60.0))
    world.run(5.0)
    b = world.sidecar("b")
    b.join("m2")
    world.run(5.0)
    (moving,) = [link for link in a.group.local["m1"].links.values() if link.state == LinkState.LEAVING]
    assert a.group.decision.owners[moving.shard] == b.group.decision.owners[moving.shard] == "m2"
    crash = Attempt(0, world.now, 1, is_alone=True)
    a.group.attempts.note_crash(moving.shard, "poison", world.now, is_alone=True)
    a.drop("m1")
    world.run(5.0)
    for each in (a.group, b.group):
        assert each.attempts.of(moving.shard, "poison") == crash
