"""Publish five orders of each of six customers: docs/tutorial-retry.md."""

import pika

connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5673))
channel = connection.channel()
channel.confirm_delivery()
for number in range(1, 6):
    for customer in range(1, 7):
        channel.basic_publish("orders", f"customer-{customer}", str(number).encode())
connection.close()
print("30 orders confirmed")
