"""The lines of the journal, as a reader of docs/reference/journal.md takes them."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.journal.buffer import Record
from proxy.journal.lines import KeyForm, LineFormatter, hashed, none, plain, ring_json
from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.routing.route import Route
from proxy.settings.patterns import Mode
from proxy.topology.bindings import Bindings
from proxy.topology.table import Entry, KnownRing
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import slot_of
from ring.ring import Ring, fingerprint

CONTRACT = (Path(__file__).parents[4] / "docs/reference/journal.md").read_text()


RING = KnownRing.of(Ring.build({Destination("queue", "q"): 1}), HashedValue(), "x-consistent-hash")


def route_of(name: tuple[str, str], known: KnownRing) -> Route:
    return Route(name, Counters(), None, Entry(Mode.ROUTE, "x-consistent-hash", known, None, Bindings(), 0.0))


def line(
    key: bytes = b"k",
    name: tuple[str, str] = ("/", "orders"),
    destination: Destination | None = None,
    outcome: Outcome = Outcome.CONFIRMED,
    message_id: bytes | None = None,
    form: KeyForm = plain,
    known: KnownRing = RING,
    behind: Sequence[KnownRing] = (),
) -> Any:
    """The line of a record that went through the ring and those `behind` it, to the last."""
    header = b"\0\x3c\0\0" + (5).to_bytes(8, "big")
    header += b"\0\0" if message_id is None else b"\0\x80" + bytes((len(message_id),)) + message_id
    last = route = route_of(name, known)
    for number, each in enumerate(behind):
        last.targets[0].behind = route_of((name[0], f"behind.{number}"), each)
        last = last.targets[0].behind
    record = Record("http", name, header, 0, len(header), 10.5)
    choice = route.choose(key, header, 0, len(header))
    assert choice is not None
    assert choice.by is last
    record.placed(behind[-1] if behind else known, destination, 77, choice.value, choice.by_message_id)
    record.outcome, record.told_at = outcome, 10.75
    text = LineFormatter("0123456789abcdef", 0.25, form).line(record, 3, 1_000_000_000.0)
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    return json.loads(text)


def test_a_line_has_every_field_of_the_contract_and_no_other() -> None:
    table = CONTRACT.split("## A record")[1].split("## A ring")[0]
    named = [
        name for cell in re.findall(r"^\| (`[^|]*`) \|", table, flags=re.M) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert set(line()) == set(named)
    assert line(destination=Destination("queue", "q"), message_id=b"id") == {
        "v": 1,
        "event": "0123456789abcdef-3",
        "time": 1_000_000_010_750_000,
        "proxy": "0123456789abcdef",
        "seq": 3,
        "sample": 0.25,
        "ingress": "http",
        "vhost": "/",
        "exchange": "orders",
        "ring": RING.fingerprint,
        "key": "aw==",
        "slot": 77,
        "kind": "queue",
        "destination": "q",
        "outcome": "confirmed",
        "latency": 250_000,
        "bytes": 5,
        "message_id": "id",
    }


def test_the_example_of_the_contract_is_a_record() -> None:
    told = CONTRACT.partition("## What is journalled")[0]
    (text,) = re.findall(r"^```json\n(.*?)^```$", told, flags=re.M | re.S)
    example = json.loads(text)
    assert list(example) == list(line())
    assert example["event"] == f"{example['proxy']}-{example['seq']}"
    key = base64.b64decode(example["key"])
    assert slot_of(key) == example["slot"]
    at = datetime.fromtimestamp(example["time"] // 1_000_000, UTC)
    assert f"records/dt={at:%Y-%m-%d}/hour={at:%H}/" in told
    said = told.split("```")[-1].split()
    for words in (
        f"At {at:%H:%M:%S} UTC",
        f"routing key `{key.decode()}`",
        f"exchange `{example['exchange']}`",
        f"queue `{example['destination']}`",
        f"after {example['latency']} µs",
    ):
        assert words in " ".join(said)


def test_what_does_not_apply_is_null() -> None:
    told = line(outcome=Outcome.SENT)
    assert [told[name] for name in ("latency", "kind", "destination", "message_id")] == [None] * 4


@given(st.binary(max_size=255), st.text(), st.text(), st.text(), st.binary(max_size=255))
def test_any_names_and_keys(key: bytes, vhost: str, exchange: str, queue: str, message_id: bytes) -> None:
    told = line(key, (vhost, exchange), Destination("queue", queue), message_id=message_id)
    assert base64.b64decode(told["key"]) == key
    assert (told["vhost"], told["exchange"], told["destination"]) == (vhost, exchange, queue)
    assert told["message_id"] == message_id.decode(errors="replace")


def test_forms_of_a_key() -> None:
    digest = hashlib.blake2b(b"k", key=b"secret", digest_size=16).digest()
    assert base64.b64decode(line(form=hashed(b"secret"))["key"]) == digest
    assert line(form=none)["key"] is None


def test_a_message_id_that_is_the_key_is_told_only_where_the_key_is() -> None:
    known = KnownRing.of(Ring.build({Destination("queue", "q"): 1}), HashedValue("property", "message_id"), "x")
    assert line(message_id=b"id", known=known)["message_id"] == "id"
    assert line(message_id=b"id", form=none)["message_id"] == "id"
    told = line(message_id=b"id", known=known, form=none)
    assert (told["key"], told["message_id"]) == (None, None)
    assert line(message_id=b"id", known=known, form=hashed(b"s"))["message_id"] is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_message_id_that_any_ring_on_the_way_hashes_is_the_key_too(place: int) -> None:
    by_key, by_id = (
        KnownRing.of(Ring.build({Destination("exchange", "next"): 1}), hash_value, "x")
        for hash_value in (HashedValue(), HashedValue("property", "message_id"))
    )
    rings = [by_id if n == place else by_key for n in range(3)]
    assert line(message_id=b"id", known=rings[0], behind=rings[1:], form=none)["message_id"] is None
    assert line(message_id=b"id", known=rings[0], behind=rings[1:])["message_id"] == "id"
    assert line(message_id=b"id", known=by_key, behind=[by_key, by_key], form=none)["message_id"] == "id"


@pytest.mark.parametrize("hash_value", [HashedValue(), HashedValue("header", "customer")])
def test_a_ring_can_be_made_again(hash_value: HashedValue) -> None:
    weights = {Destination("queue", "a"): 1, Destination("exchange", "ü"): 3}
    known = KnownRing.of(Ring.build(weights), hash_value, "x-consistent-hash")
    told = json.loads(ring_json(known))
    again = {Destination(kind, name): weight for kind, name, weight in told["destinations"]}
    assert again == weights
    assert told["fingerprint"] == fingerprint(again, told["exchange_type"], told["hashed"]) == known.fingerprint
    assert (told["v"], told["ring_format"]) == (1, 1)


def test_a_ring_of_a_later_generation_tells_its_queues() -> None:
    """Records name it by another fingerprint than the first generation of the same shards."""
    weights = {Destination("queue", "orders.2"): 1, Destination("exchange", "orders.9"): 3}
    first = KnownRing.of(Ring.build(weights), HashedValue(), "x-consistent-hash")
    later, last = (replace(first, generation=number) for number in (2, 3))
    told = json.loads(ring_json(later))
    assert told["queues"] == {"orders.2": "orders.g2.2"}
    assert "queues" not in json.loads(ring_json(first))
    assert told["fingerprint"] == line(known=later)["ring"] == later.journalled
    assert told["fingerprint"] == fingerprint(weights, "x-consistent-hash", "routing_key", told["queues"])
    assert len({first.journalled, later.journalled, last.journalled}) == 3
    assert first.journalled == first.fingerprint == later.fingerprint
