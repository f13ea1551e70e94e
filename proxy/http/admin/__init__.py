"""The admin listener: probes, metrics and the rings that are known."""
