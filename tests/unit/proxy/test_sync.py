import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from proxy import assembly
from proxy import sync as sync_module
from proxy.assembly import DEAD_LETTER_READS
from proxy.declared import OVERLAY_TIME, Bound, Declaration, ExchangeDeclared, ExchangeDeleted, QueueDeleted, Unbound
from proxy.lookups import Absent, NotReadable
from proxy.management import Management
from proxy.overlays import OVERLAY_KEPT
from proxy.router import Entry, Passed, PassReason, Routed, Router, Unknown
from proxy.selection import Selection
from proxy.sync import IDENTITY, Sync
from proxy.topology import CONSISTENT_HASH, MODULUS_HASH
from ring.destination import Destination
from ring.ring import Ring
from tests.unit.proxy.fake_management import (
    FakeManagement,
    Fault,
    Gate,
    binding,
    body,
    silent,
    status,
    truncated,
)

Name = tuple[str, str]

X: Name = ("/", "x")
OF_X = "/api/exchanges/%2F/x"
BINDINGS_OF_X = f"{OF_X}/bindings/source"
SETTLE = 2.0
LONG = 1000.0
A, B, C = (Destination("queue", name) for name in "abc")


class Clock:
    """Stands for `time` in sync.py, so that only what a test says lets time pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        # Never the same twice, as a real clock: what is asked later is told from what was asked before.
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sync_module, "time", made)
    return made


@dataclass
class Made:
    """A Sync and what it works on."""

    sync: Sync
    router: Router

    @property
    def entry(self) -> Entry:
        return self.router.entries[X]

    def waits(self) -> bool:
        """Whether a publish to X would have to wait for a reading."""
        return isinstance(self.router.decide(X, b"k"), Unknown)

    def weights(self, name: Name = X) -> dict[Destination, int] | None:
        """Of the ring in force; None where there is none."""
        entry = self.router.entries.get(name)
        return entry.known.ring.as_weights() if entry and entry.known else None


@asynccontextmanager
async def syncing(
    fake: FakeManagement,
    *,
    running: bool = False,
    interval: float = LONG,
    settle_time: float = SETTLE,
    route: tuple[str, ...] = ("*",),
    shadow: tuple[str, ...] = (),
    pass_: tuple[str, ...] = (),
    rewrite: bool = False,
    named: tuple[Name, ...] = (),
) -> AsyncIterator[Made]:
    """Without `running`, readings are made only where a test asks for them."""
    async with Management(fake.url, 10) as api:
        router = Router(LONG, refuse_stale=False, clock=lambda: float(vars(sync_module)["time"].monotonic()))
        sync = Sync(
            api,
            router,
            Selection(route, shadow, pass_),
            interval=interval,
            settle_time=settle_time,
            rewrite_dead_letters=rewrite,
            named=named,
        )
        task = asyncio.create_task(sync.run()) if running else None
        yield Made(sync, router)
        if task is not None:
            assert not task.done(), "run() ended by itself"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            if "LookUps._look" in repr(other):
                other.cancel()
        sync._assembly.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.005)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_clock_of_the_tests_is_the_one_that_is_replaced() -> None:
    assert vars(sync_module)["time"] is time


# What a reading makes of an exchange.


async def test_a_look_up_makes_a_ring(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a", "1"), binding("b", "2"), arguments={"hash-header": "h"})
    async with syncing(fake) as made:
        assert made.router.entries == {}
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1, B: 2}
        entry = made.entry
        assert entry.known is not None
        assert (entry.known.ring.table == Ring.build({A: 1, B: 2}).table).all()
        assert str(entry.known.hashed) == "header:h"
        assert (entry.passed, entry.exchange_type, entry.dead_letters) == (None, CONSISTENT_HASH, ())
        (change,) = entry.changes
        assert (change.why, change.moved, change.fingerprint) == ("first use", 0.0, entry.known.fingerprint)
        assert made.sync.results == {"ok": 1}
        assert made.sync.changes == {X: 1}


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
        ([binding("inner", "1", "exchange")], {}, {}, PassReason.INTERNAL_DESTINATION),
        ([binding("open", "1", "exchange")], {}, {}, None),
        ([binding("a"), binding("dead")], {}, {}, PassReason.DEAD_LETTER),
        ([binding("a"), binding("dead")], {}, {"rewrite": True}, None),
        ([binding("a"), binding("dead")], {}, {"shadow": ("x",)}, PassReason.DEAD_LETTER),
        ([binding("dead", "1", "exchange")], {}, {}, None),
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
    fake.exchange("open", type="fanout")
    fake.queues["/", "dead"] = {"effective_policy_definition": {"dead-letter-exchange": "d"}}
    async with syncing(fake, **settings) as made:
        await made.sync.look_up(X, 10)
        assert made.entry.passed is reason
        decision = made.router.decide(X, b"k")
        if reason is None:
            # A ring behind it would have to be read first.
            assert not isinstance(decision, Passed)
        else:
            assert isinstance(decision, Passed)
            assert decision.reason is reason
            assert (decision.shadow is not None) is (reason is PassReason.SHADOW)


async def test_a_modulus_hash_exchange_weighs_all_alike(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a", "abc"), binding("b", "7"), type=MODULUS_HASH)
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1, B: 1}


async def test_bad_weights_and_duplicates_are_listed_and_told_once(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a", "2"), binding("a", "5"), binding("b", "500000000"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        await made.sync.refresh(X, "test")
        assert made.weights() == {A: 5}
        assert [b.destination for b in made.entry.bindings.ignored] == [B]
        assert made.entry.bindings.duplicates == (A,)
    assert len(warnings(caplog)) == 2


async def test_dead_letter_queues_are_listed_and_looked_at_again(fake: FakeManagement, clock: Clock) -> None:
    names = [f"q{i:02}" for i in range(DEAD_LETTER_READS + 3)]
    fake.exchange("x", *(binding(name) for name in names))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        assert all(fake.counted()[f"/api/queues/%2F/{name}"] == 1 for name in names)
        fake.queues["/", names[-1]] = {"arguments": {"x-dead-letter-exchange": "d"}}
        for _ in range(-(-len(names) // DEAD_LETTER_READS)):
            clock.now += 1
            fake.requests.clear()
            await made.sync.refresh(X, "test")
            assert sum(fake.counted()[f"/api/queues/%2F/{name}"] for name in names) == DEAD_LETTER_READS
        assert made.entry.dead_letters == (names[-1],)
        assert made.entry.passed is PassReason.DEAD_LETTER
        # Another with the dead-letter exchange is bound and seen at once; unbound, the first is forgotten.
        fake.queues["/", "new"] = {"arguments": {"x-dead-letter-exchange": "d"}}
        fake.exchange("x", *(binding(name) for name in (*names[:-1], "new")))
        clock.now += 1
        await made.sync.refresh(X, "test", {Destination("queue", names[-1])})
        assert made.entry.dead_letters == ("new",)


async def test_a_type_that_changes(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"), type="fanout")
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert (made.entry.passed, made.weights()) == (PassReason.TYPE, None)
        assert made.entry.changes[-1].moved == 1.0
        fake.exchange("x", binding("b"), type=MODULUS_HASH)
        clock.now += 1
        await made.sync.refresh(X, "test")
        # Nothing of what it was before is left.
        assert (made.entry.passed, made.weights()) == (None, {B: 1})
        assert made.entry.exchange_type == MODULUS_HASH
        assert len(made.entry.changes) == 3


async def test_what_the_broker_counts_is_kept_and_makes_no_ring_anew(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        assert made.entry.publish_in is None
        told: list[Name] = []
        made.router.on_change.append(told.append)
        known, requests = made.entry.known, len(fake.requests)
        for count in (7, 9, 2):
            fake.exchange("x", binding("a"), message_stats={"publish_in": count})
            clock.now += 1
            await made.sync.refresh(X, "test")
            assert made.entry.publish_in == count
        assert made.entry.known is known
        assert told == []
        # The exchange, its bindings, its queue: no request more than without.
        assert len(fake.requests) == requests + 3 * 3
        # Gone, but not settled: nothing is said of it.
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.entry.publish_in is None
        assert made.weights() == {A: 1}


async def test_arguments_that_change_make_another_ring(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"), arguments={"hash-property": "message_id"})
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.entry.known is not None
        assert str(made.entry.known.hashed) == "property:message_id"
        assert "hashes property:message_id" in made.entry.changes[-1].what


async def test_virtual_hosts_are_apart(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    fake.exchange("x", binding("b"), vhost="a/b")
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        await made.sync.look_up(("a/b", "x"), 10)
        assert (made.weights(), made.weights(("a/b", "x"))) == ({A: 1}, {B: 1})


# What changes at once, and what must settle.


async def test_additions_and_weights_at_once_removals_after_the_settle_time(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        steps: list[tuple[float, list[dict[str, Any]], dict[Destination, int]]] = [
            (1, [binding("a"), binding("b"), binding("c")], {A: 1, B: 1, C: 1}),
            (1, [binding("a", "4"), binding("b"), binding("c")], {A: 4, B: 1, C: 1}),
            (1, [binding("a", "4"), binding("b")], {A: 4, B: 1, C: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b")], {A: 4, B: 1, C: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b")], {A: 4, B: 1}),
            # An unbind and a bind, with a reading between them.
            (1, [binding("a", "4")], {A: 4, B: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b", "9")], {A: 4, B: 9}),
            (SETTLE, [binding("a", "4")], {A: 4, B: 9}),
        ]
        for i, (later, bindings, weights) in enumerate(steps):
            clock.now += later
            fake.exchange("x", *bindings)
            await made.sync.refresh(X, f"step {i}")
            assert made.weights() == weights, i
        assert [change.why for change in made.entry.changes] == ["first use", "step 0", "step 1", "step 4", "step 6"]
        assert made.sync.changes[X] == 5
        assert made.sync.moved[X] == pytest.approx(sum(change.moved for change in made.entry.changes))


async def test_a_vouched_removal_counts_at_once_and_once(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"), binding("c"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"))
        clock.now += 1
        await made.sync.refresh(X, "a message was returned", {B})
        assert made.weights() == {A: 1, C: 1}
        assert made.entry.changes[-1].why == "a message was returned"
        fake.exchange("x", binding("a"), binding("b"), binding("c"))
        clock.now += 1
        await made.sync.refresh(X, "test")
        fake.exchange("x", binding("a"), binding("c"))
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.weights() == {A: 1, B: 1, C: 1}, "vouched for once, removed twice"


async def test_a_voucher_outlives_a_reading_that_fails(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"))
        fake.fail(status(500))
        clock.now += 1
        await made.sync.refresh(X, "test", {B})
        assert made.weights() == {A: 1, B: 1}
        fake.mend()
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.weights() == {A: 1}


async def test_a_settled_removal_takes_effect_without_waiting_for_the_interval(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake, running=True, settle_time=0.05, named=(X,)) as made:
        await eventually(lambda: made.weights() is not None)
        fake.exchange("x", binding("a"))
        await made.sync.refresh(X, "test")
        await eventually(lambda: made.weights() == {A: 1})


async def test_a_deleted_exchange_is_forgotten_after_the_settle_time(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.weights() == {A: 1, B: 1}
        assert isinstance(made.router.decide(X, b"k"), Routed)
        for _ in range(2):
            assert X in made.router.entries
            clock.now += SETTLE / 2
            await made.sync.refresh(X, "test")
        assert (dict(made.router.entries), made.sync._tracked) == ({}, {})
        assert made.sync.results["absent"] == 1
        with pytest.raises(Absent):
            await made.sync.look_up(X, 10)


async def test_of_a_deleted_exchange_what_is_vouched_for_goes_at_once(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "a message was returned", {A})
        assert made.weights() == {B: 1}
        assert made.entry.exchange_type == CONSISTENT_HASH


async def test_a_deleted_exchange_that_comes_back_in_time_moves_nothing(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        ring = made.entry.known
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        fake.exchange("x", binding("a"), binding("b"))
        clock.now += 1
        await made.sync.refresh(X, "test")
        clock.now += SETTLE
        await made.sync.refresh(X, "test")
        assert made.entry.known is ring


async def test_no_bindings_left_settle_too(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        for _ in range(2):
            assert made.weights() == {A: 1}
            clock.now += SETTLE / 2
            await made.sync.refresh(X, "test")
        assert (made.weights(), made.entry.passed) == (None, PassReason.NO_BINDINGS)


async def test_of_two_short_lies_with_failures_between_none_is_believed(fake: FakeManagement, clock: Clock) -> None:
    """What was there meanwhile nobody saw."""
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x")
        for fails in (False, False, True, False, False):
            clock.now += SETTLE / 2
            if fails:
                fake.fail(status(500), "/api/exchanges/%2F/x/")
            await made.sync.refresh(X, "test")
            fake.mend()
            assert made.weights() == {A: 1}
        assert made.sync.results["failed"] == 1
        fake.exchange("x", binding("a"))
        clock.now += SETTLE / 2
        await made.sync.refresh(X, "test")
        assert (made.weights(), made.sync._tracked[X].belief.missing) == ({A: 1}, {})


async def test_an_exchange_that_goes_before_its_first_reading_ends_was_never_there(
    fake: FakeManagement, clock: Clock
) -> None:
    """Its bindings were read and its queues could not be: there is no ring that could serve on."""
    fake.exchange("x", binding("a"))
    fake.fail(status(500), "/api/queues/%2F/a")
    async with syncing(fake, named=(X,)) as made:
        await made.sync.refresh(X, "test")
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert dict(made.router.entries) == {}
        assert (made.sync.results, made.sync.faults) == ({"failed": 1, "absent": 1}, {})


# What is not believed.


LIES: list[tuple[str, Fault, str]] = [
    ("down", status(500), "/api/"),
    ("401", status(401), "/api/"),
    ("403", status(403), "/api/"),
    ("429", status(429, headers={"Retry-After": "1"}), "/api/"),
    ("redirect", status(302, headers={"Location": "/"}), "/api/"),
    ("404 everywhere", status(404), "/api/"),
    ("no list of virtual hosts", status(404), "/api/exchanges/"),
    ("virtual host not listed", body([]), "/api/vhosts"),
    ("page of the exchange lost", status(404), OF_X),
    ("truncated", truncated(b"[]"), BINDINGS_OF_X),
    ("html", body(b"<html>"), BINDINGS_OF_X),
    ("null", body(b"null"), OF_X),
    ("an object", body({"error": "x"}), BINDINGS_OF_X),
    ("half of a list", body([binding("a"), {}]), BINDINGS_OF_X),
    ("a lone surrogate", body(b'{"type": "x-consistent-hash", "arguments": {"hash-header": "\\ud800"}}'), OF_X),
    ("queues not readable", status(500), "/api/queues/"),
]


@pytest.mark.parametrize(("fault", "where"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
async def test_the_last_good_ring_stays_and_its_age_shows(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture, fault: Fault, where: str
) -> None:
    caplog.set_level(logging.INFO, "proxy")
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        entry = made.entry
        caplog.clear()
        # So that every one of the lies has something to hide.
        fake.bindings[X] = []
        if where == BINDINGS_OF_X or where == "/api/queues/":
            fake.bindings[X] = [binding("a"), binding("c")]
        if where == "/api/vhosts":
            fake.delete("x")
        fake.fail(fault, where)
        for _ in range(3):
            clock.now += 10 * SETTLE
            await made.sync.refresh(X, "test")
            assert made.entry is entry
        assert made.router.clock() - made.entry.read_at > 30 * SETTLE
        assert made.sync.results == {"ok": 1, "failed": 3}
        assert list(made.sync.faults) == [X]
        (told,) = caplog.messages
        assert told.startswith("cannot read exchange 'x' in virtual host '/': ")
        assert "its last good state, 20 s old, stays" in told
        assert "hush" not in told
        caplog.clear()
        fake.mend()
        fake.exchange("x", binding("a"), binding("b"))
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert caplog.messages == ["exchange 'x' in virtual host '/' can be read again"]
        assert made.sync.faults == {}
        assert made.router.clock() - made.entry.read_at < 1


async def test_an_empty_list_told_once_moves_nothing(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.fail(body([]), BINDINGS_OF_X)
        clock.now += 1
        await made.sync.refresh(X, "test")
        fake.mend()
        clock.now += 10 * SETTLE
        await made.sync.refresh(X, "test")
        assert made.weights() == {A: 1, B: 1}
        assert len(made.entry.changes) == 1


async def test_a_management_api_that_is_gone_is_told_once_and_its_return_once(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy")
    fake.exchange("x", binding("a"))
    fake.fail(status(503))
    async with syncing(fake, running=True, interval=0.02, named=(X,)) as made:
        await eventually(lambda: made.sync.results["failed"] > 5 and fake.count("/cluster-name") > 5)
        assert sorted(warnings(caplog)) == [
            "cannot read exchange 'x' in virtual host '/': /api/cluster-name: 503",
            "the management API does not answer: /api/cluster-name: 503",
        ]
        assert made.sync.unreachable == "/api/cluster-name: 503"
        assert made.sync.cluster != "rabbit@fake"
        assert made.sync.pending() == [X]
        caplog.clear()
        fake.mend()
        await eventually(lambda: made.weights() == {A: 1} and not made.sync.unreachable)
        seen = made.sync.results["ok"]
        await eventually(lambda: made.sync.results["ok"] > seen + 3)
        assert made.sync.cluster == "rabbit@fake"
        assert made.sync.pending() == []
        assert caplog.messages.count("exchange 'x' in virtual host '/' can be read again") == 1
        assert caplog.messages.count("the management API answers") == 1
        assert warnings(caplog) == []


async def test_a_fault_of_another_kind_is_told_too(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with syncing(fake, named=(X,)) as made:
        for code in (500, 500, 401, 401, 500):
            fake.fail(status(code))
            clock.now += 1
            await made.sync.refresh(X, "test")
    assert [re.findall(r": (\d{3})", message)[0] for message in warnings(caplog)] == ["500", "401", "500"]


async def test_retry_after_is_heeded(fake: FakeManagement, clock: Clock) -> None:
    async with syncing(fake, interval=1.0, named=(X,)) as made:
        fake.fail(status(429, headers={"Retry-After": "40"}))
        await made.sync.refresh(X, "test")
        assert made.sync._tracked[X].due >= clock.now + 39
        fake.fail(status(500))
        clock.now += 1
        for _ in range(20):
            await made.sync.refresh(X, "test")
            clock.now += 1
        assert made.sync._tracked[X].due <= clock.now + 1.0


# Look-ups.


async def test_all_who_look_up_at_once_share_one_reading(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with syncing(fake) as made:
        callers = [asyncio.create_task(made.sync.look_up(X, 10)) for _ in range(100)]
        await eventually(lambda: gate.waiting > 0)
        gate.open()
        await asyncio.gather(*callers)
        assert fake.counted() == {
            "/api/cluster-name": 1,
            "/api/vhosts": 1,
            OF_X: 1,
            BINDINGS_OF_X: 1,
            "/api/queues/%2F/a": 1,
        }
        assert made.sync.results == {"ok": 1}
        assert made.sync.cluster == "rabbit@fake"


async def test_all_who_look_up_share_the_tries_too(fake: FakeManagement) -> None:
    fake.fail(status(500))
    async with syncing(fake) as made:
        answers = await asyncio.gather(*(made.sync.look_up(X, 0.6) for _ in range(100)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {NotReadable}
        assert {str(answer) for answer in answers} == {"/api/cluster-name: 500"}
        # Six would be one caller's.
        assert 1 < len(fake.requests) < 30


async def test_a_look_up_is_tried_again_until_it_succeeds(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(status(500))
    async with syncing(fake) as made:
        looking = asyncio.create_task(made.sync.look_up(X, 20))
        await eventually(lambda: len(fake.requests) >= 3)
        assert not looking.done()
        fake.mend()
        await looking
        assert made.weights() == {A: 1}


async def test_a_look_up_waits_as_long_as_the_api_asks(fake: FakeManagement) -> None:
    fake.fail(status(429, headers={"Retry-After": "30"}))
    async with syncing(fake) as made:
        for _ in range(3):
            with pytest.raises(NotReadable, match="429"):
                await made.sync.look_up(X, 0.3)
        assert len(fake.requests) == 1


async def test_what_does_not_exist_is_absent(fake: FakeManagement) -> None:
    fake.exchange("other")
    async with syncing(fake) as made:
        with pytest.raises(Absent, match="no exchange 'x' in virtual host '/'"):
            await made.sync.look_up(X, 10)
        with pytest.raises(Absent, match="virtual host 'v'"):
            await made.sync.look_up(("v", "x"), 10)
        assert made.sync.results["absent"] == 1
        # Names that clients make up leave nothing behind.
        assert (made.sync._tracked, made.sync._look_ups.under_way, dict(made.router.entries)) == ({}, {}, {})
        fake.exchange("x", binding("a"))
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_known_exchange_whose_virtual_host_is_not_listed_is_not_absent(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.vhosts.clear()
        fake.delete("x")
        with pytest.raises(NotReadable, match="virtual host '/'"):
            await made.sync.look_up(X, 0.3)
        assert made.weights() == {A: 1}


async def test_a_look_up_that_gets_no_answer_ends_in_time_and_the_reading_goes_on(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with syncing(fake) as made:
        with pytest.raises(NotReadable, match="in time"):
            await made.sync.look_up(X, 0.05)
        fake.mend()
        gate.open()
        await eventually(lambda: made.weights() == {A: 1})
        assert fake.counted()[OF_X] == 1


async def test_nobody_waits_and_nobody_asks(fake: FakeManagement) -> None:
    fake.fail(status(500))
    async with syncing(fake) as made:
        with pytest.raises(NotReadable):
            await made.sync.look_up(X, 0.05)
        await eventually(lambda: not made.sync._look_ups.under_way)
        assert len(fake.requests) < 5


async def test_a_caller_who_leaves_takes_nobody_along(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with syncing(fake) as made:
        leaving, staying = (asyncio.create_task(made.sync.look_up(X, 10)) for _ in range(2))
        await eventually(lambda: gate.waiting > 0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.open()
        await staying
        assert made.weights() == {A: 1}


@pytest.mark.parametrize("name", [("/", "\udcff"), ("\udcff", "x"), ("", ""), ("/", ""), ("/", "x" * 5000)])
async def test_a_look_up_raises_nothing_else(fake: FakeManagement, name: Name) -> None:
    async with syncing(fake) as made:
        with pytest.raises((Absent, NotReadable)):
            await made.sync.look_up(name, 0.2)


async def test_a_defect_of_ours_is_not_readable_and_logged_with_its_place(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Ring, "build", broken)
    async with syncing(fake) as made:
        with pytest.raises(NotReadable, match="ZeroDivisionError"):
            await made.sync.look_up(X, 0.2)
    assert any(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records)


# Refreshes.


async def test_refreshes_at_one_time_share_a_reading_that_started_after_them(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        first = asyncio.create_task(made.sync.refresh(X, "first"))
        await eventually(lambda: gate.waiting == 1)
        # Too late for the reading under way, which may not show what they know of.
        later = [asyncio.create_task(made.sync.refresh(X, "later", {A})) for _ in range(50)]
        await asyncio.sleep(0)
        fake.mend()
        gate.open()
        fake.requests.clear()
        await asyncio.gather(first, *later)
        assert fake.counted()[BINDINGS_OF_X] == 1
        assert made.sync.results == {"ok": 3}


async def test_refreshes_share_a_reading_that_fails(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        first = asyncio.create_task(made.sync.refresh(X, "first"))
        await eventually(lambda: gate.waiting == 1)
        later = [asyncio.create_task(made.sync.refresh(X, "later", {A})) for _ in range(50)]
        await asyncio.sleep(0)
        fake.fail(status(500))
        gate.open()
        await asyncio.gather(first, *later)
        assert made.sync.results["failed"] <= 2
        assert made.sync._tracked[X].failures <= 2


async def test_readings_of_one_exchange_keep_a_distance(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they fail. Nothing but the clock lets the second one start."""
    monkeypatch.setattr(sync_module, "MIN_REFRESH", LONG)
    fake.exchange("x", binding("a"))
    for fault in (None, status(500)):
        async with syncing(fake, named=(X,)) as made:
            if fault:
                fake.fail(fault, OF_X)
            await made.sync.refresh(X, "test")
            asked = fake.counted()[OF_X]
            waiting = asyncio.create_task(made.sync.refresh(X, "test"))
            # As long as a whole reading of another takes.
            with suppress(Absent):
                await made.sync.look_up(("/", "other"), 10)
            assert fake.counted()[OF_X] == asked
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            clock.now += LONG
            await made.sync.refresh(X, "test")
            assert fake.counted()[OF_X] == asked + 1


async def test_a_ring_is_as_old_as_the_start_of_its_reading(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, BINDINGS_OF_X)
    async with syncing(fake) as made:
        looking = asyncio.create_task(made.sync.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        clock.now += 50
        gate.open()
        await looking
        assert made.router.clock() - made.entry.read_at > 50


async def test_a_refresh_of_what_is_not_known_asks_nothing(fake: FakeManagement) -> None:
    async with syncing(fake) as made:
        await made.sync.refresh(X, "test")
        assert fake.requests == []


async def test_a_refresh_that_is_cancelled_leaves_the_exchange_readable(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        cancelled = asyncio.create_task(made.sync.refresh(X, "test"))
        await eventually(lambda: gate.waiting == 1)
        waiting = asyncio.create_task(made.sync.refresh(X, "test"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        fake.mend()
        fake.exchange("x", binding("a"), binding("b"))
        await waiting
        assert made.weights() == {A: 1, B: 1}


# The readings in turn.


async def test_named_exchanges_are_read_from_the_start_and_stay(fake: FakeManagement) -> None:
    other = ("v", "y")
    fake.exchange("x", binding("a"))
    async with syncing(fake, running=True, interval=0.01, settle_time=0, named=(X, other)) as made:
        await eventually(lambda: made.weights() == {A: 1} and other in made.sync.faults)
        assert made.sync.pending() == [other]
        fake.vhosts.add("v")
        # Absent is an answer.
        await eventually(lambda: not made.sync.pending())
        assert made.sync.faults == {}
        fake.exchange("y", binding("b"), vhost="v")
        await eventually(lambda: made.weights(other) == {B: 1})
        fake.delete("y", "v")
        await eventually(lambda: other not in made.router.entries)
        fake.exchange("y", binding("c"), vhost="v")
        await eventually(lambda: made.weights(other) == {C: 1})


async def test_bindings_are_read_again_by_themselves(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    # Named, since nobody publishes to it: it would be idle after 0.4 s.
    async with syncing(fake, running=True, interval=0.01, settle_time=0.01, named=(X,)) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"), binding("b"))
        await eventually(lambda: made.weights() == {A: 1, B: 1})
        fake.exchange("x", binding("b"))
        await eventually(lambda: made.weights() == {B: 1})
        assert made.entry.changes[-1].why == "sync"


async def test_what_nobody_uses_is_forgotten_and_what_is_used_or_named_is_not(
    fake: FakeManagement, clock: Clock
) -> None:
    used, named = ("/", "used"), ("/", "named")
    for _, exchange in (X, used, named):
        fake.exchange(exchange, binding("a"))
    async with syncing(fake, interval=1.0, named=(named,)) as made:
        for name in (X, used, named):
            await made.sync.look_up(name, 10)
        for _ in range(sync_module.IDLE_INTERVALS + 2):
            clock.now += 1
            made.router.decide(used, b"k")
            for name in (X, used, named):
                # What an idle exchange's readings themselves do is no use of it.
                await made.sync.refresh(name, "sync")
            made.sync._forget_idle(clock.now)
        assert set(made.router.entries) == {used, named}
        assert set(made.sync._tracked) == {used, named}


async def test_the_sync_survives_what_nobody_expected(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a reading, in the question whose API it is, and in the round itself: the readings go on after each."""
    fake.exchange("x", binding("a"))
    async with syncing(fake, running=True, interval=0.01, named=(X,)) as made:
        await eventually(lambda: made.weights() == {A: 1})
        for owner, method in ((Management, "exchange"), (Management, "cluster_name"), (Sync, "_forget_idle")):
            defect = Mock(side_effect=ZeroDivisionError("ours"))
            with monkeypatch.context() as patched:
                patched.setattr(owner, method, defect)
                await eventually(partial(lambda defect: defect.call_count > 2, defect))
            good = made.sync.results["ok"]
            await eventually(partial(lambda good: made.sync.results["ok"] > good, good))
        assert made.weights() == {A: 1}
        assert made.sync.faults == {}
    assert sum(r.exc_info is not None for r in caplog.records) >= 3


async def test_one_exchange_that_hangs_does_not_stop_publishes_to_others_from_being_looked_up(
    fake: FakeManagement,
) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(silent, "/api/exchanges/%2F/hanging")
    async with syncing(fake, running=True, interval=0.01, named=(("/", "hanging"),)) as made:
        await eventually(lambda: fake.count("/hanging") > 0)
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_stopping_ends_it(fake: FakeManagement) -> None:
    fake.fail(silent)
    async with Management(fake.url, 10) as api:
        sync = Sync(
            api,
            Router(LONG, refuse_stale=False),
            Selection(["*"], [], []),
            interval=1,
            settle_time=0,
            rewrite_dead_letters=False,
            named=[X],
        )
        task = asyncio.create_task(sync.run())
        await eventually(lambda: len(fake.requests) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_thousand_queues_are_built_while_the_loop_goes_on(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    at_build: list[int] = []

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    def build(weights: dict[Destination, int]) -> Ring:
        at_build.append(ticks)
        ring = real_build(weights)
        at_build.append(ticks)
        return ring

    real_build = Ring.build
    monkeypatch.setattr(assembly, "Ring", SimpleNamespace(build=build))
    fake.exchange("x", *(binding(f"q{i}") for i in range(1000)))
    async with syncing(fake) as made:
        ticker = asyncio.create_task(tick())
        await made.sync.look_up(X, 60)
        ticker.cancel()
        before, after = at_build
        # A build takes seconds; had it held the loop, not one tick would have come.
        assert after - before > 20
        weights = made.weights()
        assert weights is not None
        assert len(weights) == 1000


async def test_the_old_ring_serves_while_the_new_one_is_built(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        building, done = threading.Event(), threading.Event()
        real_change = Ring.changed

        def slowly(ring: Ring, weights: dict[Destination, int]) -> Ring:
            building.set()
            assert done.wait(20)
            return real_change(ring, weights)

        monkeypatch.setattr(Ring, "changed", slowly)
        fake.exchange("x", binding("b"))
        refresh = asyncio.create_task(made.sync.refresh(X, "test", {A}))
        await eventually(building.is_set)
        decision = made.router.decide(X, b"k")
        assert isinstance(decision, Routed)
        assert decision.destination == A
        done.set()
        await refresh
        decision = made.router.decide(X, b"k")
        assert isinstance(decision, Routed)
        assert decision.destination == B


async def test_an_internal_destination_that_is_only_leaving_still_passes(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("inner", "1", "exchange"))
    fake.exchange("inner", type="fanout", internal=True)
    reasons = []
    async with syncing(fake, settle_time=5) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"))
        for later in (1, 2.5, 2.5):
            clock.now += later
            reasons.append(made.entry.passed)
            await made.sync.refresh(X, "test")
        reasons.append(made.entry.passed)
        assert reasons == [*[PassReason.INTERNAL_DESTINATION] * 3, None]
        assert made.weights() == {A: 1}


async def test_a_destination_that_cannot_be_read_is_not_taken_for_open(fake: FakeManagement) -> None:
    fake.exchange("x", binding("inner", "1", "exchange"))
    fake.fail(status(500), "/api/exchanges/%2F/inner")
    async with syncing(fake) as made:
        with pytest.raises(NotReadable, match="inner: 500"):
            await made.sync.look_up(X, 0.2)


async def test_the_last_good_ring_of_an_idle_exchange_outlives_the_api(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake, interval=1.0) as made:
        await made.sync.look_up(X, 10)
        fake.fail(status(503))
        for _ in range(sync_module.IDLE_INTERVALS + 2):
            clock.now += 1
            await made.sync.refresh(X, "sync")
            made.sync._forget_idle(clock.now)
        assert made.weights() == {A: 1}
        fake.mend()
        await made.sync.refresh(X, "sync")
        made.sync._forget_idle(clock.now)
        assert dict(made.router.entries) == {}


async def test_the_ring_of_an_idle_exchange_goes_with_its_virtual_host(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake, interval=1.0) as made:
        await made.sync.look_up(X, 10)
        fake.vhosts.clear()
        fake.exchanges.clear()
        for _ in range(sync_module.IDLE_INTERVALS - 2):
            clock.now += 1
            await made.sync.refresh(X, "sync")
            made.sync._forget_idle(clock.now)
        assert made.weights() == {A: 1}
        clock.now += 4
        made.sync._forget_idle(clock.now)
        assert dict(made.router.entries) == {}


async def test_a_slow_exchange_holds_up_no_other_exchanges_readings(fake: FakeManagement) -> None:
    other = ("/", "other")
    for _, exchange in (X, other):
        fake.exchange(exchange, binding("a"))
    async with syncing(fake, running=True, interval=0.05, settle_time=0, named=(X, other)) as made:
        await eventually(lambda: len(made.router.entries) == 2)
        gate = Gate(fake)
        fake.fail(gate, OF_X)
        await eventually(lambda: gate.waiting > 0)
        read_at = made.router.entries[other].read_at
        await eventually(lambda: made.router.entries[other].read_at > read_at + 0.2)
        assert gate.waiting > 0
        gate.open()


async def test_a_queue_whose_policies_do_not_show_yet_is_looked_at_with_every_reading(
    fake: FakeManagement, clock: Clock
) -> None:
    """As RabbitMQ 3.10 answers before a queue's first statistics."""
    names = [f"q{i:02}" for i in range(DEAD_LETTER_READS + 3)]
    fake.exchange("x", *(binding(name) for name in names))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", *(binding(name) for name in [*names, "new"]))
        fake.queues["/", "new"] = {"effective_policy_definition": ...}
        for _ in range(3):
            clock.now += 1
            fake.requests.clear()
            await made.sync.refresh(X, "test")
            assert fake.counted()["/api/queues/%2F/new"] == 1
        assert made.entry.passed is None
        fake.queues["/", "new"]["effective_policy_definition"] = {"dead-letter-exchange": "d"}
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.entry.passed is PassReason.DEAD_LETTER


async def test_a_failing_look_up_is_told_once_a_virtual_host_until_one_succeeds(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(status(401))
    async with syncing(fake) as made:
        for exchange in ("x", "y", "x"):
            with pytest.raises(NotReadable, match="401, a wrong user or password"):
                await made.sync.look_up(("/", exchange), 0.1)
        assert len(warnings(caplog)) == 1
        assert made.sync.look_up_fault is not None
        fake.mend()
        await made.sync.look_up(X, 10)
        assert made.sync.look_up_fault is None


# What the broker confirmed to a session.


DECLARED = ExchangeDeclared("x", CONSISTENT_HASH)


@pytest.mark.parametrize(
    ("declaration", "behind", "there", "weights"),
    [
        (Bound("x", C, "2"), ["a", "b"], ["a", "b", "c"], {A: 1, B: 1, C: 2}),
        (Bound("x", A, "7"), ["a", "b"], ["a", "a7", "b"], {A: 7, B: 1}),
        (Unbound("x", A, "1"), ["a", "b"], ["b"], {B: 1}),
        (QueueDeleted("a"), ["a", "b"], ["b"], {B: 1}),
    ],
)
@pytest.mark.parametrize("lags", [True, False])
async def test_the_next_publish_after_an_ok_waits_for_a_reading_and_what_that_does_not_show_is_laid_over(
    fake: FakeManagement,
    clock: Clock,
    declaration: Declaration,
    behind: list[str],
    there: list[str],
    weights: dict[Destination, int],
    lags: bool,
) -> None:
    made_of = {"a": binding("a"), "b": binding("b"), "c": binding("c", "2"), "a7": binding("a", "7")}
    fake.exchange("x", *(made_of[name] for name in behind))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        assert not made.waits()
        made.sync.declared("/", declaration)
        assert made.waits()
        if not lags:
            fake.exchange("x", *(made_of[name] for name in there))
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert not made.waits()
        assert made.weights() == weights
        assert made.entry.bindings.weights == weights
        # It catches up.
        fake.exchange("x", *(made_of[name] for name in there))
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.weights() == weights
        assert X not in made.sync._overlays
        # From now on, what is done elsewhere shows.
        fake.exchange("x", *(made_of[name] for name in behind))
        for _ in range(3):
            clock.now += SETTLE / 2
            await made.sync.refresh(X, "test")
        assert made.weights() == {A: 1, B: 1}


async def test_a_change_that_does_not_show_in_time_is_not_laid_over_any_more(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Bound("x", C, "1"))
        made.sync.declared("/", Unbound("x", A, "1"))
        laid_over, all_shown, settled = {B: 1, C: 1}, {A: 1, B: 1, C: 1}, {A: 1, B: 1}
        for later, weights in (
            (OVERLAY_TIME - 1, laid_over),
            (2, all_shown),
            (SETTLE / 2, all_shown),
            (SETTLE / 2, settled),
        ):
            clock.now += later
            await made.sync.refresh(X, "test")
            assert made.weights() == weights
        assert X not in made.sync._overlays


async def test_a_binding_and_an_exchange_of_their_own_that_do_not_show_yet(fake: FakeManagement) -> None:
    """A program that declares, binds and publishes at once, on a cluster that lags."""
    fake.exchange("other")
    readings = 0

    async def catch_up(request: Any) -> Any:
        nonlocal readings
        readings += 1
        if readings == 2:
            fake.mend()
            fake.exchange("x")
        return await status(404)(request)

    async with syncing(fake) as made:
        made.sync.declared("/", DECLARED)
        made.sync.declared("/", Bound("x", A, "1"))
        fake.fail(catch_up, OF_X)
        await made.sync.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1}, False)
        assert readings == 2
        assert made.sync.results == {"failed": 2, "ok": 1}


async def test_a_reading_without_the_exchange_that_was_declared_is_a_fault_that_says_so(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("other")
    async with syncing(fake) as made:
        made.sync.declared("/", DECLARED)
        with pytest.raises(NotReadable, match="it was declared and does not show yet"):
            await made.sync.look_up(X, 0.1)
        # Somebody deleted it elsewhere.
        clock.now += OVERLAY_TIME + 1
        with pytest.raises(Absent):
            await made.sync.look_up(X, 10)
        assert (X in made.sync._overlays, made.router.expected(X)) == (False, False)


async def test_an_exchange_declared_anew_is_not_the_one_of_another_type(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", type="fanout")
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        for declaration in (ExchangeDeleted("x"), DECLARED, Bound("x", A, "1")):
            made.sync.declared("/", declaration)
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert made.waits()
        assert "does not show yet" in made.sync.faults[X]
        fake.exchange("x")
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_reading_under_way_when_the_ok_comes_is_not_enough(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        refresh = asyncio.create_task(made.sync.refresh(X, "test"))
        await eventually(lambda: gate.waiting == 1)
        made.sync.declared("/", Bound("x", B, "1"))
        looking = asyncio.create_task(made.sync.look_up(X, 10))
        fake.mend()
        gate.open()
        await refresh
        # It shows what was confirmed to us, and might lack what was confirmed to others before it.
        assert made.weights() == {A: 1, B: 1}
        assert made.waits()
        await looking
        assert not made.waits()
        assert fake.counted()[BINDINGS_OF_X] == 3


async def test_a_first_reading_under_way_when_the_ok_comes_is_not_enough(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    gate = Gate(fake)
    fake.fail(gate, "/api/queues/%2F/a")
    async with syncing(fake) as made:
        looking = asyncio.create_task(made.sync.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        # Its bindings are read already.
        made.sync.declared("/", QueueDeleted("a"))
        fake.exchange("x", binding("b"))
        fake.mend()
        gate.open()
        await looking
        assert made.waits()
        await made.sync.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({B: 1}, False)


async def test_what_is_declared_during_a_first_reading_is_certain(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, BINDINGS_OF_X)
    async with syncing(fake) as made:
        looking = asyncio.create_task(made.sync.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        made.sync.declared("/", Bound("x", B, "1"))
        gate.open()
        await looking
        fake.fail(status(500))
        await made.sync.refresh(X, "test")
        assert made.waits()


async def test_a_queue_deleted_while_a_reading_that_shows_it_is_under_way(fake: FakeManagement) -> None:
    """It was bound by others, and is not known yet."""
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.exchange("x", binding("a"), binding("b"))
        gate = Gate(fake)
        fake.fail(gate, "/api/queues/%2F/b")
        refresh = asyncio.create_task(made.sync.refresh(X, "test"))
        await eventually(lambda: gate.waiting == 1)
        made.sync.declared("/", QueueDeleted("b"))
        fake.mend()
        gate.open()
        await refresh
        assert (made.weights(), made.waits()) == ({A: 1, B: 1}, True)
        await made.sync.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1}, False)


async def test_bindings_that_come_and_go_end_as_they_were_declared(fake: FakeManagement, clock: Clock) -> None:
    """Whatever of it the readings show."""
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        steps: list[tuple[list[Declaration], dict[Destination, int]]] = [
            ([Unbound("x", A, "1"), Bound("x", A, "1")], {A: 1, B: 1}),
            ([Unbound("x", A, "1"), Bound("x", A, "5")], {A: 5, B: 1}),
            ([QueueDeleted("b"), Bound("x", B, "2")], {A: 5, B: 2}),
            ([Bound("x", C, "1"), Unbound("x", C, "1")], {A: 5, B: 2}),
            ([QueueDeleted("a")], {B: 2}),
        ]
        for declarations, weights in steps:
            for declaration in declarations:
                made.sync.declared("/", declaration)
            for shown in ([binding("a"), binding("b")], [binding("b")], [binding("c")]):
                fake.exchange("x", *shown)
                clock.now += 0.2
                await made.sync.refresh(X, "test")
                assert {d: w for d, w in (made.weights() or {}).items() if d != C} == weights


async def test_of_two_bindings_to_a_queue_the_one_that_is_left_counts(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a", "1"), binding("a", "5"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Unbound("x", A, "5"))
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_declared_removal_need_not_settle_however_late_it_is_read(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Unbound("x", A, "1"))
        fake.fail(status(500), "/api/queues/")
        fake.exchange("x", binding("b"))
        for _ in range(3):
            clock.now += OVERLAY_TIME + OVERLAY_KEPT
            made.sync._forget_declared(clock.now)
            await made.sync.refresh(X, "test")
            assert made.weights() == {A: 1, B: 1}
        fake.mend()
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {B: 1}


async def test_a_deleted_exchange_is_gone_at_once_and_one_that_still_shows_is_believed(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", ExchangeDeleted("x"))
        assert made.waits()
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1, B: 1}, False)
        fake.delete("x")
        clock.now += 1
        await made.sync.refresh(X, "test")
        assert dict(made.router.entries) == {}
        assert X not in made.sync._overlays


async def test_a_deleted_exchange_goes_from_the_rings_that_led_to_it(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("y", "1", "exchange"))
    fake.exchange("y", binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", ExchangeDeleted("y"))
        assert made.waits()
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_return_outweighs_a_binding_that_was_declared(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Bound("x", A, "1"))
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 1, B: 1}
        clock.now += 1
        await made.sync.refresh(X, "a message was returned", {A})
        assert made.weights() == {B: 1}


async def test_declarations_that_change_nothing_are_no_reason_to_refuse_while_the_api_is_away(
    fake: FakeManagement, clock: Clock
) -> None:
    """As of a program that connects again and declares all that it needs."""
    fake.exchange("x", binding("a"), binding("b"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        fake.fail(status(503))
        entry = made.entry
        for declaration in (DECLARED, Bound("x", A, "1"), Bound("x", B, "abc"), Unbound("x", C, "1")):
            made.sync.declared("/", declaration)
            assert made.waits()
            clock.now += 1
            # Whoever asked for the reading that fails.
            await made.sync.refresh(X, "test")
            assert not made.waits()
            made.sync.declared("/", declaration)
            clock.now += 1
            await made.sync.look_up(X, 10)
            assert not made.waits()
            assert made.entry is entry
        made.sync.declared("/", DECLARED)
        made.sync.declared("/", Bound("x", A, "2"))
        with pytest.raises(NotReadable, match="503"):
            await made.sync.look_up(X, 0.2)
        assert made.waits()
        fake.mend()
        clock.now += 1
        await made.sync.look_up(X, 10)
        assert made.weights() == {A: 2, B: 1}


@pytest.mark.parametrize(("fields", "settings"), [({"type": "topic"}, {}), ({}, {"pass_": ("x",)})])
async def test_bindings_of_what_passes_whatever_is_bound_are_no_reason_to_read(
    fake: FakeManagement, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    fake.exchange("x", binding("a"), **fields)
    async with syncing(fake, **settings) as made:
        await made.sync.look_up(X, 10)
        for declaration in (Bound("x", B, "1"), Unbound("x", A, "1"), QueueDeleted("a")):
            made.sync.declared("/", declaration)
            assert (made.waits(), X in made.sync._overlays) == (False, False)
        made.sync.declared("/", ExchangeDeleted("x"))
        assert made.waits()
        # What is bound to its successor may count.
        made.sync.declared("/", Bound("x", B, "1"))
        assert made.sync._overlays.of(X).binds(B)


async def test_the_default_exchange_and_other_virtual_hosts_are_not_touched(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        changed: list[Name] = []
        made.router.on_change.append(changed.append)
        made.sync.declared("/", Bound("", A, "a"))
        made.sync.declared("v", QueueDeleted("a"))
        made.sync.declared("v", Bound("x", B, "1"))
        assert changed == [("v", "x")]
        assert not made.waits()


async def test_a_program_that_binds_and_publishes_by_turns_is_not_slowed(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the clock lets the later readings start."""
    monkeypatch.setattr(sync_module, "MIN_REFRESH", LONG)
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        for weight in "2345":
            clock.now += sync_module.MIN_REFRESH_DECLARED
            made.sync.declared("/", Bound("x", A, weight))
            await made.sync.look_up(X, 10)
            assert made.weights() == {A: int(weight)}
        monkeypatch.setattr(sync_module, "MIN_REFRESH_DECLARED", LONG)
        made.sync.declared("/", Bound("x", A, "6"))
        asked = fake.counted()[OF_X]
        waiting = asyncio.create_task(made.sync.look_up(X, 10))
        # As long as a whole reading of another takes.
        with suppress(Absent):
            await made.sync.look_up(("/", "other"), 10)
        assert fake.counted()[OF_X] == asked
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


async def test_what_was_declared_of_exchanges_that_nobody_publishes_to_is_forgotten(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Bound("x", B, "1"))
        made.sync.declared("/", Bound("never", B, "1"))
        clock.now += OVERLAY_KEPT - 1
        made.sync._forget_declared(clock.now)
        assert made.router.expected(("/", "never"))
        clock.now += 2
        made.sync._forget_declared(clock.now)
        assert (made.router.expected(("/", "never")), ("/", "never") in made.sync._overlays) == (False, False)
        # The next reading of the other one needs what was said.
        assert made.waits()
        assert X in made.sync._overlays
        await made.sync.look_up(X, 10)
        made.sync.declared("/", Bound("x", B, "1"))
        await made.sync.look_up(X, 10)
        clock.now += OVERLAY_KEPT + 1
        made.sync._forget_declared(clock.now)
        assert X not in made.sync._overlays
        assert made.weights() is not None


NODES = [
    {"name": "/", "cluster_state": {"rabbit@one": "running", "rabbit@two": "running", "hare@localhost": "stopped"}},
    {"name": "/b", "cluster_state": {"rabbit@four.in.full": "running"}},
    {"name": "/c"},
]


@pytest.mark.parametrize(
    ("api", "broker", "same"),
    [
        ("rabbit@one.example", "rabbit@one.example", True),
        ("rabbit@one.example", "rabbit@two.example", True),
        ("rabbit@one", "rabbit@two", True),
        ("rabbit@one.example", "hare@one.example", True),
        ("rabbit@one.example", "hare@two.example", False),
        ("rabbit@one.example", "rabbit@two.elsewhere", False),
        ("rabbit@four.in.full", "rabbit@four.in.full", True),
        ("rabbit@four.in.full", "rabbit@four.in.part", False),
        ("rabbit@one.example", "rabbit@three.example", False),
        ("rabbit@one.example", "hamster@two.example", False),
        ("rabbit@one.example", "rabbit@two-and-more", False),
        ("rabbit@one.example", "orders", False),
        ("rabbit@elsewhere", "rabbit@one.example", False),
        ("orders", "rabbit@one.example", False),
        ("orders@home", "rabbit@one.example", False),
    ],
)
async def test_nodes_of_a_cluster_without_a_name_are_one_cluster(
    fake: FakeManagement, clock: Clock, api: str, broker: str, same: bool
) -> None:
    """Each gives it a name of its own then."""
    fake.fail(body({"name": api}), "/api/cluster-name")
    fake.fail(body(NODES), "/api/vhosts")
    async with syncing(fake) as made:
        await made.sync._identify()
        assert made.sync.cluster == api
        assert made.sync.mismatch(broker) == (
            "" if same else f"the broker is of cluster {broker!r}, the management API of {api!r}"
        )


@pytest.mark.parametrize("answer", [{}, [1], [{"name": "/", "cluster_state": []}]])
async def test_nodes_that_cannot_be_read_leave_the_name_unread(
    fake: FakeManagement, clock: Clock, answer: object
) -> None:
    fake.fail(body(answer), "/api/vhosts")
    async with syncing(fake) as made:
        await made.sync._identify()
        assert made.sync.cluster is None
        assert made.sync.unreachable


async def test_another_cluster_s_name_is_told(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        changed: list[Name] = []
        made.router.on_change.append(changed.append)
        await made.sync.look_up(X, 10)
        assert changed == [IDENTITY, X]
        await made.sync._identify()
        assert changed == [IDENTITY, X]
        fake.fail(body({"name": "other"}), "/api/cluster-name")
        await made.sync._identify()
        assert changed == [IDENTITY, X, IDENTITY]
        fake.fail(status(500), "/api/cluster-name")
        await made.sync._identify()
        assert (changed, made.sync.cluster) == ([IDENTITY, X, IDENTITY], "other")
