"""The commands other than `ring-proxy run`: they check the files that settings name, or ask running sidecars."""
