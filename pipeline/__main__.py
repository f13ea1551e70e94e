"""`python -m pipeline JOB ...`, and what spark-submit runs.

Exit status: 0 fine, 1 findings of a kind that `--fail-on` names, 2 a fault, 3 no record.
"""

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence

from pipeline import FAULT, PipelineError
from pipeline.metrics import write_metrics

JOBS = {
    "usage": "which queue is hot, and when: messages, outcomes and latencies by time and queue",
    "skew": "which keys are hot, and whether keys or the ring make a load uneven",
    "whatif": "the effect of a change of queues or weights, before you make it",
    "publish": "publish a table's rows, each straight to the queue of its key, with confirms",
    "day": "run land, usage, skew and reconcile for a day, and keep the results of each day",
    "land": "make a table of the journal, each record once, which the other jobs read faster",
    "reconcile": "whether every confirmed message was seen by a consumer",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the arguments name, and return its exit status; without arguments take those of the command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m pipeline", description="Spark jobs over the journal of what ringproxy's sidecars published."
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for name, text in JOBS.items():
        command = jobs.add_parser(name, help=text)
        if name in given[:1]:  # The others' imports would be waited for in vain.
            try:
                module = importlib.import_module(f"pipeline.{name}.command")
            except ModuleNotFoundError as error:
                hint = "see docs/how-to/find-hot-keys.md, Install"
                print(f"pipeline {name}: the package {error.name!r} is not installed: {hint}", file=sys.stderr)
                return FAULT
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(run=module.run, started=time.monotonic())
    options = parser.parse_args(given)
    try:
        return _run(options)
    except PipelineError as error:
        print(f"pipeline {options.job}: {error}", file=sys.stderr)
        return error.status
    except Exception:  # an unexpected error must not pass for a verdict
        traceback.print_exc()
        return FAULT


def _run(options: argparse.Namespace) -> int:
    """Run a job; of an error its metrics tell, too, if the options ask for them."""
    try:
        return int(options.run(options))
    except Exception as error:
        if file := vars(options).get("textfile"):
            status = error.status if isinstance(error, PipelineError) else FAULT
            write_metrics(file, options.job, status, time.monotonic() - options.started)
        raise


if __name__ == "__main__":
    sys.exit(main())
