"""The command-line options of jobs that read the journal's stream queue."""

import argparse
from pathlib import Path

from pipeline import PipelineError
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import MAX_MESSAGES, check_starting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the queue is and how it is read to a parser."""
    parser.add_argument(
        "--amqp-url", metavar="URL", help="where the journal's stream queue is: amqp://user:password@host:port/vhost"
    )
    parser.add_argument(
        "--amqp-password-file",
        type=Path,
        metavar="FILE",
        help="file whose first line replaces the password in --amqp-url",
    )
    parser.add_argument("--queue", metavar="NAME", help="name of the stream queue: the sidecars' journal_stream")
    parser.add_argument(
        "--starting", metavar="WHERE", help="where a new --out begins in the queue: first (default), next, or an offset"
    )
    parser.add_argument(
        "--max-messages",
        type=int,
        metavar="N",
        help=f"messages of the queue in one batch, at most (default: {MAX_MESSAGES:,})",
    )
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="go on if the queue's retention has removed messages that were not read yet",
    )


def queue_of(options: argparse.Namespace) -> StreamQueue | None:
    """Return the queue that the options name; None where none of them is given.

    Raises PipelineError where one is missing or wrong.
    """
    given = options.amqp_url, options.queue, options.amqp_password_file, *source_options(options).values()
    if all(one is None for one in given):
        return None
    if options.amqp_url is None or options.queue is None:
        raise PipelineError("--amqp-url and --queue need each other")
    if options.starting is not None:
        check_starting(options.starting, "--starting")
    if options.max_messages is not None and options.max_messages < 1:
        raise PipelineError(f"--max-messages: {options.max_messages} is less than 1")
    return StreamQueue.with_password_file(options.amqp_url, options.queue, options.amqp_password_file)


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """Return those of the Data Source's options that were given on the command line, by name."""
    given = {"starting": options.starting, "max_messages": options.max_messages, "lossy": options.lossy or None}
    return {name: str(value) for name, value in given.items() if value is not None}
