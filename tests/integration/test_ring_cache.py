"""A start while the management API is away: publishes go by the rings that were kept on disk, as stale ones."""

import json
import time
from pathlib import Path

import pytest

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

KEYS = [f"key-{n}" for n in range(20)]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ring.json"))


def kept(start_sidecar: StartSidecar, vhost: VirtualHost, folder: Path, url: str) -> dict[str, str]:
    """Where each key goes, by a sidecar that has kept the ring and was stopped."""
    before = start_sidecar(management_url=url, ring_cache_dir=str(folder))
    where = {key: before.publish("orders", key, vhost=vhost.name).queue() for key in KEYS}
    wait_until("a file", lambda: files(folder))
    before.stop()
    vhost.drain_all()
    return where


def test_copies_of_another_sidecars_files_are_as_good(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", ["q1", "q2", "q3"])
    folder, other = tmp_path / "rings", tmp_path / "other"
    with relay(login.management_url) as (link, url):
        where = kept(start_sidecar, vhost, folder, url)
        other.mkdir()
        for file in files(folder):
            (other / file.name).write_bytes(file.read_bytes())
        link.cut()
        sidecar = start_sidecar(management_url=url, ring_cache_dir=str(other))
        assert {key: sidecar.publish("orders", key, vhost=vhost.name).queue() for key in KEYS} == where


def test_a_start_without_the_management_api_routes_by_what_was_kept(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    vhost.ring("orders", ["q1", "q2", "q3"])
    folder = tmp_path / "made" / "rings"
    with relay(login.management_url) as (link, url):
        where = kept(start_sidecar, vhost, folder, url)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.stat().st_mode & 0o777 for file in files(folder)] == [0o600]

        link.cut()
        sidecar = start_sidecar(management_url=url, ring_cache_dir=str(folder))
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            for key in KEYS:
                peer.publish(1, "orders", key, key.encode())
                peer.confirm(1)
            peer.goodbye()
        by_amqp = {m.body.decode(): name for name, messages in vhost.drain_all().items() for m in messages}
        assert by_amqp == where
        assert {key: sidecar.publish("orders", key, vhost=vhost.name).queue() for key in KEYS} == where
        shown = sidecar.ring(vhost.name, "orders")
        assert (shown["restored"], shown["age_seconds"] > 0) == (True, True)
        assert sidecar.metric("ringproxy_ring_restored", vhost=vhost.name, exchange="orders") == 1
        assert sidecar.admin("/readyz").status == 503

        vhost.queue("q4")
        vhost.bind("orders", "q4")
        link.open()
        names = ("q1", "q2", "q3", "q4")
        sidecar.wait_for_weights(vhost.name, "orders", dict.fromkeys(names, 1))
        assert "restored" not in sidecar.ring(vhost.name, "orders")
        assert sidecar.metric("ringproxy_ring_restored", vhost=vhost.name, exchange="orders") == 0
        sidecar.wait_ready()
    assert "is restored from ring_cache_dir" in sidecar.log()
    assert sidecar.log().count("restored") == 1


def test_a_hanging_management_api_is_not_waited_for_by_the_first_publishes(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    """A reading takes longer to fail than a publish waits for it."""
    vhost.ring("orders", ["q1", "q2", "q3"])
    with relay(login.management_url) as (link, url):
        where = kept(start_sidecar, vhost, tmp_path, url)
        link.freeze()
        sidecar = start_sidecar(
            management_url=url, ring_cache_dir=str(tmp_path), management_timeout="60", lookup_timeout="20"
        )
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", KEYS[0])
            assert sidecar.publish("orders", KEYS[1], vhost=vhost.name).queue() == where[KEYS[1]]
            peer.confirm(1)
            peer.goodbye()
        assert len(vhost.drain_all()[where[KEYS[0]]]) >= 1
        link.thaw()
        wait_until("read", lambda: "restored" not in sidecar.ring(vhost.name, "orders"))


def changed(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(sidecar: Sidecar, vhost: VirtualHost) -> str:
    answer = sidecar.publish("orders", "k", vhost=vhost.name)
    return answer.problem(503, "unavailable", "unavailable", retryable=True)


@pytest.mark.parametrize("shift", [-3600.0, 3600.0], ids=["old", "of the future"])
def test_a_ring_that_is_too_old_is_refused_where_so_set(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, tmp_path: Path, shift: float
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    with relay(login.management_url) as (link, url):
        kept(start_sidecar, vhost, tmp_path, url)
        (file,) = files(tmp_path)
        changed(file, at=time.time() + shift)
        link.cut()
        urls = {"management_url": url, "ring_cache_dir": str(tmp_path), "lookup_timeout": "1"}
        refusing = start_sidecar(**urls, on_stale="refuse")
        assert refused(refusing, vhost)
        serving = start_sidecar(**urls)
        assert serving.publish("orders", "k", vhost=vhost.name).status == 200
        assert sum(map(len, vhost.drain_all().values())) == 1
        link.open()
        wait_until("read", lambda: refusing.publish("orders", "k", vhost=vhost.name).status == 200)


def test_rings_of_another_cluster_are_not_used(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    """The broker's own word on its cluster is held against what was kept."""
    vhost.ring("orders", ["q1", "q2"])
    with relay(login.management_url) as (link, url):
        kept(start_sidecar, vhost, tmp_path, url)
        (file,) = files(tmp_path)
        changed(file, cluster="elsewhere", cluster_names=["elsewhere"], cluster_nodes=["rabbit@elsewhere"])
        link.cut()
        sidecar = start_sidecar(management_url=url, ring_cache_dir=str(tmp_path), lookup_timeout="2")
        assert "to 'elsewhere'" in refused(sidecar, vhost)
        link.open()
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    assert "1 restored rings belong to another cluster" in sidecar.log()


def test_a_healthy_start_reads_and_does_not_restore(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    kept(start_sidecar, vhost, tmp_path, login.management_url)
    vhost.delete_queue("q1")
    sidecar = start_sidecar(ring_cache_dir=str(tmp_path))
    assert {sidecar.publish("orders", key, vhost=vhost.name).queue() for key in KEYS} == {"q2"}
    # The ring of an exchange that is gone is gone from disk, too.
    vhost.delete_exchange("orders")
    wait_until("no file", lambda: not files(tmp_path))
    assert "restored" not in sidecar.log()


def test_an_exchange_that_was_not_read_since_the_start_is_restored_once_its_reading_fails(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", ["q1", "q2", "q3"])
    with relay(login.management_url) as (link, url):
        where = kept(start_sidecar, vhost, tmp_path, url)
        sidecar = start_sidecar(management_url=url, ring_cache_dir=str(tmp_path))
        sidecar.wait_ready()
        link.cut()
        assert {key: sidecar.publish("orders", key, vhost=vhost.name).queue() for key in KEYS} == where
