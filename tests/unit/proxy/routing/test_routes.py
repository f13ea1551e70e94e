"""Routes follow what the router knows of exchanges, and are forgotten when that changes."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest

from proxy.routing import routes
from proxy.routing.counters import NOWHERE, CounterTable
from proxy.routing.route import Route, Target
from proxy.routing.routes import RouteTables
from proxy.settings.patterns import Selection
from proxy.topology.table import MAX_HOPS, Entry, KnownRing, Name, PassReason, Router, Unread
from ring.hashed import HashedValue
from ring.hashing import slot_of
from tests.unit.proxy.session.wire import (
    NOW,
    QUEUES,
    VHOST,
    exchange,
    header,
    headers,
    known,
    long_string,
    queue,
    ring,
    selecting,
    upstream,
)

EMPTY = header(1, 0)[7:-1]
"""The payload of a content header with no properties."""


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


class Tables:
    """A router, tables over it, and one of them."""

    def __init__(
        self,
        entries: Mapping[str, Entry | KnownRing] | None = None,
        selection: Selection | None = None,
        mismatch: str = "",
    ) -> None:
        self.clock = Clock()
        self.router = Router(300, refuse_stale=True, clock=self.clock)
        self.counter_table = CounterTable()
        self.wanted: list[Name] = []
        selection = selection or selecting(entries or {})
        self.tables = RouteTables(
            self.router, selection, self.counter_table, lambda cluster: mismatch, self.wanted.append
        )
        self.table = self.tables.table(VHOST, "c")
        for name, what in (entries or {}).items():
            self.put(name, what)

    def put(self, name: str, what: Entry | KnownRing) -> None:
        self.router.put((VHOST, name), what if isinstance(what, Entry) else known(what, read_at=self.clock.now))

    def why_passed(self, name: str, key: bytes) -> PassReason:
        """Why a message without properties is passed, for which the route finds no place."""
        return self.route(name).why_passed(key, EMPTY, 0, len(EMPTY))

    def route(self, name: str) -> Route:
        found = self.table.find(name.encode())
        assert isinstance(found, Route), found
        return found

    def target(self, name: str, key: bytes = b"k") -> Target | None:
        choice = self.route(name).choose(key, EMPTY, 0, len(EMPTY))
        return choice.target if choice else None


def test_a_key_goes_to_the_owner_of_its_slot() -> None:
    t = Tables({"x": QUEUES})
    owned = set()
    for key in (b"%d" % i for i in range(50)):
        choice = t.route("x").choose(key, EMPTY, 0, len(EMPTY))
        assert choice is not None
        owner = QUEUES.ring.owner_of(key)
        assert (choice.target.destination, choice.slot, choice.by.known) == (owner, slot_of(key), QUEUES)
        owned.add(owner)
    assert owned == {queue("q1"), queue("q2"), queue("q3")}


def test_the_tallies_of_a_ring_outlive_its_route() -> None:
    t = Tables({"x": QUEUES})
    for _ in range(2):
        for target in t.route("x").targets:
            target.tally.count += 1
        t.router.notify()
    placed = t.tables.counter_table.of((VHOST, "x"), None).placed
    assert {where: tally.count for where, tally in placed.items()} == dict.fromkeys(QUEUES.ring.destinations, 2)


@pytest.mark.parametrize("hashed", [HashedValue(), HashedValue("header", "h"), HashedValue("property", "timestamp")])
def test_without_a_message_a_key_stands_for_whatever_is_hashed(hashed: HashedValue) -> None:
    inner = ring(queue("q1"), queue("q2"), queue("q3"), hashed=hashed)
    t = Tables({"x": ring(exchange("y")), "y": inner})
    for key in (b"", b"k1", b"\xff"):
        for name in ("x", "y"):
            choice = t.route(name).choose(key, b"", 0, 0)
            assert choice is not None
            assert (choice.target.destination, choice.by.known) == (inner.ring.owner_of(key), inner)
            assert not choice.missing


def test_what_is_behind_a_ring_is_of_the_same_virtual_host() -> None:
    t = Tables({"x": ring(exchange("y"))})
    t.router.put(("other", "y"), known(QUEUES))
    target = t.target("x")
    assert target is not None
    assert target.unread == Unread((VHOST, "y"), "not read yet")


@pytest.mark.parametrize(
    "passed", [PassReason.TYPE, PassReason.NO_BINDINGS, PassReason.DEAD_LETTER, PassReason.MODE_PASS, PassReason.SHADOW]
)
def test_an_exchange_behind_a_ring_that_passes_gets_the_message(passed: PassReason) -> None:
    t = Tables({"x": ring(exchange("y")), "y": known(QUEUES, passed)})
    target = t.target("x")
    assert target is not None
    assert (target.destination, target.unread) == (exchange("y"), None)


def test_only_the_ring_that_a_message_meets_needs_to_be_known() -> None:
    outer = ring(exchange("y"), queue("q"))
    t = Tables({"x": outer})
    for key in (b"%d" % i for i in range(40)):
        target = t.target("x", key)
        assert target is not None
        assert target.destination == outer.ring.owner_of(key)
        assert (target.unread is None) is target.is_queue


def test_a_cycle_of_rings_leads_nowhere() -> None:
    assert Tables({"x": ring(exchange("y")), "y": ring(exchange("x"))}).target("x") is None
    assert Tables({"x": ring(exchange("x"))}).target("x") is None


@pytest.mark.parametrize(("hops", "reached"), [(1, True), (MAX_HOPS, True), (MAX_HOPS + 1, False)])
def test_a_chain_of_rings_has_a_longest_length(hops: int, reached: bool) -> None:
    chain = {f"x{i}": ring(exchange(f"x{i + 1}") if i + 1 < hops else queue("end")) for i in range(hops)}
    target = Tables(chain).target("x0")
    assert (target is not None and target.destination == queue("end")) is reached


@pytest.mark.parametrize("reason", [PassReason.TYPE, PassReason.NO_BINDINGS, PassReason.DEAD_LETTER])
@pytest.mark.parametrize("what", [None, QUEUES])
def test_what_is_passed_has_no_ring(what: KnownRing | None, reason: PassReason) -> None:
    t = Tables({"x": known(what, reason)})
    assert (t.route("x").stamp, t.route("x").reason) == (b"", reason)
    assert t.route("x").counters is t.counter_table.of((VHOST, "x"), reason)


def test_a_shadowed_exchange_is_passed_and_its_ring_is_asked() -> None:
    t = Tables({"x": known(QUEUES, PassReason.SHADOW), "none": known(None, PassReason.SHADOW)})
    assert (t.route("x").shadowed, t.route("x").plain, t.route("x").reason) == (True, False, PassReason.SHADOW)
    target = t.target("x")
    assert target is not None
    assert target.destination == QUEUES.ring.owner_of(b"k")
    assert (t.route("none").stamp, t.route("none").reason) == (b"", PassReason.SHADOW)


@pytest.mark.parametrize("inner", [QUEUES, known(None, PassReason.TYPE)])
def test_a_plain_route_is_one_to_queues_by_the_routing_key(inner: Entry | KnownRing) -> None:
    by_header = ring(queue("q1"), hashed=HashedValue("header", "h"))
    t = Tables({"x": QUEUES, "h": by_header, "o": ring(exchange("y"), queue("q")), "y": inner})
    assert [t.route(name).plain for name in "xho"] == [True, False, False]


def test_the_methods_of_targets() -> None:
    t = Tables({"x": ring(queue("q"), exchange("y")), "y": known(None, PassReason.TYPE)})
    methods = {target.destination: target.method for target in t.route("x").targets}
    assert methods == {
        queue("q"): b"\0\x3c\0\x28" + b"\0\0" + b"\0" + b"\x01q",
        exchange("y"): b"\0\x3c\0\x28" + b"\0\0" + b"\x01y",
    }


def test_an_unknown_exchange_is_unread_and_asked_again_each_time() -> None:
    t = Tables()
    found = t.table.find(b"x")
    assert isinstance(found, Unread)
    assert (found.name, found.other_cluster) == ((VHOST, "x"), False)
    assert t.table.routes == {}
    t.put("x", QUEUES)
    assert t.route("x").stamp


def test_tables_forget_when_the_router_changes() -> None:
    t = Tables({"x": ring(exchange("y")), "y": QUEUES, "z": QUEUES})
    first, routes = t.route("x"), t.table.routes
    assert t.route("x") is first
    t.put("z", ring(queue("other")))
    assert t.route("x") is not first
    assert t.target("x") is not None
    t.put("y", ring(queue("deep")))
    target = t.target("x")
    assert target is not None
    assert target.destination == queue("deep")
    t.router.drop((VHOST, "y"))
    target = t.target("x")
    assert target is not None
    assert target.unread is not None
    assert t.table.routes is routes


def test_a_declaration_makes_an_exchange_unread_until_it_is_read_back() -> None:
    t = Tables({"x": QUEUES, "o": ring(exchange("x"))})
    t.route("x"), t.route("o")
    t.clock.now += 1
    t.router.mark_declared((VHOST, "x"), t.clock.now, certain=True)
    assert isinstance(t.table.find(b"x"), Unread)
    target = t.target("o")
    assert target is not None
    assert target.unread is not None
    once = t.table.once(b"x", NOW)
    assert isinstance(once, Route), "a publish that came before the declaration"
    assert b"x" not in t.table.routes
    t.clock.now += 1
    t.put("x", known(QUEUES, read_at=t.clock.now))
    target = t.target("o")
    assert target is not None
    assert target.unread is None


def test_tables_say_when_their_rings_get_too_old() -> None:
    entries: dict[str, Entry] = {"x": known(QUEUES), "t": known(None, PassReason.TYPE, read_at=NOW - 9999)}
    t = Tables(entries)
    assert t.table.expires == inf
    t.route("t")
    assert t.table.expires == inf
    t.route("x")
    assert t.table.expires == NOW + 300
    t.put("old", known(QUEUES, read_at=NOW - 100))
    assert t.table.expires == inf
    t.route("old"), t.route("x")
    assert t.table.expires == NOW + 200
    t.table.clear()
    assert (t.table.expires, t.table.routes) == (inf, {})


@pytest.mark.parametrize("passed", [None, PassReason.DEAD_LETTER])
def test_what_is_behind_a_ring_gets_too_old_too(passed: PassReason | None) -> None:
    t = Tables({"x": ring(exchange("y")), "y": known(QUEUES, passed, read_at=NOW - 100)})
    t.route("x")
    assert t.table.expires == NOW + 200


def test_unselected_exchanges_pass_without_a_look_up() -> None:
    t = Tables(selection=Selection(["ring-*"], [], ["ring-off"]))
    for name in ("other", "ring-off"):
        route = t.route(name)
        assert (route.stamp, route.counters) == (b"", t.counter_table.of(NOWHERE, PassReason.MODE_PASS))
    assert isinstance(t.table.find(b"ring-1"), Unread)
    t.put("other", known(QUEUES, PassReason.MODE_PASS))
    assert t.route("other").counters is t.counter_table.of((VHOST, "other"), PassReason.MODE_PASS)


def test_another_clusters_bindings_route_nothing() -> None:
    t = Tables({"x": QUEUES, "t": known(None, PassReason.TYPE)}, mismatch="that is cluster b")
    assert t.table.find(b"x") == Unread((VHOST, "x"), "that is cluster b", other_cluster=True)
    assert t.route("t").counters is t.counter_table.of((VHOST, "t"), PassReason.TYPE)


def test_an_exchange_that_is_refused_takes_nothing_and_waits_for_nothing() -> None:
    entry = replace(known(QUEUES, PassReason.DEAD_LETTER), refused="queue 'q1' dead-letters")
    t = Tables({"x": entry, "before": ring(exchange("x"))})
    unread = Unread((VHOST, "x"), "queue 'q1' dead-letters", refused=True)
    assert t.table.find(b"x") == unread
    target = t.target("before")
    assert target is not None
    assert target.unread == unread
    t.put("x", replace(entry, refused=""))
    assert t.route("x").counters is t.counter_table.of((VHOST, "x"), PassReason.DEAD_LETTER)


def test_an_internal_exchange_passes_for_the_broker_to_refuse() -> None:
    t = Tables({"x": known(QUEUES, internal=True)})
    route = t.route("x")
    assert (route.stamp, route.counters) == (b"", t.counter_table.of((VHOST, "x"), PassReason.INTERNAL))


def test_an_exchange_behind_a_ring_that_has_become_internal_breaks_nothing() -> None:
    """The next reading of the ring before it passes all of that ring."""
    t = Tables({"x": ring(exchange("y")), "y": known(QUEUES, internal=True)})
    target = t.target("x")
    assert target is not None
    assert target.destination == exchange("y")


# Upstream exchanges.

BEFORE = upstream({"a.#": "x", "b.#": "y"})
OTHERS = ring(queue("q4"), queue("q5"))


def test_an_upstream_exchange_leads_to_the_ring_that_a_message_matches() -> None:
    t = Tables({"u": BEFORE, "x": QUEUES, "y": OTHERS})
    for n in range(20):
        for first, behind in ((b"a", QUEUES), (b"b", OTHERS)):
            key = b"%b.%d" % (first, n)
            for head in (EMPTY, b""):
                choice = t.route("u").choose(key, head, 0, len(head))
                assert choice is not None
                assert choice.target.destination == behind.ring.owner_of(key)
                assert (choice.by.known, choice.slot) == (behind, slot_of(key))
    assert t.target("u", b"c.1") is None
    assert t.why_passed("u", b"c.1") is PassReason.NO_RING
    assert not t.route("u").plain


def test_only_the_ring_behind_that_a_message_matches_needs_to_be_known() -> None:
    t = Tables({"u": BEFORE, "x": QUEUES})
    found = [t.target("u", key) for key in (b"a.1", b"b.1", b"c")]
    assert [target and target.unread for target in found] == [None, Unread((VHOST, "y"), "not read yet"), None]


@pytest.mark.parametrize("what", [known(QUEUES, PassReason.DEAD_LETTER), known(None, PassReason.NO_BINDINGS)])
def test_a_ring_behind_that_is_passed_has_the_message_passed_to_the_upstream_exchange(what: Entry) -> None:
    t = Tables({"u": BEFORE, "x": what, "y": OTHERS})
    assert t.target("u", b"a.1") is None
    assert t.target("u", b"b.1") is not None


def test_a_ring_behind_may_be_internal_and_its_own_publishes_pass() -> None:
    t = Tables({"u": BEFORE, "x": known(QUEUES, internal=True), "y": OTHERS})
    for _ in range(2):
        target = t.target("u", b"a.1")
        assert target is not None
        assert target.destination == QUEUES.ring.owner_of(b"a.1")
        assert t.route("x").reason is PassReason.INTERNAL


def test_upstream_exchanges_behind_one_another() -> None:
    t = Tables({"u": upstream({"#": "v"}), "v": BEFORE, "x": QUEUES, "y": OTHERS})
    target = t.target("u", b"b.1")
    assert target is not None
    assert target.destination == OTHERS.ring.owner_of(b"b.1")
    assert t.target("u", b"c") is None
    circle = Tables({"u": upstream({"#": "v"}), "v": upstream({"#": "u"})})
    assert circle.target("u") is None
    assert circle.why_passed("u", b"k") is PassReason.CYCLE


def test_what_is_read_again_once_an_exchange_behind_is_gone() -> None:
    t = Tables({"u": upstream({"#": "v"}), "v": upstream({"#": "x"}), "other": upstream({"#": "x"})})
    assert t.table.ways_to("x", b"u") == {(VHOST, "u"), (VHOST, "v")}
    assert t.table.ways_to("x", b"not read") == {(VHOST, "not read")}


def test_an_upstream_exchange_behind_another_may_be_internal_and_its_own_publishes_pass() -> None:
    inner = replace(BEFORE, internal=True)
    t = Tables({"u": upstream({"#": "v"}), "v": inner, "x": QUEUES, "y": OTHERS})
    target = t.target("u", b"a.1")
    assert target is not None
    assert target.destination == QUEUES.ring.owner_of(b"a.1")
    assert t.route("v").reason is PassReason.INTERNAL
    assert t.why_passed("u", b"c") is PassReason.NO_RING


def test_internal_upstream_exchanges_in_a_circle() -> None:
    v, w = upstream({"#": "w"}, internal=True), upstream({"#": "v"}, internal=True)
    t = Tables({"u": upstream({"#": "v"}), "v": v, "w": w})
    assert t.target("u", b"a.1") is None
    assert t.why_passed("u", b"a.1") is PassReason.CYCLE


@pytest.mark.parametrize("internal", [False, True])
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("why", [PassReason.DEAD_LETTER, PassReason.OVERLAP, PassReason.NO_BINDINGS])
def test_why_a_message_is_passed_that_matches_a_ring_out_of_service(why: PassReason, hops: int, internal: bool) -> None:
    """RabbitMQ hashes it, unlike one that leads to no ring: the reason must raise the alert."""
    behind = upstream({"a.#": "x"}, internal=internal)
    t = Tables({"u": BEFORE if hops == 1 else upstream({"#": "v"}), "v": behind, "x": known(QUEUES, why)})
    assert t.target("u", b"a.1") is None
    assert t.why_passed("u", b"a.1") is why


def test_why_a_message_to_a_circle_of_rings_is_passed() -> None:
    t = Tables({"r": ring(exchange("s")), "s": ring(exchange("r"))})
    assert t.target("r") is None
    assert t.why_passed("r", b"k") is PassReason.CYCLE


def test_a_ring_gives_its_messages_to_an_upstream_exchange_behind_it() -> None:
    """Nothing is resolved further: a message that matches nothing must come back from that exchange."""
    t = Tables({"r": ring(exchange("u")), "u": BEFORE, "x": QUEUES, "y": OTHERS})
    target = t.target("r", b"a.1")
    assert target is not None
    assert (target.destination, target.behind) == (exchange("u"), None)


@pytest.mark.parametrize(
    ("entries", "placed"),
    [
        (long_string(b"CC", b""), False),
        (long_string(b"h", b"") + long_string(b"BCC", b""), False),
        (long_string(b"ACC", b"BCC"), True),
        (b"", True),
    ],
)
def test_a_message_with_further_keys_is_placed_nowhere(entries: bytes, placed: bool) -> None:
    t = Tables({"u": BEFORE, "x": QUEUES})
    payload = headers(1, 1, entries)[7:-1]
    assert (t.route("u").choose(b"a.1", payload, 0, len(payload)) is not None) is placed
    if not placed:
        assert t.route("u").why_passed(b"a.1", payload, 0, len(payload)) is PassReason.COPIES


def test_an_upstream_exchange_that_is_passed_whole_or_is_of_another_cluster() -> None:
    t = Tables({"u": replace(BEFORE, passed=PassReason.OVERLAP), "x": QUEUES})
    assert (t.route("u").stamp, t.route("u").reason) == (b"", PassReason.OVERLAP)
    other = Tables({"u": BEFORE}, mismatch="that is cluster b")
    assert other.table.find(b"u") == Unread((VHOST, "u"), "that is cluster b", other_cluster=True)


def test_what_is_behind_an_upstream_exchange_stays_in_use_and_is_no_lane() -> None:
    t = Tables({"u": BEFORE, "x": QUEUES, "y": OTHERS})
    assert t.route("u").leads_through() == {(VHOST, name) for name in "uxy"}
    assert t.table.behind == set()


def test_no_counts_are_under_names_that_clients_choose() -> None:
    t = Tables({"x": QUEUES}, selection=Selection(["*"], [], ["off-*"]))
    for i in range(100):
        t.table.find(b"off-%d" % i)
        t.table.find(b"unknown-%d" % i)
        t.table.find(b"\xff%d" % i)
        t.table.absent(b"absent-%d" % i)
    t.route("x"), t.route("")
    assert {name for name, _ in t.counter_table.by_way} == {NOWHERE, (VHOST, "x"), (VHOST, "")}


def test_a_name_that_is_not_utf8_is_no_exchange() -> None:
    t = Tables()
    found = t.table.find(b"\xff\xfe")
    assert isinstance(found, Route)
    assert found.counters is t.counter_table.of(NOWHERE, PassReason.ABSENT)


def test_a_table_has_so_many_routes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_ROUTES", 10)
    t = Tables({"x": ring(exchange("y")), "y": QUEUES}, selection=Selection(["x", "y"], [], []))
    for i in range(100):
        t.table.find(b"n%d" % i)
        target = t.target("x")
        assert target is not None
        assert target.destination == QUEUES.ring.owner_of(b"k")
        assert len(t.table.routes) <= 10


def test_a_table_is_shared_while_it_is_held_and_then_gone() -> None:
    t = Tables()
    assert t.tables.table(VHOST, "c") is t.table
    other = t.tables.table(VHOST, None)
    assert other is not t.table
    t.table = other
    gc.collect()
    t.put("x", QUEUES)
    assert len(t.tables._tables) == 1


# Use of exchanges


def test_touch_tells_what_was_published_to_since() -> None:
    t = Tables({"x": QUEUES, "y": QUEUES})
    x, _ = t.route("x"), t.route("y")
    t.tables.touch()
    t.clock.now += 10
    x.counters.published += 1
    t.tables.touch()
    assert t.router.used_at == {(VHOST, "x"): NOW + 10, (VHOST, "y"): NOW}
    t.clock.now += 10
    t.tables.touch()
    assert t.router.used_at == {(VHOST, "x"): NOW + 10, (VHOST, "y"): NOW}


def test_touch_tells_of_all_that_is_behind() -> None:
    """Else what is behind falls out of use, and with it the ring before it."""
    entries: dict[str, Entry | KnownRing] = {
        "a": ring(exchange("b")),
        "b": ring(exchange("c"), exchange("d"), exchange("a")),
        "c": QUEUES,
        "d": known(None, PassReason.TYPE),
    }
    t = Tables(entries)
    route = t.route("a")
    t.tables.touch()
    t.clock.now += 10
    route.counters.published += 1
    t.tables.touch()
    assert t.router.used_at == {(VHOST, name): NOW + 10 for name in "abcd"}


def test_touch_marks_no_exchange_that_is_not_known() -> None:
    t = Tables(selection=Selection(["x"], [], []))
    t.route("other").counters.published += 1
    t.tables.touch()
    assert t.router.used_at == {}


def test_what_was_seen_is_forgotten_with_the_routes() -> None:
    """Clients choose the names."""
    t = Tables(selection=Selection(["x"], [], []))
    for i in range(100):
        t.route(f"n{i}")
        t.tables.touch()
        t.table.clear()
    t.tables.touch()
    assert len(t.table._seen) <= 1


# Which rings lead somewhere.


def test_rings_to_an_exchange() -> None:
    entries: dict[str, Entry | KnownRing] = {
        "a": ring(exchange("y"), queue("q")),
        "b": ring(exchange("y")),
        "c": QUEUES,
        "d": known(ring(exchange("y")), PassReason.SHADOW),
        "e": known(None, PassReason.NO_BINDINGS),
    }
    t = Tables(entries)
    t.router.put(("other", "a"), known(ring(exchange("y"))))
    assert t.table.rings_to("y") == names("a", "b")
    assert t.table.rings_to("q") == []


def names(*exchanges: str) -> list[Name]:
    return [(VHOST, name) for name in exchanges]


def test_a_missing_value_is_told_wherever_it_is_missing() -> None:
    by_header = ring(queue("q1"), queue("q2"), hashed=HashedValue("header", "h"))
    outer = ring(exchange("y"), hashed=HashedValue("header", "h"))
    t = Tables({"x": outer, "y": by_header, "k": QUEUES})
    choice = t.route("x").choose(b"key", EMPTY, 0, len(EMPTY))
    assert choice is not None
    assert choice.target.destination == by_header.ring.owner_of(b"")
    assert choice.missing
    by_key = t.route("k").choose(b"key", EMPTY, 0, len(EMPTY))
    assert by_key is not None
    assert not by_key.missing


@pytest.mark.parametrize(("pattern", "named"), [("s", True), ("*", False)])
def test_a_shadowed_exchange_that_is_not_read_yet_is_passed_and_asked_for(pattern: str, named: bool) -> None:
    t = Tables({}, Selection([], [pattern], []))
    for _ in range(2):
        route = t.route("s")
        assert (route.reason, route.stamp, route.fixed) == (PassReason.SHADOW, b"", True)
        assert route.counters is t.counter_table.of((VHOST, "s") if named else NOWHERE, PassReason.SHADOW)
    assert t.wanted == [(VHOST, "s")] * 2
    t.put("s", known(QUEUES, PassReason.SHADOW))
    assert t.route("s").shadowed
    assert len(t.wanted) == 2
