"""Copies of a program come and go by the rule of deploy/scaledobject.yaml, over a day in five minutes."""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import pi, sin

import pytest

from tests.autoscaler import Autoscaler
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import sharded
from tests.integration.load import meanwhile
from tests.integration.sidecar import Sidecar
from tests.integration.test_groups_lag import COMES_IN, SCALED, WAITS, scaled_by
from tests.integration.wire_client import Client

SHARDS = [f"orders.{number}" for number in range(12)]
MOST = 4
SPEED = 30.0
"""Messages a second that a copy works off."""

PACE = 6.0
"""Times as fast as the manifest's the rule goes. Shards move as fast as ever, so they have less time for it here."""

DAY, NIGHT = 240.0, 40.0
"""Seconds. The rule has 28 minutes: what comes in grows and falls sixty times as fast as in a day."""

KEYS = 120


class Work:
    """The messages that copies have done, by key; it notes each that one begins out of its key's order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: dict[str, int] = defaultdict(int)
        self.wrong: list[str] = []

    def begin(self, key: str, number: int) -> None:
        with self._lock:
            if number != self.done[key]:
                self.wrong.append(f"{key}: {number} after {self.done[key]}")

    def end(self, key: str, number: int) -> None:
        with self._lock:
            self.done[key] = number + 1

    @property
    def count(self) -> int:
        with self._lock:
            return sum(self.done.values())


class Copy:
    """One copy of the program: a member of the group, until it is told to stop."""

    def __init__(self, client: Client, sidecar: Sidecar, vhost: VirtualHost, work: Work) -> None:
        self._client, self._sidecar, self._vhost, self._work = client, sidecar, vhost, work
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ended_well = False
        self._thread.start()

    def stop(self) -> None:
        """Have it leave in good order: it ends the message that it is at, and gives back the ones not begun."""
        self._over.set()
        self._thread.join(DEADLINE_SECONDS)
        assert self.ended_well

    def _run(self) -> None:
        with self._client.pika(self._sidecar.amqp_port, self._vhost.name) as channel:
            channel.basic_qos(prefetch_count=3)
            for method, _, body in channel.consume("orders", inactivity_timeout=0.1):
                if self._over.is_set():
                    break
                if method is None or body is None:
                    continue
                key, number = body.decode().split()
                self._work.begin(key, int(number))
                time.sleep(1 / SPEED)
                self._work.end(key, int(number))
                channel.basic_ack(method.delivery_tag or 0)
            channel.cancel()
        self.ended_well = True


def stop_all(copies: list[Copy]) -> None:
    while copies:
        copies.pop().stop()


def coming_in(second: float) -> float:
    """Messages a second: few at night, and by day as many as all copies work off with a fifth to spare."""
    return SPEED * MOST * 0.8 * (0.05 + 0.95 * sin(pi * min(second, DAY) / DAY) ** 2)


@contextmanager
def publishing(client: Client, sidecar: Sidecar, vhost: VirtualHost) -> Iterator[list[str]]:
    """Publish as the time of day says until the block ends; give the messages that were confirmed."""
    confirmed: list[str] = []
    begin = time.monotonic()
    told, owed = begin, 0.0
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)

        def publish() -> None:
            nonlocal told, owed
            time.sleep(0.1)
            now = time.monotonic()
            owed += coming_in(now - begin) * (now - told)
            told = now
            due = [
                f"customer-{number % KEYS} {number // KEYS}"
                for number in range(len(confirmed), len(confirmed) + int(owed))
            ]
            owed -= len(due)
            for each in due:
                wire.publish(1, "orders", each.split()[0], each.encode(), mandatory=True)
            if due:
                wire.confirm(1, len(confirmed) + len(due), len(confirmed))
            confirmed.extend(due)

        with meanwhile(publish):
            yield confirmed
        wire.goodbye()


@pytest.mark.long
def test_a_day_of_copies_that_come_and_go(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    """They all come before the first goes, what waits is soon worked off, and each key stays in its order."""
    sharded(vhost, SHARDS)
    vhost.permit(USER, configure=r"^orders\.group", read=r"^orders\.group")
    publisher, consumer = start_sidecar(route="orders"), start_sidecar(groups="orders")
    spec = SCALED["spec"]
    autoscaler = Autoscaler(
        spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
        spec["minReplicaCount"],
        MOST,
        # The share of a copy's speed that the manifest has, and the time that messages may wait, as fast as the rest.
        {"rate": 0.8 * SPEED, "lag": 20 * SPEED / PACE},
        PACE,
    )
    work, steps, most = Work(), list[int](), 0.0
    copies: list[Copy] = []
    with ExitStack() as stack:
        stack.callback(stop_all, copies)
        copies.append(Copy(client, consumer, vhost, work))
        wait_until("all shards have an owner", lambda: consumer.metric("ringproxy_group_shards_held") == len(SHARDS))
        with publishing(client, publisher, vhost) as confirmed:
            begin = time.monotonic()
            while (second := time.monotonic() - begin) < DAY + NIGHT:
                rate, lag = (scaled_by(publisher, vhost, trigger) for trigger in (COMES_IN, WAITS))
                most = max(most, lag or 0)
                wanted = autoscaler.decide(second, len(copies), {"rate": rate, "lag": lag})
                if wanted != len(copies):
                    steps.append(wanted - len(copies))
                while len(copies) < wanted:
                    copies.append(Copy(client, consumer, vhost, work))
                while len(copies) > wanted:
                    copies.pop().stop()
                time.sleep(spec["pollingInterval"] / PACE)
        wait_until("all is done", lambda: work.count == len(confirmed))
    assert work.wrong == []
    assert sum(step for step in steps if step > 0) == MOST - 1
    assert sum(steps) == 0, steps
    turns = sum((before > 0) != (after > 0) for before, after in itertools.pairwise(steps))
    assert turns == 1, steps
    assert most < 10 * SPEED * MOST
