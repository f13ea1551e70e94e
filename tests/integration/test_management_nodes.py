"""Several URLs of the management API: one node hangs, or is of another cluster, and readings go on by the other."""

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import management_front, relay


def test_readings_go_on_by_the_second_node_while_the_first_hangs(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1"])
    with relay(login.management_url) as (link, first):
        sidecar = start_sidecar(management_url=f"{first},{login.management_url}", management_timeout="1")
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

        link.freeze()
        vhost.queue("q2")
        vhost.bind("orders", "q2")
        sidecar.wait_for_weights(vhost.name, "orders", {"q1": 1, "q2": 1})
        read = sidecar.metric("ringproxy_syncs_total", result="ok")
        wait_until("more readings", lambda: sidecar.metric("ringproxy_syncs_total", result="ok") > read + 3)
        assert sidecar.metric("ringproxy_syncs_total", result="failed") == 0
        assert sidecar.metric("ringproxy_management_up") == 1
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        link.thaw()
    assert sidecar.log().count("is asked from now on") == 1


def test_a_start_goes_by_the_second_node_while_the_first_hangs(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1"])
    with relay(login.management_url) as (link, first):
        link.freeze()
        sidecar = start_sidecar(management_url=f"{first},{login.management_url}", management_timeout="1")
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        sidecar.wait_ready()


def test_a_second_node_of_another_cluster_is_not_read(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    with relay(login.management_url) as (link, first), management_front(login.management_url) as other:
        other.answer("/api/cluster-name", 200, {"name": "elsewhere"})
        nodes = [{"name": "/", "cluster_state": {"rabbit@elsewhere": "running"}}]
        other.answer("columns=name,cluster_state", 200, nodes)
        sidecar = start_sidecar(management_url=f"{first},{other.url}", lookup_timeout="1")
        ring = sidecar.publish("orders", "k", vhost=vhost.name).receipt()["ring"]

        link.cut()
        wait_until("a failed reading", lambda: sidecar.metric("ringproxy_sync_failing") == 1)
        (fault,) = sidecar.admin("/rings").json["faults"]
        assert "it belongs to cluster 'elsewhere'" in fault["fault"]
        assert sidecar.publish("orders", "k", vhost=vhost.name).receipt()["ring"] == ring
        assert not [path for path in other.asked if "/exchanges/" in path]

        link.open()
        sidecar.wait_ready()
