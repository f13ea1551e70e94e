"""`python -m pipeline JOB ...`, and what spark-submit runs. Exit status: 0 done, 1 a verdict against, 2 an error."""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

from pipeline import PipelineError

JOBS = {
    "usage": "messages, bytes, outcomes and latencies by window, exchange and queue",
    "skew": "hot keys, and what of an uneven load is the ring's and what the keys'",
    "whatif": "what a proposed ring would move, and what each queue would get",
    "publish": "publish a table's rows straight to the queues, with confirms",
    "collect": "the journal of a stream queue as files, which the other jobs read",
    "reconcile": "the journal against what consumers saw",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the arguments name, and return its exit status; without arguments take those of the command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="ringproxy's data pipeline on Spark.")
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for name, text in JOBS.items():
        command = jobs.add_parser(name, help=text)
        if name in given[:1]:  # The others' imports would be waited for in vain.
            try:
                module = importlib.import_module(f"pipeline.{name}.command")
            except ModuleNotFoundError as error:
                hint = "see docs/how-to/pipeline.md, Install"
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
        return 2
    except Exception:  # a defect of ours, which must not pass for a verdict
        traceback.print_exc()
        return 2


if __name__ == "__main__":
    sys.exit(main())
