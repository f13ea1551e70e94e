"""The end of the span of a publish over HTTP, by the broker's answer."""

# mypyc: compiled

from proxy.publisher.channel import PublishResult, Receiver
from proxy.tracing.tracer import Span


class TraceReceiver:
    """The receiver of one traced message: it ends the message's span and passes the broker's answer on."""

    __slots__ = ("_index", "_receiver", "_span")

    def __init__(self, span: Span, receiver: Receiver, index: int) -> None:
        """Stand in front of `receiver`, for its message number `index`."""
        self._span, self._receiver, self._index = span, receiver, index

    def settled(self, index: int, result: PublishResult) -> None:
        """End the span, and pass the broker's answer on to the receiver behind."""
        self._span.settled(result.outcome)
        self._receiver.settled(self._index, result)
