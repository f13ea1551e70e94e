"""Estimates of all that was published, from samples of it."""
