"""The job `skew`: hot keys, and what of an uneven load is the ring's and what the keys'."""
