"""The interceptor of a session whose client may consume from groups: a row for each method that it looks at."""

# mypyc: compiled

from collections.abc import Callable
from typing import Final

from proxy.groups.consuming import consumer, deliver, group_name, links, settle
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.consuming.tags import TaggedSource, numbering_of
from proxy.session import closing
from proxy.session.channel import Channel
from proxy.session.merging import Source
from proxy.wire import frames

Handler = Callable[[Consuming, Channel, int, bytes, int, int], bytes | None]
"""A function for one method, with the arguments and the result of `Interceptor.from_client`."""

FROM_CLIENT: Final[dict[int, Handler]] = {
    frames.QUEUE_DECLARE: group_name.take,
    frames.QUEUE_BIND: group_name.take,
    frames.QUEUE_UNBIND: group_name.take,
    frames.QUEUE_DELETE: group_name.take,
    frames.QUEUE_PURGE: group_name.take,
    frames.BASIC_GET: group_name.take,
    frames.BASIC_CONSUME: consumer.consume,
    frames.BASIC_CANCEL: consumer.cancel,
    frames.BASIC_QOS: consumer.qos,
    frames.BASIC_ACK: settle.settle,
    frames.BASIC_NACK: settle.settle,
    frames.BASIC_REJECT: settle.settle,
    frames.BASIC_RECOVER: settle.recover,
    frames.BASIC_RECOVER_ASYNC: settle.recover,
    frames.TX_SELECT: consumer.begin_transactions,
}

FROM_BROKER: Final[dict[int, Handler]] = {
    frames.BASIC_CONSUME_OK: consumer.consume_ok,
    frames.BASIC_CANCEL: consumer.cancelled,
    frames.BASIC_CANCEL_OK: consumer.cancel_ok,
    frames.BASIC_GET_EMPTY: consumer.get_empty,
}


class GroupInterceptor(Consuming):
    """The consuming from groups of one session, as the session's loops over frames ask it."""

    def from_client(self, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
        """Take a client's method; return what goes on in its place, or None for the session to go on with it."""
        handler = FROM_CLIENT.get(method)
        return handler(self, channel, method, data, i, end) if handler is not None else None

    def from_broker(self, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
        """Take a broker's method on a client's channel; return what goes on in its place, or None for it as it is."""
        handler = FROM_BROKER.get(method)
        return handler(self, channel, method, data, i, end) if handler is not None else None

    def gathered(self) -> bytes:
        """Return what the broker gets for the client's answers of one read; empty for nothing."""
        return settle.gathered(self) if self.answered else b""

    def deliveries(self, source: Source, data: bytes, i: int, size: int) -> tuple[int, int, bytes]:
        """Take the deliveries at `i` that begin with one of a hidden channel, as far as whole: see `deliver.whole`."""
        assert isinstance(source, HiddenChannel)
        return deliver.whole(self, source, data, i, size)

    def hidden_frame(self, source: Source, kind: int, data: bytes, i: int, end: int) -> bytes:
        """Take a frame of a hidden channel; return what the client gets in its place."""
        assert isinstance(source, HiddenChannel)
        return deliver.hidden_frame(self, source, kind, data, i, end)

    def own_frame(
        self, source: Source, kind: int, replaced: bytes | None, data: bytes, i: int, end: int
    ) -> bytes | None:
        """Take a frame of the broker's on a client's channel; return what the client gets, None for it as it is."""
        assert isinstance(source, TaggedSource)
        return deliver.own_frame(self, source.numbering, kind, replaced, data, i, end)

    def may_go_on(self, channel: Channel) -> bool:
        """Return whether it is known what the name stands for with which a channel's frame waits."""
        numbering = numbering_of(channel)
        if numbering is None:
            return True
        if numbering.joining is not None:
            return numbering.joining.decided
        # An answer of this proxy goes out behind the broker's answers to what the client sent before.
        return numbering.question is None or (numbering.question.decided and not channel.pending)

    def refuse(self, channel: Channel, why: str) -> None:
        """Close the channel of a frame that waits, since it does not become known what its name stands for."""
        numbering = numbering_of(channel)
        if numbering is not None and numbering.question is not None:
            group_name.not_found(self, channel, numbering.question, why)
        else:
            text = f"no consumer could be made: {why}"
            closing.refuse_channel(self.c, channel, frames.INTERNAL_ERROR, text, frames.BASIC_CONSUME)

    def channel_ends(self, channel: Channel) -> None:
        """Note that the client, the broker or this proxy closes a client's channel."""
        links.end_channel(self, channel)

    def channel_gone(self, channel: Channel) -> None:
        """Note that a client's channel is no more."""
        links.drop_channel(self, channel)

    def connection_ends(self, code: int, text: bytes) -> None:
        """Have the group told of the link for which the broker closes the connection, if there is one."""
        links.end_connection(self, code, text.decode(errors="replace"))
