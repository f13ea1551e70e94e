"""Bindings that change while clients publish: the rings follow, tell of it once, and lose nothing."""

import time

import pytest

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.load import Load
from tests.integration.rings import built
from tests.integration.sidecar import Sidecar

pytestmark = pytest.mark.versions

SYNC, SETTLE = 0.5, 0.2


def changes(sidecar: Sidecar, exchange: str) -> list[str]:
    return [line for line in sidecar.log().splitlines() if f"exchange {exchange!r}" in line and "slots moved" in line]


def test_each_change_is_told_once_with_the_share_it_moved(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", {"q1": 1, "q2": 1})
    sidecar = start_sidecar(sync_interval="0.3")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

    vhost.queue("q3")
    vhost.bind("orders", "q3", "2")
    sidecar.wait_for_weights(vhost.name, "orders", {"q1": 1, "q2": 1, "q3": 2})
    vhost.unbind("orders", "q1", "1")
    sidecar.wait_for_weights(vhost.name, "orders", {"q2": 1, "q3": 2})
    synced = sidecar.metric("ringproxy_syncs_total", result="ok")
    wait_until("more readings", lambda: sidecar.metric("ringproxy_syncs_total", result="ok") > synced + 3)

    first, second, third = changes(sidecar, "orders")
    assert "ring of 2 destinations (first use)" in first
    assert "+queue 'q3' weight 2 (a regular reading)" in second
    moved = built({"q1": 1, "q2": 1, "q3": 2}).moved_from(built({"q1": 1, "q2": 1}))
    assert f"{moved:.2%}" in second
    assert "-queue 'q1' weight 1 (a regular reading)" in third
    moved += (last := built({"q2": 1, "q3": 2}).moved_from(built({"q1": 1, "q2": 1, "q3": 2})))
    assert f"{last:.2%}" in third
    told = sidecar.metric("ringproxy_ring_moved_ratio_total", vhost=vhost.name, exchange="orders")
    assert abs(told - moved) < 1e-6
    assert [change["what"] for change in sidecar.ring(vhost.name, "orders")["changes"]] == [
        "ring of 2 destinations",
        "+queue 'q3' weight 2",
        "-queue 'q1' weight 1",
    ]


def test_an_unbind_followed_by_a_bind_moves_keys_once(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """A weight can only be changed so; in between, nothing may go anywhere else."""
    vhost.ring("orders", {"q1": 1, "q2": 1})
    sidecar = start_sidecar(sync_interval="0.1", settle_time="600")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

    vhost.unbind("orders", "q1", "1")
    synced = sidecar.metric("ringproxy_syncs_total", result="ok")
    wait_until("readings without it", lambda: sidecar.metric("ringproxy_syncs_total", result="ok") > synced + 3)
    vhost.bind("orders", "q1", "3")
    sidecar.wait_for_weights(vhost.name, "orders", {"q1": 3, "q2": 1})

    _, change = changes(sidecar, "orders")
    assert "queue 'q1' weight 1 to 3 (a regular reading)" in change


def test_every_confirmed_message_is_once_in_a_queue_that_a_ring_in_force_names(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    weights = {"q1": 1, "q2": 1, "q3": 2, "q4": 2}
    vhost.ring("orders", weights)
    sidecar = start_sidecar(sync_interval=str(SYNC), settle_time=str(SETTLE))
    load = Load(sidecar, "orders", vhost.name, workers=6)
    history = [(time.monotonic(), built(weights))]

    def change(queue: str, weight: int) -> None:
        at = len(load.confirmed) + 250
        wait_until("more confirmed", lambda: len(load.confirmed) >= at)
        if weight:
            vhost.queue(queue)
            vhost.bind("orders", queue, str(weight))
            weights[queue] = weight
        else:
            vhost.unbind("orders", queue, str(weights.pop(queue)))
        history.append((time.monotonic(), built(weights)))
        sidecar.wait_for_weights(vhost.name, "orders", weights)

    with load.running():
        for queue, weight in (("q5", 1), ("q1", 0), ("q6", 3), ("q3", 0), ("q1", 2), ("q6", 0), ("q2", 0)):
            change(queue, weight)
        wait_until("2,000 messages", lambda: len(load.confirmed) >= 2000)

    assert (load.refused, load.unanswered) == ([], [])
    landed = [(m.body.decode(), queue) for queue, messages in vhost.drain_all().items() for m in messages]
    assert sorted(landed) == sorted((key, receipt.queue) for key, receipt in load.receipts.items())
    # A bind counts before we know that it was made; what it replaced counts until it was read and has settled. A
    # reading and the building of a ring take a while of their own on a busy machine.
    early, late = 1.0, SYNC + SETTLE + 5.0
    used = set()
    for key, receipt in load.receipts.items():
        ends = [since for since, _ in history[1:]] + [float("inf")]
        candidates = [
            ring.owner_of(key.encode()).name
            for (since, ring), end in zip(history, ends, strict=True)
            if since - early <= receipt.confirmed and end + late >= receipt.sent
        ]
        assert receipt.queue in candidates, (key, receipt)
        used.add(receipt.queue)
    assert used == {"q1", "q2", "q3", "q4", "q5", "q6"}


def test_queues_deleted_under_load_lose_nothing_that_was_confirmed(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    """Every answer is a receipt; a queue's own deletion takes what was in it, and no more."""
    vhost.ring("orders", ["q1", "q2", "q3", "doomed"])
    sidecar = start_sidecar(sync_interval="600")
    load = Load(sidecar, "orders", vhost.name, workers=6)

    with load.running():
        wait_until("load on all queues", lambda: len(load.confirmed) > 200)
        vhost.delete_queue("doomed")
        deleted = time.monotonic()
        at = len(load.confirmed) + 300
        wait_until("load on the others", lambda: len(load.confirmed) > at)

    assert [answer.text for answer in load.refused] == []
    assert sidecar.metric("ringproxy_rerouted_total", ingress="http", exchange="orders") >= 1
    assert load.unanswered == []
    landed = sorted(m.body.decode() for messages in vhost.drain_all().values() for m in messages)
    assert landed == sorted(key for key, receipt in load.receipts.items() if receipt.queue != "doomed")
    # RabbitMQ itself confirms what was on its way to the queue when it was deleted.
    assert all(receipt.sent < deleted for receipt in load.receipts.values() if receipt.queue == "doomed")
