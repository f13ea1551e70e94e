"""Every setting, in one typed place: its type, its default, its help, and what must hold among them."""

import dataclasses
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NewType, Self
from urllib.parse import unquote

from yarl import URL

from proxy.settings.credentials import of_url, secret
from proxy.settings.parse import (
    Address,
    ConfigError,
    place_of,
)
from proxy.settings.tries import tries_take

JournalKey = Literal["plain", "hash", "none"]
OnStale = Literal["serve", "refuse"]
OnDeadLetter = Literal["pass", "rewrite", "refuse"]
Exactness = Literal["any", "exact"]
RetryThen = Literal["dead-letter", "stop"]
Mechanism = Literal["EXTERNAL", "ANONYMOUS"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
HostName = NewType("HostName", str)

MOST_WINDOW = 2**16 - 1
"""The highest prefetch of AMQP."""

HIDDEN = "***"
"""The text that is shown in place of a password."""

ANY_HOST = "*"
"""The item of `host_names` that stands for every name."""


def _setting(default: Any, text: str, *, positive: bool = False, group: str = "", live: bool = False) -> Any:
    """Return a setting's field, with its help; a `positive` setting must be above 0.

    `group` is what this setting, and all below it up to the next group, are for. A `live` setting takes effect without
    a restart.
    """
    metadata = {"help": text, "positive": positive, "group": group, "live": live}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """All settings of one sidecar, checked as they are made. Times are in seconds, sizes in bytes."""

    broker_url: URL = _setting(
        URL("amqp://guest:guest@localhost:5672/"),
        "AMQP URL of the broker; its path is the default virtual host",
        group="The broker",
    )
    broker_password_file: Path | None = _setting(None, "file whose first line replaces the password in broker_url")
    broker_addresses: tuple[Address, ...] = _setting(
        (), "HOST:PORT of each node of a cluster, tried in turn; if empty, host and port of broker_url"
    )
    broker_connections: int = _setting(1, "number of broker connections for HTTP publishes, for each virtual host")
    kept_connections: int | None = _setting(
        None,
        "maximum number of broker connections that stay open behind an AMQP client that has closed its own, for the "
        "next client with the same login and limits; without it none do",
    )
    kept_connection_time: float = _setting(
        60.0, "seconds after its login at which such a connection serves no further client", positive=True
    )
    management_url: tuple[URL, ...] = _setting(
        (URL("http://guest:guest@localhost:15672"),),
        "URL of the management API, with the user that reads bindings; or URLs of several nodes of one cluster",
        group="The management API",
    )
    management_password_file: Path | None = _setting(
        None, "file whose first line replaces the password in each URL of management_url"
    )
    oauth_token_url: URL | None = _setting(
        None,
        "URL where an OAuth 2 authorization server gives tokens, one of which then replaces the password in broker_url "
        "and in management_url; a password file wins over it",
        group="OAuth 2",
    )
    oauth_client_id: str | None = _setting(None, "id of the client that the sidecar is to the authorization server")
    oauth_client_secret_file: Path | None = _setting(None, "file whose first line is the secret of oauth_client_id")
    oauth_scope: str | None = _setting(
        None, "scopes to ask for, with spaces between them; if empty, those that the authorization server gives unasked"
    )
    amqp_listen: Address = _setting(Address("127.0.0.1", 5673), "address where AMQP clients connect", group="Listeners")
    http_listen: Address = _setting(Address("127.0.0.1", 15680), "address where HTTP clients publish")
    admin_listen: Address = _setting(Address("127.0.0.1", 15681), "address of the probes, the metrics and the rings")
    admin_console: bool = _setting(True, "show this sidecar as a page at the root of admin_listen")
    http_socket: Path | None = _setting(
        None, "path of a unix socket that takes HTTP publishes too, from anyone who may open it"
    )
    host_names: tuple[HostName, ...] = _setting(
        (), "further host names by which requests may address http_listen and admin_listen; '*' for any"
    )
    tokens_file: Path | None = _setting(
        None, "TOML file of bearer tokens, and of the exchanges that each may publish to over HTTP", group="Access"
    )
    management_publish: bool | None = _setting(
        None,
        "take the management API's publish, from broker users with name and password; by default only "
        "without tokens_file and client_ca_file",
    )
    allow_mechanisms: tuple[Mechanism, ...] = _setting(
        (),
        "SASL mechanisms by which AMQP clients may log in although the broker then sees the sidecar or a guest: "
        "EXTERNAL, ANONYMOUS",
    )
    insecure: bool = _setting(False, "let anyone publish over HTTP, even where http_listen is not a loopback address")
    tls_cert_file: Path | None = _setting(
        None, "certificate chain (PEM) of the HTTP and AMQP listeners, which then speak TLS only", group="TLS"
    )
    tls_key_file: Path | None = _setting(None, "private key (PEM, without a password) of tls_cert_file")
    client_ca_file: Path | None = _setting(
        None,
        "CA certificates (PEM); clients of the HTTP and AMQP listeners must show a certificate signed by one of them",
    )
    ca_file: Path | None = _setting(
        None,
        "CA certificates (PEM) to trust for the broker, the management API and the authorization server; "
        "if empty, those of the system",
    )
    client_cert_file: Path | None = _setting(
        None, "certificate chain (PEM) to show to the broker, the management API and the authorization server"
    )
    client_key_file: Path | None = _setting(None, "private key (PEM, without a password) of client_cert_file")
    route: tuple[str, ...] = _setting(
        ("*",),
        "hash exchanges whose publishes the ring routes: patterns NAME or VHOST/NAME, percent-encoded; "
        "an exchange before them must be named without a wildcard",
        group="Exchanges",
        live=True,
    )
    shadow: tuple[str, ...] = _setting(
        (),
        "hash exchanges whose publishes go to the exchange itself, while the ring's choices are counted; "
        "wins over route",
        live=True,
    )
    pass_: tuple[str, ...] = _setting(
        (),
        "hash exchanges that the sidecar leaves alone: publishes go to the exchange itself; wins over shadow",
        live=True,
    )
    route_share: float = _setting(
        100.0,
        "percent of the slots, the same ones at every sidecar, whose keys the rings of exchanges in route route; "
        "publishes with other keys go to the exchange itself, as in shadow",
        live=True,
    )
    on_dead_letter: OnDeadLetter = _setting(
        "pass",
        "publishes to an exchange with a queue that would dead-letter under its own name: pass them to the "
        "exchange, rewrite (route them by the ring all the same), or refuse them",
    )
    groups: tuple[str, ...] = _setting(
        (),
        "hash exchanges whose names AMQP clients may consume from, as a group: patterns as in route",
        group="Consumer groups",
        live=True,
    )
    groups_in_series: tuple[str, ...] = _setting(
        (),
        "groups whose clients work on one message of a key at a time, and get a message that they return again later: "
        "patterns as in route; a consumer can ask for either with the argument x-ring-in-series",
        live=True,
    )
    groups_window: int = _setting(
        200, "number of messages of one shard that wait for a client in series, or are with it", positive=True
    )
    groups_retry_delay: float = _setting(
        1.0, "seconds until a client in series gets a message again that it has returned; they double each time"
    )
    groups_retry_delay_max: float = _setting(60.0, "maximum of such seconds")
    groups_retry_limit: int | None = _setting(
        None, "number of times that clients in series get a message before groups_retry_then; without it no limit"
    )
    groups_retry_then: RetryThen = _setting(
        "dead-letter",
        "the end of a message that was tried so often, or ends its clients: dead-letter (publish it to "
        "groups_dead_letter and ack it), or stop (its key stands still)",
    )
    groups_dead_letter: str | None = _setting(
        None, "exchange that dead letters of groups in series are published to, with their own routing keys"
    )
    groups_operators: tuple[str, ...] = _setting(
        (), "RabbitMQ users who may release, skip or dead-letter the first message of a key in series"
    )
    groups_hold_max: float | None = _setting(
        None,
        "seconds from the first return of a message until groups_retry_then, or until its shard stands; 0 for no "
        "limit, by default 3,600, and 600 or 1 GiB behind it before RabbitMQ 4.3, or what groups_retry_limit takes",
    )
    groups_require: Exactness = _setting(
        "any",
        "the groups that clients may consume from: any, or exact (balanced, and in order while they are)",
    )
    groups_ack_timeout: float = _setting(
        600.0, "seconds after which a member that has not acked a delivery gives its shard away; 0 for never"
    )
    groups_leave_timeout: float = _setting(
        30.0,
        "seconds for which a shard that moves waits for the acks of its messages, which then come again; "
        "0 for as long as groups_ack_timeout",
    )
    sync_interval: float = _setting(
        15.0,
        "maximum seconds between two readings of an exchange's bindings; each wait is random, and no longer",
        positive=True,
        group="Rings",
    )
    settle_time: float = _setting(
        2.0, "seconds that a binding must be missing from all readings before its removal counts"
    )
    ring_max_age: float = _setting(
        300.0, "seconds since the last good reading after which a ring is stale", positive=True
    )
    on_stale: OnStale = _setting(
        "serve", "the behaviour while a ring is stale: serve (route by it all the same), or refuse (refuse publishes)"
    )
    ring_cache_dir: Path | None = _setting(
        None,
        "folder where the last good rings are kept for a start while the management API is away; if empty, "
        "none are kept",
    )
    management_timeout: float = _setting(
        5.0, "maximum seconds of one request to one node of the management API", positive=True, group="Time limits"
    )
    lookup_timeout: float = _setting(
        5.0,
        "maximum seconds that a publish waits for its exchange to be read, or for a broker connection",
        positive=True,
    )
    confirm_timeout: float = _setting(
        10.0, "maximum seconds that an HTTP publish waits for the broker's confirm", positive=True
    )
    drain_time: float = _setting(20.0, "maximum seconds after SIGTERM to answer what is in flight")
    body_timeout: float = _setting(
        30.0,
        "seconds by which an HTTP client may fall behind a rate of 64 KiB/s when it sends a body or reads an answer",
        positive=True,
    )
    max_sessions: int = _setting(
        1000,
        "maximum number of AMQP client connections; each has a broker connection of its own",
        group="Limits",
        live=True,
    )
    max_http_connections: int = _setting(
        11_000, "maximum number of connections to http_listen and http_socket together, idle ones included", live=True
    )
    max_in_flight: int = _setting(
        10_000, "maximum number of messages over HTTP that wait for the broker's confirm", live=True
    )
    max_in_flight_bytes: int = _setting(
        64 * 1024 * 1024, "maximum bytes of HTTP requests and answers in memory at once", live=True
    )
    max_body: int = _setting(16 * 1024 * 1024, "maximum bytes of one message over HTTP, alone or in a batch", live=True)
    max_batch: int = _setting(10_000, "maximum number of messages in one batch", live=True)
    max_batch_body: int = _setting(128 * 1024 * 1024, "maximum bytes of one batch, decompressed", live=True)
    journal_dir: Path | None = _setting(
        None, "folder for the journal's files; without it and journal_stream there is no journal", group="The journal"
    )
    journal_stream: str | None = _setting(
        None, "stream queue of the default virtual host that takes the journal, in place of journal_dir"
    )
    journal_sample: float = _setting(
        1.0, "share of the keys whose publishes are recorded, above 0 and at most 1", positive=True
    )
    journal_key: JournalKey = _setting(
        "plain", "how a record keeps the key: plain (as it is), hash (its keyed hash), or none (not at all)"
    )
    journal_key_file: Path | None = _setting(None, "file whose first line is the secret of journal_key = hash")
    journal_file_seconds: float = _setting(60.0, "age in seconds at which a journal file is finished", positive=True)
    journal_file_bytes: int = _setting(64 * 1024 * 1024, "compressed size at which a journal file is finished")
    journal_max_bytes: int = _setting(
        10 * 1024**3, "compressed size of all files in journal_dir at which further records are dropped"
    )
    trace_sample: float | None = _setting(
        None,
        "share of publishes and of groups' deliveries that begin a trace, from 0 to 1; what belongs to a sampled trace "
        "is always traced; without the setting nothing is",
        group="Traces",
    )
    log_level: LogLevel = _setting(
        "info", "least severe log lines to write: debug, info, warning, error", group="The log", live=True
    )
    log_format: LogFormat = _setting("text", "form of the log: text, or json with one object a line")

    def __post_init__(self) -> None:
        """Check what the parser of one field cannot see. Raises ConfigError."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata["positive"] and value <= 0:
                raise ConfigError(f"{field.name}: {value:g} must be greater than 0")
            if type(value) is int and value < 1:
                raise ConfigError(f"{field.name}: {value} must be at least 1")
        self._check_urls()
        self._check_oauth()
        self._check_listeners()
        self._check_tls()
        self._check_groups()
        self._check_journal()
        if self.route_share > 100:
            raise ConfigError(f"route_share: {self.route_share:g} is more than 100 (percent)")
        if self.trace_sample is not None and self.trace_sample > 1:
            raise ConfigError(f"trace_sample: {self.trace_sample:g} is more than 1")

    def _check_urls(self) -> None:
        """Check the addresses of the broker and of the management API. Raises ConfigError, which names the setting."""
        if self.broker_url.scheme not in ("amqp", "amqps"):
            # Where a URL begins wrongly, what in it is a password cannot be told.
            raise ConfigError("broker_url: does not start with amqp:// or amqps://")
        for number, url in enumerate(self.management_url, 1):
            if why := self._management_mistake(url):
                raise ConfigError(f"management_url: {place_of(number, len(self.management_url))}{why}")
        if any(not address.port for address in self.broker_addresses):
            raise ConfigError("broker_addresses: port 0 reaches no broker")

    def _check_oauth(self) -> None:
        """Check that the settings of OAuth 2 are complete and replace no others. Raises ConfigError."""
        url = self.oauth_token_url
        if url is None:
            for name in ("oauth_client_id", "oauth_client_secret_file", "oauth_scope"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name}: needs oauth_token_url too")
            return
        if url.scheme not in ("http", "https"):
            raise ConfigError("oauth_token_url: does not start with http:// or https://")
        if url.user is not None or url.password is not None:
            raise ConfigError("oauth_token_url: has a user; set oauth_client_id and oauth_client_secret_file")
        for name in ("oauth_client_id", "oauth_client_secret_file"):
            if getattr(self, name) is None:
                raise ConfigError(f"oauth_token_url: needs {name} too")
        if self.broker_password_file is not None and self.management_password_file is not None:
            raise ConfigError(
                "oauth_token_url: has no effect, because broker_password_file and management_password_file have both "
                "passwords; leave one of them out"
            )

    def _management_mistake(self, url: URL) -> str:
        """Return what is wrong with one URL of the management API, without its credentials; empty if nothing is."""
        if url.scheme not in ("http", "https"):
            return "does not start with http:// or https://"
        if ":" in (url.user or ""):
            return "has a ':' in its user, which HTTP's Basic authentication cannot carry"
        if url.path.rstrip("/").endswith("/api"):
            return "ends in /api, which the sidecar appends itself; leave /api off, as in http://user@host:15672"
        (user, password), (first_user, first_password) = of_url(url), of_url(self.management_url[0])
        if user != first_user or (password != first_password and self.management_password_file is None):
            return "has another user or password than the first URL; all nodes of a cluster take the same"
        return ""

    def _check_listeners(self) -> None:
        """Check that no two listeners share an address, and that not everybody may publish. Raises ConfigError."""
        taken: dict[Address, str] = {}
        for name in ("amqp_listen", "http_listen", "admin_listen"):
            address = getattr(self, name)
            if address.port and address in taken:
                raise ConfigError(
                    f"{name}: {address} is the address of {taken[address]} too; each listener needs its own"
                )
            taken[address] = name
        if self.is_open and not self.insecure:
            raise ConfigError(
                f"http_listen: {self.http_listen} is not a loopback address, so anyone who reaches it could publish: "
                "set tokens_file or client_ca_file (or insecure = true)"
            )

    def _check_tls(self) -> None:
        """Check that certificates come with their keys, and that no setting of TLS is without effect.

        Raises ConfigError, which names the setting.
        """
        for one, other in (("tls_cert_file", "tls_key_file"), ("client_cert_file", "client_key_file")):
            for given, missing in ((one, other), (other, one)):
                if getattr(self, given) is not None and getattr(self, missing) is None:
                    raise ConfigError(f"{given}: needs {missing} too")
        if self.client_ca_file is not None and self.tls_cert_file is None:
            raise ConfigError("client_ca_file: clients show certificates over TLS only; set tls_cert_file")
        if not self.reaches_by_tls:
            for name in ("ca_file", "client_cert_file"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name}: has no effect, because neither broker_url is amqps://"
                        " nor management_url or oauth_token_url https://"
                    )

    def _check_groups(self) -> None:
        """Check that no setting of groups is without effect or contradicts another. Raises ConfigError."""
        if self.groups_in_series and not self.groups:
            raise ConfigError("groups_in_series: has no effect, because groups names no exchange; set groups too")
        if self.groups_window > MOST_WINDOW:
            raise ConfigError(f"groups_window: {self.groups_window} is more than {MOST_WINDOW}, the highest prefetch")
        for name in ("groups_retry_limit", "groups_dead_letter", "groups_operators"):
            if getattr(self, name) not in (None, ()) and not self.groups:
                raise ConfigError(f"{name}: has no effect, because groups names no exchange; set groups too")
        if self.groups_dead_letter is not None and self.groups_dead_letter in self.groups:
            raise ConfigError(
                f"groups_dead_letter: {self.groups_dead_letter!r} is a group itself; name another exchange"
            )
        if (
            self.groups_retry_limit is not None
            and self.groups_retry_then == "dead-letter"
            and not self.groups_dead_letter
        ):
            raise ConfigError(
                f"groups_retry_limit: {self.groups_retry_limit} tries end in a dead letter, and groups_dead_letter"
                " names no exchange for it; set that, or groups_retry_then = stop"
            )
        if self.groups_dead_letter is not None and len(self.groups_dead_letter.encode()) > 255:
            raise ConfigError("groups_dead_letter: longer than the 255 bytes of an exchange's name")
        if self.groups_retry_delay > self.groups_retry_delay_max:
            raise ConfigError(
                f"groups_retry_delay: {self.groups_retry_delay:g} is more than groups_retry_delay_max,"
                f" {self.groups_retry_delay_max:g}"
            )

        self._check_hold()

    def _check_hold(self) -> None:
        """Raise ConfigError for a time to hold messages in which they cannot be tried as the other settings say."""
        hold, limit = self.groups_hold_max, self.groups_retry_limit
        if hold is not None and not self.groups:
            raise ConfigError("groups_hold_max: has no effect, because groups names no exchange; set groups too")
        if not hold:
            return
        if hold < self.groups_retry_delay_max:
            raise ConfigError(
                f"groups_hold_max: {hold:g} is less than groups_retry_delay_max, {self.groups_retry_delay_max:g}"
            )
        takes = tries_take(self.groups_retry_delay, self.groups_retry_delay_max, limit or 0)
        if takes > hold:
            raise ConfigError(
                f"groups_hold_max: {hold:g} s are over before a message was tried groups_retry_limit = {limit} times,"
                f" which takes {takes:g} s with groups_retry_delay and groups_retry_delay_max"
            )

    def _check_journal(self) -> None:
        """Check that the settings of the journal agree. Raises ConfigError."""
        if self.journal_dir is not None and self.journal_stream is not None:
            raise ConfigError("journal_stream: journal_dir is set too; set only one of them")
        if self.journal_stream is not None and len(self.journal_stream.encode()) > 255:
            raise ConfigError("journal_stream: longer than the 255 bytes of a queue's name")
        if self.journal_sample > 1:
            raise ConfigError(f"journal_sample: {self.journal_sample:g} is more than 1")
        if (self.journal_key == "hash") != (self.journal_key_file is not None):
            given, needed = "journal_key", "journal_key_file"
            if self.journal_key_file is not None:
                given, needed = "journal_key_file", "journal_key = hash"
            raise ConfigError(f"{given}: needs {needed} too")

    @property
    def management_encrypted(self) -> bool:
        """Whether some URL of the management API asks for TLS."""
        return any(url.scheme == "https" for url in self.management_url)

    @property
    def reaches_by_tls(self) -> bool:
        """Whether the broker, the management API or the authorization server is reached by TLS."""
        by_oauth = self.oauth_token_url is not None and self.oauth_token_url.scheme == "https"
        return self.broker_url.scheme == "amqps" or self.management_encrypted or by_oauth

    @property
    def is_open(self) -> bool:
        """Whether anyone publishes over HTTP, from other machines too."""
        return not (is_loopback(self.http_listen.host) or self.tokens_file or self.client_ca_file)

    @property
    def takes_management_publish(self) -> bool:
        """Whether users of the broker publish with their name and password, as over the management API."""
        if self.management_publish is None:
            return self.tokens_file is None and self.client_ca_file is None
        return self.management_publish

    @property
    def default_vhost(self) -> str:
        """The virtual host that broker_url's path names, as RabbitMQ's URI specification reads it; ``/`` for none."""
        path = self.broker_url.raw_path
        return unquote(path[1:]) if len(path) > 1 else "/"

    @property
    def brokers(self) -> tuple[Address, ...]:
        port = self.broker_url.port or (5671 if self.broker_url.scheme == "amqps" else 5672)
        return self.broker_addresses or (Address(self.broker_url.host or "", port),)

    def with_secrets(self) -> Self:
        """Return the settings with the passwords of their files in the URLs. Raises ConfigError."""
        urls = {"broker_url": (self.broker_url,), "management_url": self.management_url}
        for name, file in (("broker", self.broker_password_file), ("management", self.management_password_file)):
            if file is not None:
                password = secret(f"{name}_password_file", file)
                urls[f"{name}_url"] = tuple(url.with_password(password) for url in urls[f"{name}_url"])
            if self.oauth_token_url is None and any(url.password == HIDDEN for url in urls[f"{name}_url"]):
                raise ConfigError(
                    f"{name}_url: the password is {HIDDEN!r}, which `config` shows in place of one; set "
                    f"{name}_password_file"
                )
        (broker_url,) = urls["broker_url"]
        return dataclasses.replace(self, broker_url=broker_url, management_url=urls["management_url"])


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host: 127.0.0.0/8, ::1, localhost; no name is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
