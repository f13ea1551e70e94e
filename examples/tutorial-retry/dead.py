"""Declare a queue for all dead letters, and print those that are there: docs/tutorial-retry.md."""

import pika

channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5673)).channel()
channel.exchange_declare("orders.dead", "fanout", durable=True)
channel.queue_declare("orders.dead", durable=True)
channel.queue_bind("orders.dead", "orders.dead")
while True:
    method, properties, body = channel.basic_get("orders.dead", auto_ack=True)
    if method is None:
        break
    told = properties.headers
    print(method.routing_key, body.decode(), "dead:", told["x-ring-reason"], "after", told["x-ring-attempt"], "tries")
