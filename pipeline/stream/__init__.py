"""The journal's stream queue as a source of Spark's: docs/reference/journal.md, "The stream"."""
