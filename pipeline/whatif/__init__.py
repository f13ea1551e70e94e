"""The job `whatif`: the keys that a proposed ring would move, and the load of each of its destinations."""
