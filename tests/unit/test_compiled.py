"""The compiled modules do what their source does, and either can be chosen: two processes of one build."""

import os
import re
import secrets
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build/compiled"

SEED, ROUNDS = "ring", [100, pytest.param(400, marks=pytest.mark.long)]
"""The seed and rounds of tests/fuzz/equal.py; with others it can be run by hand (docs/development/fuzzing.md)."""
MORE = 100
"""Rounds with a seed of the moment: what it finds is told with its seed."""


def environment(pure: str | None) -> dict[str, str]:
    """For a process that imports the build; sets come in the same order in each."""
    here = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    here |= {"PYTHONPATH": f"{COMPILED}:{ROOT}", "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0"}
    return here if pure is None else here | {"RINGPROXY_PURE": pure}


def run(pure: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment(pure), capture_output=True, text=True, check=False)


def test_all_hot_modules_are_compiled_of_the_source_as_it_is() -> None:
    """Else what the others compare is not what is there: `make test` builds it."""
    files = (file for package in ("ring", "proxy") for file in (ROOT / package).rglob("*.py"))
    hot = {str(file.relative_to(ROOT)) for file in files if "\n# mypyc: compiled\n" in file.read_text()}
    assert len(hot) > 40
    libraries = [file for package in ("ring", "proxy") for file in (COMPILED / package).rglob("*.so")]
    assert {f"{file.parent.relative_to(COMPILED)}/{file.name.split('.')[0]}.py" for file in libraries} == hot
    for file in hot:
        assert (COMPILED / file).read_text() == (ROOT / file).read_text(), f"{file} has changed since it was compiled"


def all_that_comes_out(seed: str, rounds: int, folder: Path) -> str:
    """Return the output of both, which is the same."""
    files = {pure: folder / f"said-{pure}" for pure in ("0", "1")}
    command = [sys.executable, "-m", "tests.fuzz.equal", seed, str(rounds)]
    children = []
    for pure, file in files.items():
        with file.open("wb") as output:
            children.append(subprocess.Popen(command, env=environment(pure), stdout=output, stderr=subprocess.STDOUT))
    assert [child.wait() for child in children] == [0, 0], [file.read_text()[-2000:] for file in files.values()]
    compiled, source = (file.read_text().splitlines() for file in files.values())
    assert (compiled[0], source[0]) == ("compiled", "python")
    case, cases = "", 0
    for one, other in zip_longest(compiled[1:], source[1:]):
        if str(one).startswith("== "):
            case, cases = one, cases + 1
        assert one == other, f"differ in {case}"
    assert cases % rounds == 0
    assert cases > 8 * rounds
    return "\n".join(compiled)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_compiled_and_source_are_equal_in_all_that_comes_out(tmp_path: Path, rounds: int) -> None:
    said = all_that_comes_out(SEED, rounds, tmp_path)
    # The output has some of each kind of outcome.
    for outcome in ("Fault: ", "BrokerFault: ", "IndexError: ", "Refused(", "x-ring-exchange", "(acked=1", "nacked=1"):
        assert said.count(outcome) > rounds // 80, outcome


def test_they_are_equal_on_inputs_that_no_run_before_has_had(tmp_path: Path) -> None:
    assert all_that_comes_out(secrets.token_hex(4), MORE, tmp_path)


@pytest.mark.parametrize(("pure", "runs"), [(None, "compiled"), ("", "compiled"), ("0", "compiled"), ("1", "python")])
def test_version_and_metrics_say_which_runs(pure: str | None, runs: str) -> None:
    assert re.fullmatch(rf"ringproxy \S+, ring format 1, {runs}\n", run(pure, "-m", "proxy", "--version").stdout)
    # The first of the metrics needs nothing that runs.
    code = "from proxy.http.admin.metrics import ProxyCollector as P; print(next(P(*[None] * 12).collect()).samples[0])"
    said = run(pure, "-c", code)
    assert f"'hot_loop': '{runs}'" in said.stdout, said.stderr
    assert "ringproxy_build_info" in said.stdout


def test_source_runs_without_a_look_at_what_is_compiled() -> None:
    code = "import sys, proxy.app; print([m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)])"
    assert "ringproxy__mypyc" in run("0", "-c", code).stdout
    said = run("1", "-c", code).stdout
    assert "proxy/session/client_loop.py" in said
    assert not re.findall(rf"{COMPILED}/[^']+\.so", said)


def test_another_value_is_refused_by_name() -> None:
    said = run("yes", "-m", "proxy", "config")
    assert (said.returncode, said.stderr) == (2, "ring-proxy: RINGPROXY_PURE: 'yes' is not 0 or 1\n")
    assert run("1", "-m", "proxy", "config").returncode == 0
