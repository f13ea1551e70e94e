"""The job `reconcile`: it compares the journal with what consumers saw."""
