"""The package builds and works where nothing can be compiled; mypyc's part, a minute, is played.

That mypyc's own C is compiled, tests/unit/test_compiled.py and `testbed/build-compiled` see.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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

HALFWAY = """#!/bin/sh
# A compiler that fails at the last.
case "$*" in *-c*proxy.routing.counters*) exit 1;; esac
while [ "$1" != -o ]; do shift; done
echo not a library >"$2"
echo "$2" >>COMPILED
"""


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


def installed(source: Path, changes: dict[str, str]) -> tuple[Path, str]:
    """The folder that it is installed into, and what pip said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    clean |= {"PYTHONPATH": str(source / "played"), **changes}
    target = source / "installed"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-v", *options, "--target", str(target), "."]
    done = subprocess.run(command, cwd=source, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target, done.stdout + done.stderr


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
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [file.parent.relative_to(ROOT) for name in PACKAGES for file in (ROOT / name).rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in found)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"CC": "/bin/false"}, id="failing"),
        pytest.param({"PATH": ""}, id="missing", marks=pytest.mark.long),
    ],
)
def test_without_a_c_compiler_it_installs_as_python(tmp_path: Path, changes: dict[str, str]) -> None:
    target, said = installed(project(tmp_path), changes)
    assert "the hot modules are not compiled: " in said
    check_works_as_python(target)


def test_a_build_that_fails_halfway_leaves_nothing_of_it(tmp_path: Path) -> None:
    source = project(tmp_path)
    compiler = source / "cc"
    compiler.write_text(HALFWAY)
    compiler.chmod(0o755)
    target, said = installed(source, {"CC": shlex.quote(str(compiler))})
    assert "the hot modules are not compiled: " in said
    made = (source / "COMPILED").read_text().split()
    assert {Path(file).name.split(".")[0] for file in made if file.endswith(".so")} == {"ringproxy__mypyc", "hashing"}
    check_works_as_python(target)


@pytest.mark.parametrize("what", ["refuses", pytest.param("missing", marks=pytest.mark.long)])
def test_what_mypyc_refuses_or_where_it_is_not_is_installed_as_python(tmp_path: Path, what: str) -> None:
    source = project(tmp_path)
    if what == "refuses":
        (source / "refuse").touch()
        why = "error: a type that is wrong"
    else:
        (source / "played/mypyc/build.py").write_text("raise ImportError('no mypyc here')")
        why = "no mypyc here"
    target, said = installed(source, {})
    assert f"the hot modules are not compiled: {why}" in said
    check_works_as_python(target)


def test_with_ringproxy_pure_nothing_is_tried(tmp_path: Path) -> None:
    target, said = installed(project(tmp_path), {"RINGPROXY_PURE": "1", "CC": "/bin/false"})
    assert "not compiled" not in said
    assert "py3-none-any" in said
    check_works_as_python(target)
