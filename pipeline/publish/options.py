"""The options of the Data Source `ringproxy` and of the command `publish`: from texts to checked values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import PipelineError
from pipeline.data.live import MANAGEMENT
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError, parse_bool, parse_integer, parse_number
from proxy.settings.sources import load_settings

CONNECTION = {
    "broker_url": "AMQP URL of the broker; its path is the virtual host",
    "broker_password_file": "file whose first line replaces the password in broker_url; read on the driver only",
    "broker_addresses": "HOST:PORT of each node of the cluster, separated by commas (default: that of broker_url)",
    **MANAGEMENT,
    "ca_file": "CA certificates (PEM) of the broker and the management API; must be on every machine that publishes",
    "client_cert_file": "certificate chain (PEM) to show to the broker and the management API; must be on every "
    "machine that publishes",
    "lookup_timeout": "seconds that one attempt to connect to the broker may take",
    "confirm_timeout": "seconds that a row waits for the broker's confirm before it is sent again",
    "on_dead_letter": "the behaviour if a queue would dead-letter under its own name: pass and refuse publish nothing, "
    "rewrite publishes",
}
"""The sidecar's settings that count here too, by their names, and what they mean here."""


@dataclass(frozen=True)
class Log:
    """The path of a write's commit log, and the name by which lines of this stream or program are told from others."""

    path: Path | None
    run: str
    """The stream's checkpoint, by Spark's id of it or its path, to which batch numbers belong; empty if there is
    none.
    """

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Log":
        """Read the commit log's place and run from a write's options, and look at no other option."""
        told = _lowered(given)
        path = told.get("commit_log")
        return cls(Path(path) if path else None, told.get("run") or told.get("checkpointlocation", ""))


@dataclass(frozen=True)
class Options:
    """The checked options of one write."""

    settings: Settings
    """The settings of the connections to broker and management API, with their passwords; others have no effect."""
    exchange: str
    window: int
    """The most rows of one task that wait for confirms; so many are kept in memory, and may come twice after each
    loss.
    """
    retry_timeout: float
    """The seconds for which a task tries without one confirm before it fails."""
    connections: int
    """The most tasks of one write, each with its own connection; 0 for as many as there are partitions."""
    rate: float
    """The messages a second of all tasks together; 0 for no limit."""
    max_depth: int
    """The number of ready messages at which a task waits for a queue's consumers; 0 for no limit."""
    dry_run: bool
    ids: tuple[str, ...]
    """The columns that are not published but go into message ids, to tell apart rows that are equal otherwise."""
    ring: str
    """The ring to publish by, as JSON (docs/reference/journal.md, "A ring"); empty for the one of the bindings."""
    batch: str
    """A text that tells this write from others of equal rows; empty for a stream, whose batches have numbers."""
    log: Log
    task_attempts: int
    """How often Spark tries each task before a write fails."""


OWN = {
    "exchange": "exchange whose ring chooses the queues",
    "window": "maximum number of rows of one task that wait for confirms: a task keeps them in memory, and a lost "
    "connection or a refusal may repeat them (default 5000)",
    "retry_timeout": "seconds without any confirm after which a task fails (default 300)",
    "connections": "maximum number of tasks that publish at once, each with a connection",
    "rate": "maximum messages a second, divided among the connections",
    "max_depth": "wait while a queue has this many ready messages, however long its consumers take",
    "dry_run": "true: say what would go where, and publish nothing",
    "id_columns": "columns, separated by commas, that are not published: they make the message ids of rows differ that "
    "are equal otherwise",
    "ring": "JSON of the ring to publish by, instead of the one that the bindings make now; no look at dead-lettering",
    "batch": "a text that goes into the message ids which are made here",
    "run": "a text that tells this write's batches from another's, in the commit log and in the message ids made here: "
    "keep it when a write is repeated",
    "task_attempts": "as spark.task.maxFailures: what bounds the duplicates of a write that failed (default 4)",
    "commit_log": "file to which each write's ring, counts and possible duplicates are added, on the driver's machine",
}
"""The Data Source's own options."""

_SPARKS = {"checkpointlocation", "path", "queryname"}
"""Options of Spark's own that it hands to a stream's sink, in small letters; they are ignored."""


def parse(given: Mapping[str, str]) -> Options:
    """Return checked options from texts by name, in any case. Raises PipelineError, which names the option."""
    told = _lowered(given)
    for name in told.keys() - _SPARKS:
        if name not in CONNECTION and name not in OWN:
            known = ", ".join(sorted((*CONNECTION, *OWN)))
            raise PipelineError(f"option {name!r} is unknown; there are {known}")
    for name in ("exchange", "broker_url", *(() if told.get("ring") else ("management_url",))):
        if not told.get(name):
            # A default would be another broker than the one that is meant.
            raise PipelineError(f"option {name!r} is missing")
    try:
        settings = load_settings(None, {}, {name: told[name] for name in CONNECTION if name in told})
    except ConfigError as error:
        raise PipelineError(f"option {error}") from None
    window, connections = _whole(told, "window", 5000), _whole(told, "connections", 0)
    if not window:
        raise PipelineError("option 'window': 0 rows would publish nothing")
    retry_timeout = _number(told, "retry_timeout", 300)
    if not retry_timeout:
        raise PipelineError("option 'retry_timeout': within 0 seconds there is no connection")
    rate = _number(told, "rate", 0)
    if rate and not connections:
        raise PipelineError("option 'rate' needs 'connections': it is divided among them")
    return Options(
        settings=settings,
        exchange=told["exchange"],
        window=window,
        retry_timeout=retry_timeout,
        connections=connections,
        rate=rate,
        max_depth=_whole(told, "max_depth", 0),
        dry_run=_flag(told, "dry_run"),
        ids=tuple(part.strip() for part in told.get("id_columns", "").split(",") if part.strip()),
        ring=told.get("ring", ""),
        batch=told.get("batch", ""),
        task_attempts=_whole(told, "task_attempts", 4),
        log=Log.of(told),
    )


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in given.items()}


def _whole(told: Mapping[str, str], name: str, default: int) -> int:
    try:
        return parse_integer(told[name]) if name in told else default
    except ConfigError as error:
        raise PipelineError(f"option {name!r}: {error}") from None


def _number(told: Mapping[str, str], name: str, default: float) -> float:
    try:
        return parse_number(told[name]) if name in told else default
    except ConfigError as error:
        raise PipelineError(f"option {name!r}: {error}") from None


def _flag(told: Mapping[str, str], name: str) -> bool:
    try:
        return parse_bool(told.get(name, "false"))
    except ConfigError as error:
        raise PipelineError(f"option {name!r}: {error}") from None
