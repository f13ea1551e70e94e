"""A queue that is deleted and made anew, again and again: its messages go to a queue that stands."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue

from tests.integration.broker_api import VirtualHost, queues_of, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import management_front, relay
from tests.integration.rings import GONE, KEPT, LEFT, LOST, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire

pytestmark = pytest.mark.versions


def make(peer: Wire, *, durable: bool = False, exclusive: bool = False) -> bool:
    """Declare and bind the queue that was deleted, on a client's first channel; return whether the broker let it.

    RabbitMQ may still have an exclusive queue for a moment after its connection was closed, and then says 405.
    """
    peer.tell(1, Queue.Declare(queue=GONE, durable=durable, exclusive=exclusive))
    if not isinstance(peer.read()[1], Queue.DeclareOk):
        return False
    peer.ask(1, Queue.Bind(queue=GONE, exchange="orders", routing_key="1"), Queue.BindOk)
    return True


@pytest.mark.parametrize("confirm", [True, False])
def test_a_queue_that_is_deleted_made_anew_and_deleted_again_within_a_second(
    slow: Sidecar, vhost: VirtualHost, client: Client, confirm: bool
) -> None:
    """Nothing of it is lost, whether its publisher would learn of that or not."""
    vhost.ring("orders", QUEUES)
    expected: dict[str, str] = {}
    with client.session(slow.amqp_port, vhost.name) as peer, client.session(slow.amqp_port, vhost.name) as other:
        peer.channel(1)
        peer.channel(2, confirm=confirm)
        other.channel(1)
        peer.publish(1, "orders", KEPT[0], b"first")
        peer.confirm(1)
        vhost.delete_queue(GONE)
        for times in range(3):
            # The ring is read again because this message comes back.
            peer.publish(1, "orders", LOST[0], b"before %d" % times)
            expected[f"before {times}"] = owner(LEFT, LOST[0])
            assert isinstance(peer.read()[1], Basic.Ack)
            assert make(other, durable=True)
            if times % 2:
                # The ring is read while the queue is there, so no declaration need tell of it any more.
                peer.publish(1, "orders", LOST[0], b"deleted with the queue")
                assert isinstance(peer.read()[1], Basic.Ack)
            vhost.delete_queue(GONE)
            for n in range(20):
                key = LOST[n % len(LOST)]
                peer.publish(2, "orders", key, b"%d %d" % (times, n), mandatory=n % 2 == 0)
                expected[f"{times} {n}"] = owner(LEFT, key)
            if confirm:
                peer.confirm(2, 20 * (times + 1), 20 * times)
        peer.ask(2, Channel.Close(200, "", 0, 0), Channel.CloseOk)
    assert queues_of(vhost) == expected | {"first": owner(QUEUES, KEPT[0])}


Publish = Callable[[Sidecar, VirtualHost, Client, list[str]], list[str]]
"""Publishes a message of each body, all of one key, and returns what became of them."""


def by_amqp(sidecar: Sidecar, vhost: VirtualHost, client: Client, bodies: list[str]) -> list[str]:
    """Publish with mandatory, so that nothing but the broker's own nack makes a nack."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for body in bodies:
            peer.publish(1, "orders", LOST[0], body.encode(), mandatory=True)
        told = peer.answers(1, len(bodies))
    return ["confirmed" if what == "ack" else "nacked" for what in told.values()]


def by_http(sidecar: Sidecar, vhost: VirtualHost, client: Client, bodies: list[str]) -> list[str]:
    answers = [sidecar.publish("orders", LOST[0], body.encode(), vhost=vhost.name) for body in bodies]
    return [answer.json["outcome"] for answer in answers]


def by_batch(sidecar: Sidecar, vhost: VirtualHost, client: Client, bodies: list[str]) -> list[str]:
    answer = sidecar.batch("orders", [{"key": LOST[0], "payload": body} for body in bodies], vhost=vhost.name)
    if answer.status == 200:
        return ["confirmed"] * int(answer.json["confirmed"])
    return [result["outcome"] for result in answer.json["results"]]


PUBLISHERS = [by_amqp, by_http, by_batch]


@pytest.mark.parametrize("publish", PUBLISHERS)
def test_a_message_goes_to_its_queue_if_that_is_made_anew_before_the_bindings_are_read(
    start_sidecar: StartSidecar,
    login: Login,
    vhost: VirtualHost,
    client: Client,
    publish: Publish,
) -> None:
    """The ring names the queue that the message came back from, and is right."""
    vhost.ring("orders", QUEUES)
    with relay(login.management_url) as (held, url), management_front(url) as front, ThreadPoolExecutor() as pool:
        sidecar = start_sidecar(sync_interval="600", management_url=front.url)
        assert sidecar.publish("orders", LOST[0], b"first", vhost=vhost.name).status == 200
        vhost.delete_queue(GONE)
        asked = len(front.asked)
        held.freeze()
        try:
            published = pool.submit(publish, sidecar, vhost, client, ["0", "1", "2"])
            wait_until("a reading to begin", lambda: any("exchanges" in path for path in front.asked[asked:]))
            vhost.queue(GONE)
            vhost.bind("orders", GONE)
        finally:
            held.thaw()
        assert published.result() == ["confirmed"] * 3
        assert queues_of(vhost) == dict.fromkeys(["0", "1", "2"], GONE)
        # The process must be gone before what it asks is.
        sidecar.stop()


@pytest.mark.parametrize("publish", PUBLISHERS)
def test_nothing_is_lost_while_an_exclusive_queue_comes_and_goes(
    start_sidecar: StartSidecar,
    vhost: VirtualHost,
    client: Client,
    publish: Publish,
) -> None:
    """No publisher is told that there is no queue. RabbitMQ itself nacks what reaches a queue as that goes."""
    vhost.ring("orders", LEFT)
    sidecar, over, flaps = start_sidecar(), threading.Event(), 0

    def flap() -> None:
        nonlocal flaps
        while not over.is_set():
            with client.session(sidecar.amqp_port, vhost.name) as owning:
                owning.channel(1)
                if make(owning, exclusive=True):
                    over.wait(0.05)
                    flaps += 1
                owning.ask(0, Connection.Close(200, "", 0, 0), Connection.CloseOk)

    rounds, outcomes = 0, Counter[str]()
    with ThreadPoolExecutor() as pool:
        flapping = pool.submit(flap)
        try:
            while rounds < 30 or flaps < 10:
                rounds += 1
                outcomes.update(publish(sidecar, vhost, client, [f"{rounds} {n}" for n in range(9)]))
                assert not flapping.done()
        finally:
            over.set()
        flapping.result()
    assert outcomes.keys() <= {"confirmed", "nacked", "rejected"}, outcomes
    assert outcomes["confirmed"] > outcomes.total() / 2
