"""Snapshots: what they hold of a sidecar, within limits however many exchanges and queues there are, and any names."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.http.admin.console import snapshot as snapshot_module
from proxy.http.admin.console.history import KEPT
from proxy.http.admin.console.snapshot import FEW, MOST_SHOWN, Parts, Snapshots, View
from proxy.http.admin.readiness import Readiness
from proxy.journal.journaling import Journaling
from proxy.outcome import Outcome
from proxy.publisher.dial import Brokers
from proxy.publisher.pool import Publisher
from proxy.routing.counters import Counts
from proxy.routing.routes import RouteTables
from proxy.session.listener import Listener
from proxy.session.shared import Shared
from proxy.settings.files import Files
from proxy.settings.missing_right import MissingRight
from proxy.settings.patterns import Mode, Selection
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import Sources
from proxy.topology.bindings import Bindings
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.readings import Readings
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, KnownRing, PassReason, Router
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

ALL = View("", "", "")


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """The parts of a sidecar that has read nothing."""
    in_force, router, counts = SettingsInForce(Sources(None, {}, {})), Router(300, False), Counts()
    settings = in_force.now
    dial = Brokers(settings.brokers, None, 1).dial
    publisher = Publisher(dial, lambda: ("", ""), connections=1, connect_timeout=1, confirm_timeout=1)
    async with Management(settings.management_url, 1) as api:
        selection = Selection(["*"], [], [])
        reader = Reader(api, router, selection, settle_time=2)
        scheduler = Scheduler(reader, router, interval=15)
        tables = RouteTables(router, selection, counts.counter_table["amqp"], lambda _: "", lambda _: None)
        shared = Shared(tables, Readings(scheduler, reader.identity, 1), dial, frozenset(), counts.amqp_latency.add, 1)
        files = Files(settings)
        readiness = Readiness(in_force, router, scheduler, reader, publisher, default_vhost="/", draining=lambda: False)
        journaling = Journaling(settings, files)
        listener = Listener(shared, 1)
        yield Parts(
            router, scheduler, reader, publisher, listener, counts, journaling, files, readiness, in_force, None
        )


def queues(count: int, name: str = "orders.{}") -> dict[Destination, int]:
    return {Destination("queue", name.format(number)): 1 for number in range(count)}


def entry(parts: Parts, weights: Mapping[Destination, int] | None = None, **more: Any) -> Entry:
    known = None
    if weights:
        known = KnownRing.of(Ring.build(weights), HashedValue.parse("routing_key"), "x-consistent-hash")
    usual = {
        "passed": None if known else PassReason.NO_BINDINGS,
        "bindings": Bindings(),
        "read_at": parts.router.clock(),
    }
    return Entry(Mode.ROUTE, "x-consistent-hash", known, **{**usual, **more})


async def made(parts: Parts, view: View = ALL) -> Any:
    return json.loads((await Snapshots(parts).make([view]))[view])


async def test_a_sidecar_without_anything_has_a_snapshot(parts: Parts) -> None:
    found = await made(parts)
    assert found["detail"] is None
    overview = found["overview"]
    assert overview["exchanges"] == overview["groups"] == {"shown": [], "of": 0}
    assert overview["findings"]["of"] == 0
    assert not overview["ready"]
    assert (overview["rates"], overview["steps"], overview["sessions"]) == ({}, [], 0)


async def test_missing_rights_of_the_last_ten_minutes_are_found(parts: Parts) -> None:
    rights = [MissingRight("/", user, "write", "exchange 'x'", "^x$") for user in ("anna", "bob", "carl")]
    parts.listener.shared.lacking[rights[0]] = time.monotonic() - KEPT - 1
    for right in rights[1:]:
        parts.listener.shared.note_lacking(right)
    found = (await made(parts))["overview"]["findings"]["shown"]
    titles = [each["title"] for each in found]
    assert titles == ["User 'carl' lacks write on exchange 'x' in '/'", "User 'bob' lacks write on exchange 'x' in '/'"]


async def test_of_many_exchanges_those_stay_that_are_wrong_or_busy(parts: Parts) -> None:
    for number in range(3 * MOST_SHOWN):
        parts.router.put(("/", f"x{number:03}"), entry(parts))
    parts.router.put(("/", "z-wrong"), entry(parts, passed=PassReason.NOT_A_LANE))
    snapshots = Snapshots(parts)
    parts.counts.counter_table["amqp"].of(("/", "x149"), PassReason.NO_BINDINGS).acked += 7
    parts.counts.unsent["http", ("/", "x148"), Outcome.REJECTED] += 1
    shown = json.loads((await snapshots.make([ALL]))[ALL])["overview"]["exchanges"]
    names = [each["exchange"] for each in shown["shown"]]
    assert (len(names), shown["of"], names) == (MOST_SHOWN, 3 * MOST_SHOWN + 1, sorted(names))
    assert {"x149", "x148", "z-wrong", "x000"} <= set(names)
    busy = shown["shown"][names.index("x149")]
    assert (busy["state"], busy["why"], busy["late"]) == ("passed", "no_bindings", {"passed": 7})


async def test_an_exchange_that_is_routed_in_part_says_so(parts: Parts) -> None:
    parts = replace(parts, in_force=SettingsInForce(Sources(None, {}, {"route_share": "12.5"})))
    parts.router.put(("/", "orders"), entry(parts, queues(3)))
    parts.router.put(("/", "shadowed"), entry(parts, queues(3), passed=PassReason.SHADOW))
    for reason in (None, PassReason.SHARE):
        counters = parts.counts.counter_table["amqp"].of(("/", "orders"), reason)
        counters.tally(Destination("queue", "orders.1")).count += 0 if reason else 3
        counters.shadowed[Destination("queue", "orders.1")] += 9 if reason else 0
    found = await made(parts, View("exchange", "/", "orders"))
    shown = [(each["state"], each["why"]) for each in found["overview"]["exchanges"]["shown"]]
    assert shown == [("routed", "12.5% of the slots"), ("shadowed", "shadow")]
    assert found["detail"]["route_share"] == 12.5
    # Messages that the exchange itself routed were not sent to the queue.
    assert found["detail"]["sent"] == 3


async def test_a_search_finds_what_an_overview_leaves_out(parts: Parts) -> None:
    for number in range(2 * MOST_SHOWN):
        parts.router.put(("/", f"Orders.{number:03}"), entry(parts))
    parts.router.put(("shop", "billing"), entry(parts))
    snapshots = Snapshots(parts)
    assert snapshots.search("exchange", "BILL") == {"shown": [{"vhost": "shop", "exchange": "billing"}], "of": 1}
    found = snapshots.search("exchange", "orders.")
    assert found["of"] == 2 * MOST_SHOWN
    assert [each["exchange"] for each in found["shown"]] == [f"Orders.{number:03}" for number in range(MOST_SHOWN)]
    assert snapshots.search("exchange", "nonesuch") == snapshots.search("group", "") == {"shown": [], "of": 0}


async def test_an_exchange_in_detail_has_what_went_where(parts: Parts) -> None:
    parts.router.put(("/", "orders"), entry(parts, queues(3)))
    counters = parts.counts.counter_table["http"].of(("/", "orders"), None)
    counters.tally(Destination("queue", "orders.1")).count += 3
    parts.counts.counter_table["amqp"].of(("/", "orders"), None).tally(Destination("queue", "orders.1")).count += 2
    parts.counts.counter_table["amqp"].of(("/", "other"), None).tally(Destination("queue", "orders.1")).count += 9
    detail = (await made(parts, View("exchange", "/", "orders")))["detail"]
    assert [(each["name"], each["sent"]) for each in detail["destinations"]] == [
        ("orders.0", 0),
        ("orders.1", 5),
        ("orders.2", 0),
    ]
    assert (detail["sent"], detail["destinations_of"], detail["hashed"]) == (5, 3, "routing_key")
    assert sum(each["share"] for each in detail["destinations"]) == pytest.approx(1, abs=1e-5)
    assert (await made(parts, View("exchange", "/", "none")))["detail"] is None
    assert (await made(parts, View("group", "/", "orders")))["detail"] is None


async def test_a_detail_is_bounded_and_says_how_much_there_is(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "MOST_SHARDS", 30)
    names = "q" * 240 + ".{}"
    parts.router.put(("/", "wide"), entry(parts, queues(50, names)))
    dead = {names.format(number): "policy 'dead'" for number in range(50)}
    parts.router.put(("/", "dead"), entry(parts, queues(1), queues=dead, passed=PassReason.DEAD_LETTER))
    snapshots, view = Snapshots(parts), View("exchange", "/", "wide")
    snapshot = (await snapshots.make([view]))[view]
    detail = json.loads(snapshot)["detail"]
    assert (len(detail["destinations"]), detail["destinations_of"]) == (30, 50)
    assert len(snapshot) < 30 * 500 + 4096
    (wrong,) = [each for each in json.loads(snapshot)["overview"]["exchanges"]["shown"] if each["exchange"] == "dead"]
    assert len(wrong["dead_letters"]) == FEW


@pytest.mark.parametrize("name", ["a\n\nevent: x\ndata: y", "<script>", "\ud800", "\u2028", "ü€😀", "\0"])
async def test_no_name_breaks_an_event(parts: Parts, name: str) -> None:
    parts.router.put(("/", name), entry(parts, {Destination("queue", name.encode("utf-8", "replace").decode()): 1}))
    view = View("exchange", "/", name)
    snapshot = (await Snapshots(parts).make([view]))[view]
    assert b"\n" not in snapshot
    assert json.loads(snapshot)["overview"]["exchanges"]["shown"][0]["exchange"] == name


async def test_a_defect_in_one_detail_takes_no_other_view_away(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for exchange in ("orders", "payments"):
        parts.router.put(("/", exchange), entry(parts, queues(2)))
    good, bad = View("exchange", "/", "orders"), View("exchange", "/", "payments")
    real = Snapshots._exchange_detail

    def fails(self: Snapshots, name: tuple[str, str], *rest: Any) -> dict[str, Any]:
        if name[1] == "payments":
            raise RuntimeError("a defect")
        return real(self, name, *rest)

    snapshots = Snapshots(parts)
    with monkeypatch.context() as patched:
        patched.setattr(Snapshots, "_exchange_detail", fails)
        for _ in range(3):
            made = {view: json.loads(found) for view, found in (await snapshots.make([good, bad, ALL])).items()}
            assert made[bad]["detail"] is None
            assert "A defect of ringproxy (RuntimeError)" in made[bad]["fault"]
            assert made[good]["detail"]["destinations_of"] == 2
            assert made[good]["fault"] == made[ALL]["fault"] == ""
            assert made[bad]["overview"] == made[ALL]["overview"]
    assert caplog.text.count("Traceback") == 1
    assert json.loads((await snapshots.make([bad]))[bad])["detail"]["destinations_of"] == 2
