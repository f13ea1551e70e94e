"""Consume in series with pika: docs/how-to/use-from.md."""

import signal
import time

import pika
from pika.exceptions import AMQPError
from shop import charge

ending = False


def end(*_):
    global ending
    ending = True


def consume():
    with pika.BlockingConnection(pika.URLParameters("amqp://billing:PASSWORD@localhost:5673/shop")) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, body in channel.consume("orders", inactivity_timeout=1):
            if ending:
                return
            if method:
                try:
                    charge(method.routing_key, body.decode())
                except Exception:
                    channel.basic_nack(method.delivery_tag)
                else:
                    channel.basic_ack(method.delivery_tag)


signal.signal(signal.SIGTERM, end)
while not ending:
    try:
        consume()
    except AMQPError as error:
        print(repr(error))
        time.sleep(1)
