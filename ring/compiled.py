"""Choose whether the hot modules (those that setup.py lists) run compiled or as Python source."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

PURE = "RINGPROXY_PURE"
"""The environment variable that, if set to 1, makes the hot modules run as Python source."""


class _SourceFinder:
    """An import finder that finds this project's modules by their source only."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module's source file; None for modules of others. The interface is importlib's."""
        if name.partition(".")[0] not in ("ring", "proxy"):
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name) for folder in path or ())
        return next((spec for spec in found if spec is not None), None)


def choose() -> None:
    """Install the finder if the environment asks for source. Must be called before a hot module is imported."""
    if os.environ.get(PURE) == "1":
        sys.meta_path.insert(0, _SourceFinder)


def kind() -> str:
    """Return how the hot modules run: `compiled` or `python`."""
    from ring import hashing  # Imported here, since `choose` must be called first.

    return "compiled" if str(hashing.__file__).endswith(tuple(EXTENSION_SUFFIXES)) else "python"
