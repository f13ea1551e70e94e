"""Publish over AMQP with pika: docs/how-to/publish-over-amqp.md."""

import random
import time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError, UnroutableError


class PublishError(Exception):
    """A message is refused for good, or the last attempt failed. With outcome "unknown" it may be in a queue."""

    def __init__(self, outcome, detail):
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome


def outcome_of(error):
    """Return what became of the only publish on a channel."""
    if isinstance(error, UnroutableError):
        return "unroutable"
    if isinstance(error, NackError):
        return "nacked"
    if isinstance(error, ChannelClosedByBroker):
        return {403: "invalid", 404: "invalid", 541: "unavailable"}.get(error.reply_code, "unknown")
    return "unknown"


class Publisher:
    """Publishes one message at a time. Use one for each thread."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.connection = None

    def publish(self, exchange, key, body, message_id, attempts=8):
        """Return once the message is in a queue. Raise PublishError otherwise."""
        properties = pika.BasicProperties(message_id=message_id, content_type="application/json", delivery_mode=2)
        may_be_there = False
        for attempt in range(1, attempts + 1):
            error = self.try_once(exchange, key, body, properties)
            if error is None:
                return
            may_be_there = may_be_there or error.outcome == "unknown"
            if error.outcome == "invalid":
                break
            if attempt < attempts:
                time.sleep(min(30, 0.1 * 2**attempt) * random.uniform(1, 1.5))
        raise PublishError("unknown", error) if may_be_there else error

    def try_once(self, exchange, key, body, properties):
        """Return None once the message is in a queue, or else why it may not be."""
        try:
            channel = self.confirming_channel()
        except AMQPError as error:  # nothing was sent
            refused = "ACCESS_REFUSED" in str(error)  # wrong user or password
            return PublishError("invalid" if refused else "unavailable", repr(error))
        try:
            channel.basic_publish(exchange, key, body, properties, mandatory=True)
        except AMQPError as error:
            return PublishError(outcome_of(error), repr(error))
        return None

    def confirming_channel(self):
        if self.connection is None or self.connection.is_closed:
            self.connection, self.channel = pika.BlockingConnection(self.parameters), None
        if self.channel is None or self.channel.is_closed:
            self.channel = self.connection.channel()
            self.channel.confirm_delivery()
        return self.channel


login = pika.PlainCredentials("orders-service", "secret")
publisher = Publisher(pika.ConnectionParameters("127.0.0.1", 5673, credentials=login))
publisher.publish("orders", "customer-4711", b'{"order": 7}', "order-7")
publisher.publish("orders", "customer-4711", b'{"order": 8}', "order-8")
print("confirmed")
try:
    publisher.publish("amq.direct", "audit", b"{}", "audit-1")
except PublishError as error:
    print(error.outcome)
publisher.connection.close()
