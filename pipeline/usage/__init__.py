"""The job `usage`: what went where, by window, exchange and destination."""
