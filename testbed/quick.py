"""`python -m testbed.quick`: the unit tests of what has changed since the last commit, or in it if nothing has.

The tests of `proxy/wire/frames.py` are `tests/unit/proxy/wire`, or those of the nearest folder above that is there.
Changed documents have the tests of documents, and the tests of imports always run. Only `make test` runs all.
"""

import subprocess
import sys
from pathlib import Path, PurePath

UNIT = PurePath("tests/unit")
ALWAYS = {"tests/unit/test_imports.py"}
BY_SUFFIX = {
    ".md": {"tests/unit/test_docs.py"},
    ".yaml": {"tests/unit/test_deploy.py"},
    ".yml": {"tests/unit/test_deploy.py"},
}


def main() -> int:
    """Return the exit status of pytest."""
    tests = sorted(ALWAYS.union(*(selected(PurePath(name), Path()) for name in changed() or changed("HEAD~1"))))
    print(f"the unit tests of what has changed: {' '.join(tests)}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--quiet", "--numprocesses=auto", "-m", "not long", *tests]
    ).returncode


def changed(since: str = "HEAD") -> list[str]:
    """Return the paths that differ from a commit, untracked ones among them."""
    return [*_git("diff", "--name-only", since), *_git("ls-files", "--others", "--exclude-standard")]


def selected(path: PurePath, root: Path) -> set[str]:
    """Return the test files and folders for one path of the repository at `root`."""
    if path.parts[:2] == ("tests", "unit"):
        own = path if path.name.startswith("test_") else path.parent
    elif path.parts[0] == "deploy":
        return {f"tests/unit/test_{name}.py" for name in ("chart", "deploy", "service")}
    elif path.suffix != ".py":
        return BY_SUFFIX.get(path.suffix, set())
    elif path.parts[0] not in ("ring", "proxy", "bench", "testbed"):
        return set()
    elif len(path.parts) == 2:
        own = UNIT.joinpath(path.parts[0], f"test_{path.name}")
        if not (root / own).exists():
            own = UNIT / own.name
    else:
        own = UNIT.joinpath(*path.parent.parts)
        while not (root / own).exists():
            own = own.parent
    # Without a folder of its own in between, the nearest one has all unit tests.
    return {str(own)} if own != UNIT and (root / own).exists() else set()


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
