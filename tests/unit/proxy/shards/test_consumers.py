"""Consumers of queues, as answers of the management API list them."""

from typing import Any

from proxy.shards.consumers import Consumer, parse


def test_members_programs_and_drainers_are_told_apart_and_what_is_no_consumer_is_left_out() -> None:
    program: dict[str, Any] = {
        "queue": {"name": "q"},
        "consumer_tag": "c",
        "arguments": [],
        "active": True,
        "prefetch_count": 5,
    }
    link = program | {"arguments": {"x-priority": 1}, "active": False}
    drainer = program | {"consumer_tag": "ringproxy.generation-1"}
    found = list(parse([program, link | {"prefetch_count": None}, drainer, None, {"queue": 1}]))
    assert found[:2] == [Consumer("q", "c", False, True, 5), Consumer("q", "c", True, False)]
    assert [each.is_program for each in found] == [True, False, False]
    assert list(parse({"error": "no"})) == []
