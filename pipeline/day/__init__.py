"""The job `day`: it runs the other jobs for one day, and keeps the results of each day."""
