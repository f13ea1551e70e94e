"""The package installs as Python, unless a compile is asked for, and that may fail; mypyc's part is played.

The compile of mypyc's own C is seen by tests/unit/test_compiled.py and `testbed/build-compiled`.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[2]
PACKAGES = ("ring", "proxy", "pipeline")

PLAYED = '''
"""Some C for each of three modules, as mypyc would write it."""
import sys
from pathlib import Path
from setuptools import Extension

def mypycify(paths, **options):
    if Path("refuse").exists():
        sys.exit("error: a type that is wrong")
    names = ["ringproxy__mypyc", "ring.hashing", "proxy.routing.counters"]
    for name in names:
        Path(f"{name}.c").touch()
    return [Extension(name, [f"{name}.c"]) for name in names]
'''


def project(folder: Path) -> Path:
    """A copy, so that nothing else is written to."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    played = folder / "played/mypyc"
    played.mkdir(parents=True)
    (played / "__init__.py").touch()
    (played / "build.py").write_text(PLAYED)
    return folder


def install(source: Path, changes: dict[str, str]) -> tuple[int, str]:
    """The exit status of pip, and what it said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    clean |= {"PYTHONPATH": str(source / "played"), **changes}
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-v", *options, "--target", str(source / "installed"), "."]
    done = subprocess.run(command, cwd=source, env=clean, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check_works_as_python(target: Path) -> None:
    """Nothing compiled is left, and what was installed runs."""
    assert [file for file in target.rglob("*") if file.suffix in (".so", ".c", ".o", ".h")] == []
    here = {"PYTHONPATH": f"{target}:{ROOT}", "PYTHONSAFEPATH": "1", "PATH": os.environ["PATH"]}

    said = [
        subprocess.run([sys.executable, "-m", *arguments], env=here, capture_output=True, text=True, check=True).stdout
        for arguments in (("proxy", "--version"), ("tests.fuzz.equal", "build", "3"))
    ]
    assert said[0].endswith(", python\n")
    assert said[1].startswith("python\n")
    assert said[1].count("\n") > 100


def test_every_package_is_installed() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    folders = {file.parent.relative_to(ROOT) for name in PACKAGES for file in (ROOT / name).rglob("*.py")}
    assert set(find_packages(str(ROOT), **patterns)) == {".".join(folder.parts) for folder in folders}


def test_by_default_it_is_installed_as_python_and_nothing_is_compiled(tmp_path: Path) -> None:
    source = project(tmp_path)
    (source / "refuse").touch()
    status, said = install(source, {"CC": "/bin/false"})
    assert status == 0, said
    assert "py3-none-any" in said
    check_works_as_python(source / "installed")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"CC": "/bin/false"}, "Command '['/bin/false'", id="the compiler fails"),
        pytest.param({"PATH": ""}, "No such file or directory", id="no compiler", marks=pytest.mark.long),
        pytest.param({"refuse": ""}, "error: a type that is wrong", id="mypyc refuses"),
    ],
)
def test_a_compile_that_fails_installs_nothing_and_says_why(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    source = project(tmp_path)
    if "refuse" in changes:
        (source / "refuse").touch()
    status, said = install(source, {"RINGPROXY_COMPILE": "1", **changes})
    assert status == 1
    assert why in said
    assert not (source / "installed").exists()
