"""Installs this project: as it is within seconds, or with RINGPROXY_COMPILE=1 its hot modules compiled, in minutes.

The source is the same Python either way (docs/development/decisions.md).
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = "# mypyc: compiled"
"""The line, below its docstring, of a module on the way of each message: setup.py finds the hot modules by it."""


def hot_modules() -> list[str]:
    """Return the paths of the modules that have the line `COMPILED`, sorted."""
    folder = Path(__file__).parent
    files = (file for package in ("ring", "proxy") for file in (folder / package).rglob("*.py"))
    return sorted(str(file.relative_to(folder)) for file in files if COMPILED in file.read_text("utf-8").splitlines())


def extensions() -> list[Extension]:
    """Return the hot modules as extensions of one library with RINGPROXY_COMPILE=1, and none without it."""
    if os.environ.get("RINGPROXY_COMPILE") != "1":
        return []
    # Imported here: an install without it needs no mypyc.
    from mypyc.build import mypycify

    # Other packages that the modules import need not be there to build.
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*flags, *hot_modules()], opt_level="3", group_name="ringproxy", strip_asserts=False)


class BuildApart(build_ext):
    """The build step of the extensions: nothing is built beside the sources, where it would hide their changes."""

    def run(self) -> None:
        """Build the extensions, unless this is an editable install."""
        if self.inplace or self.editable_mode:
            self.extensions = []
            return
        super().run()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildApart})
