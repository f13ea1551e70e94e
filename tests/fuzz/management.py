"""The answers of the management API.

It raises only `ValueError` or `RecursionError`. Weights are weights, and nothing is dropped unseen.
"""

import json
from contextlib import suppress
from math import isfinite

from proxy.topology.bindings import (
    RING_TYPES,
    dead_letters_by_own_name,
    parse_alternate_policies,
    parse_applied_policies,
    parse_bindings,
    parse_bindings_with_arguments,
    parse_cluster_name,
    parse_exchange,
    parse_names,
    parse_nodes,
    weigh,
)
from proxy.topology.management import MAX_RETRY_AFTER, _retry_after


def check(data: bytes) -> None:
    """Only ValueError, of which TopologyError is one, or RecursionError is raised; weights are weights."""
    wait = _retry_after({"Retry-After": data[:40].decode("utf-8", "replace")})
    assert isfinite(wait)
    assert 0 <= wait <= MAX_RETRY_AFTER
    for parse in (
        *(parse_exchange, dead_letters_by_own_name, parse_cluster_name, parse_nodes, parse_alternate_policies),
        *(parse_applied_policies, parse_bindings_with_arguments, lambda found: parse_names(found, "exchange")),
    ):
        with suppress(ValueError, RecursionError):
            parse(data)
    try:
        bindings = parse_bindings(data)
    except (ValueError, RecursionError):
        return
    for kind in RING_TYPES:
        weighed = weigh(bindings, kind)
        assert all(1 <= weight <= 10_000 for weight in weighed.weights.values())
        assert set(weighed.weights) | {one.destination for one in weighed.ignored} == {b.destination for b in bindings}
        assert len(weighed.duplicates) == len(set(weighed.duplicates))


def seeds() -> list[bytes]:
    """Return what RabbitMQ answers."""
    bindings = [
        {"destination": f"q{n}", "destination_type": kind, "routing_key": key}
        for n, (kind, key) in enumerate(
            [("queue", "1"), ("exchange", "+3"), ("queue", "05"), ("queue", "x"), ("queue", "")]
        )
    ]
    answers: list[object] = [
        bindings,
        bindings[:1] * 3,
        {"name": "x", "type": "x-consistent-hash", "internal": False, "arguments": {"hash-header": "h"}},
        {"name": "x", "type": "x-consistent-hash", "arguments": {"hash-property": "message_id"}},
        {"name": "x", "type": "x-modulus-hash", "internal": True, "arguments": {}},
        {"type": "x-consistent-hash", "arguments": {"x-hash-on": "h"}},
        {"name": "q", "arguments": {"x-dead-letter-exchange": "d"}, "effective_policy_definition": []},
        {"name": "q", "effective_policy_definition": {"dead-letter-exchange": "d", "dead-letter-routing-key": "k"}},
        [{"name": "/"}, {"name": "shop"}],
        {"name": "rabbit@host"},
    ]
    return [json.dumps(answer).encode() for answer in answers] + [b"5", b"nan", b"null", b'[{"name": "\\ud800"}]']
