"""Each row of the table of a link's states, taken by a session that a client and a broker talk to.

`test_model` shows that `Link.enter` follows the table, whatever the table says. These tests show that there is a way to
each row, and that the session sends the broker what the row says. A row without such a way must leave the table.
"""

from collections.abc import Callable

import pytest
from pamqp import commands

from proxy.groups.consuming import links
from proxy.groups.model import MOST_UNDER_WAY, TABLE, LinkAction, LinkEvent, LinkState, Member, entered
from proxy.session import broker_loop, client_loop
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, opened
from tests.unit.proxy.session.wire import ack, close_channel, made, split

LINK = FIRST + 1
"""The hidden channel of the member's link to the shard q1."""

SENT = {
    LinkAction.NOTHING: [],
    LinkAction.SUBSCRIBE: [(20, 10), (60, 10), (60, 20)],
    LinkAction.CLOSE: [(20, 40)],
    LinkAction.FLUSH: [(60, 20)],
    LinkAction.FINISH: [(60, 30), (20, 40)],
}
"""The methods that the broker is sent by each action: channel.open, basic.qos, basic.consume and basic.cancel;
channel.close."""

OTHERS = [(60, 80), (20, 41)]
"""The methods that are not due to an action: the client's ack, and the answer to the broker's channel.close."""


class Story:
    """A member with one link, and what can come to it."""

    def __init__(self) -> None:
        self.wire = Grouping()
        self.member: Member

    def asks(self, **more: object) -> None:
        self.member = self.wire.begin(["q1"], **more)

    def opening(self, **more: object) -> None:
        self.asks(**more)
        self.wire.to_broker()
        self.wire.to_client()

    def open(self) -> None:
        self.opening()
        self.consume_ok()

    def closing(self) -> None:
        self.open()
        self.give_up()

    def leaving(self) -> None:
        self.open()
        self._broker(deliver(LINK, 1))
        self.let_go()

    def many(self) -> None:
        """Have the link leave, of which the client has answered so many deliveries that acks may be kept back."""
        self.open()
        self._broker(b"".join(deliver(LINK, tag) for tag in range(1, MOST_UNDER_WAY + 2)))
        self._client(b"".join(ack(1, tag) for tag in range(2, MOST_UNDER_WAY + 2)))
        self.let_go()

    def flushing(self) -> None:
        self.many()
        self.acked()

    def sent(self) -> list[tuple[int, int]]:
        """Return the methods that the broker is sent on the link's channel for the sake of an action."""
        sent = [each.id for each in split(self.wire.to_broker()) if each.channel == LINK]
        return [each for each in sent if each not in OTHERS]

    def consume_ok(self) -> None:
        self._broker(opened(LINK))

    def second_ok(self) -> None:
        self._broker(made(LINK, commands.Basic.ConsumeOk(f"flush-{self.member.id}")))

    def let_go(self) -> None:
        self.wire.actions.let_go(self.member, "q1")

    def give_up(self) -> None:
        self.wire.actions.give_up(self.member, "q1")

    def acked(self) -> None:
        self._client(ack(1, 1))

    def client_cancels(self) -> None:
        self._client(made(1, commands.Basic.Cancel("c")))

    def client_closes(self) -> None:
        self._client(made(1, commands.Channel.Close(200, "", 0, 0)))

    def broker_cancels(self) -> None:
        self._broker(made(LINK, commands.Basic.Cancel("c", True)))

    def broker_closes(self) -> None:
        self._broker(close_channel(LINK, 404, b"NOT_FOUND - no queue 'q1'", (60, 20)))

    def close_ok(self) -> None:
        self._broker(closed(LINK))

    def lost(self) -> None:
        links.lose_all(self.wire.consuming)

    def _broker(self, data: bytes) -> None:
        broker_loop.from_broker(self.wire.c, data)

    def _client(self, data: bytes) -> None:
        client_loop.from_client(self.wire.c, data)

    def leaving_while_opening(self) -> None:
        self.opening(no_ack=True)
        self.client_cancels()


_S, _E = LinkState, LinkEvent
Act = Callable[[Story], None]

WAYS: dict[tuple[LinkState, LinkEvent], tuple[Act, Act]] = {
    (_S.NONE, _E.WANT): (lambda _: None, Story.asks),
    (_S.OPENING, _E.CONSUMING): (Story.opening, Story.consume_ok),
    (_S.OPENING, _E.LET_GO): (Story.opening, Story.let_go),
    (_S.OPENING, _E.GIVE_UP): (Story.opening, Story.give_up),
    (_S.OPENING, _E.CANCELLED): (Story.opening, Story.broker_cancels),
    (_S.OPENING, _E.REFUSED): (Story.opening, Story.broker_closes),
    (_S.OPENING, _E.LOST): (Story.opening, Story.lost),
    (_S.OPEN, _E.LET_GO): (Story.open, Story.let_go),
    (_S.OPEN, _E.GIVE_UP): (Story.open, Story.give_up),
    (_S.OPEN, _E.CANCELLED): (Story.open, Story.broker_cancels),
    (_S.OPEN, _E.REFUSED): (Story.open, Story.broker_closes),
    (_S.OPEN, _E.LOST): (Story.open, Story.lost),
    (_S.LEAVING, _E.CONSUMING): (Story.leaving_while_opening, Story.consume_ok),
    (_S.LEAVING, _E.LET_GO): (Story.leaving, Story.client_cancels),
    (_S.LEAVING, _E.SETTLED): (Story.leaving, Story.acked),
    (_S.LEAVING, _E.ACKED): (Story.many, Story.acked),
    (_S.LEAVING, _E.GIVE_UP): (Story.leaving, Story.give_up),
    (_S.LEAVING, _E.CANCELLED): (Story.leaving, Story.broker_cancels),
    (_S.LEAVING, _E.REFUSED): (Story.leaving, Story.broker_closes),
    (_S.LEAVING, _E.LOST): (Story.leaving, Story.lost),
    (_S.FLUSHING, _E.CONSUMING): (Story.flushing, Story.second_ok),
    (_S.FLUSHING, _E.LET_GO): (Story.flushing, Story.client_cancels),
    (_S.FLUSHING, _E.GIVE_UP): (Story.flushing, Story.client_closes),
    (_S.FLUSHING, _E.CANCELLED): (Story.flushing, Story.broker_cancels),
    (_S.FLUSHING, _E.REFUSED): (Story.flushing, Story.broker_closes),
    (_S.FLUSHING, _E.LOST): (Story.flushing, Story.lost),
    (_S.CLOSING, _E.LET_GO): (Story.closing, Story.client_cancels),
    (_S.CLOSING, _E.GIVE_UP): (Story.closing, Story.give_up),
    (_S.CLOSING, _E.REFUSED): (Story.closing, Story.broker_closes),
    (_S.CLOSING, _E.CLOSED): (Story.closing, Story.close_ok),
    (_S.CLOSING, _E.LOST): (Story.closing, Story.lost),
}
"""For each row, how a link comes into its state, and then how the event comes."""


@pytest.mark.parametrize("row", WAYS, ids=lambda row: f"{row[1].name} in {row[0].name}")
def test_a_session_takes_a_row(row: tuple[LinkState, LinkEvent]) -> None:
    before, then = WAYS[row]
    story = Story()
    before(story)
    if row[0] is not LinkState.NONE:
        assert [link.state for link in story.member.links.values()] == [row[0]]
        story.sent()
    had = entered[row]
    then(story)
    assert entered[row] == had + 1
    state, action = TABLE[row]
    if action is LinkAction.CANCEL:
        # The client holds nothing of this link, which so goes on to its end.
        state, action = TABLE[state, LinkEvent.SETTLED]
    assert [link.state for link in story.member.links.values()] == ([] if state is LinkState.NONE else [state])
    assert story.sent() == SENT[action]


def test_each_row_has_a_way_to_it() -> None:
    """One that has none cannot be taken, and what cannot come is not in the table."""
    assert WAYS.keys() == TABLE.keys()
