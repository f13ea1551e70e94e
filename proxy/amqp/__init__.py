"""The AMQP ingress: one client connection is one broker connection, and only publishes to ring exchanges change."""
