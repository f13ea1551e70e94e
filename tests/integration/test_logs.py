"""The log of a running sidecar, as its operator's terminal or collector gets it."""

import json
import os
import re
import struct
import urllib.request
from urllib.parse import quote

import pika
import pytest
from pamqp import header
from pamqp.commands import Basic

from ring.compiled import PURE, kind
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.test_commands import run
from tests.integration.wire_client import Client, Wire, encoded, raw_frame, short

FORGED = "2026-11-23T00:00:00.000Z CRITICAL proxy.app: forged"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING) [a-z.]+: .*")


def publish_unknown(peer: Wire, name: str) -> None:
    """A publish to an exchange that cannot be looked up, which the log tells by its name; pamqp refuses such names."""
    method = struct.pack(">HHH", 60, 40, 0) + short(name.encode()) + short(b"k") + b"\0"
    peer.send(raw_frame(1, 1, method), encoded(1, header.ContentHeader(0, 0, Basic.Properties())))


def test_a_start_says_where_to_publish_and_whether_it_is_compiled(
    start_sidecar: StartSidecar, vhost: VirtualHost, login: Login
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    line = re.compile(r"publish to (amqp://\S+), or over HTTP with POST (http://\S+)\n")
    told = wait_until("it is told", lambda: line.search(sidecar.log()))
    parameters = pika.URLParameters(f"{told[1]}/{quote(vhost.name, safe='')}")
    parameters.credentials = pika.URLParameters(login.broker_url).credentials
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("orders", "k", b"over AMQP")
    url = told[2].replace("EXCHANGE", "orders") + f"?vhost={quote(vhost.name, safe='')}"
    request = urllib.request.Request(url, b"over HTTP", {"Routing-Key": "k"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
    assert [message.body for message in vhost.drain("q")] == [b"over AMQP", b"over HTTP"]
    as_python = kind() == "python" and os.environ.get(PURE) != "1"
    assert ("the hot modules are not compiled: " in sidecar.log()) == as_python


@pytest.mark.parametrize("separator", ["\n", "\r", "\x85", "\u2028", "\x1b[2K\x1b[1A", "\u202e"], ids=ascii)
def test_an_exchange_named_by_a_client_makes_no_line_of_its_own(
    start_sidecar: StartSidecar, login: Login, client: Client, separator: str
) -> None:
    sidecar = start_sidecar(management_url="http://127.0.0.1:9", lookup_timeout="0.1")
    with client.session(sidecar.amqp_port, login.vhost) as peer:
        peer.channel(1)
        publish_unknown(peer, f"x{separator}{FORGED}")
        wait_until("it is told", lambda: FORGED in sidecar.log())
    log = sidecar.log().removesuffix("\n")
    assert log.replace("\n", "").isprintable()
    for line in log.split("\n"):
        assert LINE.fullmatch(line), log


def test_json_is_one_object_a_line(start_sidecar: StartSidecar, login: Login, client: Client) -> None:
    sidecar = start_sidecar(management_url="http://127.0.0.1:9", lookup_timeout="0.1", log_format="json")
    with client.session(sidecar.amqp_port, login.vhost) as peer:
        peer.channel(1)
        publish_unknown(peer, f"x\n{FORGED}")
        wait_until("it is told", lambda: "forged" in sidecar.log())
    sidecar.stop()
    told = [json.loads(line) for line in sidecar.log().splitlines()]
    assert {frozenset(line) for line in told} == {frozenset({"time", "level", "logger", "message"})}
    assert all(line["time"].endswith("Z") for line in told)
    assert "shutting down: answering what is in flight" in [line["message"] for line in told]
    assert [line["level"] for line in told if f"x\n{FORGED}" in line["message"]] == ["WARNING"]


def test_a_name_steers_no_terminal(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """Neither in the log nor in what explain and diff print. (RabbitMQ itself takes CR and LF out of names.)"""
    exchange, queue = "orders\x9b2K", f"q\u2028{FORGED}\x1b[2K"
    vhost.ring(exchange, [queue])
    sidecar = start_sidecar()
    assert sidecar.publish(exchange, "k", vhost=vhost.name).status == 200
    assert r"exchange 'orders\x9b2K' in virtual host" in sidecar.log()
    url = sidecar.admin_url
    for command in (("explain", exchange, "k", "--vhost", vhost.name, "--sidecar", url), ("diff", url, url)):
        shown = run(*command)
        assert shown.returncode == 0, shown
        assert r"orders\x9b2K" in shown.stdout
        assert (rf"q\u2028{FORGED}\x1b[2K" in shown.stdout) is (command[0] == "explain")
        assert shown.stdout.replace("\n", "").isprintable()
