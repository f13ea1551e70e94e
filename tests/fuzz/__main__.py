"""Runs the fuzzers: `python -m tests.fuzz SECONDS` all in turn, `python -m tests.fuzz HARNESS [libFuzzer's flags]` one.

The inputs that they find lie in build/fuzz/HARNESS, with the corpus as it has grown.
"""

import importlib
import resource
import subprocess
import sys

from tests.fuzz.corpus import FOLDER, GROWN, HARNESSES, inputs, pack

_FLAGS = ("-timeout=20", "-rss_limit_mb=1024", "-max_len=2048", "-print_final_stats=1", "-verbosity=1")
"""Arguments of libFuzzer: an input that takes longer, or more memory, is found."""


def fuzz(name: str, flags: list[str]) -> None:
    """Run one harness, instrumented, in this process, which libFuzzer ends."""
    atheris = importlib.import_module("atheris")  # on no platform's list of what tests need
    with atheris.instrument_imports(include=["proxy", "ring"]):
        check = importlib.import_module(f"tests.fuzz.{name}").check
    grown = GROWN / name
    grown.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs(name)):
        (grown / f"kept-{number}").write_bytes(data)
    atheris.Setup([name, *_FLAGS, f"-artifact_prefix={grown.parent}/{name}-", *flags, str(grown)], check)
    atheris.Fuzz()


def all_in_turn(seconds: int) -> int:
    """Run each harness for so many seconds; return the exit status, which says whether anything was found."""
    found = []
    for name in HARNESSES:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"==> {name}", flush=True)
        log = GROWN / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            command = [sys.executable, "-m", "tests.fuzz", name, f"-max_total_time={seconds}"]
            status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        lines = log.read_text(errors="replace").splitlines()
        runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
        edges = next((line for line in reversed(lines) if " cov: " in line), "")
        print(f"    {runs} inputs, {cpu:.0f} s of CPU, {edges[edges.find('cov:') :].split('exec')[0]}", flush=True)
        if status:
            found.append(name)
            print("\n".join(lines[-25:]))
    print(f"found something: {', '.join(found)}; the inputs are in {GROWN}" if found else "nothing found")
    return bool(found)


def main() -> None:
    """By the arguments."""
    match sys.argv[1:]:
        case ["pack"]:
            for name in HARNESSES:
                print(f"{FOLDER / name}.txt: {pack(name)} more inputs")
        case [seconds] if seconds.isdigit():
            sys.exit(all_in_turn(int(seconds)))
        case [name, *flags] if name in HARNESSES:
            fuzz(name, flags)
        case _:
            sys.exit(f"one of {', '.join(HARNESSES)}, or a number of seconds for each")


main()
