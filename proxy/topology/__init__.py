"""Know the exchanges: read their bindings from the management API, correct them by declarations, have rings built."""
