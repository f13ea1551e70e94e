"""Members that join and leave, on a fake management API and a broker that hangs or refuses: nothing waits for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aio_pika.abc import AbstractConnection

from proxy.groups import groups as groups_module
from proxy.groups import membership, shard_readings
from proxy.groups import running as running_module
from proxy.groups.attempts import KEPT
from proxy.groups.blocked import BlockedKey
from proxy.groups.decide import Decision
from proxy.groups.groups import Groups
from proxy.groups.model import Ending, Link, LinkEvent, LinkState, Member
from proxy.groups.operators import Order
from proxy.groups.pauses import PauseOrder, Verb
from proxy.groups.redelivered import POISON, RECENT
from proxy.groups.report import report
from proxy.http.admin.group_metrics import collect
from proxy.settings.config import Settings
from proxy.settings.patterns import Selection
from proxy.topology.management import Management
from proxy.topology.marker import DRAINER, LINK_PRIORITY
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Router
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, body, silent, status

Connect = Callable[[], Awaitable[AbstractConnection]]


class Session:
    """A session that records what the groups have it do."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.at_start: Callable[[Member], None] = lambda member: None
        self.oldest: dict[str, float] = {}
        self.hangs_since_ = 0.0
        self.fingerprints_: frozenset[str] = frozenset()

    def start(self, member: Member) -> None:
        self.did.append(("start",))
        self.at_start(member)

    def refuse(self, member: Member, code: int, text: str) -> None:
        self.did.append(("refuse", code, text))

    def open(self, member: Member, shard: str) -> str:
        self.did.append(("open", shard))
        member.links[shard] = Link(member, shard)
        member.links[shard].enter(LinkEvent.WANT, 0.0)
        return ""

    def let_go(self, member: Member, shard: str) -> None:
        self.did.append(("let go", shard))

    def give_up(self, member: Member, shard: str) -> None:
        self.did.append(("give up", shard))
        member.links[shard].enter(LinkEvent.GIVE_UP, 0.0)

    def backlog(self, member: Member) -> None:
        return None

    def blocked_keys(self, member: Member, shard: str) -> list[BlockedKey]:
        return []

    def operate(self, member: Member, order: Order) -> str:
        return "no member is in series"

    def has_nothing(self, member: Member, shard: str) -> bool:
        return not member.links[shard].unacked

    def is_with_client(self, member: Member, shard: str) -> bool:
        return True

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        return self.oldest

    def hangs_since(self, member: Member) -> float:
        return self.hangs_since_

    def fingerprints(self, member: Member, shard: str) -> frozenset[str]:
        return self.fingerprints_


def member(name: str = "m", exchange: str = "orders") -> Member:
    return Member(name, "/", exchange, 1, b"tag")


async def hangs() -> AbstractConnection:
    await asyncio.sleep(3600)
    raise AssertionError


async def refuses() -> AbstractConnection:
    raise OSError("no such\nnode")


@contextlib.asynccontextmanager
async def running(api: Management, connect: Connect = hangs, **settings: Any) -> AsyncIterator[Groups]:
    router = Router(300.0, refuse_stale=False)
    reader = Reader(api, router, Selection(["*"], [], []), settle_time=0.1)
    scheduler = Scheduler(reader, router, interval=15)
    made = Settings(**{"groups": ("*",), **settings})
    groups = Groups(made, scheduler, router, api, lambda vhost: connect, "process")
    try:
        yield groups
    finally:
        await groups.aclose()


async def test_a_group_has_the_queues_of_the_ring_as_shards(fake: FakeManagement, api: Management) -> None:
    fake.exchange("orders", binding("q2"), binding("q1"), binding("q3", "no weight"))
    async with running(api) as groups:
        session = Session()
        groups.join(member(), session)
        assert session.did == []
        await eventually(lambda: session.did[:1] == [("start",)])
        (shown,) = groups.report()
        assert (shown["exchange"], [shard["shard"] for shard in shown["shards"]]) == ("orders", ["q1", "q2"])


@pytest.mark.parametrize(
    ("exchange", "code", "why"),
    [("gone", 404, "no exchange of that name"), ("logs", 406, "its type is 'fanout'"), ("slow", 541, "cannot be read")],
)
async def test_what_has_no_group_is_refused(
    fake: FakeManagement, api: Management, exchange: str, code: int, why: str
) -> None:
    fake.exchange("logs", type="fanout")
    fake.fail(silent, "/api/exchanges/%2F/slow")
    async with running(api, lookup_timeout=0.3 if exchange == "slow" else 5.0) as groups:
        session = Session()
        groups.join(member(exchange=exchange), session)
        await eventually(lambda: bool(session.did))
        ((did, found, text),) = session.did
        assert (did, found) == ("refuse", code)
        assert why in text
        assert groups.report() == []


async def test_an_exchange_without_queues_has_a_group_without_shards(fake: FakeManagement, api: Management) -> None:
    fake.exchange("orders")
    async with running(api) as groups:
        session = Session()
        groups.join(member(), session)
        await eventually(lambda: session.did[:1] == [("start",)])


async def test_a_group_that_is_known_takes_members_while_nothing_can_be_read(
    fake: FakeManagement, api: Management
) -> None:
    fake.exchange("orders", binding("q1"))
    async with running(api) as groups:
        groups.join(member("first"), Session())
        await eventually(lambda: bool(groups.running))
        fake.fail(status(500))
        session = Session()
        groups.join(member("second"), session)
        await eventually(lambda: session.did[:1] == [("start",)])


async def test_a_member_that_leaves_while_it_joins_is_told_nothing(fake: FakeManagement, api: Management) -> None:
    fake.exchange("orders", binding("q1"))
    gate = Gate(fake)
    fake.fail(gate, "/api/exchanges/%2F/orders")
    async with running(api) as groups:
        session, its = Session(), member()
        groups.join(its, session)
        await eventually(lambda: fake.count("/orders") > 0)
        groups.leave(its)
        gate.open()
        other = Session()
        groups.join(member("other"), other)
        await eventually(lambda: bool(other.did))
        assert session.did == []
        assert list(groups.running["/", "orders"].state.local) == ["other"]


async def test_a_member_that_its_session_cannot_start_is_no_member(fake: FakeManagement, api: Management) -> None:
    """As where it lacks channels: the session then tells at once that the member has left."""
    fake.exchange("orders", binding("q1"))
    async with running(api) as groups:
        session = Session()
        session.at_start = groups.leave
        groups.join(member(), session)
        await eventually(lambda: bool(session.did))
        await asyncio.sleep(0)
        assert groups.report() == []


async def test_with_the_last_member_the_group_ends_and_its_totals_stay(fake: FakeManagement, api: Management) -> None:
    fake.exchange("orders", binding("q1"))
    async with running(api) as groups:
        members = [member("a"), member("b")]
        for each in members:
            groups.join(each, Session())
        await eventually(lambda: ("/", "orders") in groups.running and len(groups.report()[0]["members"]) == 2)
        groups.running["/", "orders"].stalled = 3
        groups.leave(members[0])
        assert len(groups.report()[0]["members"]) == 1
        groups.leave(members[1])
        groups.leave(members[1])
        assert groups.report() == []
        assert groups.totals()["/", "orders"]["stalled"] == 3
        assert await groups.report_of(("/", "orders")) is None


async def test_redeliveries_are_counted_by_group_and_shard_and_told_of_when_one_message_goes_round(
    fake: FakeManagement, api: Management, caplog: pytest.LogCaptureFixture
) -> None:
    """They are known for a while after the member has left, as a program that crashes at a message has."""
    fake.exchange("orders", binding("q1"), binding("q2"))
    orders, now = ("/", "orders"), time.monotonic()
    async with running(api) as groups:
        leaver, stays = member("a"), member("b")
        for each in (leaver, stays):
            groups.join(each, Session())
        await eventually(lambda: orders in groups.running and len(groups.report()[0]["members"]) == 2)
        leaver.redelivered_of("q1").note(POISON, 0, now)
        for times in (1, 2):
            stays.redelivered_of("q1").note(times, 0, now)
            stays.redelivered_of("no shard any more").note(times, 0, now)
        groups.leave(leaver)
        group = groups.running[orders]
        group._tell_redelivered(now)
        group._tell_redelivered(now)
        assert caplog.text.count("a message of shard 'q1' has come again 21 times") == 1
        stays.redelivered_of("q1").note(2 * POISON, 0, now)
        group._tell_redelivered(now)
        assert caplog.text.count("a message of shard 'q1' has come again 42 times") == 1
        shards = groups.report()[0]["shards"]
        assert [(each["shard"], each["redelivered"], each["worst"]) for each in shards] == [("q1", 4, 42), ("q2", 0, 0)]
        assert stays.redelivered.keys() == {"q1"}
        groups.leave(stays)
        (counted,) = groups.redelivered(now)[orders].values()
        assert (counted.count, counted.recent(now)) == (4, 42)
        assert groups.redelivered(now + RECENT + 1) == {}
        assert groups._redelivered == {}


async def test_redeliveries_of_groups_that_have_ended_are_known_of_so_many_only(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "MOST_NAMES", 1)
    async with running(api) as groups:
        for exchange in ("one", "two"):
            fake.exchange(exchange, binding("q1"))
            its = member(exchange, exchange)
            groups.join(its, Session())
            await eventually(lambda name=exchange: ("/", name) in groups.running)  # type: ignore[misc]
            its.redelivered_of("q1").note(1, 0, time.monotonic())
            groups.leave(its)
        assert groups.redelivered(time.monotonic()).keys() == {("/", "one")}


@pytest.mark.parametrize(("connect", "fault"), [(hangs, "does not answer in time"), (refuses, "no such node")])
async def test_without_the_others_members_wait_for_the_broker_to_tell(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch, connect: Connect, fault: str
) -> None:
    monkeypatch.setattr(membership, "TRY", 0.1)
    fake.exchange("orders", binding("q1"))
    async with running(api, connect) as groups:
        session = Session()
        groups.join(member(), session)
        await eventually(lambda: bool(groups.report()) and fault in str(groups.report()[0]["membership"]))
        assert session.did == [("start",)]
        # Nobody tells whether another member consumes the shard, and the broker does not either.
        await asyncio.sleep(0.3)
        assert session.did == [("start",)]
        began = time.monotonic()
    assert time.monotonic() - began < 10


async def test_where_exact_is_required_the_shards_are_read_first(fake: FakeManagement, api: Management) -> None:
    fake.exchange("orders", binding("q1"))
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    good = {"type": "quorum", "arguments": {"x-single-active-consumer": True}}
    fake.queues["/", "q1"] = {"type": "classic"}
    async with running(api, groups_require="exact") as groups:
        session = Session()
        groups.join(member("a"), session)
        await eventually(lambda: bool(session.did))
        ((did, code, text),) = session.did
        assert (did, code) == ("refuse", 406)
        assert "'q1' is a queue without x-single-active-consumer" in text
        fake.queues["/", "q1"] = good
        session = Session()
        groups.join(member("b"), session)
        await eventually(lambda: session.did[:1] == [("start",)])
        assert groups.report()[0]["exact"] is True


@pytest.mark.parametrize("fault", [silent, status(500)])
async def test_where_exact_is_required_and_cannot_be_told_members_are_refused(
    fake: FakeManagement, api: Management, fault: Any
) -> None:
    fake.exchange("orders", binding("q1"))
    fake.fail(fault, "/api/overview")
    async with running(api, groups_require="exact", lookup_timeout=1.0) as groups:
        session = Session()
        groups.join(member(), session)
        await eventually(lambda: bool(session.did))
        ((did, code, text),) = session.did
        assert (did, code) == ("refuse", 541)
        assert "the management API does not tell what the shards are" in text


@contextlib.asynccontextmanager
async def owning(
    fake: FakeManagement, api: Management, *shards: str, **settings: Any
) -> AsyncIterator[tuple[Groups, Member, Session]]:
    """Give groups, and a member with open links to these shards, by which its client holds messages."""
    fake.exchange("orders", *(binding(shard) for shard in shards))
    async with running(api, **settings) as groups:
        its, session = member(), Session()
        groups.join(its, session)
        await eventually(lambda: bool(groups.running))
        for shard in shards:
            session.open(its, shard)
            its.links[shard].enter(LinkEvent.CONSUMING, time.monotonic())
            its.links[shard].unacked = 1
        yield groups, its, session


async def test_a_member_that_does_not_ack_gives_its_shard_away(fake: FakeManagement, api: Management) -> None:
    async with owning(fake, api, "q1", "q2", groups_ack_timeout=5.0) as (groups, _, session):
        now = time.monotonic()
        session.oldest = {"q1": now - 10, "q2": now - 1}
        await eventually(lambda: ("give up", "q1") in session.did)
        assert ("give up", "q2") not in session.did
        group = groups.running["/", "orders"]
        assert group.stalled >= 1
        assert group.oldest_unacked_at == now - 1
        assert groups.report()[0]["members"][0]["stalled"] is True


QUORUM = {"type": "quorum", "arguments": {"x-single-active-consumer": True}}
A_LINK = {"consumer_tag": "ctag1", "arguments": {"x-priority": LINK_PRIORITY}}
A_STRANGER = {"consumer_tag": "mine", "arguments": {}}
A_DRAINER = {"consumer_tag": f"{DRAINER}1", "arguments": {"x-priority": LINK_PRIORITY}}


@pytest.mark.parametrize(
    ("consumers", "held", "hears", "is_given_up"),
    [
        ([A_LINK], 0, True, True),
        ([A_LINK, A_DRAINER], 0, True, True),
        ([A_LINK, A_LINK], 0, True, False),
        ([A_LINK, A_STRANGER], 0, True, False),
        ([A_LINK], 1, True, False),
        ([A_LINK], 0, False, False),
    ],
)
async def test_a_link_is_given_up_if_it_alone_can_have_what_waits_and_gets_nothing(
    fake: FakeManagement,
    api: Management,
    monkeypatch: pytest.MonkeyPatch,
    consumers: list[Any],
    held: int,
    hears: bool,
    is_given_up: bool,
) -> None:
    """The messages are unacked at the broker, which has sent them to nobody."""
    monkeypatch.setattr(shard_readings, "STATISTICS", 0.0)
    monkeypatch.setattr(running_module, "STARVED", 0.2)
    monkeypatch.setattr(running_module, "ACKS_EVERY", 0.05)
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    fake.queues["/", "q1"] = {
        **QUORUM, "messages_ready": 0, "messages_unacknowledged": 3, "consumer_details": consumers
    }  # fmt: skip
    async with owning(fake, api, "q1", groups_ack_timeout=0.0) as (groups, its, session):
        group = groups.running["/", "orders"]
        its.links["q1"].unacked = held
        await eventually(lambda: group.state.decision.owners == {"q1": its.id})
        monkeypatch.setattr(group.state.peers, "hears", lambda now: hears)
        for _ in range(3):
            await asyncio.sleep(0.15)
            await group.readings.look(0.0)
        is_alone = A_LINK not in consumers[1:] and A_STRANGER not in consumers
        assert bool(group.readings.waiting) == (is_alone and not held)
        await asyncio.sleep(0.2)
        assert (("give up", "q1") in session.did) == is_given_up
        assert set(its.starved) == ({"q1"} if is_given_up else set())


async def test_the_tries_of_a_message_that_is_held_stay_known(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_module, "ACKS_EVERY", 0.05)
    async with owning(fake, api, "q1", groups_ack_timeout=0.0) as (groups, its, session):
        session.fingerprints_ = frozenset({"held"})
        attempts, now = groups.running["/", "orders"].state.attempts, time.time()
        for fingerprint in ("held", "gone"):
            attempts.note("q1", fingerprint, 1, now - KEPT - 1)
        await eventually(lambda: attempts.of("q1", "gone") is None)
        assert attempts.shards.keys() == {"q1"} == its.links.keys()
        await eventually(lambda: attempts.shards["q1"]["held"].due >= now)


@pytest.mark.parametrize(
    ("hangs_for", "is_stalled", "stays"),
    [(7.0, True, True), (1.0, True, True), (0.0, True, False), (7.0, False, True), (1.0, False, False)],
)
async def test_a_client_that_takes_no_message_is_unfit_until_it_does(
    fake: FakeManagement,
    api: Management,
    monkeypatch: pytest.MonkeyPatch,
    hangs_for: float,
    is_stalled: bool,
    stays: bool,
) -> None:
    """It is one that has lost a shard for `groups_ack_timeout`, or holds a message of a lost shard for so long."""
    monkeypatch.setattr(running_module, "ACKS_EVERY", 0.05)
    async with owning(fake, api, "q1", groups_ack_timeout=5.0) as (groups, its, session):
        begun = time.monotonic()
        since = session.hangs_since_ = begun - hangs_for if hangs_for else 0.0
        until = its.stalled_until = begun + 0.2 if is_stalled else 0.0
        await eventually(lambda: time.monotonic() > begun + 0.4)
        assert (its.stalled_until > max(until, begun)) == stays
        assert groups.running["/", "orders"].oldest_unacked_at == (since if stays else 0.0)
        session.hangs_since_ = 0.0
        await eventually(lambda: time.monotonic() > its.stalled_until)
        assert time.monotonic() < begun + 3, "it has room again, and is fit soon"


async def test_a_shard_that_moves_waits_for_acks_no_longer_than_it_may(fake: FakeManagement, api: Management) -> None:
    async with owning(fake, api, "q1", "q2", groups_leave_timeout=0.2) as (groups, its, session):
        session.oldest = dict.fromkeys(its.links, time.monotonic())
        its.links["q1"].enter(LinkEvent.LET_GO, time.monotonic())
        await eventually(lambda: ("give up", "q1") in session.did)
        assert ("give up", "q2") not in session.did
        assert groups.report()[0]["members"][0]["stalled"] is False


async def test_a_shard_that_ends_at_a_marker_waits_for_acks_as_long_as_any_other_unless_its_member_leaves(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that takes longer would come again and again, since the next link finds the marker, too."""
    monkeypatch.setattr(running_module, "ACKS_EVERY", 0.05)
    async with owning(fake, api, "q1", "q2", groups_leave_timeout=0.2) as (groups, its, session):
        session.oldest = dict.fromkeys(its.links, time.monotonic())
        for link in its.links.values():
            link.enter(LinkEvent.LET_GO, time.monotonic())
        its.links["q1"].is_marked = True
        await eventually(lambda: ("give up", "q2") in session.did)
        its.links["q1"].unacked = 0
        await eventually(lambda: bool(groups.report()[0]["moves"]))
        assert ("q1", "its generation ends") in [(move["shard"], move["why"]) for move in groups.report()[0]["moves"]]
        assert ("give up", "q1") not in session.did
        its.leaving = True
        await eventually(lambda: ("give up", "q1") in session.did)


async def test_a_consumer_that_the_broker_cancels_on_a_shard_that_ends_is_no_warning(
    fake: FakeManagement, api: Management, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(fake, api, "q1", "q2") as (groups, its, _):
        its.endings["q1"] = Ending(0.0, 1.0, 0.0)
        for shard in its.links:
            groups.link_refused(its, shard, 0, "the broker has cancelled the consumer")
        (line,) = [each.getMessage() for each in caplog.records if "has no consumer on" in each.getMessage()]
        assert "'q2'" in line


async def test_without_a_time_limit_no_shard_is_given_away(fake: FakeManagement, api: Management) -> None:
    async with owning(fake, api, "q1", groups_ack_timeout=0.0, groups_leave_timeout=0.0) as (groups, its, session):
        session.oldest = {"q1": time.monotonic() - 100_000}
        its.links["q1"].enter(LinkEvent.LET_GO, time.monotonic() - 100_000)
        await eventually(lambda: groups.running["/", "orders"].oldest_unacked_at == session.oldest["q1"])
        assert ("give up", "q1") not in session.did


async def test_totals_of_too_many_exchanges_are_counted_together(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "MOST_NAMES", 1)
    fake.exchange("one", binding("q1"))
    fake.exchange("two", binding("q2"))
    async with running(api) as groups:
        for exchange in ("one", "two"):
            its = member(exchange, exchange)
            groups.join(its, Session())
            await eventually(lambda name=exchange: ("/", name) in groups.running)  # type: ignore[misc]
            groups.leave(its)
        assert groups.totals().keys() == {("/", "one"), ("", "")}


async def test_a_client_that_has_cancelled_and_holds_messages_is_named(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert on a member that acks nothing looks at the age of what it holds, too."""
    monkeypatch.setattr(running_module, "ACKS_EVERY", 0.05)
    async with owning(fake, api, "q1") as (groups, leaver, session):
        stays = member("b")
        groups.join(stays, Session())
        await eventually(lambda: len(groups.running["/", "orders"].state.local) == 2)
        link = leaver.links["q1"]
        link.enter(LinkEvent.LET_GO, time.monotonic())
        link.unacked, leaver.client = 3, "client"
        session.oldest = {"q1": time.monotonic() - 3.0}
        groups.leave(leaver)
        groups.leave(stays)
        # The group goes on as long as somebody holds messages of it.
        told = [{"client": "client", "shard": "q1", "unacked": 3}]
        assert [(each["members"], each["leaving"]) for each in groups.report()] == [([], told)]
        await eventually(lambda: groups.running["/", "orders"].oldest_unacked_at == session.oldest["q1"])
        link.enter(LinkEvent.SETTLED, time.monotonic())
        assert groups.report()[0]["leaving"] == []
        link.enter(LinkEvent.CLOSED, time.monotonic())
        groups.link_changed(leaver)
        assert not groups.running


async def test_a_shard_whose_messages_nobody_gets_is_found_by_two_readings(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_readings, "STATISTICS", 0.0)
    fake.exchange("orders", binding("q1"), binding("q2"), binding("q3"), binding("q4"))
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    good = {"type": "quorum", "arguments": {"x-single-active-consumer": True}, "messages_ready": 5}
    for shard, unacked in (("q1", 0), ("q2", 3), ("q3", 3), ("q4", 0)):
        fake.queues["/", shard] = {**good, "messages_unacknowledged": unacked}
    async with running(api) as groups:
        its = member()
        groups.join(its, Session())
        await eventually(lambda: bool(groups.running))
        group = groups.running["/", "orders"]
        # q1 and q2 are given to nobody; a member holds messages of q3, and gets those of q4.
        for shard in ("q3", "q4"):
            its.links[shard] = Link(its, shard)
            its.links[shard].state = LinkState.OPEN
        its.links["q3"].unacked = 3
        await eventually(lambda: bool(group.readings.exactness.shards))
        assert not group.readings.waiting
        its.links["q4"].delivered_at = time.monotonic()
        await group.readings.look(0.0)
        assert set(group.readings.waiting) == {"q1", "q2"}
        fake.queues["/", "q1"] = {**good, "messages_ready": 0}
        its.links["q4"].delivered_at = time.monotonic()
        await group.readings.look(0.0)
        assert set(group.readings.waiting) == {"q2"}
        # Nobody is to get those of a paused shard.
        assert group.state.pauses.take(PauseOrder(Verb.PAUSE, "orders", 1.0, "q2"), "anna") == ""
        its.links["q4"].delivered_at = time.monotonic()
        await group.readings.look(0.0)
        assert not group.readings.waiting
        shards = {each["shard"]: each["paused"] for each in report(group)["shards"]}
        assert shards == dict.fromkeys(("q1", "q3", "q4")) | {"q2": {"by": "anna", "since": "1970-01-01T00:00:01Z"}}


async def test_the_lag_is_that_of_the_last_readings_unless_they_are_outdated(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics of shards have the figures only of those that members of this sidecar own."""
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    for shard, ready in (("q1", 5), ("q2", 6)):
        fake.queues["/", shard] = {
            "type": "quorum",
            "messages_ready": ready,
            "messages_unacknowledged": 1,
            "consumer_details": [],
            "message_stats": {"publish_details": {"rate": 2.0}, "ack_details": {"rate": 1.0}},
        }
    async with owning(fake, api, "q1", "q2") as (groups, its, _):
        report = await groups.report_of(("/", "orders"))
        assert report is not None
        assert (report["joined"], report["lag"]["messages"], report["lag"]["seconds_to_empty"]) == (True, 13, None)
        assert [shard["ready"] for shard in report["shards"]] == [5, 6]
        group = groups.running["/", "orders"]
        group.state.decision = Decision(owners={"q1": its.id, "q2": "another"})
        shown = {
            (s.name, *s.labels.values()): s.value for m in collect(groups) for s in m.samples if "_shard_" in s.name
        }
        assert shown == {
            (f"ringproxy_group_shard_{figure}", "/", "orders", "q1"): value
            for figure, value in (("ready", 5), ("unacked", 1), ("publish_rate", 2.0), ("consume_rate", 1.0))
        }
        monkeypatch.setattr(shard_readings, "OUTDATED", -100.0)
        assert groups.report()[0]["lag"]["messages"] is None
        assert not [s for m in collect(groups) for s in m.samples if "_shard_" in s.name]
