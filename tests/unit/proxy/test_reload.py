"""Changed settings come into force in the parts of a sidecar, and exchanges are read anew by changed patterns."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from proxy.groups.onlooker import Onlooker
from proxy.http.admin.readiness import Readiness
from proxy.http.admission.gate import Gate as HttpGate
from proxy.http.admission.limits import Limits
from proxy.http.admission.sizes import Sizes
from proxy.process import descriptors, memory
from proxy.reload import Reload
from proxy.routing.counters import CounterTable
from proxy.routing.route import Route
from proxy.routing.routes import RouteTables
from proxy.session.listener import Listener
from proxy.settings.config import Settings
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import Sources
from proxy.topology.management import Management
from proxy.topology.table import PassReason, Unread
from ring.destination import Destination
from ring.share import slots_in
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, status
from tests.unit.proxy.topology.scheduling import BINDINGS_OF_X, A, B, Made, X, scheduling


class Case:
    """A sidecar's parts with an exchange x, which are told of changed settings."""

    def __init__(self, made: Made, **settings: Any) -> None:
        fields = {field.name for field in dataclasses.fields(Settings)}
        self.made, self.settings = made, {name: value for name, value in settings.items() if name in fields}
        self.limits, self.gate = Limits(1, 1), Mock()
        self.gate.limits = self.limits
        self.listener, self.http, self.attendants = Mock(), Mock(), Mock()
        self.attendants.groups.exchanges.return_value = set()
        self.onlooker = Onlooker(Settings(**self.settings), cast(Management, None))
        self.tables = RouteTables(made.router, made.selection, CounterTable(), lambda cluster: "", made.scheduler.want)
        self.table = self.tables.table("/", None)
        self.reload = Reload(
            made.selection,
            made.router,
            made.scheduler,
            [self.tables],
            self.onlooker,
            self.attendants,
            cast(Listener, self.listener),
            self.http,
            cast(HttpGate, self.gate),
        )

    def change(self, **settings: Any) -> None:
        self.reload(Settings(**self.settings | settings), settings.keys())

    def reason(self, exchange: str = "x") -> PassReason | str | None:
        """Return why publishes pass; `waits` if they wait for a reading, and None if the ring routes them."""
        found = self.table.find(exchange.encode())
        return found.reason if isinstance(found, Route) else "waits"


@asynccontextmanager
async def parts(fake: FakeManagement, *, running: bool = False, **settings: Any) -> AsyncIterator[Case]:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake, running=running, **settings) as made:
        yield Case(made, **settings)


async def test_numbers_and_patterns_reach_their_parts(fake: FakeManagement, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(descriptors, "warn_beyond", lambda settings, most: warned.append("descriptors"))
    monkeypatch.setattr(memory, "warn_beyond", lambda settings, most: warned.append("memory"))
    async with parts(fake) as case:
        case.change(max_sessions=3, max_body=4, max_batch=5, max_batch_body=6, max_in_flight=7)
        assert case.listener.max_sessions == 3
        assert case.gate.sizes == Sizes(max_body=4, max_batch=5, max_batch_body=6)
        case.limits.take(8, 0)
        assert case.limits.full(0).endswith("max_in_flight is 7")
        assert warned == ["descriptors", "memory"]
        case.http.limit_connections.assert_not_called()
        case.change(max_http_connections=8)
        case.http.limit_connections.assert_called_once_with(8)
        case.change(groups=("g",), groups_in_series=("g",), route=("r",))
        case.attendants.groups.select.assert_called_with(("g",))
        assert case.attendants.serial.match("/", "g")
        assert case.onlooker.exchanges("/", "r") == ["r"]
        assert case.onlooker.exchanges("/", "x") == []


async def test_the_next_publish_follows_the_new_patterns(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy.reload")
    async with parts(fake, route=("x",)) as case:
        await case.made.scheduler.look_up(X, 10)
        assert case.reason() is None
        case.change(route=())
        assert case.reason() is PassReason.MODE_PASS
        case.change(route=(), shadow=("x",))
        # By the entry from when the ring routed, nothing is counted.
        route = case.table.find(b"x")
        assert isinstance(route, Route)
        assert (route.reason, route.shadowed, route.targets) == (PassReason.SHADOW, False, ())
        await case.made.scheduler.look_up(X, 10)
        route = case.table.find(b"x")
        assert isinstance(route, Route)
        assert (route.reason, route.shadowed, len(route.targets)) == (PassReason.SHADOW, True, 2)
        case.change(route=("x",), shadow=())
        assert case.reason() == "waits"
        await case.made.scheduler.look_up(X, 10)
        assert case.reason() is None
    assert [m for m in caplog.messages if m.startswith("settings:")] == [
        "settings: route -> pass for exchange 'x' in '/'",
        "settings: pass -> shadow for exchange 'x' in '/'",
        "settings: shadow -> route for exchange 'x' in '/'",
    ]


async def test_another_share_is_in_force_at_once_and_reads_nothing(fake: FakeManagement) -> None:
    async with parts(fake, route=("x",)) as case:
        await case.made.scheduler.look_up(X, 10)
        read = len(fake.requests)
        for share, slots in ((10.0, slots_in(10)), (0.0, 0), (100.0, None)):
            case.change(route_share=share)
            route = case.table.find(b"x")
            assert isinstance(route, Route)
            assert (route.native is None) is (slots is None)
            assert slots is None or route.routed_slots == slots
        assert len(fake.requests) == read


async def test_what_is_not_to_change_does_not_wait(fake: FakeManagement) -> None:
    fake.exchange("y", binding("a"))
    async with parts(fake) as case:
        await case.made.scheduler.look_up(X, 10)
        await case.made.scheduler.look_up(("/", "y"), 10)
        requests = len(fake.requests)
        case.change(route=("x",), pass_=("nobody",))
        assert case.reason() is None
        assert case.reason("y") is PassReason.MODE_PASS
        assert len(fake.requests) == requests


async def test_while_readings_fail_publishes_go_the_former_way(fake: FakeManagement) -> None:
    """Known or not, an exchange that was passed is passed until a reading succeeds."""
    fake.exchange("known", binding("a"))
    async with parts(fake, running=True, route=(), interval=0.1, named=(("/", "known"),)) as case:
        await eventually(lambda: ("/", "known") in case.made.router.entries)
        assert (case.reason(), case.reason("known")) == (PassReason.MODE_PASS, PassReason.MODE_PASS)
        fake.fail(status(500))
        case.change(route=("*",))
        assert (case.reason(), case.reason("known")) == ("waits", "waits")
        await eventually(lambda: (case.reason(), case.reason("known")) == (PassReason.MODE_PASS, PassReason.MODE_PASS))
        # Once readings are known to fail, nothing waits for one.
        case.change(route=())
        case.change(route=("x", "known"))
        assert (case.reason(), case.reason("known")) == (PassReason.MODE_PASS, PassReason.MODE_PASS)
        fake.mend()
        await eventually(lambda: (case.reason(), case.reason("known")) == (None, None))


async def test_a_shadowed_exchange_that_was_never_read_passes_on(fake: FakeManagement) -> None:
    async with parts(fake, running=True, route=(), shadow=("x",), interval=0.1) as case:
        fake.fail(status(500))
        assert case.reason() is PassReason.SHADOW
        case.change(route=("x",), shadow=())
        assert case.reason() == "waits"
        await eventually(lambda: case.reason() is PassReason.MODE_PASS)
        fake.mend()
        await eventually(lambda: case.reason() is None)


async def test_an_exchange_that_is_being_read_for_the_first_time_passes_on(fake: FakeManagement) -> None:
    """It passes until a reading succeeds; one that was to be routed waits as before, or its keys would move."""
    async with parts(fake, running=True, route=(), groups=("x",), named=(X,), interval=0.1) as case:
        gate = Gate(fake)
        fake.fail(gate)
        await eventually(lambda: X in case.made.scheduler.known())
        assert case.reason() is PassReason.MODE_PASS
        case.change(route=("x",), groups=("x",))
        assert case.reason() == "waits"
        await case.made.scheduler.look_up(X, 0.05)
        assert case.reason() is PassReason.MODE_PASS
        gate.open()
        fake.mend()
        await eventually(lambda: case.reason() is None)


async def test_an_exchange_that_was_to_be_routed_does_not_pass_while_it_is_read(fake: FakeManagement) -> None:
    async with parts(fake) as case:
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        reading = asyncio.create_task(case.made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        case.change(route=("x",))
        assert X not in case.made.router.entries
        gate.open()
        await reading
        assert case.reason() == "waits"
        await case.made.scheduler.look_up(X, 10)
        assert case.reason() is None


async def test_a_reading_that_began_before_a_reload_does_not_count(fake: FakeManagement) -> None:
    async with parts(fake, route=()) as case:
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        reading = asyncio.create_task(case.made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        case.change(route=("x",))
        gate.open()
        await reading
        assert case.reason() == "waits"
        await case.made.scheduler.look_up(X, 10)
        assert case.reason() is None
        assert case.made.weights() == {A: 1, B: 1}


async def test_the_newer_of_two_readings_that_overlap_counts(fake: FakeManagement) -> None:
    """A reload names an exchange, which is then read in turn, while the reading for its first publish hangs."""
    async with parts(fake, running=True) as case:
        gate = Gate(fake)
        fake.fail(gate, BINDINGS_OF_X)
        reading = asyncio.create_task(case.made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        fake.mend()
        case.change(route=("x",))
        await eventually(lambda: case.reason() is None)
        newer = case.made.entry
        gate.open()
        await reading
        await eventually(lambda: not case.made.scheduler.known() - case.made.router.entries.keys())
        assert case.made.entry.read_at >= newer.read_at


async def test_lanes_are_no_destinations_once_an_exchange_is_routed(fake: FakeManagement) -> None:
    """While it is passed, nobody looks for lanes, and the exchange is bound to exchanges."""
    async with parts(fake, route=(), named=(X,)) as case:
        fake.exchange("x", binding("lane.a", kind="exchange"), binding("lane.b", kind="exchange"))
        for name in "ab":
            fake.exchange(f"lane.{name}", binding(name, ""), type="fanout")
        await case.made.scheduler.look_up(X, 10)
        case.change(route=("x",))
        await case.made.scheduler.look_up(X, 10)
        assert case.made.weights() == {A: 1, B: 1}
        assert case.made.entry.lanes == {A: "lane.a", B: "lane.b"}


async def test_an_upstream_exchange_is_read_anew_if_a_ring_behind_it_changes(fake: FakeManagement) -> None:
    fake.exchange("events", binding("x", "#", "exchange"), type="topic")
    async with parts(fake, route=("events", "x")) as case:
        for exchange in ("x", "events"):
            await case.made.scheduler.look_up(("/", exchange), 10)
        upstream = case.made.router.entries["/", "events"].upstream
        assert upstream is not None
        assert upstream.rings == {Destination("exchange", "x")}
        case.change(route=("events",))
        assert isinstance(case.table.find(b"events"), Unread)
        await case.made.scheduler.look_up(("/", "events"), 10)
        assert case.reason("events") is PassReason.NO_RING


async def test_an_upstream_exchange_follows_once_the_ring_behind_it_is_to_be_routed(fake: FakeManagement) -> None:
    fake.exchange("events", binding("x", "#", "exchange"), type="topic")
    async with parts(fake, route=("events",)) as case:
        await case.made.scheduler.look_up(("/", "events"), 10)
        assert case.reason("events") is PassReason.NO_RING
        assert X not in case.made.router.entries
        case.change(route=("events", "x"))
        assert case.reason("events") == "waits"
        await case.made.scheduler.look_up(("/", "events"), 10)
        assert case.reason("events") is None


async def test_named_exchanges_are_read_in_turn_and_others_no_more(fake: FakeManagement) -> None:
    fake.exchange("y", binding("a"))
    async with parts(fake, running=True, route=("x", "absent"), named=(X, ("/", "absent"))) as case:
        await eventually(lambda: not case.made.scheduler.pending())
        assert case.made.scheduler.missing() == {X: False, ("/", "absent"): True}
        case.change(route=("y",))
        await eventually(lambda: not case.made.scheduler.pending_of_reload())
        assert case.made.scheduler.missing() == {("/", "y"): False}
        assert case.made.routes(("/", "y"))


async def test_what_a_reload_names_is_not_required(fake: FakeManagement) -> None:
    """Its readings must leave a sidecar ready; that of the start must not, unless a reload stops naming it."""
    async with parts(fake, route=("x",), named=(X,)) as case:
        case.change(route=("x", "y"))
        assert case.made.scheduler.pending() == [X]
        assert case.made.scheduler.pending_of_reload() == [("/", "y")]
        assert case.made.scheduler.missing() == {}
        made, in_force = case.made, SettingsInForce(Sources(None, {}, {}))
        readiness = Readiness(
            in_force, made.router, made.scheduler, made.reader, Mock(), default_vhost="/", draining=lambda: False
        )
        assert readiness.asides() == {"rings of the last reload read": "not read yet: 'y' in '/'"}
        case.change(route=("y",))
        case.change(route=("x",))
        assert (case.made.scheduler.pending(), case.made.scheduler.pending_of_reload()) == ([], [X])
        await case.made.scheduler.look_up(X, 10)
        assert case.made.scheduler.pending_of_reload() == []


async def test_exchanges_with_members_keep_their_rings_whatever_groups_says(fake: FakeManagement) -> None:
    async with parts(fake, route=(), groups=("x",)) as case:
        assert case.made.selection.has_ring(*X)
        case.attendants.groups.exchanges.return_value = {X}
        case.change(groups=("y",))
        assert case.made.selection.has_ring(*X)
        case.attendants.groups.exchanges.return_value = set()
        case.change(groups=("y",))
        assert not case.made.selection.has_ring(*X)


async def test_the_exchanges_that_pass_are_remembered_up_to_a_limit(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.routing.routes.MOST_ROUTES", 3)
    async with parts(fake, route=()) as case:
        for exchange in ("a", "b", "c", "d"):
            case.reason(exchange)
        assert case.tables.passed == {("/", "d")}
