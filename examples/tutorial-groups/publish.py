"""Publish fifty orders of each of twelve customers: docs/tutorial-groups.md."""

import sys

import pika

first = int(sys.argv[1])
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5673))
channel = connection.channel()
channel.confirm_delivery()
for number in range(first, first + 50):
    for customer in range(1, 13):
        channel.basic_publish("orders", f"customer-{customer}", str(number).encode())
connection.close()
print("600 orders confirmed")
