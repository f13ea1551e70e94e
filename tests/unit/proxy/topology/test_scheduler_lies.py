"""Answers of the management API that are not believed."""

import logging
import re

import pytest

from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Fault, binding, body, status, truncated
from tests.unit.proxy.topology.scheduling import BINDINGS_OF_X, OF_X, SETTLE, A, B, Clock, X, scheduling, warnings

LIES: list[tuple[str, Fault, str]] = [
    ("down", status(500), "/api/"),
    ("401", status(401), "/api/"),
    ("403", status(403), "/api/"),
    ("429", status(429, headers={"Retry-After": "1"}), "/api/"),
    ("redirect", status(302, headers={"Location": "/"}), "/api/"),
    ("404 everywhere", status(404), "/api/"),
    ("no list of virtual hosts", status(404), "/api/exchanges/"),
    ("virtual host not listed", body([]), "/api/vhosts"),
    ("page of the exchange lost", status(404), OF_X),
    ("truncated", truncated(b"[]"), BINDINGS_OF_X),
    ("html", body(b"<html>"), BINDINGS_OF_X),
    ("null", body(b"null"), OF_X),
    ("an object", body({"error": "x"}), BINDINGS_OF_X),
    ("half of a list", body([binding("a"), {}]), BINDINGS_OF_X),
    ("a lone surrogate", body(b'{"type": "x-consistent-hash", "arguments": {"hash-header": "\\ud800"}}'), OF_X),
    ("queues not readable", status(500), "/api/queues/"),
]


@pytest.mark.parametrize(("fault", "where"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
async def test_the_last_good_ring_stays_and_its_age_shows(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture, fault: Fault, where: str
) -> None:
    caplog.set_level(logging.INFO, "proxy")
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        entry = made.entry
        caplog.clear()
        # Every one of the lies thus has something to hide.
        fake.bindings[X] = []
        if where == BINDINGS_OF_X or where == "/api/queues/":
            fake.bindings[X] = [binding("a"), binding("c")]
        if where == "/api/vhosts":
            fake.delete("x")
        fake.fail(fault, where)
        for _ in range(3):
            clock.now += 10 * SETTLE
            await made.scheduler._again(X, "test")
            assert made.entry is entry
        assert made.router.clock() - made.entry.read_at > 30 * SETTLE
        assert made.reader.results == {"ok": 1, "failed": 3}
        assert list(made.scheduler.faults) == [X]
        (told,) = caplog.messages
        assert told.startswith("cannot read exchange 'x' in virtual host '/': ")
        assert "its last good state, 20 s old, stays" in told
        assert "hush" not in told
        caplog.clear()
        fake.mend()
        fake.exchange("x", binding("a"), binding("b"))
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert caplog.messages == ["exchange 'x' in virtual host '/' can be read again"]
        assert made.scheduler.faults == {}
        assert made.router.clock() - made.entry.read_at < 1


async def test_an_empty_list_told_once_moves_nothing(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.fail(body([]), BINDINGS_OF_X)
        clock.now += 1
        await made.scheduler._again(X, "test")
        fake.mend()
        clock.now += 10 * SETTLE
        await made.scheduler._again(X, "test")
        assert made.weights() == {A: 1, B: 1}
        assert len(made.entry.changes) == 1


async def test_a_management_api_that_is_gone_is_told_once_and_its_return_once(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy")
    fake.exchange("x", binding("a"))
    fake.fail(status(503))
    async with scheduling(fake, running=True, interval=0.02, named=(X,)) as made:
        await eventually(lambda: made.reader.results["failed"] > 5 and fake.count("/cluster-name") > 5)
        assert sorted(warnings(caplog)) == [
            "cannot read exchange 'x' in virtual host '/': /api/cluster-name: 503",
            "the management API does not answer, so rings stay as they are: /api/cluster-name: 503",
        ]
        assert made.reader.identity.unreachable == "/api/cluster-name: 503"
        assert made.reader.identity.cluster != "rabbit@fake"
        assert made.scheduler.pending() == [X]
        caplog.clear()
        fake.mend()
        await eventually(lambda: made.weights() == {A: 1} and not made.reader.identity.unreachable)
        seen = made.reader.results["ok"]
        await eventually(lambda: made.reader.results["ok"] > seen + 3)
        assert made.reader.identity.cluster == "rabbit@fake"
        assert made.scheduler.pending() == []
        assert caplog.messages.count("exchange 'x' in virtual host '/' can be read again") == 1
        assert caplog.messages.count("the management API answers") == 1
        assert warnings(caplog) == []


async def test_a_fault_of_another_kind_is_told_too(
    fake: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with scheduling(fake, named=(X,)) as made:
        for code in (500, 500, 401, 401, 500):
            fake.fail(status(code))
            clock.now += 1
            await made.scheduler._again(X, "test")
    assert [re.findall(r": (\d{3})", message)[0] for message in warnings(caplog)] == ["500", "401", "500"]


async def test_retry_after_is_heeded(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake, interval=1.0, named=(X,)) as made:
        fake.fail(status(429, headers={"Retry-After": "40"}))
        await made.scheduler._again(X, "test")
        assert made.scheduler._tracked[X].due >= clock.now + 39
        fake.fail(status(500))
        clock.now += 1
        for _ in range(20):
            await made.scheduler._again(X, "test")
            clock.now += 1
        assert made.scheduler._tracked[X].due <= clock.now + 1.0
