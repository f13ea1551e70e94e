"""The job `collect`: it writes the journal of a stream queue as files."""
