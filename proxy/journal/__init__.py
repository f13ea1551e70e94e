"""The journal: what was published, record by record, for the data pipeline (docs/reference/journal.md)."""
