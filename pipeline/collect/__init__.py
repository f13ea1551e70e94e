"""The journal of a stream queue, as files."""
