"""The HTTP listeners: one that takes publishes, one for probes, metrics and questions."""
