"""An ordinary pika program: publishes with publisher confirms, and knows nothing of ringproxy.

Arguments: URL EXCHANGE FIRST COUNT. It prints, as JSON, what was confirmed.
"""

import json
import sys

import pika
from pika.channel import Channel
from pika.exceptions import ConnectionClosedByClient
from pika.frame import Method
from pika.spec import Basic, Confirm

WINDOW = 1000
"""Messages that may await their confirms."""


def key_of(number: int) -> str:
    """Return the routing key of a message; its body is the number itself."""
    return f"order-{number}"


class Publisher:
    """Publishes messages of the numbers from `first` on, and counts a message once the broker acks it."""

    def __init__(self, url: str, exchange: str, first: int, count: int) -> None:
        """Connect once `run`."""
        self._url, self._exchange, self._first, self._count = url, exchange, first, count
        self._tag = 0
        self._waiting: set[int] = set()
        self._channel: Channel | None = None
        self._done = False
        self.confirmed: list[int] = []
        self.problem = ""

    def run(self) -> None:
        """Return when every message is acked or nacked, or at the first problem."""
        connection = pika.SelectConnection(
            pika.URLParameters(self._url),
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._opened),
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
        )
        connection.ioloop.start()

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._answered, callback=self._confirming)

    def _confirming(self, _: "Method[Confirm.SelectOk]") -> None:
        self._publish()

    def _publish(self) -> None:
        assert self._channel
        while self._tag < self._count and len(self._waiting) < WINDOW:
            number = self._first + self._tag
            self._channel.basic_publish(self._exchange, key_of(number), str(number).encode())
            self._tag += 1
            self._waiting.add(self._tag)

    def _answered(self, frame: "Method[Basic.Ack | Basic.Nack]") -> None:
        answer = frame.method
        if answer.multiple:
            tags = {tag for tag in self._waiting if tag <= answer.delivery_tag}
        else:
            tags = {answer.delivery_tag} & self._waiting
        self._waiting -= tags
        if isinstance(answer, Basic.Ack):
            self.confirmed += [self._first + tag - 1 for tag in tags]
        if self._tag < self._count:
            self._publish()
        elif not self._waiting and not self._done:
            self._done = True
            assert self._channel
            self._channel.connection.close()

    def _channel_closed(self, channel: Channel, reason: Exception) -> None:
        if not self._done:
            self.problem = repr(reason)
            if channel.connection.is_open:
                channel.connection.close()

    def _ended(self, connection: pika.SelectConnection, reason: BaseException) -> None:
        if not isinstance(reason, ConnectionClosedByClient):
            self.problem = repr(reason)
        connection.ioloop.stop()


def main(url: str, exchange: str, first: str, count: str) -> None:
    """Publish and prints."""
    publisher = Publisher(url, exchange, int(first), int(count))
    publisher.run()
    print(json.dumps({n: getattr(publisher, n) for n in ("confirmed", "problem")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
