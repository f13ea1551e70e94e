"""`make try`: a group of workers to play with."""
