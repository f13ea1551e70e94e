"""`python -m pipeline JOB ...`, and what spark-submit runs.

Exit status: 0 done, 1 the verdict is bad or something was set aside, 2 an error, 3 no record.
"""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

from pipeline import NoRecordError, PipelineError

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
                return 2
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(given)
    try:
        return int(options.run(options))
    except PipelineError as error:
        print(f"pipeline {options.job}: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoRecordError) else 2
    except Exception:  # an unexpected error must not pass for a verdict
        traceback.print_exc()
        return 2


if __name__ == "__main__":
    sys.exit(main())
