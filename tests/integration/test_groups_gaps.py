"""For how long a shard has no deliveries as members come and go: the times that the page on groups names, measured.

Timers of the sidecars make most of these times, so that a busy machine changes little of the medians.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import pytest

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.consuming import Consumer, consumers
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, publish_frames

pytestmark = pytest.mark.long

SHARDS = [f"orders.{number}" for number in range(8)]
ROUNDS = 9
EVERY = 0.01
"""Seconds from one message of a shard to the next."""

MOST = {
    "a group's first member: its first message": 1.5,
    "another member: it has its shards": 2.5,
    "another member: no deliveries of these": 0.5,
    "a program is killed: no deliveries": 0.5,
    "a sidecar is killed: no deliveries": 2.5,
}
"""The most seconds of each median."""


@contextmanager
def publishing(client: Client, port: int, vhost: str) -> Iterator[None]:
    """Publish to each shard all the while; each message comes with the shard as its key."""
    over = threading.Event()
    once = b"".join(frame for shard in SHARDS for frame in publish_frames(1, "", shard, b"0"))
    with client.session(port, vhost) as wire:
        wire.channel(1, confirm=False)

        def publish() -> None:
            while not over.wait(EVERY):
                wire.send(once)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class Members:
    """Members of the group that ack at once."""

    def __init__(self, client: Client, vhost: str, stack: ExitStack) -> None:
        self._client, self._vhost, self._stack = client, vhost, stack

    def join(self, sidecar: Sidecar) -> tuple[Consumer, float]:
        """Return a member, and when it was about to send basic.consume."""
        member = self._stack.enter_context(consumers(self._client, sidecar.amqp_port, self._vhost))[0]
        member.open(1, 5)
        began = time.monotonic()
        member.consume(1, "orders", "c", acks=True)
        return member, began


def _of(member: Consumer, since: float) -> dict[str, list[float]]:
    """Return when a member got messages since some time, by shard."""
    times: dict[str, list[float]] = defaultdict(list)
    for each in member.got():
        if each.at >= since:
            times[each.routing_key].append(each.at)
    return times


def gaps(before: Consumer, after: Consumer, since: float) -> list[float]:
    """Return for each shard that went from one member to another the seconds without a delivery."""
    first, last = _of(after, since), _of(before, since)
    found = []
    for shard in first.keys() & last.keys():
        came = [at for at in first[shard] if at > last[shard][-1]]
        found += [came[0] - last[shard][-1]] if came else []
    return found


def test_shards_stand_still_for_no_longer_than_the_page_on_groups_says(
    vhost: VirtualHost, client: Client, start_sidecar: StartSidecar
) -> None:
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    vhost.exchange("orders")
    for shard in SHARDS:
        vhost.queue(shard, x_queue_type="quorum", x_single_active_consumer=True)
        vhost.bind("orders", shard)
    stays = start_sidecar(groups="orders")
    took: dict[str, list[float]] = {what: [] for what in MOST}
    joining, joined, still, killed, lost = took.values()

    def has(member: Consumer, count: int, since: float) -> float:
        """Return when a member has got messages of so many shards since some time."""
        wait_until(f"{count} shards", lambda: len(_of(member, since)) == count, within=60)
        return max(times[0] for times in _of(member, since).values())

    with ExitStack() as stack:
        members = Members(client, vhost.name, stack)
        stack.enter_context(publishing(client, stays.amqp_port, vhost.name))
        for _ in range(ROUNDS):
            first, began = members.join(stays)
            joining.append(first.wait_for(1)[0].at - began)
            first.bye()
        other, began = members.join(stays)
        has(other, len(SHARDS), began)
        for _ in range(ROUNDS):
            sidecar = start_sidecar(groups="orders")
            for times in (killed, lost):
                other.deliveries.clear()
                member, began = members.join(sidecar)
                joined.append(has(member, len(SHARDS) // 2, began) - began)
                still += gaps(other, member, began)
                time.sleep(1.0)  # the sidecars tell each other of it
                ended = time.monotonic()
                if times is killed:
                    member.drop()
                else:
                    sidecar.kill()
                has(other, len(SHARDS), ended)
                times += gaps(member, other, ended - 1.0)
    medians = {what: median(times) for what, times in took.items()}
    for what, times in took.items():
        figures = f"{min(times):.2f} to {max(times):.2f} s, median {medians[what]:.2f} s"
        print(f"{what:<42} {len(times):>3} times: {figures}")
    assert [what for what, most in MOST.items() if medians[what] > most] == []
