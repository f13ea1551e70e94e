"""A later generation of shards beside the first one: when it is the ring, who consumes it, and what is unsettled."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Exchange

from proxy.topology.bindings import Promise
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.generations import bind, declare, fence, lane, made, queue, queues
from tests.integration.groups import consume, deliveries, numbered, publish
from tests.integration.own_node import own_node, private_only
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire

pytestmark = pytest.mark.versions

OLD, NEW = queues(1, 4), queues(2, 6)
PLACES = queues(1, 6)
KEYS = [f"key {number}" for number in range(24)]


class Publishers:
    """One AMQP client that publishes in windows, and one HTTP client that sends batches, by turns to all keys."""

    def __init__(self, sidecar: Sidecar, vhost: VirtualHost, wire: Wire) -> None:
        self._sidecar, self._vhost, self._wire = sidecar, vhost, wire
        self.sent = {"amqp": 0, "http": 0}
        self._over = threading.Event()

    def _windows(self) -> None:
        """Publish without an end, some messages ahead of their confirms."""
        while not self._over.is_set():
            first = self.sent["amqp"]
            for number in range(first, first + 4 * len(KEYS)):
                self._wire.publish(1, "orders", KEYS[number % len(KEYS)], b"amqp %d" % number)
            self.sent["amqp"] += 4 * len(KEYS)
            self._wire.confirm(1, self.sent["amqp"], first)

    def _batches(self) -> None:
        while not self._over.is_set():
            numbers = range(self.sent["http"], self.sent["http"] + 2 * len(KEYS))
            items = [{"key": KEYS[number % len(KEYS)], "payload": f"http {number}"} for number in numbers]
            self.sent["http"] = numbers.stop
            assert self._sidecar.batch("orders", items, vhost=self._vhost.name).receipt()["confirmed"] == len(items)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish until the block ends; every message must be confirmed."""
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(self._windows), pool.submit(self._batches)]
            try:
                yield
            finally:
                self._over.set()
            for each in running:
                each.result()

    def goes_on(self) -> None:
        """Return once each has published more."""
        before = dict(self.sent)
        wait_until("further publishes", lambda: all(self.sent[which] > count + 200 for which, count in before.items()))


def read_out(vhost: VirtualHost) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """Take all messages; return by publisher and key, old queues first, the queue and number of each message."""
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for name in (*OLD, *NEW):
        for message in vhost.drain(name):
            who, number = message.body.decode().split()
            found.setdefault((who, message.routing_key), []).append((name, int(number)))
    return found


def check_order(vhost: VirtualHost, sent: dict[str, int]) -> set[str]:
    """Each key's messages are there once, in order, first in its old queue and then in its new one; return the queues
    of generation 1 that got any.
    """
    found, old = read_out(vhost), set[str]()
    for (who, key), messages in found.items():
        assert [number for _, number in messages] == [
            number for number in range(sent[who]) if KEYS[number % len(KEYS)] == key
        ], (who, key)
        used = {name for name, _ in messages}
        assert used <= {owner(OLD, key), owner(PLACES, key).replace("orders.", "orders.g2.")}, (who, key, used)
        old |= used & set(OLD)
    assert len(found) == 2 * len(KEYS)
    return old


def shown(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    return sidecar.ring(vhost.name, "orders")


def group(sidecar: Sidecar, vhost: VirtualHost) -> list[str]:
    """The queues of the group orders, as a sidecar knows them."""
    report = sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").receipt()
    return sorted(each["shard"] for each in report["shards"])


def test_the_last_lane_of_a_generation_makes_it_the_ring(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    made(vhost, 4, x_queue_type="quorum")
    declare(vhost, 2, 6, x_queue_type="quorum")
    sidecar = start_sidecar()
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        publishers = Publishers(sidecar, vhost, wire)
        with publishers.running():
            publishers.goes_on()
            first = shown(sidecar, vhost)
            assert (first["generation"], first["unsettled_before"], first["unconfirmed"]) == (1, 0, 0)
            for shard in range(5):
                bind(vhost, 2, shard, 6)
                wait_until(
                    "the binding is read",
                    lambda n=shard + 1: (
                        [  # type: ignore[misc]
                            each["bound"] for each in shown(sidecar, vhost).get("other_generations", ())
                        ]
                        == [n]
                    ),
                )
                assert {d["lane"] for d in shown(sidecar, vhost)["destinations"]} == {lane(1, n) for n in range(4)}
                change = shown(sidecar, vhost)["change"]
                assert (change["from"], change["to"], change["lanes_bound"], change["lanes"]) == (1, 2, shard + 1, 6)
            bind(vhost, 2, 5, 6)
            wait_until("the switch", lambda: shown(sidecar, vhost)["generation"] == 2)
            wait_until("nothing is unsettled", lambda: shown(sidecar, vhost)["unsettled_before"] == 0)
            publishers.goes_on()
            fence(vhost, 1, 4)
            publishers.goes_on()
        wire.goodbye()
    ring = shown(sidecar, vhost)
    assert {d["name"]: d["lane"] for d in ring["destinations"]} == dict(
        zip(PLACES, (lane(2, shard) for shard in range(6)), strict=True)
    )
    assert ring["made_with"] == 6
    of = {"from": 1, "to": 2, "lanes": 6, "lanes_bound": 6, "old_shards": 0, "old_shards_left": 4}
    assert ring["change"] == of
    assert (ring["duplicate_bindings"], ring["ignored_bindings"]) == ([], [])
    assert [change["what"].split(":")[0] for change in ring["changes"]][1:] == ["generation 2 of 6 shards"]
    assert ring["not_open"] == {"orders": PLACES}
    assert check_order(vhost, publishers.sent) == set(OLD)
    assert "generation 2 of 6 shards" in sidecar.log()


def test_what_comes_back_from_the_fence_goes_to_the_new_generation_in_order(
    slow: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The sidecar reads the bindings only once its publishes come back."""
    made(vhost, 4, x_queue_type="quorum")
    declare(vhost, 2, 6, x_queue_type="quorum")
    with client.session(slow.amqp_port, vhost.name) as wire:
        wire.channel(1)
        publishers = Publishers(slow, vhost, wire)
        with publishers.running():
            publishers.goes_on()
            for shard in range(6):
                bind(vhost, 2, shard, 6)
            publishers.goes_on()
            assert shown(slow, vhost)["generation"] == 1
            fence(vhost, 1, 4)
            publishers.goes_on()
            wait_until("the switch", lambda: shown(slow, vhost)["generation"] == 2)
            wait_until("nothing is unsettled", lambda: shown(slow, vhost)["unsettled_before"] == 0)
        wire.goodbye()
    assert slow.metric("ringproxy_rerouted_total", vhost=vhost.name, exchange="orders", ingress="amqp") > 0
    assert check_order(vhost, publishers.sent) == set(OLD)


def test_a_group_consumes_a_new_queue_once_it_is_open(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    made(vhost, 2)
    declare(vhost, 2, 3)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        publish(client, sidecar.amqp_port, vhost, numbered(range(20)))
        assert len(deliveries(wire, 1, 20)) == 20
        for shard in range(3):
            bind(vhost, 2, shard, 3)
        wait_until("the switch", lambda: shown(sidecar, vhost)["generation"] == 2)
        fence(vhost, 1, 2)
        publish(client, sidecar.amqp_port, vhost, numbered(range(20, 80)))
        assert group(sidecar, vhost) == queues(1, 2)
        newcomer = start_sidecar(groups="orders")
        assert (group(newcomer, vhost), shown(newcomer, vhost)["generation"]) == (queues(1, 2), 2)
        assert shown(newcomer, vhost)["not_open"] == {"orders": queues(1, 3)}
        mine = {n for n in range(20, 80) if owner(queues(1, 3), f"key {n}") == queue(1, 2)}
        bind(vhost, 2, 2, 3, ["orders"])
        assert {int(each.body) for each in deliveries(wire, 1, len(mine))} == mine
        for each in (sidecar, newcomer):
            wait_until("it is open", lambda at=each: group(at, vhost) == sorted([*queues(1, 2), queue(2, 2)]))  # type: ignore[misc]
            assert shown(each, vhost)["not_open"] == {"orders": queues(1, 2)}
        for shard in range(2):
            bind(vhost, 2, shard, 3, ["orders"])
        assert {int(each.body) for each in deliveries(wire, 1, 60 - len(mine))} == set(range(20, 80)) - mine
        for shard in range(2):
            vhost.delete_queue(queue(1, shard))
            vhost.unbind("orders", lane(1, shard), _key(vhost, lane(1, shard)), kind="e")
        wait_until("the old ones are gone", lambda: group(sidecar, vhost) == queues(2, 3))
        wire.goodbye()


def test_a_client_binds_the_last_lane_through_the_sidecar(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    made(vhost, 2, x_queue_type="classic")
    declare(vhost, 2, 2, x_queue_type="classic")
    bind(vhost, 2, 0, 2)
    with client.session(slow.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "orders", KEYS[0])
        wire.confirm(1)
        arguments: Any = Promise(queue(1, 1), (), 2, 2).as_arguments()
        last = Exchange.Bind(destination=lane(2, 1), source="orders", routing_key="1", arguments=arguments)
        wire.ask(1, last, Exchange.BindOk)
        wire.publish(1, "orders", KEYS[0])
        wire.confirm(1, 2, 1)
        wire.goodbye()
    place = owner(queues(1, 2), KEYS[0])
    assert {name: len(vhost.drain(name)) for name in (place, place.replace("orders.", "orders.g2."))} == {
        place: 1,
        place.replace("orders.", "orders.g2."): 1,
    }


def _key(vhost: VirtualHost, lane: str) -> str:
    """The name that the management API has for the only binding to a lane."""
    (binding,) = vhost.api.ask("GET", "bindings", vhost.name, "e", "orders", "e", lane)
    key: str = binding["properties_key"]
    return key


@private_only
def test_what_a_queue_of_the_old_generation_has_not_confirmed_is_told(start_sidecar: StartSidecar) -> None:
    with own_node("") as (node, control):
        vhost = VirtualHost(BrokerApi(node.management_url), "stuck", [])
        made(vhost, 2, x_queue_type="classic")
        declare(vhost, 2, 3, x_queue_type="classic")
        sidecar = start_sidecar(
            broker_url=node.amqp_url, management_url=node.management_url, confirm_timeout="1", drain_time="1"
        )
        process = (
            'fun(Do) -> {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"stuck">>, queue, <<"orders.1">>)),'
            " sys:Do(amqqueue:get_pid(Q)) end"
        )
        stuck = next(key for key in KEYS if owner(queues(1, 2), key) == "orders.1")
        free = next(key for key in KEYS if owner(queues(1, 2), key) == "orders.0")
        with Client("guest", "guest").session(sidecar.amqp_port, vhost.name) as wire:
            for number in (1, 2):
                wire.channel(number)
                wire.publish(number, "orders", free)
                wire.confirm(number)
            wire.channel(3, confirm=False)
            wire.publish(3, "orders", free)
            control("eval", f"({process})(suspend).")
            try:
                wire.publish(1, "orders", stuck)
                # The client gets no answer, and the broker may still take the message.
                assert sidecar.publish("orders", stuck, b"x", vhost=vhost.name).json["outcome"] == "unknown"
                assert shown(sidecar, vhost)["unsettled_before"] == 0
                for shard in range(3):
                    bind(vhost, 2, shard, 3)
                wait_until("the switch", lambda: shown(sidecar, vhost)["generation"] == 2)
                ring = shown(sidecar, vhost)
                assert (ring["unsettled_before"], ring["unconfirmed"]) == (2, 1)
                wire.publish(2, "orders", stuck)
                wire.confirm(2, 2, 1)
                assert shown(sidecar, vhost)["unsettled_before"] == 2
            finally:
                control("eval", f"({process})(resume).")
            wire.confirm(1, 2, 1)
            wait_until("nothing is unsettled", lambda: shown(sidecar, vhost)["unsettled_before"] == 0)
            wire.goodbye()
