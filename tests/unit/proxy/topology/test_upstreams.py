"""Which bindings of an upstream exchange count, and when, whatever the management API answers."""

from pathlib import Path
from typing import Any

import pytest

from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.matching import UPSTREAM_TYPES
from proxy.topology.ring_cache import RingCache
from proxy.topology.table import PassReason, Unread
from proxy.topology.upstreams import MOST_BEHIND
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, binding, status
from tests.unit.proxy.topology.scheduling import SETTLE, Clock, Made, X, scheduling, warnings

RING = Destination("exchange", "ring")
ROUTE = ("*", "x")


def to_ring(key: str, ring: str = "ring") -> dict[str, Any]:
    return binding(ring, key, "exchange")


@pytest.fixture(autouse=True)
def behind(fake: FakeManagement) -> None:
    fake.exchange("ring", binding("a"))
    fake.exchange("x", to_ring("a.#"), type="topic")


def keys(made: Made) -> list[str]:
    """The keys of the bindings to the ring that are in force."""
    upstream = made.entry.upstream
    return sorted(b.key for b in upstream.bindings if b.destination == RING) if upstream is not None else []


@pytest.mark.parametrize("kind", sorted(UPSTREAM_TYPES))
async def test_what_route_names_leads_to_its_rings(fake: FakeManagement, kind: str) -> None:
    fake.exchange("x", to_ring("a"), to_ring("b", "not named"), binding("q", "c"), type=kind)
    fake.exchange("not named", type="topic")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.upstream is not None
        assert made.entry.upstream.rings == {RING}
        assert made.entry.passed is (PassReason.OVERLAP if kind == "fanout" else None)


@pytest.mark.parametrize(
    ("route", "shadow", "kind"),
    [(("*",), (), "topic"), (("x*",), (), "topic"), (ROUTE, ("x",), "topic"), (ROUTE, (), "headers")],
)
async def test_what_is_no_upstream_exchange(
    fake: FakeManagement, route: tuple[str, ...], shadow: tuple[str, ...], kind: str
) -> None:
    fake.exchange("x", to_ring("a.#"), type=kind)
    async with scheduling(fake, route=route, shadow=shadow) as made:
        await made.scheduler.look_up(X, 10)
        assert (made.entry.upstream, made.entry.passed) == (None, PassReason.TYPE)
    assert fake.count("/x/bindings/source") == 0


@pytest.mark.parametrize(("shadow", "kind"), [(("ring",), "x-consistent-hash"), ((), "topic"), ((), "headers")])
async def test_an_exchange_behind_without_a_ring_in_use(
    fake: FakeManagement, shadow: tuple[str, ...], kind: str
) -> None:
    fake.exchange("ring", binding("a"), type=kind)
    async with scheduling(fake, route=ROUTE, shadow=shadow) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is PassReason.NO_RING


async def test_an_added_binding_counts_at_once_and_a_removed_one_once_it_stays_away(
    fake: FakeManagement, clock: Clock
) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", to_ring("a.#"), to_ring("b"), type="topic")
        await made.scheduler.read_again(X, "test")
        assert keys(made) == ["a.#", "b"]
        fake.exchange("x", to_ring("b"), type="topic")
        for wait, expected in ((1, ["a.#", "b"]), (SETTLE / 2, ["a.#", "b"]), (SETTLE / 2, ["b"])):
            clock.now += wait
            await made.scheduler.read_again(X, "test")
            assert keys(made) == expected


async def test_a_binding_that_conflicts_counts_until_its_removal_has_settled(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that is still bound gets its copies."""
    fake.exchange("x", to_ring("a.#"), binding("audit", "#"), type="topic")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is PassReason.OVERLAP
        assert "exchange 'ring' with 'a.#' and queue 'audit' with '#'" in warnings(caplog)[-1]
        fake.exchange("x", to_ring("a.#"), type="topic")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.entry.passed is PassReason.OVERLAP
        for _ in range(3):
            clock.now += SETTLE / 2
            await made.scheduler.read_again(X, "test")
        assert made.entry.passed is None


async def test_a_failed_reading_changes_nothing(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        before = made.entry
        for path in ("/api/exchanges/%2F/x/", "/api/exchanges/%2F/ring"):
            fake.fail(status(500), path)
            clock.now += 1
            await made.scheduler._again(X)
            assert X in made.scheduler.faults
            assert made.entry is before
            fake.mend()


@pytest.mark.parametrize("kept", [True, False])
async def test_what_a_client_declares_counts_though_it_does_not_show(
    fake: FakeManagement, clock: Clock, kept: bool
) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", RING, "b"))
        made.scheduler.declared("/", BindingRemoved("x", RING, "a.#"))
        assert made.waits()
        await made.scheduler.look_up(X, 10)
        assert keys(made) == ["b"]
        made.scheduler.declared("/", BindingAdded("x", RING, "b"))  # again: nothing is read for that
        if kept:
            fake.exchange("x", to_ring("b"), type="topic")
        clock.now += 11
        await made.scheduler._again(X)
        assert keys(made) == (["b"] if kept else ["a.#", "b"])


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (ExchangeDeleted("ring"), PassReason.NO_RING),
        (QueueDeleted("audit"), None),
        (BindingAdded("x", Destination("queue", "audit"), "#"), PassReason.OVERLAP),
    ],
)
async def test_other_declarations(fake: FakeManagement, declaration: Any, expected: PassReason | None) -> None:
    """Each waits for a reading; the management API shows none of them."""
    if expected is None:
        fake.exchange("x", to_ring("a.#"), binding("audit", "#"), type="topic")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", declaration)
        assert made.waits()
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is expected


async def test_an_unbind_without_arguments_hides_no_binding_with_arguments(fake: FakeManagement, clock: Clock) -> None:
    """RabbitMQ confirms it, though there was no such binding; a queue that is still bound gets its copies."""
    audit = Destination("queue", "audit")
    fake.exchange("x", to_ring("a.#"), {**binding("audit", "#"), "arguments": {"a": 1}}, type="topic")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingRemoved("x", audit, "#"))
        assert made.waits()
        await made.scheduler.look_up(X, 10)
        for _ in range(3):
            assert made.entry.passed is PassReason.OVERLAP
            clock.now += 5
            await made.scheduler._again(X)
        made.scheduler.declared("/", QueueDeleted("audit"))
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is None, "the queue's deletion hides every binding to it"


async def test_a_binding_with_arguments_counts_though_it_does_not_show(fake: FakeManagement) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", Destination("queue", "audit"), "#", plain=False))
        assert made.waits()
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is PassReason.OVERLAP


async def test_a_ring_behind_that_was_just_declared_and_does_not_show(fake: FakeManagement) -> None:
    fake.exchange("x", type="topic")
    fake.delete("ring")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", ExchangeDeclared("ring", "x-consistent-hash"))
        made.scheduler.declared("/", BindingAdded("x", RING, "a.#"))
        with pytest.raises(NotReadable, match="'ring' was declared and does not show yet"):
            await made.scheduler.look_up(X, 0.3)
        fake.exchange("ring")
        await made.scheduler.look_up(X, 10)
        assert keys(made) == ["a.#"]


async def test_a_ring_behind_that_does_not_show_is_not_passed(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        fake.fail(status(404), "/api/exchanges/%2F/ring")
        with pytest.raises(NotReadable, match="'ring' has a binding and does not show"):
            await made.scheduler.look_up(X, 0.3)
        fake.mend()
        await made.scheduler.look_up(X, 10)
        fake.fail(status(404), "/api/exchanges/%2F/ring")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.entry.passed is None


async def test_an_upstream_exchange_that_is_gone_or_has_another_type(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("b", "7"))
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.entry.upstream is None
        assert made.weights() == {Destination("queue", "b"): 7}
        fake.exchange("x", to_ring("c"), type="direct")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert (keys(made), made.weights()) == (["c"], None)
        fake.delete("x")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert keys(made) == ["c"], "not before it has settled"
        for _ in range(3):
            clock.now += SETTLE / 2
            await made.scheduler.read_again(X, "test")
        assert isinstance(made.router.look(X), Unread)
        with pytest.raises(Absent):
            await made.scheduler.look_up(X, 10)


async def test_more_exchanges_behind_than_are_asked_for(fake: FakeManagement) -> None:
    fake.exchange("x", *(to_ring(f"a.{n}", f"ring {n}") for n in range(MOST_BEHIND + 1)), type="topic")
    async with scheduling(fake, route=ROUTE) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is PassReason.OVERLAP
    assert not any("ring%20" in path for path in fake.requests)


async def test_nothing_is_kept_on_disk(fake: FakeManagement, tmp_path: Path) -> None:
    """A start without the management API refuses its publishes: natively their keys would go elsewhere."""
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        await made.scheduler.look_up(X, 10)  # not named, so it is kept as an exchange of another type
        await made.scheduler.look_up(("/", "ring"), 10)
    await eventually(lambda: len(list(tmp_path.glob("*.ring.json"))) == 2)
    fake.fail(status(503))
    async with scheduling(fake, route=ROUTE, cache=RingCache(tmp_path)) as made:
        await made.scheduler.look_up(("/", "ring"), 10)
        with pytest.raises(NotReadable):
            await made.scheduler.look_up(X, 0.3)
    fake.mend()
    async with scheduling(fake, route=ROUTE, cache=RingCache(tmp_path)) as made:
        await made.scheduler.look_up(X, 10)
    await eventually(lambda: len(list(tmp_path.glob("*.ring.json"))) == 1)
