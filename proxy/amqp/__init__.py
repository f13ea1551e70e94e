"""AMQP 0-9-1: the ingress, where only publishes to ring exchanges change, and the connections of our own publisher."""
