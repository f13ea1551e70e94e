"""AMQP 0-9-1 as bytes: frames, field tables, content headers and properties. Nothing here does I/O."""
