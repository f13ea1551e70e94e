"""`python -m testbed.release TAG`: print the notes of a release; fail unless its tag is the version to be released.

The version stands in pyproject.toml, and the changelog has a section and a day for it. The notes are that
section. The release workflow calls this before it builds anything.
"""

import re
import sys
import tomllib
from pathlib import Path

SECTION = re.compile(r"^## (?P<version>\S+), (?P<day>.+)\n(?P<notes>(?:(?!^## ).*\n?)*)", re.MULTILINE)


class NotReleasableError(Exception):
    """The tag cannot be released from this tree, and why."""


def notes_of(tag: str, version: str, changelog: str) -> str:
    """Return what the changelog says of a tagged version. Raises NotReleasableError."""
    if tag != f"v{version}":
        raise NotReleasableError(f"the tag is {tag}, and the version of pyproject.toml has the tag v{version}")
    newest = SECTION.search(changelog)
    if newest is None or newest["version"] != version:
        found = newest["version"] if newest else "none"
        raise NotReleasableError(f"the newest section of CHANGELOG.md is of {found}, not of {version}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", newest["day"]):
        raise NotReleasableError(f"CHANGELOG.md: {version} has no day (YYYY-MM-DD) but {newest['day']!r}")
    return newest["notes"].strip()


def main() -> int:
    """Print the notes of the tag; return an exit status."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m testbed.release TAG")
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    try:
        print(notes_of(sys.argv[1], version, Path("CHANGELOG.md").read_text()))
    except NotReleasableError as error:
        sys.exit(f"not releasable: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
