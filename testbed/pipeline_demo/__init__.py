"""The pipeline's demo: traffic through a sidecar that journals, every job on that journal, each report in a browser."""
