"""The judgement of the demo on the messages that its consumers received."""

from dataclasses import replace

import pytest

from testbed.demo.group_oracle import Received, is_balanced, judge_order, owners

SHARDS = {"k0": "orders.1", "k1": "orders.2"}


def received() -> list[Received]:
    """Six messages of two keys, the last two of the first key by another consumer."""
    first = [Received(float(n), n, f"k{n % 2}", "A" if n % 2 == 0 else "B") for n in range(6)]
    return [replace(message, consumer="B") if message.number == 4 else message for message in first]


def test_each_key_in_order_has_no_faults() -> None:
    verdict = judge_order(range(6), received())
    assert verdict.faults == []
    assert (verdict.judged, verdict.again) == (6, 0)


def test_the_order_is_that_of_receipt_whichever_consumer_is_listed_first() -> None:
    assert judge_order(range(6), reversed(received())).faults == []


def test_a_message_behind_a_later_one_of_its_key_is_a_fault() -> None:
    early = [replace(message, at=3.5) if message.number == 0 else message for message in received()]
    assert judge_order(range(6), early).faults == ["message 0, key k0, for A: came for the first time behind message 2"]


def test_a_message_that_nobody_got_is_a_fault() -> None:
    assert judge_order(range(7), received()).faults == ["message 6 was confirmed, and nobody got it"]


def test_a_message_that_comes_again_is_marked() -> None:
    again = Received(9.0, 2, "k0", "B", redelivered=True)
    verdict = judge_order(range(6), [*received(), again])
    assert (verdict.faults, verdict.again) == ([], 1)
    unmarked = judge_order(range(6), [*received(), replace(again, redelivered=False)])
    assert unmarked.faults == ["message 2, key k0, for B: came again, and is not marked as redelivered"]


def test_the_owner_of_a_shard_is_who_got_its_last_message() -> None:
    assert owners(received(), SHARDS, 0.0, 3.0) == {"orders.1": "A", "orders.2": "B"}
    assert owners(received(), SHARDS, 0.0, 9.0) == {"orders.1": "B", "orders.2": "B"}
    assert owners(received(), SHARDS, 7.0, 9.0) == {}


@pytest.mark.parametrize(
    ("had", "balanced"),
    [
        ({"1": "A", "2": "B", "3": "A"}, True),
        ({"1": "A", "2": "A", "3": "A"}, False),
        ({"1": "A", "2": "B"}, False),
        ({"1": "A", "2": "B", "3": "C"}, False),
    ],
)
def test_shards_are_balanced_if_counts_differ_by_one_and_no_other_consumer_has_any(
    had: dict[str, str], balanced: bool
) -> None:
    assert is_balanced(had, 3, ["A", "B"]) is balanced
