"""The code that publishes for HTTP, and its parts, for `equal`."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

from proxy.http.admission.limits import Limits
from proxy.http.formats import fields
from proxy.http.formats.decoding import DecodingError, decode_json
from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError, invalid, unavailable
from proxy.http.sending.dispatch import Dispatch, ExchangeHandle, Placement
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, NACKED, UNROUTABLE, PublishResult
from proxy.publisher.pool import ConnectionGroup
from proxy.publisher.protocol import PublisherProtocol, Stage
from proxy.routing.counters import Counters
from proxy.topology.readings import Readings
from proxy.wire import properties
from proxy.wire.content import STAMP_ID_FIELD
from proxy.wire.properties import Header
from tests.fuzz import client, messages
from tests.fuzz.equal_amqp import RINGS
from tests.fuzz.equal_journal import Journalled
from tests.fuzz.said import EDGES, Say, attempt, kept_of, mutated, number
from tests.fuzz.steps import steps
from tests.unit.proxy.http.sending.test_batch import PASSED, Case, placement
from tests.unit.proxy.publisher.client_wire import OPEN_OK, TO_Q, Results, start, tune
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import VHOST, Wire

_EXCHANGES = (b"", b"one", b"two")


def fuzzed_client(rng: Random, say: Say) -> None:
    """The client harness's steps."""
    data = mutated(rng, kept_of("client"))
    one = client.Run(data[0] if data else 0, rng if rng.random() < 0.3 else None)
    for step in steps(data[1:]):
        if not attempt(say, one.take, step) or one.fault:
            break
    say((one.sent, one.fault, one.wire.counters, _told(one.wire.results)))
    say(one.wire.client)


def _told(results: Results) -> list[str]:
    return [f"{index}: {verdicts}" for index, verdicts in results.verdicts.items()]


def clients(rng: Random, say: Say) -> None:
    """The connection, with numbers at the edges from its handshake on."""
    it, results, counters = PublisherProtocol("me", "secret", "v"), Results(), Counters()
    agreed = number(rng, 16), rng.choice((0, 4096, 1 << 17, number(rng, 32))), number(rng, 16)
    if not attempt(say, it.feed, start() + tune(*agreed) + OPEN_OK):
        return
    for index in range(rng.randrange(2, 12)):
        to = rng.choice(_EXCHANGES)
        if rng.random() < 0.5 and it.stage is Stage.OPEN:
            body = bytes(rng.choice((0, 1, 40, 4096, 1 << 14, (1 << 14) + 1)))
            stamp = rng.choice((b"", b"stamp"))
            attempt(say, it.publish, to, TO_Q, _header(rng), stamp, b"k", body, (results, index, counters))
            if rng.random() < 0.2 and to in it.channels and not it.channels[to].pending:
                it.channels[to].low = it.channels[to].number = (1 << rng.choice((31, 32, 33))) - 2
        elif not attempt(say, it.feed, _answer(rng, it.channels[to].number if to in it.channels else 1, it)):
            break
        if rng.random() < 0.8:
            it.pack()
        say([bytes(part) for part in it.out])
        it.out.clear()
    say((it, counters, _told(results), it.refused, [(channel.id, last) for channel, last in it.marks()]))
    it.lost("gone")
    say((it, counters, _told(results)))


def _answer(rng: Random, last: int, it: PublisherProtocol) -> bytes:
    at = rng.choice((1, 1, 2, number(rng, 16)))
    ours = [channel.nonce for channel in it.channels.values()] or [0]
    match rng.randrange(6):
        case 0 | 1 | 2:
            tag = number(rng, 64, last) if rng.random() < 0.3 else max(0, last - rng.randrange(3))
            return rng.choice((wire.ack, wire.nack))(at, tag, rng.random() < 0.5)
        case 3 | 4:
            ring_id = rng.choice((ours[0] + last, number(rng, 64, ours[0])))
            entries = STAMP_ID_FIELD + pack(">Q", ring_id % (1 << 64))
            return wire.returned(at, b"", b"q") + wire.headers(at, rng.choice((0, number(rng))), entries)
        case _:
            size = number(rng, rng.choice((16, 63, 70))) if rng.random() < 0.9 else 1 << 100
            text = b"message size 9 is larger than configured max size %d" % size
            return wire.close_channel(at, rng.choice((403, 404, 406, number(rng, 16))), text)


# Values.


def _value(rng: Random, depth: int = 0) -> object:
    """Any that JSON has, and some that it has not."""
    which = rng.randrange(12 if depth < 20 else 9)
    if which < 3:
        return number(rng, 70) * rng.choice((1, 1, -1))
    if which < 5:
        return rng.choice((str(number(rng)), "", "é" * rng.randrange(140), "\ud800", "amq.rabbitmq.reply-to"))
    if which < 7:
        return rng.choice((True, False, None, 1.5, -0.0, float("inf"), float("nan"), float(number(rng))))
    if which < 9:
        return rng.choice((1, 2, 0, 255, 256, "60000", "aGVsbG8=", b"bytes"))
    if which == 9:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if which == 10:
        return {_name(rng): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    deep: object = _value(rng, 20)
    for _ in range(rng.randrange(20)):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def _name(rng: Random) -> str:
    return rng.choice(("a", "h", "", "CC", "x-ring-id", "x-stream-filter-value", "n" * 128, "é" * 65, "\ud800"))


def _header(rng: Random) -> Header:
    """Return a header of random properties that fit."""
    made: properties.Properties = {}
    for name in rng.sample(properties.NAMES, rng.randrange(4)):
        with suppress(properties.PropertyError):
            flag, made[flag] = properties.encoded(name, _value(rng))
    return Header.of(made)


def values(rng: Random, say: Say) -> None:
    """Properties and headers."""
    for name in (*properties.NAMES, "none such"):
        attempt(say, properties.encoded, name, _value(rng))
    attempt(say, properties.encoded_headers, {_name(rng): _value(rng) for _ in range(3)})
    for edge in rng.sample(EDGES, 8):
        attempt(say, properties.encoded_headers, {"a": edge, "b": [-edge], "c": {"d": edge - 1}})
        attempt(say, properties.encoded, "timestamp", edge)
        attempt(say, _header(rng).payload, edge, b"stamps")
    attempt(say, properties.shown, _value(rng))


def items(rng: Random, say: Say) -> None:
    """Items of batches to messages."""
    item: dict[str, Any] = {"key": "k", "payload": "x"}
    for name in rng.sample(("id", "key", "payload", "payload_encoding", "content_type", "headers", "other"), 3):
        item[name] = _value(rng) if rng.random() < 0.7 else rng.choice(("json", "base64", "string"))
    item["properties"] = {name: _value(rng) for name in rng.sample([*properties.NAMES, "other"], 2)}
    if rng.random() < 0.5:
        del item["properties"]
    found = [item]
    with suppress(DecodingError):
        kept = [data for data in kept_of("messages") if data and data[0] % len(messages.KINDS) == messages.ITEM]
        read = decode_json(mutated(rng, kept)[1:])
        found += [cast("dict[str, Any]", read)] if isinstance(read, dict) else []
    for one in found:
        try:
            say(fields.message_of(one))
        except fields.ItemError as error:
            say((str(error), error.id, error.key, error.too_large))
        except Exception as error:
            say(f"{type(error).__name__}: {error}")


# Dispatch and batches.


def dispatched(rng: Random, say: Say) -> None:
    """Messages to where rings, hashed values and rings behind rings send them, and out on a connection."""
    it, results, out = Wire(RINGS), Results(), PublisherProtocol("me", "secret", "v")
    journalled = Journalled(rng)
    it.tables.journal = rng.choice((None, journalled.journal))
    out.feed(start() + tune() + OPEN_OK)
    connection = SimpleNamespace(clear=True, cluster=None, protocol=out, wake=lambda: None, doubt=lambda: None)
    group = ConnectionGroup(VHOST, cast(Any, (connection,)), guest=False)
    dispatch = Dispatch(it.router, Readings(cast(Any, None), cast(Any, None), 1.0), it.tables, cast(Any, None))
    for index in range(rng.randrange(1, 8)):
        name = rng.choice([*RINGS, "unknown", ""])
        handle = ExchangeHandle((VHOST, name), group, name.encode())
        key = rng.choice((None, b"", rng.randbytes(rng.randrange(256))))
        message = Message(key, _header(rng), bytes(rng.randrange(40)))
        out.most_body = rng.choice((0, 0, 20))
        try:
            behind = rng.choice((None, None, None, "another ring"))
            step = dispatch.attempt(handle, message, results, index, it.router.clock(), behind)
        except ProblemError as problem:
            say((problem.status, problem.kind, problem.detail, problem.outcome))
            continue
        if isinstance(step, Placement):
            say((str(step.where), step.reason, step.ordering_key(key)))
            attempt(say, dispatch.ordering_key_of, handle, message)
            attempt(say, dispatch.goes_again, handle, message, step, it.router.clock())
        else:
            if step is not None:
                step.close()
            say("waits" if step is not None else "behind")
        if rng.random() < 0.8:
            out.pack()
        say([bytes(part) for part in out.out])
        out.out.clear()
    out.lost("gone")
    say(_told(results))
    say({str(way): counters for way, counters in it.counter_table.by_way.items()})
    journalled.tell(say)


_VERDICTS = (CONFIRMED, CONFIRMED, CONFIRMED, NACKED, UNROUTABLE, PublishResult(Outcome.UNKNOWN, "nobody knows"))


def batches(rng: Random, say: Say) -> None:
    """Batches whose messages fare as chance has it."""
    asyncio.run(_batch(rng, say))


async def _batch(rng: Random, say: Say) -> None:
    case = Case(lambda index: rng.choice(_VERDICTS), most=rng.choice((1, 2, 4, 1000)))
    case.dispatch.now = rng.choice((None, placement(1)))
    case.dispatch.read_anew.clear()
    for index in range(rng.randrange(1, 10)):
        fare = rng.random()
        if fare < 0.1:
            case.dispatch.problems[index] = rng.choice((invalid("key", "wrong"), unavailable("no broker")))
        elif fare < 0.2:
            case.dispatch.waits[index] = _moment()
        case.dispatch.places[index] = rng.choice((PASSED, placement(0), placement(1)))
        if fare > 0.9:
            case.batch.refuse(None, rng.choice((None, b"a")), "malformed")
        else:
            await case.put(rng.choice((None, "id")), rng.choice((b"a", b"b", None)), bytes(rng.randrange(9)))
    attempt(say, await _ended(case.done()))
    for waits in case.dispatch.waits.values():
        waits.close()
    say((case.batch.is_confirmed, case.batch.results(), str(case.batch.unsent()), case.dispatch.indices))
    attempt(say, case.batch.summary if case.batch.is_confirmed else lambda: vars(case.batch.problem()))
    say((case.dispatch.rerouted, len(case.dispatch.read_anew)))


async def _moment() -> None:
    await asyncio.sleep(0)


async def _ended(waits: Coroutine[Any, Any, None]) -> Any:
    """Return what raises what that raised."""
    task = asyncio.ensure_future(waits)
    await asyncio.wait([task])
    return task.result


def limits(rng: Random, say: Say) -> None:
    """Say the counts of what is under way."""
    it = Limits(max(1, number(rng)), max(1, number(rng)))
    for _ in range(12):
        size = number(rng)
        attempt(say, rng.choice((it.take, it.give)), number(rng, 16), size)
        attempt(say, rng.choice((it.take_batched, it.give_batched)), size)
        attempt(say, it.full, size, rng.choice((0, size)))
        say((it.has_room, it.messages, it.bytes))
