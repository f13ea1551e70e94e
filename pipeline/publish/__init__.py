"""The job `publish`: a table's rows through an exchange's ring, straight to its queues, each of them confirmed."""
