"""The job `land`: it makes a table of a journal, from its folder or its stream queue."""
