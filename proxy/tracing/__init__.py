"""Traces of publishes and of deliveries by groups, exported to OpenTelemetry."""
