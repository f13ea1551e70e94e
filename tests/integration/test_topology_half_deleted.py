"""`ring-proxy topology apply --ordered` where RabbitMQ has left an old queue half deleted."""

from pathlib import Path
from typing import Any

import pytest

from proxy.shards import reshard
from proxy.topology.management import ManagementError
from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.own_node import own_node, private_only
from tests.integration.test_topology_ordered import FILE, WAITS, fleet, queues
from tests.integration.topology import Topology

pytestmark = [pytest.mark.long, private_only]


def test_a_drained_queue_without_a_process_is_deleted_and_holds_nobody_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it costs the connection of the drain, by which the other queue is drained too."""
    for name in WAITS:
        monkeypatch.setattr(name, 0.0)
    monkeypatch.setattr(reshard, "_LOST_AFTER", 40.0)

    async def killed(*_: Any) -> None:
        raise ManagementError("killed")

    with own_node("") as (node, control):
        vhost = VirtualHost(BrokerApi(node.management_url), "/", [])
        topology = Topology(Broker(node.amqp_url, node.management_url, "", "its own"), vhost, tmp_path, capsys)
        topology.write(FILE.format(2))
        topology.did("apply")
        topology.write(FILE.format(1))
        with monkeypatch.context() as patched:
            patched.setattr(reshard, "delete", killed)
            assert "killed" in topology.run("apply", "--ordered", str(topology.file), *fleet(topology)).stderr
        marks = [each["name"] for each in topology.made()["exchanges"]]
        queue = next(each for each in ("orders.1", "orders.2") if each in marks)
        control("eval", f"ra:force_delete_server(quorum_queues, {{'%2F_{queue}', node()}}).")
        told = topology.did("apply", "--ordered", str(topology.file), *fleet(topology))
        assert "noproc" in told
        (other,) = {"orders.1", "orders.2"} - {queue}
        assert told.index(f"{other} is drained, and deleted") < told.index(f"{queue} is drained, and deleted")
        assert queues(topology) == {"orders.g2.1"}
