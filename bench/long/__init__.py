"""The further parts of `make bench FULL=1`: one module for each, which measures it and returns its tables."""
