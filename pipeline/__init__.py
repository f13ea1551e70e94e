"""The data pipeline: Spark jobs over what the sidecars have published, and bulk publishing.

Imports `ring`, the one source of truth for where a key goes; of `proxy` only what reads bindings and speaks AMQP.
"""

FINE, FINDINGS, FAULT, NO_RECORD = 0, 1, 2, 3
"""The exit statuses of jobs."""


class PipelineError(Exception):
    """An error that the user of a job can correct; the message is one line that says what is wrong and where."""

    status = FAULT


class NoRecordError(PipelineError):
    """The error of a journal that has no record of the time, or of the exchange, that a job was asked about."""

    status = NO_RECORD
