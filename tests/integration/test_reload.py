"""A settings file that changes under a running sidecar: what changes at once, what waits, what publishers see."""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from pamqp.commands import Basic, Channel, Connection

from proxy.cli import main
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, queues_of, wait_until
from tests.integration.conftest import SECRETS, Login, StartSidecar
from tests.integration.groups import consume, deliveries, numbered, publish, shard_queue, sharded
from tests.integration.load import meanwhile
from tests.integration.relay import at_port, relay
from tests.integration.rings import KEYS, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of, wire

FLIPS = 20


class SettingsFile:
    """A settings file, and the sidecar that has it."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.write(**settings)

    def write(self, text: str = "", /, **settings: object) -> None:
        """Write the file in place, with these settings, and lines that may have a mistake."""
        lines = [f"{name.rstrip('_')} = {value}\n" for name, value in settings.items()]
        self.path.write_text("".join(lines) + text)

    def reload(self, sidecar: Sidecar, text: str = "", /, **settings: object) -> None:
        """Write the file, send SIGHUP, and wait until the sidecar has read the file."""
        before = results(sidecar)
        self.write(text, **settings)
        sidecar.signal(signal.SIGHUP)
        wait_until("a reload", lambda: results(sidecar) != before)


def results(sidecar: Sidecar) -> dict[str, float]:
    """Return how many reloads of the settings there were, by their result."""
    return {
        what: sidecar.metric(f"ringproxy_reload_{what}_total", setting="config") for what in ("successes", "failures")
    }


def toml(*names: str) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


@pytest.fixture
def settings(tmp_path: Path) -> SettingsFile:
    return SettingsFile(tmp_path / "ringproxy.toml", route=toml("*"))


@pytest.fixture
def sidecar(start_sidecar: StartSidecar, settings: SettingsFile) -> Sidecar:
    """One that reads exchanges again only when something says so, and waits for that on a busy machine, too."""
    patience = {"lookup_timeout": "25", "management_timeout": "25"}
    return start_sidecar(config=str(settings.path), sync_interval="600", **patience)


LANED = [f"laned.{queue}" for queue in QUEUES]
STEADY = [f"steady.{queue}" for queue in QUEUES]
OWNERS = {"flipped": QUEUES, "laned": LANED, "steady": STEADY}


@pytest.fixture
def rings(vhost: VirtualHost) -> VirtualHost:
    """A virtual host with three hash exchanges, each over queues of its own; laned has lanes to them."""
    vhost.ring("flipped", QUEUES)
    vhost.exchange("laned")
    vhost.lanes("laned", LANED)
    vhost.ring("steady", STEADY)
    return vhost


def natively(broker: Broker, client: Client, vhost: VirtualHost) -> dict[tuple[str, str], str]:
    """Return the queue that each exchange itself chooses for each key."""
    with client.session(port_of(broker.amqp_url), vhost.name) as peer:
        peer.channel(1)
        for exchange, key in itertools.product(OWNERS, KEYS):
            peer.publish(1, exchange, key, f"{exchange}|{key}".encode(), mandatory=True)
        peer.confirm(1, len(OWNERS) * len(KEYS))
    found = {tuple(body.split("|")): queue for body, queue in queues_of(vhost).items()}
    return {(exchange, key): queue for (exchange, key), queue in found.items()}


class Publisher:
    """Publishes numbered messages of all keys to all exchanges in turn, one at a time, until each is confirmed."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def next(self) -> tuple[str, str, bytes]:
        """Return exchange, key and body of the next message."""
        exchange, key = list(OWNERS)[self.count % 3], KEYS[self.count // 3 % 7]
        self.count += 1
        return exchange, key, f"{self.name}|{exchange}|{key}|{self.count}".encode()


def test_publishers_go_on_while_patterns_flip(
    sidecar: Sidecar, settings: SettingsFile, rings: VirtualHost, broker: Broker, client: Client
) -> None:
    native = natively(broker, client, rings)
    over_amqp, over_http = Publisher("amqp"), Publisher("http")
    probes: list[tuple[str, bool]] = []
    routed = toml("flipped", "laned", "steady")
    passing = {"route": toml("steady")}, {"route": routed, "shadow": toml("flipped", "laned")}
    with client.session(sidecar.amqp_port, rings.name) as peer, client.session(sidecar.amqp_port, rings.name) as probe:
        peer.channel(1)
        probe.channel(1)

        def publish_over_amqp() -> None:
            exchange, key, body = over_amqp.next()
            peer.publish(1, exchange, key, body, mandatory=True)
            peer.confirm(1, over_amqp.count, over_amqp.count - 1)

        def publish_over_http() -> None:
            exchange, key, body = over_http.next()
            sidecar.publish(exchange, key, body, vhost=rings.name).receipt()

        with meanwhile(publish_over_amqp), meanwhile(publish_over_http):
            for flip in range(FLIPS):
                is_routed = flip % 2 == 1
                settings.reload(sidecar, **{"route": routed} if is_routed else passing[flip // 2 % 2])
                # At once, whatever the reload has to read first.
                for exchange in OWNERS:
                    body = f"probe {flip}|{exchange}|{KEYS[flip]}|{len(probes)}"
                    probes.append((body, is_routed or exchange == "steady"))
                    probe.publish(1, exchange, KEYS[flip], body.encode(), mandatory=True)
                    probe.confirm(1, len(probes), len(probes) - 1)
    assert results(sidecar) == {"successes": FLIPS, "failures": 0}
    found: dict[str, bool] = {}
    last: dict[tuple[str, str, str], int] = {}
    for queue, messages in rings.drain_all().items():
        for message in messages:
            body = message.body.decode()
            publisher, exchange, key, number = body.split("|")
            # Its last exchange is the default one, or a lane.
            found[body] = message.exchange != exchange
            right = owner(OWNERS[exchange], key) if found[body] else native[exchange, key]
            assert queue == right, (body, message)
            place = publisher, key, queue
            assert int(number) > last.get(place, 0) or publisher.startswith("probe"), (body, queue)
            last[place] = int(number)
    assert len(found) == over_amqp.count + over_http.count + len(probes)
    assert min(over_amqp.count, over_http.count) > 3 * FLIPS
    assert [(body, found[body]) for body, _ in probes] == probes
    # Both ways were taken, and the exchange that no reload named was routed throughout.
    assert {is_routed for body, is_routed in found.items() if "|steady|" in body} == {True}
    assert {is_routed for body, is_routed in found.items() if body.startswith("amqp|laned|")} == {True, False}


def test_a_bad_line_changes_nothing(sidecar: Sidecar, settings: SettingsFile, rings: VirtualHost) -> None:
    before = sidecar.admin("/settings").json["settings"]
    settings.reload(sidecar, "max_boddy = 5\n", route="[]", max_sessions=1, log_level='"debug"')
    assert results(sidecar) == {"successes": 0, "failures": 1}
    told = sidecar.admin("/settings").json
    assert told["settings"] == before
    assert told["fault"] == f"{settings.path}: unknown setting 'max_boddy'; did you mean max_body?"
    assert f"{told['fault']}; what was read before stays in force" in sidecar.log()
    answer = sidecar.admin("/readyz?verbose")
    assert f"FAIL settings file in force: {told['fault']}; the sidecar is ready all the same\n" in answer.text
    assert answer.status == 200
    assert sidecar.metric("ringproxy_reload_ok", setting="config") == 0
    assert sidecar.publish("flipped", "k", vhost=rings.name).queue() == owner(QUEUES, "k")

    for text in ('route = "', 'max_body = "a lot"\n', "groups_retry_limit = 3\n", ""):
        settings.reload(sidecar, text, route=toml("orders"), max_sessions=0 if not text else 5)
        assert sidecar.admin("/settings").json["settings"] == before
    assert "max_sessions: 0 must be at least 1" in sidecar.log()
    settings.reload(sidecar, route=toml("steady"))
    assert results(sidecar) == {"successes": 1, "failures": 5}
    assert sidecar.metric("ringproxy_reload_ok", setting="config") == 1
    assert "ok   settings file in force\n" in sidecar.admin("/readyz?verbose").text
    assert "destination" not in sidecar.publish("flipped", "k", vhost=rings.name).receipt()


def test_a_file_is_swapped_as_kubernetes_does_it(
    start_sidecar: StartSidecar, rings: VirtualHost, tmp_path: Path
) -> None:
    """A ConfigMap's file is a link to ..data/FILE, ..data is a link to a folder, and only that link is replaced."""

    def swap(number: int, text: str) -> None:
        folder = tmp_path / f"..2026_{number}"
        folder.mkdir()
        (folder / "ringproxy.toml").write_text(text)
        (tmp_path / "..new").symlink_to(folder.name)
        os.rename(tmp_path / "..new", tmp_path / "..data")

    swap(1, 'route = ["flipped"]')
    (tmp_path / "ringproxy.toml").symlink_to("..data/ringproxy.toml")
    sidecar = start_sidecar(config=str(tmp_path / "ringproxy.toml"), sync_interval="600")
    assert "destination" in sidecar.publish("flipped", "k", vhost=rings.name).receipt()
    swap(2, "route = []")
    wait_until("a reload", lambda: results(sidecar)["successes"] == 1)
    assert "destination" not in sidecar.publish("flipped", "k", vhost=rings.name).receipt()
    read_at = sidecar.metric("ringproxy_reload_success_timestamp_seconds", setting="config")
    swap(3, 'route = "')
    wait_until("a failure", lambda: results(sidecar)["failures"] == 1)
    assert sidecar.metric("ringproxy_reload_success_timestamp_seconds", setting="config") == read_at
    swap(4, 'route = ["flipped"]')
    wait_until("a reload", lambda: results(sidecar)["successes"] == 2)
    assert sidecar.publish("flipped", "k", vhost=rings.name).queue() == owner(QUEUES, "k")
    (tmp_path / "..data").unlink()
    wait_until("a failure", lambda: results(sidecar)["failures"] == 2)
    assert "cannot be read: " in sidecar.admin("/settings").json["fault"]
    assert sidecar.publish("flipped", "k", vhost=rings.name).queue() == owner(QUEUES, "k")


def test_what_needs_a_restart_or_has_no_effect_is_named(start_sidecar: StartSidecar, settings: SettingsFile) -> None:
    sidecar = start_sidecar(config=str(settings.path), max_batch="7")
    changes = {"drain_time": 3, "groups": toml("orders"), "max_batch": 9, "max_body": 100}
    settings.reload(sidecar, route=toml("*"), **changes)
    log, told = sidecar.log(), sidecar.admin("/settings").json
    assert "settings: max_body: 16777216 -> 100\n" in log
    assert "settings: drain_time: 20.0 -> 3.0, needs a restart\n" in log
    assert 'settings: groups: [] -> ["orders"], needs a restart\n' in log
    assert "settings: max_batch in the file has no effect: the environment or a flag wins\n" in log
    assert told["needs_restart"] == ["groups", "drain_time"]
    found = told["settings"]
    assert found["drain_time"] == {"value": 20.0, "origin": "file"}
    assert found["max_batch"] == {"value": 7, "origin": "environment"}
    assert found["max_body"] == {"value": 100, "origin": "file"}
    assert found["max_sessions"] == {"value": 1000, "origin": "default"}
    assert found["broker_url"]["value"].count("***") == 1
    assert not any(secret in sidecar.admin("/settings").text for secret in SECRETS)
    assert sidecar.metric("ringproxy_reload_needs_restart") == 2
    assert "note the settings file: needs a restart: groups, drain_time\n" in sidecar.admin("/readyz?verbose").text
    settings.reload(sidecar, route=toml("*"))
    assert sidecar.metric("ringproxy_reload_needs_restart") == 0


def test_limits_and_the_log_level_change_at_once(
    sidecar: Sidecar, settings: SettingsFile, rings: VirtualHost, client: Client
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(client.session(sidecar.amqp_port, rings.name))
        first.channel(1)
        settings.reload(
            sidecar,
            route=toml("*"),
            max_sessions=1,
            max_body=10,
            max_batch=2,
            max_batch_body=400,
            log_level='"warning"',
        )
        with wire(sidecar.amqp_port) as refused:
            refused.send(b"AMQP\0\0\x09\x01")
            refused.expect(0, Connection.Start)
            assert "max_sessions (1) is reached" in refused.expect(0, Connection.Close).reply_text
        first.publish(1, "flipped", "k", b"stays", mandatory=True)
        first.confirm(1)
        assert sidecar.publish("flipped", "k", b"x" * 11, vhost=rings.name).status == 413
        items = [{"key": "k", "payload": "x"}] * 3
        assert "more than 2 (max_batch)" in sidecar.batch("flipped", items, vhost=rings.name).text
        assert sidecar.batch("flipped", b"x" * 401, vhost=rings.name).status == 413
        # Told at the level of before, since the new one has an end to such lines.
        assert "settings: max_sessions: 1000 -> 1" in sidecar.log()
        settings.reload(sidecar, route=toml("*"), max_in_flight_bytes=1)
        assert "max_in_flight_bytes" in sidecar.batch("flipped", items, vhost=rings.name).problem(
            429, "too-many", "unknown", retryable=True
        )
        settings.reload(sidecar, route=toml("*"))
        assert "settings: max_sessions: 1 -> 1000" in sidecar.log()
        stack.enter_context(client.session(sidecar.amqp_port, rings.name))
        sidecar.publish("flipped", "k", b"x" * 11, vhost=rings.name).receipt()


def test_a_batch_keeps_the_limits_of_its_beginning(
    sidecar: Sidecar, settings: SettingsFile, rings: VirtualHost
) -> None:
    """Its body comes in parts, and the limits are lowered between them."""
    path = f"/v1/exchanges/flipped/publish/batch?vhost={quote(rings.name, safe='')}"
    lines = [json.dumps({"key": "k", "payload": "x" * 20}).encode() + b"\n"] * 4

    def parts() -> Iterator[bytes]:
        yield lines[0] * 2
        settings.reload(sidecar, route=toml("*"), max_body=10, max_batch=1, max_batch_body=10)
        yield lines[2] * 2

    with closing(HTTPConnection("127.0.0.1", sidecar.port, timeout=30)) as connection:
        connection.request("POST", path, parts(), {"Content-Type": "application/x-ndjson"}, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
    items = [{"key": "k", "payload": "x"}] * 2
    assert sidecar.batch("flipped", items, vhost=rings.name).status == 413


def test_members_of_a_group_stay_until_they_leave(
    start_sidecar: StartSidecar, settings: SettingsFile, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, lanes=True)
    sharded(vhost, ["bills.0"], exchange="bills")
    settings.write(route="[]", groups=toml("orders"))
    sidecar = start_sidecar(config=str(settings.path))
    with client.session(sidecar.amqp_port, vhost.name) as member, client.session(sidecar.amqp_port, vhost.name) as late:
        member.channel(1, confirm=False)
        consume(member, 1, prefetch=1000)
        publish(client, sidecar.amqp_port, vhost, numbered(range(10)))
        assert len(deliveries(member, 1, 10)) == 10
        settings.reload(sidecar, route="[]", groups=toml("bills"))
        publish(client, sidecar.amqp_port, vhost, numbered(range(10, 20)))
        assert len(deliveries(member, 1, 10)) == 10
        # Its shards are still read: a new one is consumed.
        shard_queue(vhost, "orders.3")
        vhost.exchange("orders.lane.3", "fanout")
        vhost.bind("orders.lane.3", "orders.3", "")
        vhost.bind("orders", "orders.lane.3", "1", kind="e")
        wait_until(
            "the new shard",
            lambda: len(sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json["shards"]) == 4,
        )

        late.channel(1, confirm=False)
        late.tell(1, Basic.Consume(queue="orders"))
        assert late.expect(1, Channel.Close).reply_code == 404
        # A connection from before may consume from what the setting names now.
        late.tell(1, Channel.CloseOk())
        late.channel(1, confirm=False)
        consume(late, 1, exchange="bills", prefetch=10)
        publish(client, sidecar.amqp_port, vhost, numbered([1], exchange="bills"))
        assert len(deliveries(late, 1, 1)) == 1


def test_while_the_management_api_is_away_no_publish_is_refused(
    start_sidecar: StartSidecar, settings: SettingsFile, login: Login, rings: VirtualHost, client: Client
) -> None:
    with relay(login.management_url) as (management, url):
        settings.write(route="[]")
        urls = {"management_url": at_port(login.management_url, urlsplit(url).port or 0), "management_timeout": "1"}
        sidecar = start_sidecar(config=str(settings.path), **urls)
        sidecar.wait_ready()
        with client.session(sidecar.amqp_port, rings.name) as peer:
            peer.channel(1)
            peer.publish(1, "flipped", "k", b"1", mandatory=True)
            peer.confirm(1)
            management.freeze()
            settings.reload(sidecar, route=toml("flipped"))
            peer.publish(1, "flipped", "k", b"2", mandatory=True)
            peer.confirm(1, 2, 1)
            assert "destination" not in sidecar.publish("flipped", "k", b"3", vhost=rings.name).receipt()
            management.thaw()
            wait_until("the ring", lambda: "destination" in sidecar.publish("flipped", "k", vhost=rings.name).receipt())


def test_sighup_without_a_settings_file_ends_nothing(start_sidecar: StartSidecar, rings: VirtualHost) -> None:
    sidecar = start_sidecar()
    sidecar.signal(signal.SIGHUP)
    wait_until("the log", lambda: "SIGHUP: there is no settings file to read again" in sidecar.log())
    sidecar.publish("flipped", "k", vhost=rings.name).receipt()


def test_the_command_says_what_a_file_would_change(
    start_sidecar: StartSidecar,
    settings: SettingsFile,
    rings: VirtualHost,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sidecar = start_sidecar(config=str(settings.path), max_batch="7")
    sidecar.publish("flipped", "k", vhost=rings.name).receipt()
    new = SettingsFile(tmp_path / "new.toml", route=toml("*"))

    def check() -> tuple[int, list[str], str]:
        status = main(["reload", "--check", str(new.path), "--sidecar", sidecar.admin_url])
        printed = capsys.readouterr()
        return status, printed.out.splitlines(), printed.err

    assert check() == (0, ["nothing changes"], "")
    new.write(route="[]", max_body=100)
    assert check() == (
        0,
        [
            'route: ["*"] -> []',
            "max_body: 16777216 -> 100",
            f"route -> pass: exchange 'flipped' in {rings.name!r}; from then on their keys go to other queues",
            "exchanges that the sidecar has not read are not in this list",
        ],
        "",
    )
    new.write(route=toml("*"), drain_time=3, max_batch=9)
    status, lines, _ = check()
    assert (status, lines) == (
        1,
        [
            "drain_time: 20.0 -> 3.0, needs a restart",
            "max_batch: no effect, as the environment of the sidecar wins",
        ],
    )
    new.write(route=toml("a/b/c"))
    status, lines, error = check()
    assert (status, lines) == (2, [])
    assert (
        error == f"ring-proxy: {new.path}: route: 'a/b/c' is not NAME or VHOST/NAME: a '/' in a name is written %2F\n"
    )
    assert "settings:" not in sidecar.log()
    assert sidecar.publish("flipped", "k", vhost=rings.name).queue() == owner(QUEUES, "k")
