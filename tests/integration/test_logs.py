"""The log of a running sidecar, as its operator's terminal or collector gets it."""

import json
import re
import struct

import pytest
from pamqp import header
from pamqp.commands import Basic

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
