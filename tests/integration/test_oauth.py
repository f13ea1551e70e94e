"""Sidecars that log in by access tokens, on a RabbitMQ whose own plugin judges these."""

import base64
import json
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Channel, Connection
from yarl import URL

from testbed.node import Node, free_ports
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import with_login
from tests.integration.documents import Document
from tests.integration.groups import consume, deliveries, sharded
from tests.integration.oauth import CLIENT, EVERYTHING, SECRET, AuthorizationServer, Signer, node_with_tokens
from tests.integration.own_node import private_only
from tests.integration.sidecar import Sidecar
from tests.integration.test_commands import run
from tests.integration.wire_client import Client, wire

pytestmark = [private_only, pytest.mark.versions]

SECRETS = (SECRET, SECRET.replace(" ", "+"), "eyJ")
"""The client's secret, and the beginning of every token, which may show nowhere."""

LIFE = 5
"""Seconds that a token lives where it has to be renewed."""

GUEST = Client("guest", "guest")

Start = Callable[..., Sidecar]


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def node(signer: Signer) -> Iterator[Node]:
    with node_with_tokens(signer) as running:
        yield running


@pytest.fixture
def home(node: Node) -> Iterator[VirtualHost]:
    """The node's default virtual host, with the group `orders`."""
    made = VirtualHost(BrokerApi(node.management_url), "/", [])
    sharded(made)
    yield made
    for queue in made.api.ask("GET", "queues", "/"):
        made.delete_queue(queue["name"])
    made.delete_exchange("orders")


@pytest.fixture
def server(signer: Signer) -> Iterator[AuthorizationServer]:
    """An authorization server that does not listen yet."""
    (port,) = free_ports(1)
    made = AuthorizationServer(signer, port)
    yield made
    made.stop()


def settings(node: Node, server: AuthorizationServer, folder: Path) -> dict[str, str]:
    """Return the settings of a sidecar that logs in by tokens of the server; its secret is a file in the folder."""
    return {
        "broker_url": with_login(node.amqp_url, CLIENT, "no password"),
        "management_url": with_login(node.management_url, "nobody", "no password"),
        "oauth_token_url": server.url,
        "oauth_client_id": CLIENT,
        "oauth_client_secret_file": f"{folder / 'secret'}",
        "sync_interval": "0.5",
        "route": "orders",
        "log_level": "debug",
    }


@pytest.fixture
def start(node: Node, home: VirtualHost, server: AuthorizationServer, tmp_path: Path) -> Iterator[Start]:
    """Start a sidecar that logs in by tokens of the server."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    started: list[Sidecar] = []

    def with_settings(**more: str) -> Sidecar:
        started.append(Sidecar(settings(node, server, tmp_path) | more, tmp_path, SECRETS))
        return started[-1]

    yield with_settings
    try:
        for sidecar in started:
            sidecar.stop()
    finally:
        for sidecar in started:
            sidecar.kill()


def own_connections(home: VirtualHost) -> set[tuple[str, str]]:
    """Return the sidecar's own connections: the name of each, and the user that the broker knows it by."""
    listed: list[dict[str, Any]] = home.api.ask("GET", "connections")
    return {(each["name"], each["user"]) for each in listed if each.get("user") != "guest"}


def publish_for(sidecar: Sidecar, seconds: float) -> int:
    """Publish one message after the other over HTTP, all of them confirmed; return how many."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        answer = sidecar.publish("orders", f"{count}", b"%d" % count)
        assert answer.status == 200, answer
        count += 1
        time.sleep(0.005)
    return count


def test_nothing_is_lost_over_several_lives_of_tokens(
    start: Start, server: AuthorizationServer, home: VirtualHost
) -> None:
    """No connection is opened anew: not for HTTP's publishes, nor for the group, nor for the journal."""
    server.life = LIFE
    server.start()
    sidecar = start(groups="orders", journal_stream="journal", broker_connections="2")
    sidecar.wait_ready()
    with GUEST.session(sidecar.amqp_port, "/") as member:
        member.channel(1, confirm=False)
        consume(member, 1, no_ack=True)
        sidecar.publish("orders", "first", b"0")
        assert [each.body for each in deliveries(member, 1, 1)] == [b"0"]
        before = wait_until("all connections", lambda: len(found := own_connections(home)) >= 4 and found)
        assert {user for _, user in before} == {CLIENT}
        given = server.given
        count = publish_for(sidecar, 3.5 * LIFE)
        got = deliveries(member, 1, count)
        assert sorted(int(each.body) for each in got) == list(range(count))
        assert own_connections(home) == before
        assert server.given >= given + 4
        member.goodbye()
    assert sidecar.admin("/readyz?verbose").status == 200
    assert sidecar.metric("ringproxy_broker_connects_total") == 2
    assert sidecar.metric("ringproxy_reload_successes_total", setting="oauth_token_url") >= 5
    assert sidecar.metric("ringproxy_reload_failures_total", setting="oauth_token_url") == 0
    # Bindings are still read: a queue that is bound now gets its share.
    home.queue("orders.3", x_queue_type="quorum", x_single_active_consumer=True)
    home.bind("orders", "orders.3")
    wait_until("the new queue", lambda: "orders.3" in str(sidecar.ring("/", "orders")))


def test_a_server_that_is_away_at_the_start(start: Start, server: AuthorizationServer) -> None:
    sidecar = start(lookup_timeout="0.5")
    why = f"oauth_token_url: {server.url}: it refuses connections"
    shown = sidecar.admin("/readyz?verbose")
    assert shown.status == 503
    assert f"FAIL access token renewed: {why}; the sidecar is ready all the same" in shown.text
    wait_until("the broker's check", lambda: f"FAIL broker, virtual host '/': {why}" in readyz(sidecar))
    assert why in sidecar.publish("orders", "k").problem(503, "unavailable", "unavailable", retryable=True)
    assert sidecar.metric("ringproxy_reload_ok", setting="oauth_token_url") == 0
    server.start()
    sidecar.wait_ready()
    assert sidecar.publish("orders", "k").status == 200
    assert sidecar.metric("ringproxy_reload_ok", setting="oauth_token_url") == 1
    # Told once, however often it was tried.
    assert sidecar.log().count(f"{why}; trying again") == 1


def readyz(sidecar: Sidecar) -> str:
    return sidecar.admin("/readyz?verbose").text


def test_a_server_that_goes_away_and_comes_back(start: Start, server: AuthorizationServer) -> None:
    """Connections go on until the token ends."""
    server.life = LIFE
    server.start()
    sidecar = start(lookup_timeout="0.5")
    sidecar.wait_ready()
    server.stop()
    wait_until("a try has failed", lambda: "FAIL access token renewed" in readyz(sidecar))
    assert sidecar.admin("/readyz").status == 200
    assert sidecar.publish("orders", "k").status == 200
    wait_until("the management API is not asked", lambda: "FAIL management API" in readyz(sidecar))
    wait_until("the broker's check", lambda: "FAIL broker, virtual host '/': oauth_token_url" in readyz(sidecar))
    sidecar.publish("orders", "k").problem(503, "unavailable", "unavailable", retryable=True)
    server.start()
    sidecar.wait_ready()
    assert "FAIL" not in readyz(sidecar)
    publish_for(sidecar, 1.5 * LIFE)
    assert sidecar.metric("ringproxy_broker_connects_total") == 2


def test_a_wrong_secret_is_told_and_a_new_one_is_read(
    start: Start, server: AuthorizationServer, tmp_path: Path
) -> None:
    server.secret = "another one"
    server.start()
    sidecar = start()
    why = "no token: 401 invalid_client: bad client credentials; see oauth_client_id and oauth_client_secret_file"
    wait_until("the mistake", lambda: f"{server.url}: {why}" in sidecar.log())
    assert f"FAIL access token renewed: oauth_token_url: {server.url}: {why}" in readyz(sidecar)
    (tmp_path / "secret").write_text("another one\n")
    sidecar.wait_ready()
    assert "another" not in sidecar.log()


def test_a_token_that_allows_less(node: Node, start: Start, server: AuthorizationServer) -> None:
    """RabbitMQ 4 heeds the scopes of the new token at once; 3.10 remembers what it has allowed a channel."""
    if int(BrokerApi(node.management_url).ask("GET", "overview")["rabbitmq_version"].partition(".")[0]) < 4:
        pytest.skip("RabbitMQ 3 remembers what it has allowed a channel")
    server.life = LIFE
    server.start()
    sidecar = start()
    sidecar.wait_ready()
    assert sidecar.publish("orders", "k").status == 200
    server.scope = EVERYTHING.replace("write:*/* ", "")
    answer = wait_until("a refusal", lambda: (it := sidecar.publish("orders", "k")).status != 200 and it)
    assert "needs write permission on amq.default" in answer.problem(403, "forbidden", "invalid", retryable=False)
    assert sidecar.metric("ringproxy_broker_connects_total") == 1


def test_a_token_that_the_broker_refuses_is_replaced_before_its_time(start: Start, server: AuthorizationServer) -> None:
    server.scope = "nothing"
    server.start()
    sidecar = start(lookup_timeout="0.5")
    wait_until("the broker's refusal", lambda: "FAIL broker, virtual host '/': the broker closed" in readyz(sidecar))
    wait_until("the management API's refusal", lambda: "FAIL management API" in readyz(sidecar))
    server.scope = EVERYTHING
    sidecar.wait_ready()
    assert sidecar.publish("orders", "k").status == 200
    assert sidecar.metric("ringproxy_reload_failures_total", setting="oauth_token_url") == 0


def test_clients_renew_their_own_tokens_through_a_sidecar(
    node: Node, start: Start, server: AuthorizationServer, signer: Signer, home: VirtualHost
) -> None:
    """Login and connection.update-secret pass as they are, with tokens longer than AMQP's short strings."""
    server.start()
    sidecar = start(groups="orders")
    sidecar.wait_ready()
    # RabbitMQ takes a frame of 4,096 bytes for a login, and since 4.1 of 8,192.
    version = BrokerApi(node.management_url).ask("GET", "overview")["rabbitmq_version"]
    longest = 4900 if tuple(map(int, version.split(".")[:2])) >= (4, 1) else 1900
    with Client("anyone", signer.token(life=LIFE, padding=longest)).session(sidecar.amqp_port, "/") as wire:
        wire.channel(1)
        began = time.monotonic()
        consume(wire, 1, no_ack=True)
        for number in range(3):
            token = signer.token(life=3600, padding=40_000)
            wire.ask(0, Connection.UpdateSecret(token, "renewed"), Connection.UpdateSecretOk)
            wire.publish(1, "amq.fanout", f"{number}")
            wire.confirm(1, number + 1, number)
        time.sleep(max(0.0, began + LIFE + 1 - time.monotonic()))  # until the first one has ended
        # The management API's publish takes a token as the password of its Basic credentials.
        token = base64.b64encode(f"anyone:{signer.token(padding=1200)}".encode()).decode()
        message = {"routing_key": "k", "payload": "late", "payload_encoding": "string", "properties": {}}
        path, headers = "/api/exchanges/%2F/orders/publish", {"Authorization": f"Basic {token}"}
        assert sidecar.ask("POST", path, json.dumps(message).encode(), headers).receipt() == {"routed": True}
        assert [each.body for each in deliveries(wire, 1, 1)] == [b"late"]
        wire.goodbye()


def test_a_kept_connection_gives_no_right_that_its_token_has_lost(
    start: Start, server: AuthorizationServer, signer: Signer
) -> None:
    server.start()
    sidecar = start(kept_connections="2")
    sidecar.wait_ready()
    began, client = time.monotonic(), Client("anyone", signer.token(life=LIFE))
    for _ in range(2):
        with client.session(sidecar.amqp_port, "/") as peer:
            peer.channel()
            peer.publish(1, "amq.fanout", "k")
            peer.confirm(1)
            peer.goodbye()
    assert sidecar.metric("ringproxy_kept_connections_reused_total") == 1
    time.sleep(max(0.0, began + LIFE + 2 - time.monotonic()))
    with wire(sidecar.amqp_port) as peer:
        try:
            peer.handshake(client.user, client.password)
        except EOFError:
            return  # the broker has closed the kept connection, and judged the login
        peer.open("/")
        peer.channel()
        peer.publish(1, "amq.fanout", "k")
        assert peer.expect(1, Channel.Close).reply_code == 403


def test_the_settings_of_the_guide(node: Node, start: Start, server: AuthorizationServer, tmp_path: Path) -> None:
    """The scopes that it asks for are enough for the reader and for HTTP's publishes."""
    (text,) = Document("docs/how-to/secure.md", "toml")["Log in with access tokens"]
    guide = tomllib.loads(text)
    of_sidecar = settings(node, server, tmp_path)
    assert guide.keys() == {name for name in of_sidecar if name.startswith(("broker", "management", "oauth"))} | {
        "oauth_scope"
    }
    shop = VirtualHost(BrokerApi(node.management_url), "shop", [])
    try:
        shop.ring("orders", ["q"])
        server.start()
        path = URL(guide["broker_url"]).path
        sidecar = start(broker_url=str(URL(node.amqp_url).with_path(path)), oauth_scope=guide["oauth_scope"])
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k").queue() == "q"
        assert server.given == 1
    finally:
        shop.delete()


def test_commands_log_in_by_tokens_too(
    node: Node, start: Start, server: AuthorizationServer, home: VirtualHost, tmp_path: Path
) -> None:
    server.start()
    sidecar = start(groups="orders", groups_operators=CLIENT)
    sidecar.wait_ready()
    home.queue("dead")
    (tmp_path / "topology.toml").write_text('[[exchange]]\nname = "made"\nshards = 2\n')
    of_sidecar = settings(node, server, tmp_path)

    def command(*arguments: str, **more: str) -> str:
        environment = {f"RINGPROXY_{name.upper()}": value for name, value in (of_sidecar | more).items()}
        done = run(*arguments, **environment)
        assert done.returncode == 0, done
        return done.stdout + done.stderr

    command("topology", "apply", str(tmp_path / "topology.toml"))
    assert home.api.ask("GET", "queues", "/", "made.1")["name"] == "made.1"
    with GUEST.session(sidecar.amqp_port, "/") as member:
        member.channel(1, confirm=False)
        consume(member, 1, no_ack=True)
        wait_until("the member", lambda: "joined: " in sidecar.log())
        command("group", "orders", "pause")
        command("group", "orders", "resume")
        through = with_login(f"amqp://127.0.0.1:{sidecar.amqp_port}/", CLIENT, "no password")
        told = command("group", "orders", "redrive", "--queue", "dead", broker_url=through)
        assert "0 published again; left in the queue: none of those read" in told.splitlines()
        member.goodbye()
    server.stop()
    failed = run("group", "orders", "pause", **{f"RINGPROXY_{n.upper()}": v for n, v in of_sidecar.items()})
    assert failed.returncode == 2
    assert f"broker_url: oauth_token_url: {server.url}: it refuses connections" in failed.stderr
    for exchange in ("made", "made.lane.1", "made.lane.2"):
        home.delete_exchange(exchange)
