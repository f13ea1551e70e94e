"""One AMQP client's connection and the broker connection that is its own, with what changes between the two."""
