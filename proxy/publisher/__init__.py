"""The sidecar's own connections to the broker, on which HTTP's messages are published with confirms."""
