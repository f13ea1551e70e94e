"""The result of one reading of an exchange."""

from typing import Any
from unittest.mock import Mock

import pytest

from proxy.groups.shard_readings import queues_of
from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH
from proxy.topology.entry_builder import DEAD_LETTER_READS
from proxy.topology.table import Entry, PassReason, Unread
from ring.destination import Destination
from ring.ring import Ring
from tests.unit.proxy.fake_management import FakeManagement, binding
from tests.unit.proxy.topology.scheduling import A, B, Clock, X, scheduling, warnings

INTERNAL = PassReason.INTERNAL_DESTINATION


async def test_a_look_up_makes_a_ring(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a", "1"), binding("b", "2"), arguments={"hash-header": "h"})
    async with scheduling(fake) as made:
        assert made.router.entries == {}
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1, B: 2}
        entry = made.entry
        assert entry.known is not None
        assert (entry.known.ring.table == Ring.build({A: 1, B: 2}).table).all()
        assert str(entry.known.hashed) == "header:h"
        assert (entry.passed, entry.exchange_type, entry.dead_letters) == (None, CONSISTENT_HASH, ())
        (change,) = entry.changes
        assert (change.why, change.moved, change.fingerprint) == ("first use", 0.0, entry.known.fingerprint)
        assert made.reader.results == {"ok": 1}
        assert made.reader.changes == {X: 1}


@pytest.mark.parametrize(
    ("bindings", "fields", "settings", "reason"),
    [
        ([binding("a")], {}, {}, None),
        ([binding("a")], {"type": MODULUS_HASH}, {}, None),
        ([binding("a")], {"type": "fanout"}, {}, PassReason.TYPE),
        ([], {}, {}, PassReason.NO_BINDINGS),
        ([binding("a", "abc")], {}, {}, PassReason.NO_BINDINGS),
        ([binding("a")], {}, {"pass_": ("x",)}, PassReason.MODE_PASS),
        ([binding("a")], {}, {"route": ()}, PassReason.MODE_PASS),
        ([binding("a")], {}, {"shadow": ("x",)}, PassReason.SHADOW),
        ([binding("inner", "1", "exchange")], {}, {}, INTERNAL),
        ([binding("open", "1", "exchange")], {}, {}, None),
        ([binding("lane", "1", "exchange")], {}, {}, None),
        ([binding("lane", "1", "exchange")], {}, {"pass_": ("x",)}, PassReason.MODE_PASS),
        ([binding("empty", "1", "exchange")], {}, {}, PassReason.NO_BINDINGS),
        ([binding("aside", "1", "exchange")], {}, {}, PassReason.NOT_A_LANE),
        ([binding("a"), binding("aside", "1", "exchange")], {}, {"shadow": ("x",)}, PassReason.NOT_A_LANE),
        ([binding("a"), binding("aside", "no weight", "exchange")], {}, {}, None),
        ([binding("aside", "1", "exchange"), binding("inner", "1", "exchange")], {}, {}, INTERNAL),
        ([binding("a"), binding("dead")], {}, {}, PassReason.DEAD_LETTER),
        ([binding("a"), binding("dead")], {}, {"on_dead_letter": "rewrite"}, None),
        ([binding("a"), binding("dead")], {}, {"shadow": ("x",)}, PassReason.DEAD_LETTER),
        ([binding("a"), binding("dead lane", "1", "exchange")], {}, {}, None),
        ([binding("dead"), binding("dead lane", "1", "exchange")], {}, {}, None),
    ],
)
async def test_what_is_passed_and_why(
    fake: FakeManagement,
    bindings: list[dict[str, Any]],
    fields: dict[str, Any],
    settings: dict[str, Any],
    reason: PassReason | None,
) -> None:
    fake.exchange("x", *bindings, **fields)
    fake.exchange("inner", type="fanout", internal=True)
    fake.exchange("open", type="topic")
    fake.exchange("lane", binding("a", ""), type="fanout")
    fake.exchange("dead lane", binding("dead", ""), type="fanout")
    fake.exchange("empty", type="fanout")
    fake.exchange("aside", binding("a", ""), binding("b", ""), type="fanout")
    fake.queues["/", "dead"] = {"effective_policy_definition": {"dead-letter-exchange": "d"}}
    async with scheduling(fake, **settings) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is reason
        assert made.routes() is (reason is None)


async def test_a_modulus_hash_exchange_weighs_a_queue_by_its_bindings(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a", "abc"), binding("b", "7"), binding("a", "d"), type=MODULUS_HASH)
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 2, B: 1}


async def test_bad_weights_and_duplicates_are_listed_and_told_once(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a", "2"), binding("a", "5"), binding("b", "500000000"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        await made.scheduler.read_again(X, "test")
        assert made.weights() == {A: 5}
        assert [b.destination for b in made.entry.bindings.ignored] == [B]
        assert made.entry.bindings.duplicates == (A,)
    assert len(warnings(caplog)) == 2


async def test_dead_letter_queues_are_listed_and_looked_at_again(fake: FakeManagement, clock: Clock) -> None:
    names = [f"q{i:02}" for i in range(DEAD_LETTER_READS + 3)]
    fake.exchange("x", *(binding(name) for name in names))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert all(fake.counted()[f"/api/queues/%2F/{name}"] == 1 for name in names)
        fake.queues["/", names[-1]] = {"arguments": {"x-dead-letter-exchange": "d"}}
        for _ in range(-(-len(names) // DEAD_LETTER_READS)):
            clock.now += 1
            fake.requests.clear()
            await made.scheduler.read_again(X, "test")
            assert sum(fake.counted()[f"/api/queues/%2F/{name}"] for name in names) == DEAD_LETTER_READS
        assert made.entry.dead_letters == (names[-1],)
        assert made.entry.passed is PassReason.DEAD_LETTER
        # Another with the dead-letter exchange is bound and seen at once; unbound, the first is forgotten.
        fake.queues["/", "new"] = {"arguments": {"x-dead-letter-exchange": "d"}}
        fake.exchange("x", *(binding(name) for name in (*names[:-1], "new")))
        clock.now += 1
        await made.scheduler.read_again(X, "test", {Destination("queue", names[-1])})
        assert made.entry.dead_letters == ("new",)


async def test_an_exchange_is_routed_again_with_the_reading_after_its_last_queue_is_mended(
    fake: FakeManagement, clock: Clock
) -> None:
    names = [f"q{i:02}" for i in range(4 * DEAD_LETTER_READS)]
    fake.exchange("x", *(binding(name) for name in names))
    for name in names:
        fake.queues["/", name] = {"arguments": {"x-dead-letter-exchange": "d"}}
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        # While the first ones dead-letter, the others are not asked about.
        clock.now += 1
        fake.requests.clear()
        await made.scheduler.read_again(X, "test")
        assert sum(fake.counted()[f"/api/queues/%2F/{name}"] for name in names) == DEAD_LETTER_READS
        assert made.entry.passed is PassReason.DEAD_LETTER
        for name in names:
            del fake.queues["/", name]
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.routes()


async def test_dead_letters_are_refused_where_so_set(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    fake.exchange("watched", binding("b"))
    dies = {"policy": "dead", "effective_policy_definition": {"dead-letter-exchange": "d"}}
    async with scheduling(fake, on_dead_letter="refuse", shadow=("watched",)) as made:
        await made.scheduler.look_up(X, 10)
        assert made.routes()
        fake.queues["/", "b"] = dies
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        why = (
            "queue 'b' would dead-letter under its own name (policy 'dead'): give it a dead-letter-routing-key, or set"
            " on_dead_letter = rewrite or pass"
        )
        assert made.router.look(X) == Unread(X, why, refused=True)
        assert warnings(caplog) == [f"exchange 'x' in virtual host '/': publishes are refused: {why}"]
        # An exchange that is only watched goes on as it does without the sidecar.
        await made.scheduler.look_up(("/", "watched"), 10)
        assert isinstance(made.router.look(("/", "watched")), Entry)
        del fake.queues["/", "b"]
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.routes()


async def test_a_type_that_changes(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"), type="fanout")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert (made.entry.passed, made.weights()) == (PassReason.TYPE, None)
        assert made.entry.changes[-1].moved == 1.0
        fake.exchange("x", binding("b"), type=MODULUS_HASH)
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        # Nothing of what it was before is left.
        assert (made.entry.passed, made.weights()) == (None, {B: 1})
        assert made.entry.exchange_type == MODULUS_HASH
        assert len(made.entry.changes) == 3


async def test_what_the_broker_counts_is_kept_and_makes_no_ring_anew(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.publish_in is None
        told = Mock()
        made.router.on_change.append(told)
        known, requests = made.entry.known, len(fake.requests)
        for count in (7, 9, 2):
            fake.exchange("x", binding("a"), message_stats={"publish_in": count})
            clock.now += 1
            await made.scheduler.read_again(X, "test")
            assert made.entry.publish_in == count
        assert made.entry.known is known
        told.assert_not_called()
        # The exchange, its bindings, its queue: no request more than without.
        assert len(fake.requests) == requests + 3 * 3
        # Gone, but not settled: nothing is said of it.
        fake.delete("x")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.entry.publish_in is None
        assert made.weights() == {A: 1}


async def test_arguments_that_change_make_another_ring(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"), arguments={"hash-property": "message_id"})
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.entry.known is not None
        assert str(made.entry.known.hashed) == "property:message_id"
        assert "hashes property:message_id" in made.entry.changes[-1].what


async def test_virtual_hosts_are_apart(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    fake.exchange("x", binding("b"), vhost="a/b")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        await made.scheduler.look_up(("a/b", "x"), 10)
        assert (made.weights(), made.weights(("a/b", "x"))) == ({A: 1}, {B: 1})


@pytest.mark.parametrize("groups", [(), ("x",)])
async def test_the_lanes_of_an_exchange_that_passes_are_read_for_its_group(
    fake: FakeManagement, groups: tuple[str, ...]
) -> None:
    """A sidecar for consumers only passes what is published; its members need the queues behind the lanes."""
    fake.exchange("x", binding("lane", "1", "exchange"))
    fake.exchange("lane", binding("a", ""), type="fanout")
    async with scheduling(fake, pass_=("x",), groups=groups) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.mode is Mode.PASS
        assert queues_of(made.entry, "x", "x") == (["a"] if groups else [])
