"""mermaid, which draws the drawings of the documents in a reader's browser: from npm, kept for later runs."""

from pathlib import Path

from testbed.npm import npm_file

VERSION = "11.13.0"
"""The newest version whose arrowheads the site's theme colours: from 11.14.0 on their ids have a prefix."""

INTEGRITY = "sha512-fEnci+Immw6lKMFI8sqzjlATTyjLkRa6axrEgLV2yHTfv8r+h1wjFbV6xeRtd4rUV1cS4EpR9rwp3Rci7TRWDw=="
"""npm's checksum of the package of that version."""


def mermaid_script() -> Path:
    """Return the path of mermaid.min.js, fetched if need be. Raises SetupError as `npm_file` does."""
    return npm_file("mermaid", VERSION, INTEGRITY, "dist/mermaid.min.js")
