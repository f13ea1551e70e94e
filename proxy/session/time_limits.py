"""How long each part of a session may take, in seconds."""

HEADER_WITHIN = 10.0
"""Seconds in which a client's protocol header must come; RabbitMQ has the same limit."""

HANDSHAKE_WITHIN = 30.0
"""Seconds for the handshake behind the protocol header; RabbitMQ ends it after 10."""

PLACED_WITHIN = 15.0
"""Seconds that a message which came back, and the acks that wait for it, may take, before the session is closed."""

ORDERED_WITHIN = 5.0
"""Seconds that a publish waits for the answers to those before it, once a ring has changed (`publishing/order.py`)."""

GONE_WITHIN = 30.0
"""Seconds in which what a client sent before it left may still be waited for."""

LEAVE_WITHIN = 5.0
"""Seconds that a client's connection.close waits for the broker's answers to what was published."""

CLOSE_WITHIN = 5.0
"""Seconds that a peer gets to answer this proxy's Close, or to close its socket."""
