"""What the commands beside `run` do: check the files that settings name, and ask running sidecars."""
