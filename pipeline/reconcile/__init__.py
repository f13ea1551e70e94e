"""The journal against what consumers saw."""
