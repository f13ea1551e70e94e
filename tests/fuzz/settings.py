"""Settings, from a TOML file and as text.

It raises only `ConfigError`, in one line. No password shows in the error or in `config`. `config` gives the same
settings again.
"""

import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.sources import describe, field_names, load_settings

SECRET = "hush-hush"

_NAMES = field_names()
_URLS = ("broker_url", "management_url")


def check(data: bytes) -> None:
    """Only ConfigError is raised, in one line; it shows no password, nor does `config`, which gives settings again."""
    what, rest = data[0] if data else 0, data[1:]
    with suppress(ConfigError), tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(rest)
        file.flush()
        _check(load_settings(Path(file.name), {}, {}))
    text = rest.decode("utf-8", "surrogateescape")
    url = _URLS[what % 2]
    scheme, _, where = text.partition(":")
    for value in (f"amqp://me:{SECRET}@{text}", f"{scheme}://me:{SECRET}@{where}"):
        shown = _load({url: value})
        assert SECRET not in shown, shown
    _load({_NAMES[what % len(_NAMES)]: text})


def _load(flags: dict[str, str]) -> str:
    """Return what is shown of settings, or of the mistake in them."""
    try:
        settings = load_settings(None, {}, flags)
    except ConfigError as error:
        shown = str(error)
    else:
        _check(settings)
        return describe(settings)
    assert "\n" not in shown
    return shown


def _check(settings: Settings) -> None:
    shown = describe(settings)
    told = tomllib.loads(shown)
    assert set(told) <= set(_NAMES)
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        hidden = [name for name in _URLS if "***" in str(told[name])]
        file.write(shown.replace(":***@", ":shown@").encode())
        file.flush()
        again = load_settings(Path(file.name), {}, {})
    for name in _NAMES:
        if name not in hidden:
            attribute = "pass_" if name == "pass" else name
            assert getattr(again, attribute) == getattr(settings, attribute), name


def seeds() -> list[bytes]:
    """Return a value of each kind."""
    file = b"""
        broker_url = "amqp://me:pw@rabbit:5672/shop"
        route = ["orders.*", "%2F/x"]
        max_body = 5
        settle_time = 1.5
        http_listen = "[::1]:0"
        on_stale = "refuse"
        broker_addresses = ["a:1", "b:2"]
        allow_mechanisms = ["EXTERNAL"]
    """
    values = [
        b"rabbit:5672/shop",
        b"amqps:rabbit",
        b"https:[::1]:443",
        b"127.0.0.1:0",
        b"true",
        b"12",
        b"1e3",
        b"a,b/c",
    ]
    return [b"\0" + file, *(bytes((n,)) + value for n in (0, 1, 5, 9, 20) for value in values)]
