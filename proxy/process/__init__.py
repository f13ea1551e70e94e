"""The sidecar as a process: its limits of memory and of file descriptors, and the format of its log."""
