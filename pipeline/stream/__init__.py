"""The journal's stream queue as a source of Spark's: docs/journal.md, "The stream"."""
