"""A group of which one shard's queue is half deleted: RabbitMQ ends the connection of whoever consumes it."""

import time
from collections import Counter
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pika.spec import Basic

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.conftest import StartSidecar
from tests.integration.own_node import own_node, private_only
from tests.integration.test_topology_ordered import FILE
from tests.integration.topology import Topology

pytestmark = [pytest.mark.long, private_only]

SHARDS = 4


class Program:
    """A program that publishes to the group's exchange and consumes it, and connects again whenever it is cut off."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.lost: list[str] = []
        self.got = Counter[str]()

    def work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                connection = pika.BlockingConnection(pika.URLParameters(self._url))
                channel = connection.channel()
                channel.basic_consume("orders", self._take)
                while time.monotonic() < end:
                    connection.process_data_events(0.2)
                connection.close()
            except AMQPError as error:
                self.lost.append(str(error))
                time.sleep(0.3)

    def _take(self, channel: BlockingChannel, method: Basic.Deliver, _: object, body: bytes) -> None:
        self.got[body.decode()] += 1
        channel.basic_ack(method.delivery_tag or 0)


def test_a_shard_without_a_process_costs_a_client_one_connection_and_the_others_are_consumed(
    start_sidecar: StartSidecar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with own_node("") as (node, control):
        vhost = VirtualHost(BrokerApi(node.management_url), "/", [])
        topology = Topology(Broker(node.amqp_url, node.management_url, "", "its own"), vhost, tmp_path, capsys)
        topology.write(FILE.format(SHARDS))
        topology.did("apply")
        sidecar = start_sidecar(broker_url=node.amqp_url, management_url=node.management_url, groups="orders")
        control("eval", "ra:force_delete_server(quorum_queues, {'%2F_orders.2', node()}).")

        def fill() -> None:
            for shard in (1, 3, 4):
                name = f"orders.{shard}"
                body = {"routing_key": name, "payload": name, "payload_encoding": "string", "properties": {}}
                assert vhost.api.ask("POST", "exchanges", "/", "amq.default", "publish", body=body)["routed"]

        program = Program(f"amqp://guest:guest@127.0.0.1:{sidecar.amqp_port}/%2F")
        program.work(3)
        fill()
        program.work(12)
        assert len(program.lost) == 1
        assert "'orders.2'" in program.lost[0]
        assert program.got == {"orders.1": 1, "orders.3": 1, "orders.4": 1}
        # Once the pause is over, one link is tried, and the next pause is longer.
        program.work(45)
        assert len(program.lost) == 2
        # A deletion ends it, and a queue that is made anew is consumed after the pause.
        vhost.api.ask("DELETE", "queues", "/", "orders.2")
        topology.did("apply")
        body = {"routing_key": "orders.2", "payload": "orders.2", "payload_encoding": "string", "properties": {}}
        assert vhost.api.ask("POST", "exchanges", "/", "amq.default", "publish", body=body)["routed"]
        program.work(75)
        assert len(program.lost) == 2
        assert program.got["orders.2"] == 1
