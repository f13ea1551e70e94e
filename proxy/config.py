"""Every setting, in one typed place: defaults, then a TOML file, then the environment, then flags; the last wins."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_type_hints
from urllib.parse import unquote

from yarl import URL

ENVIRONMENT_PREFIX = "RINGPROXY_"

# What Kubernetes puts into every pod's environment for each Service beside it, named `ringproxy` or `ringproxy-...`:
# always a _SERVICE_HOST, and with it the others.
_KUBERNETES_HOST = "SERVICE_HOST"
_KUBERNETES_LINK = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?")

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class ConfigError(ValueError):
    """A mistake in the settings; the message is one line that names the setting, the value and the reason."""


class Address(NamedTuple):
    """A listener's host and port; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it is written: ``127.0.0.1:15680``, ``[::1]:15680``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


OnStale = Literal["serve", "refuse"]
OnDeadLetter = Literal["pass", "rewrite"]
Mechanism = Literal["EXTERNAL", "ANONYMOUS"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _setting(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """What a sidecar is told. Times are in seconds, sizes in bytes."""

    broker_url: URL = _setting(
        URL("amqp://guest:guest@localhost:5672/"), "AMQP URL of the broker; its path is the default virtual host"
    )
    broker_password_file: Path | None = _setting(None, "file whose first line replaces the password in broker_url")
    management_url: URL = _setting(
        URL("http://guest:guest@localhost:15672"), "URL of the management API, with the user that reads bindings"
    )
    management_password_file: Path | None = _setting(
        None, "file whose first line replaces the password in management_url"
    )
    broker_addresses: tuple[Address, ...] = _setting(
        (), "HOST:PORT of the cluster's nodes, tried in turn; broker_url's own where empty"
    )
    amqp_listen: Address = _setting(Address("127.0.0.1", 5673), "where AMQP clients connect")
    allow_mechanisms: tuple[Mechanism, ...] = _setting(
        (), "of EXTERNAL and ANONYMOUS, which AMQP clients may use although they lend this sidecar's identity"
    )
    http_listen: Address = _setting(Address("127.0.0.1", 15680), "where HTTP publishes are taken")
    admin_listen: Address = _setting(Address("127.0.0.1", 15681), "where probes, metrics and rings are served")
    route: tuple[str, ...] = _setting(
        ("*",), "hash exchanges whose publishes a ring routes: NAME or VHOST/NAME patterns, percent-encoded"
    )
    shadow: tuple[str, ...] = _setting(
        (), "hash exchanges passed natively while what a ring would do is counted; wins over route"
    )
    pass_: tuple[str, ...] = _setting((), "hash exchanges passed natively and left alone; wins over shadow")
    sync_interval: float = _setting(15.0, "bindings are read again after a random time up to this")
    settle_time: float = _setting(2.0, "how long an unvouched removal must last before it counts")
    ring_max_age: float = _setting(300.0, "age from which a ring that cannot be read again is stale")
    on_stale: OnStale = _setting("serve", "what a stale ring does: serve, or refuse publishes")
    on_dead_letter: OnDeadLetter = _setting(
        "pass", "an exchange whose queues would dead-letter under another routing key: pass it, or rewrite anyway"
    )
    management_timeout: float = _setting(5.0, "limit of one management API request")
    lookup_timeout: float = _setting(5.0, "how long a publish waits for a ring or a broker connection")
    confirm_timeout: float = _setting(10.0, "how long a publish waits for the broker's confirm")
    drain_time: float = _setting(20.0, "limit of answering what is in flight after SIGTERM")
    max_body: int = _setting(16 * 1024 * 1024, "largest HTTP body taken")
    log_level: LogLevel = _setting("info", "least severe log lines to write")

    def __post_init__(self) -> None:
        """Checks what one field's parser cannot see."""
        for name in ("sync_interval", "management_timeout", "lookup_timeout", "confirm_timeout", "ring_max_age"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name):g} must be greater than 0")
        for name, schemes in (("broker_url", {"amqp", "amqps"}), ("management_url", {"http", "https"})):
            if getattr(self, name).scheme not in schemes:
                raise ConfigError(
                    f"{name}: {hidden(getattr(self, name))!r} does not start with {' or '.join(sorted(schemes))}"
                )
        if ":" in (self.management_url.user or ""):
            raise ConfigError("management_url: HTTP's basic authentication has no way to tell a user with a ':'")
        if self.max_body < 1:
            raise ConfigError(f"max_body: {self.max_body} must be at least 1")
        taken: dict[Address, str] = {}
        for name in ("amqp_listen", "http_listen", "admin_listen"):
            address = getattr(self, name)
            if address.port and address in taken:
                raise ConfigError(f"{name}: {address} is {taken[address]}'s address too")
            taken[address] = name
        if any(not address.port for address in self.broker_addresses):
            raise ConfigError("broker_addresses: port 0 reaches no broker")

    @property
    def default_vhost(self) -> str:
        """The virtual host that broker_url's path names, as RabbitMQ's URI specification reads it; ``/`` for none."""
        path = self.broker_url.raw_path
        return unquote(path[1:]) if len(path) > 1 else "/"

    @property
    def brokers(self) -> tuple[Address, ...]:
        """The addresses of the broker's nodes."""
        port = self.broker_url.port or (5671 if self.broker_url.scheme == "amqps" else 5672)
        return self.broker_addresses or (Address(self.broker_url.host or "", port),)

    @classmethod
    def load(cls, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Self:
        """Settings of a TOML file, the environment and flags (by written name), the last winning.

        Raises ConfigError for an unknown key or a value that does not parse.
        """
        values: dict[str, Any] = {}
        for name, value in _file_values(file).items():
            values[name] = _parse(name, value, f"{file}: ")
        for name, text in _environment_values(environment).items():
            values[name] = _parse(name, text, "")
        for name, text in flags.items():
            values[_attribute(name)] = _parse(_attribute(name), text, "")
        return cls(**values)._with_secrets()

    def _with_secrets(self) -> Self:
        changes: dict[str, Any] = {}
        for url, file in (("broker_url", self.broker_password_file), ("management_url", self.management_password_file)):
            if file is not None:
                changes[url] = getattr(self, url).with_password(_secret(f"{url.split('_')[0]}_password_file", file))
        for name in ("broker_url", "management_url"):
            if changes.get(name, getattr(self, name)).password == HIDDEN:
                kind = name.removesuffix("_url")
                raise ConfigError(f"{name}: the password is {HIDDEN!r}, as `config` shows it: set {kind}_password_file")
        return dataclasses.replace(self, **changes)


def field_names() -> tuple[str, ...]:
    """The settings' names as they are written in TOML and flags: ``pass``, not ``pass_``."""
    return tuple(f.name.rstrip("_") for f in dataclasses.fields(Settings))


def describe(settings: Settings) -> str:
    """The settings as a TOML file that gives them again but for the passwords, which are hidden."""
    lines = []
    for field in dataclasses.fields(Settings):
        name, value = field.name.rstrip("_"), getattr(settings, field.name)
        lines.append(f"# {field.metadata['help']} ({ENVIRONMENT_PREFIX}{name.upper()})")
        lines.append(f"{name} = {_toml(value)}" if value is not None else f'# {name} = ""')
        lines.append("")
    return "\n".join(lines)


HIDDEN = "***"
"""What is shown for a password."""


def hidden(url: URL) -> str:
    """A URL to show: its password replaced."""
    return str(url.with_password(HIDDEN) if url.password else url)


def _toml(value: Any) -> str:
    match value:
        case tuple() if not isinstance(value, Address):
            return "[" + ", ".join(_toml(v) for v in value) + "]"
        case bool() | int() | float():
            return repr(value)
        case URL():
            return _toml(hidden(value))
        case _:
            # TOML's basic strings are JSON's, but for this one character.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _file_values(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    for name in table:
        if name not in field_names():
            raise ConfigError(f"{file}: unknown setting {name!r}")
    return {_attribute(name): value for name, value in table.items()}


def _environment_values(environment: Mapping[str, str]) -> dict[str, str]:
    values = {}
    services = [v.removesuffix(_KUBERNETES_HOST) for v in environment if v.endswith("_" + _KUBERNETES_HOST)]
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if any(variable.startswith(s) and _KUBERNETES_LINK.fullmatch(variable, len(s)) for s in services):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name == "config":
            continue
        if name not in field_names() or variable != variable.upper():
            raise ConfigError(f"unknown setting in the environment: {variable}")
        values[_attribute(name)] = text
    return values


def _attribute(name: str) -> str:
    return "pass_" if name == "pass" else name


def _secret(name: str, file: Path) -> str:
    try:
        line = file.read_bytes().decode().partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {str(file)!r} cannot be read: {error}") from None
    if not line:
        raise ConfigError(f"{name}: {str(file)!r} has an empty first line")
    return line


def _parse(name: str, value: Any, where: str) -> Any:
    """One setting from TOML's value or a string; raises ConfigError."""
    expected = get_type_hints(Settings)[name]
    try:
        if isinstance(value, str):
            _check_text(value)
        return _PARSERS.get(expected, _choice(expected))(value)
    except ConfigError as error:
        raise ConfigError(f"{where}{name.rstrip('_')}: {error}") from None


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError("not UTF-8") from None


def _shown(value: Any) -> str:
    return repr(value) if not isinstance(value, bool) else str(value).lower()


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{_shown(value)} is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{value!r} is not a number") from None
    if not 0 <= number < 1e9:
        raise ConfigError(f"{value!r} is outside 0 to 1e9")
    return number


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{_shown(value)} is not a whole number")
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"{value!r} is not a whole number from 0 up")
    return int(text)


def _address(value: Any) -> Address:
    host, colon, port = str(value).rpartition(":")
    if not colon or not (_PORT.fullmatch(port) and int(port) < 65536):
        raise ConfigError(f"{value!r} is not HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{value!r} is not HOST:PORT (an IPv6 address goes in brackets)")
    if not _is_host(host):
        raise ConfigError(f"{value!r} is not HOST:PORT: no name or address of a host")
    return Address(host, int(port))


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    # Empty would mean every interface; that is written 0.0.0.0 or [::].
    return bool(host) and host.isprintable() and not set(" /@[]") & set(host)


def _url(value: Any) -> URL:
    # The value may hold a password, so it is not repeated.
    try:
        url = URL(str(value))
        port = url.port
    except ValueError:
        raise ConfigError("not a URL; a '/', '?', '#' or '@' in a password is percent-encoded") from None
    if not url.host or port == 0:
        raise ConfigError("not a URL like amqp://user:password@host:5672/ or http://user:password@host:15672")
    if url.query_string or url.fragment:
        raise ConfigError("a URL's part after '?' or '#' would be ignored; leave it out")
    return url


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{_shown(value)} is not a file's path")
    return Path(value)


def _patterns(value: Any) -> tuple[str, ...]:
    items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(f"{_shown(value)} is not a list of patterns")
    for item in items:
        if item.count("/") > 1 or not all(item.split("/")):
            raise ConfigError(f"{item!r} is not NAME or VHOST/NAME: a '/' in a name is written %2F")
    return tuple(items)


def _listed(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A list, or a string with commas between its items."""

    def parse_list(value: Any) -> tuple[Any, ...]:
        items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ConfigError(f"{_shown(value)} is not a list")
        return tuple(map(parse, items))

    return parse_list


def _choice(expected: Any) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if value not in get_args(expected):
            raise ConfigError(f"{_shown(value)} is not one of {', '.join(get_args(expected))}")
        return value

    return parse


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    float: _number,
    int: _integer,
    Address: _address,
    URL: _url,
    Path | None: _path,
    tuple[str, ...]: _patterns,
    tuple[Address, ...]: _listed(_address),
    tuple[Mechanism, ...]: _listed(_choice(Mechanism)),
}


def help_of(name: str) -> str:
    """A setting's meaning, by its written name."""
    field = next(f for f in dataclasses.fields(Settings) if f.name.rstrip("_") == name)
    return str(field.metadata["help"]).replace("%", "%%")
