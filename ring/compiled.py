"""Whether the hot modules run compiled (setup.py), or as the Python that they are written in."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

PURE = "RINGPROXY_PURE"
"""The environment variable that, set to 1 (0: not), leaves the compiled modules aside."""


class _SourceFinder:
    """Finds this project's modules by their source only."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As importlib asks for it."""
        if name.partition(".")[0] not in ("ring", "proxy"):
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name) for folder in path or ())
        return next((spec for spec in found if spec is not None), None)


def choose() -> None:
    """Leaves the compiled modules aside where that is asked for; before the first of them is imported."""
    if os.environ.get(PURE) == "1":
        sys.meta_path.insert(0, _SourceFinder)


def kind() -> str:
    """What the hot modules run as: `compiled`, or `python`."""
    from ring import hashing  # which imports nothing before `choose` was called

    return "compiled" if str(hashing.__file__).endswith(tuple(EXTENSION_SUFFIXES)) else "python"
