"""The state of a session: routes that were forced, and frames of this proxy at frame boundaries."""

import pytest
from pamqp import commands

from proxy.session.connection import Connection
from tests.unit.proxy.session.wire import HEARTBEAT, QUEUES, ROUTE_ALL, Wire, body, header, made, publish


def test_before_a_virtual_host_is_open_nothing_is_counted() -> None:
    w = Wire()
    c = Connection(w.tables.table, w.samples.append, frozenset())
    assert c.route(b"x") is None
    assert not c.waiting.channels
    assert not c.running
    c.drop_old_routes()
    with pytest.raises(RuntimeError):
        _ = c.counter_table


def test_a_forced_route_is_for_its_name_only() -> None:
    w = Wire({"x": QUEUES}, selection=ROUTE_ALL)
    assert w.c.table is not None
    forced = w.c.waiting.forced = w.c.table.absent(b"\xff-gone")
    assert w.c.route(b"\xff-gone") is forced
    assert w.c.route(b"x") is w.c.table.find(b"x")
    assert w.c.route(b"unknown") is None
    assert w.c.waiting.held is not None
    assert w.c.waiting.held.name == ("/", "unknown")


def test_frames_of_ours_wait_for_a_boundary_in_each_direction() -> None:
    frame = body(2, b"hello")
    for cut in range(8, len(frame)):
        w = Wire()
        w.client(publish(2, b"", b"q") + header(2, 5))
        w.client(frame[:cut])
        w.c.to_broker.insert(HEARTBEAT)
        w.c.to_broker.insert(HEARTBEAT)
        assert w.to_broker() == b""
        assert w.client(frame[cut:]) == frame[cut:] + HEARTBEAT * 2
        w.broker(made(2, commands.Basic.Deliver("c", 1, False, "e", "k")) + header(2, 5))
        w.broker(frame[:cut])
        w.c.to_client.insert(HEARTBEAT)
        assert w.to_client() == b""
        assert w.broker(frame[cut:]) == frame[cut:] + HEARTBEAT


def test_at_a_boundary_they_go_at_once() -> None:
    w = Wire()
    w.c.to_broker.insert(HEARTBEAT)
    w.c.to_client.insert(HEARTBEAT)
    assert (w.to_broker(), w.to_client()) == (HEARTBEAT, HEARTBEAT)
    assert w.client(HEARTBEAT[:5]) == b""
    w.c.to_broker.insert(HEARTBEAT)
    assert w.to_broker() == HEARTBEAT, "a frame that is not forwarded yet is no hindrance"
    assert w.client(HEARTBEAT[5:]) == HEARTBEAT
