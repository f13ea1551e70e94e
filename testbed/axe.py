"""axe, which looks for what keeps people with disabilities from a web page: from npm, kept for later runs."""

from pathlib import Path

from testbed.npm import npm_file

VERSION = "4.14.1"

INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
"""npm's checksum of the package of that version."""


def axe_script() -> Path:
    """Return the path of axe.min.js, fetched if need be. Raises SetupError as `npm_file` does."""
    return npm_file("axe-core", VERSION, INTEGRITY, "axe.min.js")
