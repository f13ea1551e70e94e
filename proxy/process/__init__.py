"""What one process may take of its machine, memory and file descriptors, and how it writes its log."""
