"""Every command of the pages for operators, routine tasks and alerts, each where it is called for."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Channel

from ring.compiled import kind
from testbed.broker import Broker
from testbed.node import Node
from tests.certificates import Authority
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, Login, StartSidecar, with_login
from tests.integration.documents import ROOT, Document, Shell, parsed, tried, variables
from tests.integration.groups import consume, deliveries
from tests.integration.native import publish_in
from tests.integration.own_node import own_node, private_only
from tests.integration.relay import management_front, relay
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of

ROUTINE = Document("docs/how-to/operate.md")
RUNBOOK = Document("docs/how-to/troubleshoot.md")
QUEUES = ["orders.1", "orders.2", "orders.3"]
READY = "/readyz?verbose"
OPERATOR = "operator", "pw-operator"
"""With the rights that the runbook asks for, and no others."""


@pytest.fixture
def shop(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield the virtual host that the runbook's commands are for."""
    made = VirtualHost(api, "shop", [USER])
    made.ring("orders", QUEUES)
    permit_operator(made)
    yield made
    made.delete()
    api.ask("DELETE", "users", OPERATOR[0])


@pytest.fixture
def start_used(start_sidecar: StartSidecar, shop: VirtualHost) -> StartSidecar:
    """Starts sidecars that have read the exchange."""

    def start(**changes: str) -> Sidecar:
        sidecar = start_sidecar(**changes)
        publish(sidecar)
        return sidecar

    return start


def permit_operator(shop: VirtualHost) -> None:
    user, password = OPERATOR
    shop.api.ask("PUT", "users", user, body={"password": password, "tags": "monitoring"})
    shop.permit(user, configure=".*", write=".*", read=".*")


def here(broker: Broker | Node, sidecar: Sidecar, other: Sidecar | None = None) -> dict[str, str]:
    """The variables of the pages' commands."""
    return variables(broker, sidecar, other) | {"ADMIN": ":".join(OPERATOR)}


def publish(sidecar: Sidecar, key: str = "customer-4711", status: int = 200) -> None:
    assert sidecar.publish("orders", key, vhost="shop").status == status


def failing(told: str) -> list[str]:
    """The checks of a verbose /readyz that fail."""
    return re.findall(r"^FAIL (.*?)(?:, virtual host .*?)?: ", told, flags=re.M)


def test_every_command_is_tried_here() -> None:
    assert tried(ROUTINE, "ROUTINE", __file__)
    assert tried(RUNBOOK, "RUNBOOK", __file__)


def test_the_variables_are_those_that_the_commands_use(start_used: StartSidecar, broker: Broker) -> None:
    (exports,) = ROUTINE["Prepare your shell"]
    given = here(broker, start_used())
    assert set(re.findall(r"^export (\w+)=", exports, flags=re.M)) == given.keys()
    assert Shell({})(exports + "env") != ""


def test_stale_ring(start_used: StartSidecar, broker: Broker, login: Login) -> None:
    (look,) = RUNBOOK["Stale ring"]
    with management_front(login.management_url) as front:
        sidecar = start_used(management_url=front.url, ring_max_age="1", sync_interval="0.2")
        front.answer("", 500)
        wait_until("a stale ring", lambda: "rings fresh" in failing(sidecar.admin(READY).text))
        told = Shell(here(broker, sidecar))(look)
        assert failing(told) == ["management API", "rings fresh"]
        (fault,) = json.loads(told.splitlines()[-1])["faults"]
        assert (fault["vhost"], fault["exchange"]) == ("shop", "orders")
        assert "500" in fault["fault"]
        assert sidecar.metric("ringproxy_ring_age_seconds", exchange="orders") > 1
        publish(sidecar)
        front.answers.clear()
        sidecar.wait_ready()
        assert sidecar.metric("ringproxy_ring_age_seconds", exchange="orders") < 1


def test_not_routed(start_used: StartSidecar, broker: Broker, shop: VirtualHost) -> None:
    (look,) = RUNBOOK["Not routed"]
    sidecar = start_used(sync_interval="0.2")
    shell = Shell(here(broker, sidecar))
    assert "note" not in shell(look)
    shop.policy("dead", "^orders.2$", "queues", dead_letter_exchange="dlx")
    wait_until("the note", lambda: "note not routed (dead_letter): 'orders' in 'shop'" in shell(look))
    shown = json.loads(shell(look).splitlines()[-1])
    assert (shown["passed"], shown["dead_letter_queues"]) == ("dead_letter", ["orders.2"])
    publish(sidecar)
    assert sidecar.metric("ringproxy_passed_total", exchange="orders", reason="dead_letter") == 1
    shop.policy("dead", "^orders.2$", "queues", dead_letter_exchange="dlx", dead_letter_routing_key="orders.2")
    wait_until("the mend", lambda: "note" not in shell(look))


def test_named_exchange_absent(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost) -> None:
    look, ask = RUNBOOK["Named exchange absent"]
    sidecar = start_sidecar(route="shop/ordesr")
    sidecar.wait_ready()
    shell = Shell(here(broker, sidecar))
    assert failing(shell(look)) == ["named exchanges exist"]
    assert "orders" in [exchange["name"] for exchange in json.loads(shell(ask))]
    # As the alert says: the exchange that was meant is passed.
    assert sidecar.publish("orders", "k", vhost="shop").receipt()["outcome"] == "passed"


def test_all_publishes_fail(start_sidecar: StartSidecar, broker: Broker, login: Login, shop: VirtualHost) -> None:
    """A user without the right to publish to queues: what the sidecar counts is what the alert reads."""
    (look,) = RUNBOOK["All publishes fail"]
    shop.api.ask("PUT", "users", "restricted", body={"password": "pw-restricted", "tags": ""})
    try:
        shop.permit("restricted", write="^orders$")
        sidecar = start_sidecar(broker_url=with_login(login.broker_url, "restricted", "pw-restricted"))
        for n in range(5):
            publish(sidecar, f"{n}", 403)
        told = Shell(here(broker, sidecar))(look)
        counted = re.findall(r'^ringproxy_publishes_total{exchange="orders".*outcome="(\w+)".*} (\S+)$', told, re.M)
        assert counted == [("invalid", "5.0")]
        assert re.findall(r'^ringproxy_http_responses_total{code="403",listener="http"} (\S+)$', told, re.M) == ["5.0"]
    finally:
        shop.api.ask("DELETE", "users", "restricted")


def test_a_permission_is_missing(start_used: StartSidecar, broker: Broker, shop: VirtualHost) -> None:
    """An AMQP user without write on the default exchange, beside an HTTP publisher that has it."""
    (look,) = RUNBOOK["A permission is missing"]
    shop.api.ask("PUT", "users", "restricted", body={"password": "pw-restricted", "tags": ""})
    try:
        shop.permit("restricted", write="^orders$")
        sidecar = start_used()
        with Client("restricted", "pw-restricted").session(sidecar.amqp_port, shop.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            text = peer.expect(1, Channel.Close).reply_text
        assert text.replace("'restricted'", "'orders'") in (ROOT / "docs/how-to/troubleshoot.md").read_text()
        assert Shell(here(broker, sidecar))(look) == 'ringproxy_amqp_refusals_total{code="403"} 1.0\n'
        assert "permissions" not in sidecar.admin(READY).text
    finally:
        shop.api.ask("DELETE", "users", "restricted")


def test_lost_management_api(start_used: StartSidecar, broker: Broker, login: Login, shop: VirtualHost) -> None:
    look, ask = RUNBOOK["Lost management API"]
    with relay(login.management_url) as (link, management_url):
        sidecar = start_used(management_url=management_url, lookup_timeout="3")
        shell = Shell(here(broker, sidecar))
        names, bindings = parsed(shell(ask))
        assert "shop" in [vhost["name"] for vhost in names]
        assert {b["destination"] for b in bindings} == set(QUEUES)
        link.cut()
        wait_until("the loss", lambda: sidecar.metric("ringproxy_sync_failing") == 1)
        wait_until("the loss", lambda: sidecar.metric("ringproxy_management_up") == 0)
        assert "management API" in failing(shell(look))
        publish(sidecar)
        shop.ring("unread", ["q"])
        assert sidecar.publish("unread", "k", vhost="shop").status == 503
        link.open()
        sidecar.wait_ready()
        wait_until("all well", lambda: sidecar.metric("ringproxy_sync_failing") == 0)
    # The table has other answers, too: of a reader with a wrong password, and of one without rights.
    wrong = Shell(here(broker, sidecar) | {"READER": f"{USER}:wrong"})
    assert all(answer["error"].startswith("not_authori") for answer in parsed(wrong(ask)))
    shop.api.ask("DELETE", "permissions", "shop", USER)
    names, bindings = parsed(shell(ask))
    assert "shop" not in [vhost["name"] for vhost in names]
    assert bindings == [] or "error" in bindings


def test_broker_disconnected(start_used: StartSidecar, broker: Broker, login: Login) -> None:
    (look,) = RUNBOOK["Broker disconnected"]
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_used(broker_url=broker_url, lookup_timeout="3")
        link.cut()
        wait_until("the loss", lambda: sidecar.metric("ringproxy_broker_connected") == 0)
        told = Shell(here(broker, sidecar))(look)
        assert failing(told) == ["broker"]
        assert all(node["running"] for node in json.loads(told.splitlines()[-1]))
        publish(sidecar, status=503)
        link.open()
        sidecar.wait_ready()
        wait_until("no loss", lambda: sidecar.metric("ringproxy_broker_connected", vhost="shop") == 1)
        publish(sidecar)


@pytest.mark.long
@private_only
def test_broker_blocked(start_sidecar: StartSidecar) -> None:
    """By the same figures as the alert: over HTTP nothing can be sent, over AMQP nothing is answered."""
    (look,) = RUNBOOK["Broker blocked"]
    with own_node("") as (node, ctl):
        home = VirtualHost(BrokerApi(node.management_url), "shop", [])
        home.ring("orders", QUEUES)
        permit_operator(home)
        urls = {"broker_url": f"{node.amqp_url}shop", "management_url": node.management_url}
        http, amqp = (start_sidecar(**urls, lookup_timeout="3", confirm_timeout="1") for _ in range(2))
        publish(http)
        shell = Shell(here(node, http))
        assert not any(each.get("mem_alarm") or each.get("disk_free_alarm") for each in parsed(shell(look))[0])
        with Client("guest", "guest").session(amqp.amqp_port, "shop") as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)
            ctl("set_vm_memory_high_watermark", "absolute", "1MB")
            try:
                wait_until("the alarm", lambda: parsed(shell(look))[0][0].get("mem_alarm"))
                # The first is taken yet: from then on the broker reads no more of that connection.
                for n in range(5):
                    peer.publish(1, "orders", f"{n}")
                wait_until("503", lambda: http.publish("orders", "k", vhost="shop").status == 503)
                assert "the broker takes no publishes" in http.publish("orders", "k", vhost="shop").text
                assert failing(http.admin(READY).text) == ["broker takes publishes"]
                assert http.metric("ringproxy_broker_blocked", vhost="shop") == 1
                wait_until("waiting", lambda: amqp.metric("ringproxy_in_flight") > 0)
                states = [c.get("state") for c in parsed(shell(look))[1]]
                assert {"blocked", "blocking"} & set(states), states
                settled = amqp.metric("ringproxy_publishes_total")
                unavailable = http.metric("ringproxy_publishes_total", outcome="unavailable")
                assert unavailable > 0
                publish(http, status=503)
                assert http.metric("ringproxy_publishes_total", outcome="unavailable") == unavailable + 1
                assert amqp.metric("ringproxy_in_flight") > 0
                assert amqp.metric("ringproxy_publishes_total") == settled
                for sidecar in (http, amqp):
                    assert sidecar.metric("ringproxy_broker_connected") == 1
                    assert sidecar.metric("ringproxy_management_up") == 1
            finally:
                ctl("set_vm_memory_high_watermark", "0.6")
            peer.confirm(1, 6, after=1)
            peer.goodbye()
        wait_until("taken again", lambda: http.publish("orders", "k", vhost="shop").status == 200)
        assert http.admin(READY).status == 200
        assert http.metric("ringproxy_broker_blocked", vhost="shop") == 0
        for sidecar in (http, amqp):
            sidecar.stop()


def test_publishes_fail(start_used: StartSidecar, broker: Broker, shop: VirtualHost) -> None:
    count, look = RUNBOOK["Publishes fail"]
    sidecar = start_used()
    shop.queue("full", x_max_length=1, x_overflow="reject-publish")
    shop.exchange("small")
    shop.bind("small", "full")
    shop.policy("limit", "^orders", "queues", max_length=1000)
    answers = [sidecar.publish("small", "k", vhost="shop").status for _ in range(5)]
    assert 503 in answers
    shell = Shell(here(broker, sidecar))
    told = re.search(r'exchange="small",ingress="http",outcome="nacked",vhost="shop"} (\S+)', shell(count))
    assert told is not None
    assert float(told[1]) == answers.count(503)
    queues = {queue["name"]: queue for queue in json.loads(shell(look))}
    assert queues["full"]["arguments"]["x-overflow"] == "reject-publish"

    def shown(queue: str, column: str) -> object:
        return next(each.get(column) for each in json.loads(shell(look)) if each["name"] == queue)

    wait_until("its length", lambda: shown("full", "messages") == 1)
    wait_until("the policy", lambda: shown("orders.1", "effective_policy_definition") == {"max-length": 1000})


def test_unknown_outcomes(start_used: StartSidecar, broker: Broker, login: Login, client: Client) -> None:
    (look,) = RUNBOOK["Unknown outcomes"]
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_used(broker_url=broker_url)
        with client.session(sidecar.amqp_port, "shop") as peer:
            peer.channel()
            link.freeze()
            for n in range(4):
                peer.publish(1, "orders", f"{n}")
            wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 4)
        link.cut()
        link.thaw()
        wait_until("unknown", lambda: sidecar.metric("ringproxy_publishes_total", outcome="unknown") == 4)
        told = Shell(here(broker, sidecar))(look)
        assert 'exchange="orders",ingress="amqp",outcome="unknown",vhost="shop"} 4.0' in told
        assert re.search(r'^ringproxy_amqp_session_ends_total{reason="(client|broker)"} 1.0', told, flags=re.M)
        assert "ringproxy_broker_connects_total" in told


def test_journal_loses_records(start_used: StartSidecar, broker: Broker, tmp_path: Path) -> None:
    (look,) = RUNBOOK["Journal loses records"]
    sidecar = start_used(journal_dir=str(tmp_path), journal_file_seconds="0.2")
    shell = Shell(here(broker, sidecar))
    assert "ringproxy_journal_failing 0.0" in shell(look)
    wait_until("a file", lambda: list(tmp_path.glob("records/dt=*/hour=*/[!.]*")))
    (tmp_path / "records").rename(tmp_path / "away")
    (tmp_path / "records").touch()
    publish(sidecar)
    wait_until("the fault", lambda: "ringproxy_journal_failing 1.0" in shell(look))
    assert 'ringproxy_journal_dropped_total{reason="store"} 1.0' in shell(look)
    assert 'ringproxy_journal_dropped_total{reason="buffer"} 0.0' in shell(look)
    assert "the journal cannot be written" in sidecar.log()


def test_a_reload_failed(start_used: StartSidecar, broker: Broker, login: Login, tmp_path: Path) -> None:
    look, check = RUNBOOK["A reload failed"]
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    sidecar = start_used(broker_password_file=str(password))
    shell = Shell(here(broker, sidecar))
    at_the_sidecar = Shell({"RINGPROXY_BROKER_PASSWORD_FILE": str(password)})
    assert 'ringproxy_reload_ok{setting="broker_password_file"} 1.0' in shell(look)
    assert "in order" in at_the_sidecar(check)
    password.unlink()
    wait_until("it shows", lambda: 'ringproxy_reload_ok{setting="broker_password_file"} 0.0' in shell(look))
    assert "; what was read before stays in force" in sidecar.log()
    at_the_sidecar(check, 2)
    publish(sidecar)
    password.write_text(f"{PASSWORD}\n")
    wait_until("it is read", lambda: 'ringproxy_reload_ok{setting="broker_password_file"} 1.0' in shell(look))


def test_a_certificate_ends(start_sidecar: StartSidecar, broker: Broker, tmp_path: Path) -> None:
    (look,) = RUNBOOK["A certificate ends"]
    own = Authority(tmp_path).issue("shown")
    sidecar = start_sidecar(
        broker_url="amqps://guest@localhost:9", client_cert_file=str(own.certificate), client_key_file=str(own.key)
    )
    shell = Shell(here(broker, sidecar))
    assert 'ringproxy_certificate_expiry_timestamp_seconds{setting="client_cert_file"}' in shell(look)


@pytest.fixture
def grouping(start_sidecar: StartSidecar, shop: VirtualHost) -> Sidecar:
    """Start a sidecar whose clients may consume from the name `orders`, and whose user may tell others of them."""
    shop.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    return start_sidecar(groups="orders", groups_ack_timeout="0.5")


def told_of_members(shell: Shell, commands: str, members: int) -> str:
    """Return what the commands print once they tell of so many members whom sidecars balance."""

    def told() -> str | None:
        shown = shell(commands)
        return shown if f" {members} member" in shown and "not balanced" not in shown else None

    return wait_until(f"{members} members", told)


def test_shard_not_consumed(grouping: Sidecar, broker: Broker, client: Client) -> None:
    look, ask = RUNBOOK["Shard not consumed"]
    shell = Shell(here(broker, grouping))
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        wait_until("an owner", lambda: "shard        orders.3, member 1 for " in shell(look))
        assert "no member gets them" not in shell(look)
        wait_until("its consumer", lambda: json.loads(shell(ask))["consumer_details"])
        assert "x-priority" in shell(ask)


def test_group_without_members(grouping: Sidecar, broker: Broker, client: Client) -> None:
    (look,) = RUNBOOK["Group without members"]
    shell = Shell(here(broker, grouping))

    def counts() -> set[int]:
        """Return how many consumers each shard has."""
        return {queue.get("consumers", -1) for queue in json.loads(shell(look)) if queue["name"].startswith("orders.")}

    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        wait_until("consumers", lambda: counts() == {1})
        wire.goodbye()
    wait_until("no consumers", lambda: counts() == {0})
    assert "\nringproxy_group_members{" not in grouping.admin("/metrics").text


def test_group_unbalanced(grouping: Sidecar, broker: Broker, client: Client) -> None:
    (look,) = RUNBOOK["Group unbalanced"]
    shell = Shell(here(broker, grouping))
    with client.session(grouping.amqp_port, "shop") as wire:
        for channel in (1, 2):
            wire.channel(channel, confirm=False)
            consume(wire, channel)
        shown = told_of_members(shell, look, 2)
        assert "not exact    shards 'orders.1', 'orders.2', 'orders.3' are each a queue without x-single" in shown


@pytest.mark.long
def test_member_not_acking(grouping: Sidecar, broker: Broker, client: Client) -> None:
    (look,) = RUNBOOK["Member not acking"]
    shell = Shell(here(broker, grouping))
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        publish(grouping)
        told_of_members(shell, look, 1)
        wait_until("a shard taken", lambda: "gets no shard as it did not ack" in shell(look))
        assert "(groups_ack_timeout), so the shard goes to the next member" in grouping.log()
        assert grouping.metric("ringproxy_group_stalled_links_total", exchange="orders") >= 1


def test_poison_message(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Poison message"]
    grouping = start_sidecar(groups="orders")
    shell = Shell(here(broker, grouping))
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        publish(grouping)
        (got,) = deliveries(wire, 1, 1)
        for _ in range(24):
            wire.tell(1, Basic.Reject(got.number, True))
            (got,) = deliveries(wire, 1, 1)
            assert got.redelivered
        # Classic shards do not count, so the sidecar does.
        assert ", 24 redelivered, one message 24 times in the last minutes" in shell(look)
        wait_until("a log line", lambda: " times, as consumers return it" in grouping.log())
        assert grouping.metric("ringproxy_group_worst_redeliveries", exchange="orders") > 20


def test_a_queue_without_copies(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    (look,) = RUNBOOK["Queue without copies"]
    lines = ("[[exchange]]", 'name = "orders"', f"vhost = {json.dumps(vhost.name)}", "shards = 2", 'groups = ["audit"]')
    (tmp_path / "topology.toml").write_text("\n".join(lines))
    shell = Shell({"RINGPROXY_BROKER_URL": broker.amqp_url, "RINGPROXY_MANAGEMENT_URL": broker.management_url})
    assert "steps done" in shell(f"cd {tmp_path}; ring-proxy topology apply topology.toml")
    assert "nothing to do" in shell(f"cd {tmp_path}; {look}")
    sidecar = start_sidecar(sync_interval="1")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    labels = {"vhost": vhost.name, "exchange": "orders"}
    assert sidecar.metric("ringproxy_queues_without_copies", **labels) == 0
    vhost.api.ask("DELETE", "queues", vhost.name, "orders.audit.1")
    wait_until("it is told", lambda: sidecar.metric("ringproxy_queues_without_copies", **labels) == 1)
    assert "orders.audit.1" in sidecar.log()
    assert "orders.audit.1" in shell(f"cd {tmp_path}; {look}", status=1)


def test_a_key_that_waits(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Key blocked"]
    (look_behind,) = RUNBOOK["Window blocked"]
    grouping = start_sidecar(groups="orders", groups_in_series="orders", groups_window="4", groups_retry_delay="60")
    shell = Shell(here(broker, grouping))
    for number in range(4):
        assert grouping.publish("orders", "c17", str(number).encode(), vhost="shop").status == 200
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        (got,) = deliveries(wire, 1, 1)
        wire.tell(1, Basic.Reject(got.number, True))
        wait_until("it is told", lambda: ": to be tried again in " in shell(look))
        wait_until("all are there", lambda: ", returned once, 3 messages behind it" in shell(look_behind))
        for metric in ("keys_retried", "windows_blocked"):
            wait_until(metric, lambda: grouping.metric(f"ringproxy_group_{metric}", exchange="orders") == 1)  # noqa: B023


def test_crash_loop(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Crash loop"]
    shop.permit(USER, configure=r"^orders\.group(\..*)?$", write=".*", read=r"^orders\.group(\..*)?$")
    grouping = start_sidecar(groups="orders", groups_in_series="orders")
    shell = Shell(here(broker, grouping))
    assert grouping.publish("orders", "c17", b"1", vhost="shop").status == 200
    for crashes in range(3):
        with client.session(grouping.amqp_port, "shop") as wire:
            wire.channel(1, confirm=False)
            consume(wire, 1)
            deliveries(wire, 1, 1)
            told = {0: "0 keys wait ", 1: ", 1 crash, ", 2: ", 2 crashes, "}[crashes]
            wait_until("it is told", lambda: told in shell(look))  # noqa: B023
    wait_until("the metric", lambda: grouping.metric("ringproxy_group_crash_loops_total", exchange="orders") == 2)


def test_dead_letters_fail(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Dead letters fail"]
    dead = {"groups_dead_letter": "dead", "groups_retry_limit": "1", "groups_retry_delay": "0.1"}
    grouping = start_sidecar(groups="orders", groups_in_series="orders", **dead)
    shell = Shell(here(broker, grouping))
    shop.exchange("dead", "topic")
    assert grouping.publish("orders", "c17", b"1", vhost="shop").status == 200
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        (got,) = deliveries(wire, 1, 1)
        wire.tell(1, Basic.Reject(got.number, True))
        labels = {"exchange": "orders"}
        wait_until("it fails", lambda: grouping.metric("ringproxy_group_dead_letters_failed_total", **labels) >= 1)
        assert "no dead letter goes to the exchange 'dead' (groups_dead_letter)" in grouping.log()
        assert shell(look) == "[]"
        shop.queue("graves")
        shop.bind("dead", "graves", "#")
        assert json.loads(shell(look)) == [{"destination": "graves"}]


def test_shard_stands(start_sidecar: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Shard stands"]
    times = {"groups_retry_delay": "0.1", "groups_retry_delay_max": "0.1", "groups_hold_max": "0.5"}
    grouping = start_sidecar(groups="orders", groups_in_series="orders", **times)
    shell = Shell(here(broker, grouping))
    assert grouping.publish("orders", "c17", b"1", vhost="shop").status == 200
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        for _ in range(8):
            (got,) = deliveries(wire, 1, 1)
            wire.tell(1, Basic.Reject(got.number, True))
        wait_until("it is told", lambda: ", and its shard stands" in shell(look))
        wait_until("the metric", lambda: grouping.metric("ringproxy_group_shards_standing", exchange="orders") == 1)


@pytest.fixture
def reader(shop: VirtualHost) -> Iterator[Client]:
    """Yield a user that reads everything, whose rights are its own."""
    shop.api.ask("PUT", "users", "reader", body={"password": "reader", "tags": ""})
    shop.permit("reader", read=".*")
    yield Client("reader", "reader")
    shop.api.ask("DELETE", "users", "reader")


def test_consumer_refused(grouping: Sidecar, broker: Broker, shop: VirtualHost, reader: Client) -> None:
    (look,) = RUNBOOK["Consumer refused"]
    shell = Shell(here(broker, grouping))
    with reader.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        told_of_members(shell, look, 1)
        wait_until("the consumers", lambda: shell(look).count(", member 1 for ") == 3)
        shop.permit("reader")
        shop.queue("orders.new")
        shop.bind("orders", "orders.new")
        shown = wait_until("the refusal", lambda: shown if "\nrefused " in (shown := shell(look)) else None)
        assert "has no consumer on orders.new for " in shown
        assert "403 ACCESS_REFUSED" in shown
        shop.permit("reader", read=".*")
        wait_until("the consumer", lambda: "\nrefused " not in shell(look))


def test_group_disconnected(grouping: Sidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Group disconnected"]
    shop.permit(USER)
    shell = Shell(here(broker, grouping))
    with client.session(grouping.amqp_port, "shop") as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        wait_until("the reason", lambda: "not balanced ACCESS_REFUSED" in shell(look))
        assert grouping.metric("ringproxy_group_connected", exchange="orders") == 0
        shop.permit(USER, configure=r"^orders\.group(\..*)?$", write=".*", read=r"^orders\.group(\..*)?$")
        told_of_members(shell, look, 1)
        assert grouping.metric("ringproxy_group_connected", exchange="orders") == 1


def test_not_scraped(start_used: StartSidecar, broker: Broker) -> None:
    (look,) = RUNBOOK["Not scraped"]
    sidecar = start_used()
    shell = Shell(here(broker, sidecar))
    assert shell(look) == "ok\n"
    sidecar.stop()
    shell(look, 7)


def test_the_fleet_disagrees(start_used: StartSidecar, broker: Broker, login: Login, shop: VirtualHost) -> None:
    (diff,) = RUNBOOK["The fleet disagrees"]
    with management_front(login.management_url) as front:
        blind, seeing = start_used(management_url=front.url), start_used()
        shell = Shell(here(broker, blind, seeing))
        assert "the sidecars agree" in shell(diff)
        front.answer("", 500)
        shop.queue("orders.4")
        shop.bind("orders", "orders.4")
        seeing.wait_for_weights("shop", "orders", dict.fromkeys([*QUEUES, "orders.4"], 1))
        assert "queue 'orders.4': not on the ring / weight 1" in shell(diff, 1)
        front.answers.clear()
    shadowing = start_used(shadow="orders")
    publish(seeing)
    told = Shell(here(broker, seeing, shadowing))(diff, 1)
    assert "mode: route / shadow" in told
    assert seeing.metric("ringproxy_ring_routed", exchange="orders") == 1
    assert shadowing.metric("ringproxy_ring_routed", exchange="orders") == 0


def test_native_publishers(start_used: StartSidecar, broker: Broker, shop: VirtualHost, client: Client) -> None:
    (look,) = RUNBOOK["Native publishers"]
    sidecar = start_used(route="shop/orders")  # named: what is not used for a while would be forgotten
    shell = Shell(here(broker, sidecar))
    with (
        client.session(sidecar.amqp_port, "shop") as beside,
        client.session(port_of(broker.amqp_url), "shop") as native,
    ):
        for peer, count in ((beside, 2), (native, 3)):
            peer.channel()
            for n in range(count):
                peer.publish(1, "orders", f"{n}")
            peer.confirm(1, count)

        def connected() -> list[bool]:
            """Return for each connection whether it came through a sidecar or is one's own."""
            return sorted("ringproxy_version" in c["client_properties"] for c in parsed(shell(look))[0])

        wait_until("three connections", lambda: connected() == [False, True, True])

        def published() -> list[int]:
            return sorted(c["message_stats"]["publish"] for c in parsed(shell(look))[1] if "message_stats" in c)

        wait_until("their publishes", lambda: published() == [1, 2, 3])

        def shown() -> bool:
            """Return whether the count is right, with what a deleted exchange of the name was counted late."""
            count = sidecar.metric("ringproxy_exchange_publish_in_total", exchange="orders")
            return 3 <= count == publish_in(shop, "orders")

        wait_until("the count", shown)
        beside.goodbye()
        native.goodbye()


def test_add_a_queue(start_used: StartSidecar, broker: Broker) -> None:
    declare, bind, see = ROUTINE["Add a queue"]
    sidecar = start_used()
    shell = Shell(here(broker, sidecar))
    shell(declare)
    assert f"owner        queue {owner(QUEUES, 'customer-4711')}" in shell(see)
    shell(bind)
    more = [*QUEUES, "orders.4"]
    sidecar.wait_for_weights("shop", "orders", dict.fromkeys(more, 1))
    told = shell(see)
    assert f"owner        queue {owner(more, 'customer-4711')}" in told
    assert "destination  queue orders.4, weight 1, 25." in told or "orders.4, weight 1, 24." in told


def test_change_a_weight(start_used: StartSidecar, broker: Broker) -> None:
    (change,) = ROUTINE["Change a weight"]
    sidecar = start_used(settle_time="5")
    Shell(here(broker, sidecar))(change)
    sidecar.wait_for_weights("shop", "orders", {"orders.1": 3, "orders.2": 1, "orders.3": 1})
    # The ring that was, and one change of it: what it grew by, from 1 in 3 to 3 in 5.
    assert sidecar.metric("ringproxy_ring_changes_total", exchange="orders") == 2
    assert sidecar.metric("ringproxy_ring_moved_ratio_total", exchange="orders") == pytest.approx(4 / 15, abs=0.01)


def test_retire_a_queue(start_used: StartSidecar, broker: Broker, shop: VirtualHost) -> None:
    unbind, look, delete, _ = ROUTINE["Retire a queue"]
    sidecar = start_used()
    shell = Shell(here(broker, sidecar))
    keys = [f"{n}" for n in range(60)]
    for key in keys:
        publish(sidecar, key)
    shell(unbind)
    left = ["orders.1", "orders.3"]
    sidecar.wait_for_weights("shop", "orders", dict.fromkeys(left, 1))
    # The management API answers [] until its statistics have the queue.
    wait_until(
        "its length", lambda: "messages" in (told := json.loads(shell(look).splitlines()[-1])) and told["messages"]
    )
    assert "orders.2" not in shell(look).split("change")[0]
    # Refused while it holds a message.
    shell(delete, 22)
    assert len(shop.drain("orders.2")) >= sum(owner(QUEUES, key) == "orders.2" for key in keys)
    shell(delete)
    assert sorted(shop.queues()) == left
    for key in keys:
        publish(sidecar, key)
    assert sidecar.metric("ringproxy_publishes_total", exchange="orders", outcome="confirmed") == 1 + 2 * len(keys)


@pytest.mark.parametrize("kind", ["quorum", pytest.param("stream", marks=pytest.mark.long)])
def test_retire_a_queue_that_is_not_classic(
    start_used: StartSidecar, broker: Broker, shop: VirtualHost, kind: str
) -> None:
    unbind, look, guarded, delete = ROUTINE["Retire a queue"]
    shop.delete_queue("orders.2")
    shop.queue("orders.2", x_queue_type=kind)
    shop.bind("orders", "orders.2")
    sidecar = start_used()
    sidecar.wait_for_weights("shop", "orders", dict.fromkeys(QUEUES, 1))
    shell = Shell(here(broker, sidecar))
    publish(sidecar, next(key for key in map(str, range(99)) if owner(QUEUES, key) == "orders.2"))
    shell(unbind)
    sidecar.wait_for_weights("shop", "orders", {"orders.1": 1, "orders.3": 1})

    def looked(messages: int) -> bool:
        told = json.loads(shell(look).splitlines()[-1])
        return (told.get("type"), told.get("messages"), told.get("consumers")) == (kind, messages, 0)

    wait_until("its length", lambda: looked(1))
    if kind == "stream":
        shell(guarded)
    else:
        shell(guarded, 22)
        shop.drain("orders.2")
        wait_until("its length", lambda: looked(0))
        shell(guarded, 22)
        shell(delete)
    assert "orders.2" not in shop.queues()


def test_change_settings_without_a_restart(start_used: StartSidecar, broker: Broker, tmp_path: Path) -> None:
    check, reload = ROUTINE["Change settings without a restart"]
    settings, new = tmp_path / "ringproxy.toml", tmp_path / "new.toml"
    settings.write_text("")
    new.write_text('route = ["orders"]\n')
    sidecar = start_used(config=str(settings))
    shell = Shell(here(broker, sidecar) | {"PID": str(sidecar.process.pid), "NEW": str(new)})
    unread = "exchanges that the sidecar has not read are not in this list"
    assert shell(check).splitlines() == ['route: ["*"] -> ["orders"]', unread]
    new.rename(settings)
    assert shell(reload) == "ok   settings file in force\n"
    wait_until("the log", lambda: 'settings: route: ["*"] -> ["orders"]' in sidecar.log())


def test_restart_and_upgrade(start_used: StartSidecar, broker: Broker) -> None:
    end, wait, compare = ROUTINE["Restart and upgrade sidecars"]
    old, stays = start_used(), start_used()
    Shell(here(broker, old) | {"PID": str(old.process.pid)})(end)
    assert old.process.wait(30) == 0
    assert old.process.returncode != -signal.SIGTERM
    new = start_used(route="shop/orders")
    shell = Shell(here(broker, new, stays))
    told = re.match(r'ringproxy_build_info{hot_loop="(\w+)",ring_format="1",version="[\d.]+"} 1.0', shell(wait))
    assert told is not None
    assert told[1] == kind()
    assert "the sidecars agree" in shell(compare)
    assert PASSWORD not in new.log()
