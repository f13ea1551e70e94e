"""Settings from a TOML file, then the environment, then flags, of which the last wins; and settings as text."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from yarl import URL

from proxy.settings.config import ANY_HOST, HIDDEN, HostName, Mechanism, Settings
from proxy.settings.contents import bounded
from proxy.settings.parse import (
    Address,
    ConfigError,
    check_text,
    choice,
    did_you_mean,
    listed,
    parse_address,
    parse_bool,
    parse_host,
    parse_integer,
    parse_name,
    parse_number,
    parse_path,
    parse_patterns,
    parse_url,
    parse_urls,
)
from ring.compiled import PURE

ENVIRONMENT_PREFIX = "RINGPROXY_"

# Kubernetes puts these variables into every pod's environment for each Service beside it, named `ringproxy` or
# `ringproxy-...`: always a _SERVICE_HOST, and with it the others.
_KUBERNETES_HOST = "SERVICE_HOST"
_KUBERNETES_LINK = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?")


Origin = Literal["file", "environment", "flag"]
"""Where the value of a setting comes from."""


class Sources(NamedTuple):
    """The places that settings come from; of those that give a setting, the last wins."""

    file: Path | None
    environment: Mapping[str, str]
    flags: Mapping[str, str]
    """The values of flags, by the settings' written names."""

    def settings(self, of_file: Mapping[str, Any]) -> Settings:
        """Return the settings, without the passwords of files; `of_file` are the file's values, by attribute.

        Raises ConfigError for an unknown variable or a value that does not parse.
        """
        values = dict(of_file)
        for name, text in _environment_values(self.environment).items():
            values[name] = _parse(name, text, "")
        for name, text in self.flags.items():
            values[attribute_of(name)] = _parse(attribute_of(name), text, "")
        return Settings(**values)

    def outside_file(self) -> dict[str, Origin]:
        """Return the settings that the file cannot change, by their attributes: the environment or a flag has them."""
        origins: dict[str, Origin] = dict.fromkeys(_environment_values(self.environment), "environment")
        return origins | dict.fromkeys(map(attribute_of, self.flags), "flag")


def load_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str], *, secrets: bool = True
) -> Settings:
    """Return the settings of a TOML file, the environment and flags (by written name); the last wins.

    Raises ConfigError for an unknown key or a value that does not parse. Without `secrets` no password is read.
    """
    made = Sources(file, environment, flags).settings(file_values(file))
    return made.with_secrets() if secrets else made


def field_names() -> tuple[str, ...]:
    """Return the settings' names as they are written in TOML and flags: ``pass``, not ``pass_``."""
    return tuple(written_name(field.name) for field in dataclasses.fields(Settings))


def written_name(attribute: str) -> str:
    """Return a setting's name as it is written in TOML and flags: ``pass`` for the attribute ``pass_``."""
    return attribute.rstrip("_")


def groups() -> Mapping[str, tuple[str, ...]]:
    """Return the settings' written names by what they are for, in the order of `Settings`."""
    found: dict[str, tuple[str, ...]] = {}
    title = ""
    for field in dataclasses.fields(Settings):
        title = field.metadata["group"] or title
        found[title] = (*found.get(title, ()), field.name.rstrip("_"))
    return found


SWITCHES = frozenset(field.name for field in dataclasses.fields(Settings) if field.type in (bool, bool | None))
"""Settings that are on or off."""


def file_values(file: Path | None) -> dict[str, Any]:
    """Return the values in a TOML file, by the settings' attributes; empty without a file. Raises ConfigError."""
    if file is None:
        return {}
    try:
        table = tomllib.loads(bounded(file).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    for name in table:
        if name not in field_names():
            raise ConfigError(f"{file}: unknown setting {name!r}{did_you_mean(name, field_names())}")
    return {attribute_of(name): _parse(attribute_of(name), value, f"{file}: ") for name, value in table.items()}


def _environment_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the variables that begin with ENVIRONMENT_PREFIX, by the settings' attributes.

    The variables that Kubernetes makes for services are left out. Raises ConfigError for one that is no setting.
    """
    values = {}
    services = [v.removesuffix(_KUBERNETES_HOST) for v in environment if v.endswith("_" + _KUBERNETES_HOST)]
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if any(variable.startswith(s) and _KUBERNETES_LINK.fullmatch(variable, len(s)) for s in services):
            continue
        if variable == PURE:  # heeded at the first import
            if text not in ("", "0", "1"):
                raise ConfigError(f"{variable}: {text!r} is not 0 or 1")
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in ("config", "compile"):  # the latter is for the install, and may be exported still
            continue
        if name not in field_names() or variable != variable.upper():
            known = [ENVIRONMENT_PREFIX + name.upper() for name in field_names()]
            raise ConfigError(f"unknown setting in the environment: {variable}{did_you_mean(variable, known)}")
        values[attribute_of(name)] = text
    return values


def attribute_of(name: str) -> str:
    """Return the attribute of a setting's written name."""
    return "pass_" if name == "pass" else name


def from_shown(name: str, value: Any) -> Any:
    """Return the value of a setting, by its attribute, that `shown` shows so. Raises ConfigError."""
    return _parse(name, value, "")


def _parse(name: str, value: Any, where: str) -> Any:
    """Return one setting's value, from TOML's or from a string. Raises ConfigError."""
    expected = get_type_hints(Settings)[name]
    try:
        if isinstance(value, str):
            check_text(value)
        return _PARSERS.get(expected, choice(expected))(value)
    except ConfigError as error:
        raise ConfigError(f"{where}{name.rstrip('_')}: {error}") from None


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    bool: parse_bool,
    bool | None: parse_bool,
    float: parse_number,
    float | None: parse_number,
    int: parse_integer,
    int | None: parse_integer,
    Address: parse_address,
    URL: parse_url,
    URL | None: parse_url,
    tuple[URL, ...]: parse_urls,
    Path | None: parse_path,
    str | None: parse_name,
    tuple[str, ...]: parse_patterns,
    tuple[Address, ...]: listed(parse_address),
    tuple[HostName, ...]: listed(lambda value: value if value == ANY_HOST else parse_host(value)),
    tuple[Mechanism, ...]: listed(choice(Mechanism)),
}


def help_of(name: str) -> str:
    """Return a setting's help with its default, by its written name, for argparse."""
    field = next(f for f in dataclasses.fields(Settings) if f.name.rstrip("_") == name)
    value = field.default
    if isinstance(value, tuple) and not isinstance(value, Address):
        default = ",".join(map(str, value))
    else:
        default = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{field.metadata['help']}{default and f' (default: {default})'}".replace("%", "%%")


def describe(settings: Settings) -> str:
    """Return the settings as a TOML file that gives them again but for the passwords, which are hidden."""
    lines = []
    for field in dataclasses.fields(Settings):
        if field.metadata["group"]:
            lines += [f"## {field.metadata['group']}", ""]
        name, value = field.name.rstrip("_"), getattr(settings, field.name)
        lines.append(f"# {field.metadata['help']} ({ENVIRONMENT_PREFIX}{name.upper()})")
        lines.append(f"{name} = {as_toml(value)}" if value is not None else f'# {name} = ""')
        lines.append("")
    return "\n".join(lines)


def hidden(url: URL) -> str:
    """Return a URL to show, its password replaced."""
    return str(url.with_password(HIDDEN) if url.password else url)


def shown(value: Any) -> Any:
    """Return a setting's value as TOML and JSON have it; the password of a URL is hidden, and None stays."""
    match value:
        case tuple() if not isinstance(value, Address):
            return [shown(v) for v in value]
        case bool() | int() | float() | None:
            return value
        case URL():
            return hidden(value)
        case _:
            return str(value)


def as_toml(value: Any) -> str:
    """Return a setting's value, which is not None, as TOML; the password of a URL is hidden."""
    # TOML's values are JSON's, but for this one character.
    return json.dumps(shown(value), ensure_ascii=False).replace("\x7f", "\\u007f")
