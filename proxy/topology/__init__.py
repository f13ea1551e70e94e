"""What is known of the exchanges: bindings read from the management API, declarations laid over them, and the rings."""
