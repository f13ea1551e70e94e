"""The settings in force, and what a new version of their file changes: at once, only by a restart, or nothing.

A reload is all or nothing. The file is parsed and checked as at a start, and one mistake leaves all as it was. If there
is none, the live settings come into force together. Every other setting keeps the value of the start until a restart,
and so may contradict a live one: that is a mistake, too, and so is a file that may be half written.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from proxy.settings.config import LogLevel, Settings
from proxy.settings.parse import ConfigError
from proxy.settings.sources import Origin, Sources, as_toml, file_values, shown, written_name
from proxy.settings.watched import Watched

log = logging.getLogger(__name__)

LIVE = frozenset(field.name for field in dataclasses.fields(Settings) if field.metadata["live"])
"""The settings that take effect without a restart."""


class Changes(NamedTuple):
    """The difference that a new version of the settings makes."""

    in_force: Settings
    """The settings in force from then on."""
    live: tuple[str, ...]
    """The settings that take effect at once, by their attributes."""
    restart: tuple[str, ...]
    """The settings that take effect at the next start, by their attributes."""


def changes(now: Settings, new: Settings) -> Changes:
    """Return what new settings change where `now` is in force. Raises ConfigError if they contradict what must stay."""
    changed = [f.name for f in dataclasses.fields(Settings) if getattr(now, f.name) != getattr(new, f.name)]
    # Groups take channel numbers of each connection as it opens, and memory, so none are there where none were set.
    fixed = {"groups", "groups_in_series"} if bool(now.groups) != bool(new.groups) else set()
    live = tuple(name for name in changed if name in LIVE and name not in fixed)
    restart = tuple(name for name in changed if name not in live)
    try:
        in_force = dataclasses.replace(now, **{name: getattr(new, name) for name in live})
    except ConfigError as error:
        names = ", ".join(map(written_name, restart))
        raise ConfigError(f"{error}; {names} would have to change first, which needs a restart") from None
    return Changes(in_force, live, restart)


def refuse_cut_off(
    file: Path | None, last: Collection[str], at_start: Collection[str], now: Collection[str], restart: Collection[str]
) -> None:
    """Refuse a version of a settings file that its writer may have left half done. Raises ConfigError.

    The first half of a file mostly has no mistake, and what it lacks gets its default: `route`, say, every exchange.
    Given are the settings in the `last` version, in the one `at_start` and in the one of `now`, by their attributes,
    and those that `now` changes by a `restart` only.
    """
    if last and not now:
        raise ConfigError(f"{file}: has no settings; it may be half written")
    if gone := [name for name in at_start if name not in now and (name not in LIVE or name in restart)]:
        names = ", ".join(map(written_name, gone))
        raise ConfigError(f"{file}: lacks {names}; it may be half written (dropping this needs a restart)")


def without_effect(now: Settings, values: Mapping[str, Any], outside: Collection[str]) -> list[str]:
    """Return the settings of a file's `values` that come from `outside` the file, and differ there, by attribute."""
    return [name for name, value in values.items() if name in outside and value != getattr(now, name)]


Apply = Callable[[Settings, Collection[str]], None]
"""Puts settings into force, of which those with the given attributes have changed, but for the log's level."""


class SettingsInForce:
    """The settings in force, which live as long as the process, and change with their file."""

    def __init__(self, sources: Sources) -> None:
        """Read the settings. Raises ConfigError."""
        self.sources = sources
        self.restart: tuple[str, ...] = ()
        """The settings that have another value in the file, and wait for a restart, by their attributes."""
        self.apply: Apply = lambda settings, names: None
        """Puts changed settings into force; set once the sidecar has its parts."""
        self.set_level: Callable[[LogLevel], None] = lambda level: None
        """Sets the log's level; set with `apply`. The lines about a change are at the level that shows more of them."""
        self.now: Settings
        """The settings in force, without the passwords of other files."""
        self.watched: Watched[Collection[str]] | None = None
        """The settings in the file, by attribute, read again when it changes; None if there is no file."""
        self._at_start: Collection[str] = ()
        """The settings that the file had at the start, by their attributes."""
        if sources.file is None:
            self.now = sources.settings({})
        else:
            self.watched = Watched("config", [sources.file], self._read, settles=True)

    @property
    def fault(self) -> str:
        """The mistake in the file as it is now; empty if there is none."""
        return self.watched.fault if self.watched is not None else ""

    def report(self) -> dict[str, Any]:
        """Return the settings in force by their written names, each with its origin, to show: passwords are hidden."""
        origins = self.origins()
        return {
            "file": str(self.sources.file) if self.sources.file is not None else None,
            "fault": self.fault or None,
            "needs_restart": list(map(written_name, self.restart)),
            "settings": {
                written_name(field.name): {
                    "value": shown(getattr(self.now, field.name)),
                    "origin": origins.get(field.name, "default"),
                }
                for field in dataclasses.fields(Settings)
            },
        }

    def origins(self) -> dict[str, Origin]:
        """Return where the value of each setting comes from that is not its default, by attribute."""
        found: dict[str, Origin] = {}
        if self.watched is not None:
            found = dict.fromkeys(self.watched.value, "file")
        return found | self.sources.outside_file()

    def _read(self) -> Collection[str]:
        """Read the file, and put what it changes into force; return the settings in it. Raises ConfigError."""
        values = file_values(self.sources.file)
        new = self.sources.settings(values)
        if self.watched is None:  # at the start
            self.now, self._at_start = new, values.keys()
            return values.keys()
        found = changes(self.now, new)
        refuse_cut_off(self.sources.file, self.watched.value, self._at_start, values, found.restart)
        levels = get_args(LogLevel)
        self.set_level(min(self.now.log_level, found.in_force.log_level, key=levels.index))
        try:
            self._put_into_force(found, new, values)
        finally:
            self.set_level(self.now.log_level)
        return values.keys()

    def _put_into_force(self, found: Changes, new: Settings, values: Mapping[str, Any]) -> None:
        """Put into force what the `values` of the file change, and log it. Raises ConfigError."""
        if found.live:
            try:
                self.apply(found.in_force, found.live)
            except Exception as error:
                log.exception("unexpected error of a reload")
                why = f"cannot be put into force as a whole: {type(error).__name__}: {error}; restart the sidecar"
                raise ConfigError(f"{self.sources.file}: {why}") from error
        before, self.now, self.restart = self.now, found.in_force, found.restart
        for name in found.live:
            log.info("settings: %s", line(name, before, new))
        for name in found.restart:
            log.warning("settings: %s, needs a restart", line(name, before, new))
        for name in without_effect(self.now, values, self.sources.outside_file()):
            log.warning("settings: %s in the file has no effect: the environment or a flag wins", written_name(name))


def line(name: str, before: Settings, after: Settings) -> str:
    """Return a setting's written name with its values before and after, as a line to read."""
    values = (getattr(settings, name) for settings in (before, after))
    return f"{written_name(name)}: {' -> '.join('not set' if v is None else as_toml(v) for v in values)}"
