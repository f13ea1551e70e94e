"""The figures of shards at a sidecar without members: read when asked for, and not told where they are not known."""

import asyncio
import contextlib
from typing import Any

import pytest

from proxy.groups import onlooker as onlooker_module
from proxy.groups.onlooker import Onlooker
from proxy.settings.config import Settings
from proxy.topology.lookups import NotReadable
from proxy.topology.management import Management
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, body, silent, status

ORDERS = ("/", "orders")
SHARDS = ["q1", "q10", "q2"]


@pytest.fixture
def onlooker(fake: FakeManagement, api: Management) -> Onlooker:
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    for shard in SHARDS:
        fake.queues["/", shard] = {
            "type": "quorum",
            "arguments": {"x-single-active-consumer": True, "x-delivery-limit": -1},
            "messages_ready": 7,
            "messages_unacknowledged": 1,
            "message_stats": {"publish_details": {"rate": 1.0}, "ack_details": {"rate": 1.5}},
            "consumer_details": [{"arguments": {}}],
        }
    return made(api)


def made(api: Management, **settings: Any) -> Onlooker:
    return Onlooker(
        Settings(**{"route": ("orders*",), "groups": ("shop/bills",), "lookup_timeout": 20.0, **settings}), api
    )


def test_the_exchanges_are_those_that_route_or_groups_names(onlooker: Onlooker) -> None:
    assert onlooker.exchanges("any", "orders.eu") == ["orders.eu"]
    assert onlooker.exchanges("shop", "bills") == ["bills"]
    assert onlooker.exchanges("other", "bills") == []
    assert onlooker.exchanges("shop", "bills/audit") == ["bills"]
    assert onlooker.exchanges("any", "orders/audit") == ["orders", "orders/audit"]
    assert onlooker.exchanges("any", "/audit") == []


async def test_all_shards_are_read_at_once_and_not_again_for_a_while(fake: FakeManagement, onlooker: Onlooker) -> None:
    first, second = await asyncio.gather(*(onlooker.report_of(ORDERS, SHARDS) for _ in range(2)))
    assert first == second == await onlooker.report_of(ORDERS, SHARDS)
    assert first["lag"] == {
        "ready": 21,
        "unacked": 3,
        "messages": 24,
        "publish_rate": 3.0,
        "consume_rate": 4.5,
        "seconds_to_empty": 14.0,
    }
    assert [(each["shard"], each["ready"], each["consumers"]) for each in first["shards"]] == [
        *(("q1", 7, 1), ("q2", 7, 1), ("q10", 7, 1)),
    ]
    assert (first["joined"], first["exact"], first["members"]) == (False, False, [])
    assert [fake.count(f"/{shard}") for shard in SHARDS] == [1, 1, 1]


async def test_old_figures_and_those_of_other_shards_are_read_anew(
    fake: FakeManagement, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await onlooker.report_of(ORDERS, SHARDS)
    fake.queues["/", "q1"]["messages_ready"] = 0
    assert (await onlooker.report_of(ORDERS, SHARDS))["lag"]["ready"] == 21
    assert (await onlooker.report_of(ORDERS, SHARDS[:2]))["lag"]["ready"] == 7
    monkeypatch.setattr(onlooker_module, "between", lambda shards, least: 0.0)
    fake.queues["/", "q10"]["messages_ready"] = 0
    assert (await onlooker.report_of(ORDERS, SHARDS[:2]))["lag"]["ready"] == 0


async def test_a_shard_that_the_broker_does_not_tell_of_makes_the_sum_unknown(
    fake: FakeManagement, onlooker: Onlooker
) -> None:
    del fake.queues["/", "q2"]["messages_ready"]
    report = await onlooker.report_of(ORDERS, SHARDS)
    assert report["lag"]["ready"] is report["lag"]["messages"] is None
    assert [each["ready"] for each in report["shards"]] == [7, None, 7]


async def test_an_api_that_hangs_holds_nobody_up_and_its_late_answer_is_the_next_ones(
    fake: FakeManagement, api: Management, onlooker: Onlooker
) -> None:
    onlooker = made(api, lookup_timeout=0.2)
    gate = Gate(fake)
    fake.fail(gate, "/api/queues/")
    with pytest.raises(NotReadable, match="'orders': no answer in time"):
        await onlooker.report_of(ORDERS, SHARDS)
    gate.open()
    await eventually(lambda: fake.count("/q2") == 1)
    fake.fail(silent, "/api/queues/")
    for _ in range(50):
        with contextlib.suppress(NotReadable):
            assert (await onlooker.report_of(ORDERS, SHARDS))["lag"]["ready"] == 21
            return
    pytest.fail("the late answer was not used")


async def test_why_there_are_no_figures_is_told(fake: FakeManagement, onlooker: Onlooker) -> None:
    fake.fail(status(401), "/api/queues/")
    with pytest.raises(NotReadable, match="/api/queues/%2F/q1: 401"):
        await onlooker.report_of(ORDERS, SHARDS)


async def test_figures_stay_for_a_while_when_nothing_can_be_read_and_not_for_ever(
    fake: FakeManagement, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlooker_module, "between", lambda shards, least: 0.0)
    await onlooker.report_of(ORDERS, SHARDS)
    fake.fail(status(401), "/api/queues/")
    assert (await onlooker.report_of(ORDERS, SHARDS))["lag"]["ready"] == 21
    monkeypatch.setattr(onlooker_module, "OUTDATED", -1.0)
    with pytest.raises(NotReadable, match="401"):
        await onlooker.report_of(ORDERS, SHARDS)


async def test_only_so_many_exchanges_are_kept(
    fake: FakeManagement, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlooker_module, "MOST_KEPT", 2)
    for exchange in ("orders1", "orders2", "orders1", "orders3", "orders1"):
        await onlooker.report_of(("/", exchange), ["q1"])
    assert fake.count("/q1") == 3
    await onlooker.report_of(("/", "orders2"), ["q1"])
    assert fake.count("/q1") == 4


async def test_a_reading_that_is_forgotten_ends(
    fake: FakeManagement, api: Management, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlooker_module, "MOST_KEPT", 1)
    onlooker = made(api, lookup_timeout=2.0)
    fake.fail(silent, "/api/queues/%2F/q1")
    with pytest.raises(NotReadable):
        await onlooker.report_of(("/", "orders1"), ["q1"])
    # The next one's reading would wait for the first one's.
    assert (await onlooker.report_of(("/", "orders2"), ["q2"]))["lag"]["ready"] == 7
