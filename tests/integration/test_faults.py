"""Faults on the broker's side: nothing lost is acknowledged, and what comes back is used again unasked."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar, with_login
from tests.integration.relay import management_front, relay
from tests.integration.sidecar import Answer, Sidecar

pytestmark = pytest.mark.versions


def at_once(count: int, publish: Callable[[int], Answer]) -> list[Answer]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(publish, range(count)))


def works(sidecar: Sidecar, vhost: VirtualHost) -> bool:
    return sidecar.publish("orders", "works", b"works", vhost=vhost.name).status == 200


def test_what_comes_back_from_a_deleted_queue_goes_to_the_next(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q1", "q2", "q3"])
    sidecar = start_sidecar(sync_interval="600")
    before = sidecar.route("orders", "k", vhost=vhost.name).receipt()

    vhost.delete_queue(before["destination"]["name"])

    for _ in range(2):
        assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == before["runner_up"]["name"]
    assert sidecar.metric("ringproxy_rerouted_total", ingress="http", exchange="orders") == 1
    assert [len(messages) for messages in vhost.drain_all().values()] == [2]


def test_what_comes_back_is_unroutable_while_the_ring_cannot_be_read(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1", "q2", "q3"])
    with relay(login.management_url) as (way, url):
        sidecar = start_sidecar(sync_interval="600", management_url=url)
        gone = sidecar.route("orders", "k", vhost=vhost.name).receipt()["destination"]["name"]
        vhost.delete_queue(gone)
        way.cut()
        answer = sidecar.publish("orders", "k", vhost=vhost.name)
        assert repr(gone) in answer.problem(503, "unroutable", "unroutable", retryable=True)
        batch = sidecar.batch("orders", [{"key": "k", "payload": "x"}], vhost=vhost.name)
        assert batch.status == 503
        assert [result["outcome"] for result in batch.json["results"]] == ["unroutable"]
        assert sidecar.metric("ringproxy_publishes_total", exchange="orders", outcome="unroutable") == 2


def test_the_last_queue_is_deleted_and_another_comes(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["only"])
    sidecar = start_sidecar()
    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == "only"

    vhost.delete_queue("only")
    for _ in range(3):
        sidecar.publish("orders", "k", vhost=vhost.name).problem(422, "unroutable", "unroutable", retryable=False)

    vhost.queue("next")
    vhost.bind("orders", "next")
    wait_until("the next queue", lambda: sidecar.publish("orders", "k", vhost=vhost.name).json.get("destination"))
    # The messages before the ring knew it were left to the exchange, which knew of the queue earlier.
    assert vhost.drain("next")[-1].exchange == ""


def test_a_deleted_exchange_is_unknown_once_that_has_settled(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    assert works(sidecar, vhost)

    vhost.delete_exchange("orders")

    wait_until("404", lambda: sidecar.route("orders", "k", vhost=vhost.name).status == 404)
    answer = sidecar.publish("orders", "k", vhost=vhost.name)
    answer.problem(404, "unknown-exchange", "invalid", retryable=False)


def test_a_full_queue_refuses(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.queue("full", x_max_length=1, x_overflow="reject-publish")
    vhost.bind("orders", "full")
    answers = [sidecar.publish("orders", "k", b"%d" % n, vhost=vhost.name) for n in range(3)]

    # The classic queue of 3.10 takes one more than its length.
    taken = [n for n, answer in enumerate(answers) if answer.status == 200]
    assert 1 <= len(taken) < 3
    for n in set(range(3)) - set(taken):
        answers[n].problem(503, "nacked", "nacked", retryable=True)
    assert [m.body for m in vhost.drain("full")] == [b"%d" % n for n in taken]


def test_equal_message_ids_in_flight_never_pass_a_loss_for_a_confirm(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    """A client's own ids say nothing of which message came back."""
    vhost.ring("orders", ["kept", "lost"])
    sidecar = start_sidecar(sync_interval="600")
    keys = [f"key {n}" for n in range(40)]
    owners = {key: sidecar.route("orders", key, vhost=vhost.name).queue() for key in keys}
    vhost.delete_queue("lost")

    def publish(n: int) -> Answer:
        headers = {"Amqp-Message-Id": "the same"}
        return sidecar.publish("orders", keys[n], keys[n].encode(), vhost=vhost.name, headers=headers)

    answers = dict(zip(keys, at_once(len(keys), publish), strict=True))

    confirmed = sorted(key for key, answer in answers.items() if answer.status == 200)
    landed = sorted(m.body.decode() for m in vhost.drain("kept"))
    assert confirmed == landed
    assert set(owners.values()) == {"kept", "lost"}
    assert confirmed == sorted(keys)
    assert sidecar.metric("ringproxy_rerouted_total", ingress="http", exchange="orders") >= 1


def test_equal_message_ids_with_every_queue_gone(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.exchange("fan", "fanout")
    sidecar = start_sidecar()
    headers = {"Amqp-Message-Id": "the same"}

    answers = at_once(30, lambda n: sidecar.publish("fan", "k", vhost=vhost.name, headers=headers))

    for answer in answers:
        answer.problem(503, "unroutable", "unroutable", retryable=True)


def test_frozen_broker(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q1", "q2"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, confirm_timeout="0.5", lookup_timeout="1")
        wait_until("works", lambda: works(sidecar, vhost))

        link.freeze()
        started = time.monotonic()
        answers = at_once(3, lambda n: sidecar.publish("orders", f"{n}", b"frozen", vhost=vhost.name))
        for answer in answers:
            detail = answer.problem(504, "unknown", "unknown", retryable=True)
            assert "0.5 s" in detail
        assert time.monotonic() - started < 10
        assert sidecar.admin("/livez").status == 200

        link.thaw()
        wait_until("works again", lambda: works(sidecar, vhost))


def test_broker_away_and_back(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q1", "q2"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, lookup_timeout="0.5")
        wait_until("works", lambda: works(sidecar, vhost))
        sidecar.wait_ready()

        link.cut()
        wait_until("both lost", lambda: sidecar.metric("ringproxy_broker_connected") == 0)
        assert sidecar.admin("/readyz").status == 503
        answer = sidecar.publish("orders", "k", b"lost", vhost=vhost.name)
        assert "broker" in answer.problem(503, "unavailable", "unavailable", retryable=True)
        assert answer.headers["retry-after"] == "1"
        assert f"FAIL broker, virtual host {login.vhost!r}: " in sidecar.admin("/readyz?verbose").text
        assert sidecar.admin("/livez").status == sidecar.admin("/startupz").status == 200
        assert sidecar.route("orders", "k", vhost=vhost.name).status == 200

        link.open()
        wait_until("works again", lambda: works(sidecar, vhost))
        sidecar.wait_ready()
        assert sidecar.metric("ringproxy_broker_connected", vhost=vhost.name) == 1
    bodies = [m.body for messages in vhost.drain_all().values() for m in messages]
    assert b"lost" not in bodies


def test_started_before_its_broker(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url), relay(login.management_url) as (api_link, management_url):
        link.cut()
        api_link.cut()
        sidecar = start_sidecar(broker_url=broker_url, management_url=management_url, lookup_timeout="0.3")

        sidecar.publish("orders", "k", vhost=vhost.name).problem(503, "unavailable", "unavailable", retryable=True)
        assert sidecar.admin("/startupz").status == 200
        assert sidecar.admin("/readyz").status == 503

        link.open()
        api_link.open()
        wait_until("works", lambda: works(sidecar, vhost))
        sidecar.wait_ready()


def test_management_away_keeps_the_last_good_ring(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    vhost.ring("never read", ["q3"])
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, lookup_timeout="0.5", sync_interval="0.2")
        # A busy machine may take longer than that for the first reading.
        wait_until("the first reading", lambda: sidecar.publish("orders", "k", vhost=vhost.name).status == 200)
        ring = sidecar.publish("orders", "k", vhost=vhost.name).receipt()["ring"]

        def failed() -> float:
            return sidecar.metric("ringproxy_syncs_total", result="failed")

        faults: list[tuple[int, object]] = [
            (500, None),
            (401, None),
            (429, None),
            (200, b"{"),
            (200, []),
            (200, b"\xff"),
        ]
        for status, answer in faults:
            before = failed()
            front.answer("", status, answer)
            wait_until("two more failures", lambda before=before: failed() >= before + 2)  # type: ignore[misc]
            assert sidecar.publish("orders", "k", vhost=vhost.name).receipt()["ring"] == ring
            nowhere = sidecar.publish("never read", "k", vhost=vhost.name)
            nowhere.problem(503, "unavailable", "unavailable", retryable=True)
        assert sidecar.metric("ringproxy_ring_age_seconds", vhost=vhost.name, exchange="orders") > 0.2
        assert sidecar.metric("ringproxy_sync_failing") >= 1
        assert "FAIL management API: " in sidecar.admin("/readyz?verbose").text
        (fault,) = [f for f in sidecar.admin("/rings").json["faults"] if f["exchange"] == "orders"]
        assert fault["fault"]

        front.answers.clear()
        wait_until("readable", lambda: sidecar.publish("never read", "k", vhost=vhost.name).status == 200)
        wait_until("read again", lambda: not sidecar.admin("/rings").json["faults"])
        sidecar.wait_ready()
    told = [line for line in sidecar.log().splitlines() if "cannot read exchange 'orders'" in line]
    assert len(told) == len({line.partition(" WARNING ")[2] for line in told}) <= len(faults) + 2


def test_stale_rings_are_refused_where_so_set(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    with management_front(login.management_url) as front:
        urls = {"management_url": front.url, "lookup_timeout": "0.3", "sync_interval": "0.2", "ring_max_age": "1.5"}
        serving, refusing = start_sidecar(**urls), start_sidecar(**urls, on_stale="refuse")
        for sidecar in (serving, refusing):
            wait_until("works", lambda s=sidecar: works(s, vhost))  # type: ignore[misc]

        front.answer("", 503)
        wait_until("refused", lambda: not works(refusing, vhost))
        answer = refusing.publish("orders", "k", vhost=vhost.name)
        answer.problem(503, "unavailable", "unavailable", retryable=True)
        wait_until("stale", lambda: "FAIL rings fresh: " in serving.admin("/readyz?verbose").text)
        assert works(serving, vhost)

        front.answers.clear()
        wait_until("works again", lambda: works(refusing, vhost))


def test_another_clusters_management_api_is_refused(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q"])
    with management_front(login.management_url) as front:
        front.answer("/api/cluster-name", 200, {"name": "elsewhere"})
        sidecar = start_sidecar(management_url=front.url)

        # The very first publish, too, to a virtual host that it was not connected to before.
        for _ in range(2):
            answer = sidecar.publish("orders", "k", vhost=vhost.name)
            assert "'elsewhere'" in answer.problem(503, "unavailable", "unavailable", retryable=True)
        assert vhost.drain("q") == []
        assert "FAIL one cluster: " in sidecar.admin("/readyz?verbose").text


@pytest.mark.parametrize("which", ["broker_url", "management_url"])
def test_wrong_password(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, which: str) -> None:
    vhost.ring("orders", ["q"])
    url = with_login(getattr(login, which), "nobody", "wr0ng-passw0rd")
    sidecar = start_sidecar(lookup_timeout="1", **{which: url})

    answer = sidecar.publish("orders", "k", vhost=vhost.name)

    detail = answer.problem(503, "unavailable", "unavailable", retryable=True)
    wait_until("it was asked", lambda: "not asked yet" not in sidecar.admin("/readyz?verbose").text)
    shown = sidecar.admin("/readyz?verbose").text
    told = "ACCESS_REFUSED" if which == "broker_url" else "401"
    assert told in detail
    assert told in shown
    for text in (shown, detail, sidecar.log(), sidecar.admin("/metrics").text, sidecar.admin("/rings").text):
        assert "wr0ng" not in text


def test_a_user_without_the_right_to_publish_to_queues(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    vhost.api.ask("PUT", "users", "restricted", body={"password": "pw-restricted", "tags": ""})
    try:
        vhost.permit("restricted", write="^orders$")
        sidecar = start_sidecar(broker_url=with_login(login.broker_url, "restricted", "pw-restricted"))

        answer = sidecar.publish("orders", "k", vhost=vhost.name)

        detail = answer.problem(403, "forbidden", "invalid", retryable=False)
        assert "needs write permission on amq.default" in detail
        assert "access to exchange" in detail
        assert "needs write permission on amq.default" in sidecar.log()
        vhost.permit("restricted", write="^(orders|amq\\.default)$")
        wait_until("works", lambda: works(sidecar, vhost))
    finally:
        vhost.api.ask("DELETE", "users", "restricted")


def test_a_deleted_virtual_host_does_not_disturb_the_others(
    start_sidecar: StartSidecar, vhost: VirtualHost, other_vhost: VirtualHost
) -> None:
    for host in (vhost, other_vhost):
        host.ring("orders", ["q"])
    sidecar = start_sidecar(lookup_timeout="1")
    assert works(sidecar, vhost)
    assert works(sidecar, other_vhost)

    other_vhost.delete()

    answer = sidecar.publish("orders", "k", vhost=other_vhost.name)
    answer.problem(503, "unavailable", "unavailable", retryable=True)
    assert works(sidecar, vhost)
    assert sidecar.publish("new", "k", vhost=other_vhost.name).status == 404
