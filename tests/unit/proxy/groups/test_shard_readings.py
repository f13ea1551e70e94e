"""The judgement of a group from the management API's answers, and answers that cannot be believed."""

from typing import Any

import pytest

from proxy.groups.lag import Lag
from proxy.groups.shard_readings import (
    PRIORITIES_FOR,
    judge,
    mixed,
    parse_has_rates,
    parse_shard,
    parse_version,
    read,
    unreadable,
)
from proxy.topology.bindings import TopologyError
from proxy.topology.management import Management, ManagementError
from proxy.topology.marker import DRAINER, LINK_PRIORITY
from tests.unit.proxy.fake_management import FakeManagement, Fault, body, status

LINK = {"consumer_tag": "c", "arguments": {"x-priority": LINK_PRIORITY}}
GOOD: dict[str, Any] = {
    "type": "quorum",
    "arguments": {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-delivery-limit": -1,
        "x-consumer-disconnected-timeout": 5000,
    },
    "effective_policy_definition": {},
    "messages_ready": 3,
    "messages_unacknowledged": 2,
    "consumer_details": [LINK, LINK],
}
V43 = (4, 3)


def without(*names: str) -> dict[str, Any]:
    return {**GOOD, "arguments": {name: value for name, value in GOOD["arguments"].items() if name not in names}}


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_queues_with_a_single_active_consumer_are_exact(kind: str) -> None:
    for version in (V43, (3, 10)):
        shard = parse_shard("s", {**GOOD, "type": kind}, version, 1.0)
        assert (shard.lag.ready, shard.lag.unacked, shard.consumers, shard.direct) == (3, 2, 2, 0)
        seen = judge({"s": shard})
        assert (seen.reasons, seen.warnings) == ((), ())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({**GOOD, "type": "stream"}, "is a stream queue"),
        (without("x-single-active-consumer"), "without x-single-active-consumer"),
        ({**GOOD, "consumer_details": [LINK, {"consumer_tag": "d", "arguments": {}}]}, "1 consumers that are not of"),
        ({**GOOD, "consumer_details": [{"arguments": []}]}, "1 consumers that are not of the group"),
        ({**GOOD, "consumer_details": [{"arguments": {"x-priority": "5"}}]}, "1 consumers that are not of the group"),
    ],
)
def test_why_a_group_is_not_exact(answer: dict[str, Any], reason: str) -> None:
    seen = judge({"s": parse_shard("s", answer, V43, 1.0)})
    (told,) = seen.reasons
    assert reason in told


@pytest.mark.parametrize("arguments", [{}, [], {"x-priority": LINK_PRIORITY}])
def test_the_consumer_of_the_command_that_ends_a_generation_is_no_stranger(arguments: object) -> None:
    command = {"consumer_tag": f"{DRAINER}.2", "arguments": arguments}
    shard = parse_shard("s", {**GOOD, "consumer_details": [LINK, command]}, V43, 1.0)
    assert (shard.consumers, shard.direct) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "policy", "delays"),
    [
        ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}, {}, True),
        ({"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000}, {}, True),
        ({"x-delayed-retry-type": "returned", "x-delayed-retry-min": 1000}, {}, True),
        ({"x-delayed-retry-type": "disabled", "x-delayed-retry-min": 1000}, {}, False),
        ({"x-delayed-retry-type": "nonsense", "x-delayed-retry-min": 1000}, {}, False),
        ({"x-delayed-retry-type": "all"}, {}, False),
        ({"x-delayed-retry-min": 1000}, {}, False),
        ({}, {"delayed-retry-type": "all", "delayed-retry-min": 1000}, True),
        ({"x-delayed-retry-type": "all"}, {"delayed-retry-min": 1000}, True),
        ({"x-delayed-retry-type": "disabled"}, {"delayed-retry-type": "all", "delayed-retry-min": 1000}, True),
        ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 9}, {"delayed-retry-type": "disabled"}, False),
        ({"x-delayed-retry-type": ["all"], "x-delayed-retry-min": 9}, {}, False),
    ],
)
def test_a_queue_that_delays_what_comes_back_is_not_exact(
    arguments: dict[str, Any], policy: dict[str, Any], delays: bool
) -> None:
    """Each row was tried on 4.3.6, the last one aside."""
    answer = {**GOOD, "arguments": GOOD["arguments"] | arguments, "effective_policy_definition": policy}
    seen = judge({"s": parse_shard("s", answer, V43, 1.0)})
    why = "shard 's': a message that comes back is delayed (x-delayed-retry-type), so later ones of its key overtake it"
    assert seen.reasons == ((why,) if delays else ())
    assert judge({"s": parse_shard("s", answer, (4, 2), 1.0)}).reasons == ()


@pytest.mark.parametrize(
    ("counts", "several"),
    [
        ({}, False),
        ({"messages_by_priority": {}}, False),
        ({"messages_by_priority": []}, False),
        ({"messages_by_priority": {"4": 9}}, False),
        ({"messages_by_priority": {"4": 9, "0": 0}}, False),
        ({"messages_by_priority": {"4": 9, "0": 1}}, True),
        ({"messages_ready_high": 3, "messages_ready_normal": 0}, False),
        ({"messages_ready_high": 3, "messages_ready_normal": 1}, True),
    ],
)
def test_a_queue_with_messages_of_several_priorities_is_not_exact(counts: dict[str, Any], several: bool) -> None:
    seen = judge({name: parse_shard(name, GOOD | counts, V43, 1.0) for name in ("s", "t")})
    why = "shards 's', 't': messages of several priorities wait, or did so in the last hour, and higher ones overtake"
    assert [reason.startswith(why) for reason in seen.reasons] == [True] * several
    assert not judge({"s": parse_shard("s", {**GOOD, **counts, "type": "classic"}, V43, 1.0)}).reasons


def test_messages_of_several_priorities_are_told_while_none_waits_for_a_moment() -> None:
    """Or the group would be exact and not exact in turns, as its members are faster or slower than its publishers."""
    shard = parse_shard("s", GOOD | {"messages_by_priority": {"4": 9, "0": 1}}, V43, 1.0)
    for at, is_told in ((2.0, True), (1.0 + PRIORITIES_FOR, True), (2.0 + PRIORITIES_FOR, False)):
        shard = parse_shard("s", GOOD, V43, at, shard)
        assert bool(judge({"s": shard}).reasons) is is_told


@pytest.mark.parametrize("counts", [{"messages_by_priority": {"4": "many"}}, {"messages_by_priority": 7}])
def test_counts_of_priorities_that_cannot_be_believed_are_refused(counts: dict[str, Any]) -> None:
    with pytest.raises(TopologyError, match="queue 's': "):
        parse_shard("s", GOOD | counts, V43, 1.0)


@pytest.mark.parametrize(
    ("prefetches", "told"),
    [
        (set(), None),
        ({20}, None),
        ({0, 20}, None),
        ({20, 5}, "5, 20"),
        ({0, 200, 20, 5}, "5, 20, 200"),
        ({1, 2, 3, 4, 5}, "1, 2, 3 to 5"),
    ],
)
def test_members_of_different_prefetches_are_not_exact(prefetches: set[int], told: str | None) -> None:
    reasons = mixed(prefetches)
    starts = f"members have different prefetches ({told}), so if two members end one after the other"
    assert [reason.startswith(starts) for reason in reasons] == [True] * (told is not None)


def test_a_reason_names_some_shards_and_counts_the_others() -> None:
    shard = parse_shard("s", {**GOOD, "type": "stream"}, V43, 1.0)
    seen = judge({f"s{number}": shard for number in range(9)})
    why = "a stream queue, and only quorum and classic queues have one consumer at a time"
    assert seen.reasons == (f"shards 's0', 's1', 's2' and 6 more are each {why}",)
    direct = shard._replace(type="quorum", direct=2)
    told = judge({f"s{number}": direct for number in range(9)}).reasons
    assert told[-1] == "6 more shards have consumers that are not of the group"


@pytest.mark.parametrize(
    ("answer", "version", "warned"),
    [
        (without("x-delivery-limit"), (4, 0), True),
        (without("x-delivery-limit"), (3, 13), False),
        ({**without("x-delivery-limit"), "effective_policy_definition": {"delivery-limit": -1}}, (4, 0), False),
        ({**without("x-delivery-limit"), "effective_policy_definition": {"delivery-limit": 5}}, (3, 13), True),
        ({**GOOD, "effective_policy_definition": {"delivery-limit": 5}}, (4, 0), True),
        ({**without("x-delivery-limit"), "effective_policy_definition": {"dead-letter-exchange": "x"}}, (4, 0), False),
        ({**without("x-delivery-limit"), "type": "classic"}, (4, 0), False),
    ],
)
def test_a_delivery_limit_without_a_dead_letter_exchange_is_a_warning(
    answer: dict[str, Any], version: tuple[int, int], warned: bool
) -> None:
    warnings = judge({"s": parse_shard("s", answer, version, 1.0)}).warnings
    assert ["delivery limit" in warning for warning in warnings] == [True] * warned


def test_a_queue_that_waits_for_the_consumers_of_a_lost_node_is_a_warning_from_4_3() -> None:
    answer = without("x-consumer-disconnected-timeout")
    (warning,) = judge({"s": parse_shard("s", answer, V43, 1.0)}).warnings
    assert "x-consumer-disconnected-timeout" in warning
    assert judge({"s": parse_shard("s", answer, (4, 2), 1.0)}).warnings == ()
    answer["effective_policy_definition"] = {"consumer-disconnected-timeout": 5000}
    assert judge({"s": parse_shard("s", answer, V43, 1.0)}).warnings == ()


@pytest.mark.parametrize(
    ("text", "version"), [("4.3.6", (4, 3)), ("3.10.8", (3, 10)), ("4.0.5+1", (4, 0)), ("10.12.0-rc.1", (10, 12))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert parse_version({"rabbitmq_version": text}) == version


@pytest.mark.parametrize("answer", [None, [], {}, {"rabbitmq_version": 4}, {"rabbitmq_version": "four"}, "4.3.6"])
def test_an_answer_without_a_version_is_an_error(answer: object) -> None:
    with pytest.raises(TopologyError, match="rabbitmq_version"):
        parse_version(answer)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([], "object"),
        ({**GOOD, "type": 5}, "type"),
        ({**GOOD, "arguments": "x"}, "arguments"),
        ({**GOOD, "effective_policy_definition": 7}, "effective_policy_definition"),
        ({**GOOD, "messages_ready": -1}, "messages_ready"),
        ({**GOOD, "messages_unacknowledged": True}, "messages_unacknowledged"),
        ({**GOOD, "consumer_details": {}}, "consumer_details"),
    ],
)
def test_a_wrong_answer_names_its_field(answer: object, named: str) -> None:
    with pytest.raises(TopologyError, match=named):
        parse_shard("s", answer, V43, 1.0)


def test_what_a_new_or_lost_queue_leaves_out_is_not_known() -> None:
    """Or a broker without statistics would look like one without messages, and a program would be scaled to nothing."""
    shard = parse_shard("s", {"type": "quorum", "arguments": [], "effective_policy_definition": []}, V43, 1.0)
    assert (shard.lag, shard.direct) == (Lag(), 0)


STATS = {
    "publish": 90,
    "publish_details": {"rate": 4.0},
    "ack_details": {"rate": 3.0},
    "deliver_no_ack_details": {"rate": 1.0},
    "get_no_ack_details": {"rate": 0.5},
    "redeliver_details": {"rate": 100.0},
}


@pytest.mark.parametrize(
    ("fields", "has_rates", "lag"),
    [
        ({"message_stats": STATS}, True, Lag(3, 2, 4.0, 4.5, 6.0)),
        ({"message_stats": STATS}, False, Lag(3, 2)),
        ({"message_stats": {"publish_details": {"rate": 4.0}}}, True, Lag(3, 2, 4.0, 0.0)),
        ({"message_stats": []}, True, Lag(3, 2, 0.0, 0.0)),
        ({}, True, Lag(3, 2, 0.0, 0.0)),
        ({"messages_ready": 0}, True, Lag(0, 2, 0.0, 0.0, 0.0)),
    ],
)
def test_the_lag_of_a_shard(fields: dict[str, Any], has_rates: bool, lag: Lag) -> None:
    assert parse_shard("s", GOOD | fields, V43, 1.0, has_rates=has_rates).lag == lag


@pytest.mark.parametrize("stats", [{"publish_details": {"rate": "4"}}, {"ack_details": {"rate": -1.0}}, 7])
def test_rates_that_cannot_be_believed_are_refused(stats: object) -> None:
    with pytest.raises(TopologyError, match="queue 's': "):
        parse_shard("s", GOOD | {"message_stats": stats}, V43, 1.0)


def test_a_broker_that_makes_no_rates_says_so() -> None:
    assert parse_has_rates({"rabbitmq_version": "4.3.6", "rates_mode": "basic"})
    assert parse_has_rates({"rabbitmq_version": "4.3.6"})
    assert not parse_has_rates({"rabbitmq_version": "4.3.6", "rates_mode": "none"})


async def test_shards_are_read_and_further_ones_stay_as_they_are_known(fake: FakeManagement, api: Management) -> None:
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    fake.fail(body(GOOD), "/api/queues/%2F/a")
    fake.fail(body({**GOOD, "type": "classic"}), "/api/queues/%2F/b")
    fake.fail(status(404), "/api/queues/%2F/gone")
    known = {name: parse_shard(name, GOOD, V43, 1.0) for name in ("z", "a", "gone")}
    seen = await read(api, "/", ["a", "b", "gone"], known)
    assert seen.shards.keys() == {"a", "b", "z"}
    assert seen.read_at == 1.0
    assert seen.shards["a"].read_at > 1.0
    assert seen.reasons == ()


@pytest.mark.parametrize("fault", [status(500), status(401), body(b"{"), body(b"null"), body([])])
@pytest.mark.parametrize("where", ["/api/", "/api/queues/"])
async def test_an_api_that_fails_or_lies_is_told(
    fake: FakeManagement, api: Management, fault: Fault, where: str
) -> None:
    fake.fail(body({"rabbitmq_version": "4.3.6"}), "/api/overview")
    fake.fail(fault, where)
    with pytest.raises((ManagementError, TopologyError)) as raised:
        await read(api, "/", ["a"], {})
    seen = unreadable(raised.value)
    assert seen.reasons[0].startswith("the management API does not tell what the shards are: ")
