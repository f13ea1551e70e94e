"""Sessions and channels change their states as the tables say: by every row of them, and by nothing else."""

import re
from pathlib import Path
from random import Random

import pytest
from pamqp import commands

from proxy.session import broker_loop, client_loop, closing
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.handshake import Handshake, Step
from proxy.session.state import (
    CHANNEL_TRANSITIONS,
    CONTENT_TRANSITIONS,
    EXPECT_BODY,
    EXPECT_HEADER,
    EXPECT_METHOD,
    TRANSITIONS,
    ChannelState,
    Phase,
)
from proxy.wire.frames import CONNECTION_FORCED, INTERNAL_ERROR
from tests.unit.proxy.session.wire import (
    CONNECTION_CLOSE_OK,
    QUEUES,
    Wire,
    body,
    close_channel,
    close_connection,
    header,
    laned,
    made,
    publish,
)

CLOSE, CLOSE_OK = close_channel(1, 200, b"", (0, 0)), made(1, commands.Channel.CloseOk())
BYE = close_connection(200, b"")
OPENED = made(0, commands.Connection.OpenOk())
OF_CLIENT = {
    EXPECT_METHOD: (
        *(publish(1, b"t", b"k"), publish(1, b"x", b"k"), publish(1, b"l", b"k"), CLOSE, CLOSE_OK, CLOSE_OK),
        *(made(1, commands.Channel.Open()), made(1, commands.Channel.Open())),
    ),
    EXPECT_HEADER: (header(1, 5), header(1, 0)),
    EXPECT_BODY: (body(1, b"hello"), body(1, b"he")),
}
"""By what is expected of the client, what it may send; frames out of turn end the session, which another test sees."""
OF_BROKER = (CLOSE, CLOSE_OK, CLOSE_OK, CLOSE_OK, close_channel(1, 404, b"no exchange 'lane.q1'"))
LAST = ("bye of the client", "bye-ok of the client", "bye of the broker", "refuse", "left", "drain", "over")


class Walk:
    """A session that takes one frame, or one look of a timer, at a time."""

    def __init__(self, rng: Random, *, opened: bool) -> None:
        self.rng, self.w = rng, Wire({"x": QUEUES, "l": laned()}, channels=(1,) if opened else (), confirming=True)
        self.c = c = self.w.c
        if not opened:
            c.phase, c.table, c.routes = Phase.HANDSHAKE, None, {}
            c.handshake = Handshake(frozenset())
            c.handshake.step, c.handshake.channel_max, c.handshake.vhost = Step.OPENING, 10, "/"

    def step(self) -> None:
        """Take something that a peer or the session may do now."""
        c = self.c
        which = self.rng.random()
        if which < 0.5 and c.phase is not Phase.OVER:
            expect = c.channels[1].expect if 1 in c.channels else EXPECT_METHOD
            client_loop.from_client(c, self.rng.choice(OF_CLIENT[expect]))
        elif which < 0.75 and c.phase is not Phase.OVER:
            broker_loop.from_broker(c, self.rng.choice(OF_BROKER) if c.opened else OPENED)
        elif which < 0.92:
            self._look()
        else:
            self._end(self.rng.choice(LAST))
        self.w.to_broker(), self.w.to_client()
        c.events.clear()

    def _look(self) -> None:
        """Do what the session's timers and tasks may do with a channel."""
        c, channel = self.c, self.c.channels.get(1)
        if channel is None or not c.running:
            return
        if channel.backlog is not None and channel.backlog.awaited is Wait.BEING_CLOSED:
            closing.refuse_open(c, channel, "too late")
        elif channel.state == ChannelState.REFUSING:
            closing.abandon(c, channel)
        elif self.rng.random() < 0.3:
            closing.refuse_channel(c, channel, INTERNAL_ERROR, "no ring")

    def _end(self, how: str) -> None:
        c = self.c
        if c.phase is Phase.OVER:
            return
        match how:
            case "bye of the client":
                client_loop.from_client(c, BYE)
            case "bye-ok of the client":
                client_loop.from_client(c, CONNECTION_CLOSE_OK)
            case "bye of the broker":
                broker_loop.from_broker(c, BYE)
            case "refuse" if c.running or c.phase is Phase.HANDSHAKE:
                closing.refuse(c, CONNECTION_FORCED, "no more")
            case "left" if c.phase is Phase.LEAVING:
                closing.pass_goodbye(c)
            case "drain" if c.phase is Phase.RUNNING:
                c.enter(Phase.DRAINING)
            case "over":
                c.enter(Phase.OVER)
            case _:
                pass


def test_random_sessions_take_every_row_of_the_tables_and_no_other() -> None:
    rng = Random(1)
    phases: set[tuple[Phase, Phase]] = set()
    states: set[tuple[int, int]] = set()
    contents: set[tuple[int, int]] = set()
    for n in range(4000):
        walk = Walk(rng, opened=n % 4 > 0)
        for _ in range(30):
            phase, channel = walk.c.phase, walk.c.channels.get(1)
            state, expect = (channel.state, channel.expect) if channel is not None else (-1, 0)
            walk.step()
            phases.add((phase, walk.c.phase))
            if channel is not None:
                states.add((state, channel.state))
                contents.add((expect, channel.expect))
    # The phases before the handshake are entered by the session itself.
    expected = {(one, other) for one, others in TRANSITIONS.items() for other in others if one >= Phase.HANDSHAKE}
    assert {(one, other) for one, other in phases if one is not other} == expected
    changes = {(one, other) for one, others in CHANNEL_TRANSITIONS.items() for other in others}
    assert {pair for pair in states if pair[0] != pair[1]} == {pair for pair in changes if pair[0] != pair[1]}
    assert {pair for pair in contents if pair[0] != pair[1]} == {
        (one, other) for one, others in CONTENT_TRANSITIONS.items() for other in others
    }


@pytest.mark.parametrize("phase", Phase)
def test_a_session_goes_on_to_no_other_phase(phase: Phase) -> None:
    assert set(TRANSITIONS) == set(Phase)
    for other in set(Phase) - TRANSITIONS[phase]:
        w = Wire()
        w.c.phase = phase
        with pytest.raises(RuntimeError, match=f"from {phase.name} to {other.name}"):
            w.c.enter(other)


@pytest.mark.parametrize("state", ChannelState)
def test_a_channel_goes_on_to_no_other_state(state: ChannelState) -> None:
    assert set(CHANNEL_TRANSITIONS) == set(ChannelState)
    for other in set(ChannelState) - CHANNEL_TRANSITIONS[state]:
        channel = Channel(1)
        channel.state = state
        with pytest.raises(RuntimeError, match=f"from {state.name} to {other.name}"):
            channel.enter(other)


def test_the_document_has_the_table_of_phases() -> None:
    text = (Path(__file__).parents[4] / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \|[^|]*\| ([A-Z, ]+|none) \|$", text, re.MULTILINE)
    table = {Phase[name]: {Phase[other] for other in re.findall("[A-Z]+", others)} for name, others in rows}
    assert table == TRANSITIONS
