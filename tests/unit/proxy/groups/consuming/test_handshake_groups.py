"""The handshake of a sidecar with the setting `groups`: channels kept back, and cancels of the broker's asked for."""

from typing import cast

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp.common import FieldTable

from proxy.groups.consuming.attendant import MOST_HIDDEN
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.session import broker_loop, client_loop
from proxy.session.handshake import Handshake, Step
from proxy.session.state import Phase
from tests.unit.proxy.session.wire import Wire, chunkings, entry, long_string, made, method

NOTIFY = "consumer_cancel_notify"


def new(step: Step) -> Wire:
    """A connection at that step of its handshake."""
    wire = Wire({}, channels=())
    c = wire.c
    c.phase, c.table, c.routes = Phase.HANDSHAKE, None, {}
    c.handshake = Handshake(frozenset())
    c.handshake.kept_back = MOST_HIDDEN
    c.handshake.step = step
    c.interceptor = GroupInterceptor(c, lambda vhost, name: True)
    return wire


def properties_of(start_ok: bytes) -> FieldTable:
    read = cast(commands.Connection.StartOk, pamqp_frame.unmarshal(start_ok)[2])
    return read.client_properties or {}


def agreed(offered: int, wanted: int) -> tuple[int, int, Wire]:
    """Return what the client is offered and the broker is asked for, and the connection once it is open."""
    wire = new(Step.JUDGED)
    told = wire.broker(made(0, commands.Connection.Tune(offered, 131072, 60)))
    advertised = cast(commands.Connection.Tune, pamqp_frame.unmarshal(told)[2]).channel_max
    sent = wire.client(made(0, commands.Connection.TuneOk(wanted, 131072, 60)))
    asked = cast(commands.Connection.TuneOk, pamqp_frame.unmarshal(sent)[2]).channel_max
    wire.client(made(0, commands.Connection.Open("/")))
    wire.broker(made(0, commands.Connection.OpenOk()))
    return advertised or 0, asked or 0, wire


@pytest.mark.parametrize(
    ("offered", "wanted", "advertised", "asked", "hidden"),
    [
        (2047, 1023, 1023, 2047, range(1025, 2048)),
        (2047, 10, 1023, 1034, range(12, 1035)),
        (4095, 3070, 3070, 4095, range(3072, 4096)),
        (0, 0, 64510, 0, range(64512, 65536)),
        (0, 100, 64510, 1125, range(102, 1126)),
        (10, 4, 4, 10, range(6, 11)),
        (2, 1, 1, 2, range(0)),
        (1, 1, 1, 1, range(0)),
    ],
)
def test_half_of_the_channels_is_kept_back_and_1024_at_most(
    offered: int, wanted: int, advertised: int, asked: int, hidden: range
) -> None:
    told, sent, wire = agreed(offered, wanted)
    assert (told, sent) == (advertised, asked)
    c = wire.c
    assert isinstance(c.interceptor, GroupInterceptor)
    assert list(c.interceptor.free) == list(hidden)
    highest = c.handshake.channel_max
    assert highest == (wanted or advertised)
    assert c.republishing.number == (0 if offered == wanted == 1 else highest + 1)
    # A client that takes a number of those is refused as beyond any limit.
    client_loop.from_client(c, made(highest + 1, commands.Channel.Open()))
    assert b"beyond the agreed channel_max %d" % highest in wire.to_client()


@pytest.mark.parametrize(
    ("capabilities", "asked"),
    [
        (None, False),
        ({}, False),
        ({"basic.nack": True}, False),
        ({NOTIFY: False, "basic.nack": True}, False),
        ({NOTIFY: True, "basic.nack": True}, True),
        ("no table", False),
    ],
)
def test_the_broker_is_asked_for_cancels_whether_the_client_can_read_them_or_not(
    capabilities: FieldTable | str | None, asked: bool
) -> None:
    given: FieldTable = {"product": "p", "connection_name": "mine"}
    if capabilities is not None:
        given["capabilities"] = capabilities
    data = made(0, commands.Connection.StartOk(given, "PLAIN", "\0u\0p", "en_US"))
    for chunking in chunkings(data):
        wire = new(Step.LOGIN)
        for chunk in chunking:
            client_loop.from_client(wire.c, chunk)
        sent = properties_of(wire.to_broker())
        wanted = dict(capabilities) if isinstance(capabilities, dict) else {}
        assert sent["capabilities"] == wanted | {NOTIFY: True}
        assert (sent["product"], sent["connection_name"]) == ("p", "mine")
        assert wire.c.handshake.cancel_notify is asked
        assert wire.c.handshake.connection_name == b"mine"


def test_client_properties_that_cannot_be_read_are_a_mistake_of_the_clients() -> None:
    table = long_string(b"product", b"p") + entry(b"capabilities", b"F", b"\0\0\0\x09") + b"x"
    arguments = len(table).to_bytes(4, "big") + table + b"\x05PLAIN" + b"\0\0\0\x04\0u\0p" + b"\x05en_US"
    wire = new(Step.LOGIN)
    client_loop.from_client(wire.c, method(0, 10, 11, arguments))
    assert wire.c.phase is Phase.REFUSING


def test_without_the_setting_the_client_is_told_of_all_but_one() -> None:
    wire = new(Step.JUDGED)
    wire.c.handshake = Handshake(frozenset())
    wire.c.handshake.step = Step.JUDGED
    broker_loop.from_broker(wire.c, made(0, commands.Connection.Tune(2047, 131072, 60)))
    assert wire.to_client() == made(0, commands.Connection.Tune(2046, 131072, 60))
