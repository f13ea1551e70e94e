"""The demo: publishes through a sidecar while queues come and go, judges every message, compares with the exchange."""
