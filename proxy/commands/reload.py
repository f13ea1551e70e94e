"""Tell what a new settings file would change at a running sidecar; nothing changes there."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.patterns import Mode, Selection
from proxy.settings.reload import changes, line, refuse_cut_off, without_effect
from proxy.settings.sources import Origin, attribute_of, field_names, file_values, from_shown, shown, written_name
from proxy.topology.names import some

MOST_TOLD = 10
"""The most exchanges that one line names."""


class Told(NamedTuple):
    """The lines to print, and whether all that the file says takes effect without a restart."""

    lines: list[str]
    takes_effect: bool


def check(sidecar: str, file: Path) -> Told:
    """Return what a sidecar would do with a settings file. Raises ConfigError for a mistake in it, or QuestionError."""
    of_file = file_values(file)
    it = _running(sidecar)
    if not it.has_file:
        return Told(["the sidecar has no settings file; start it with --config"], takes_effect=False)
    running, outside = it.values, it.outside
    kept = {name: value for name, value in running.items() if name in outside}
    now, new = Settings(**running), Settings(**_as_told(dataclasses.asdict(Settings(**{**of_file, **kept}))))
    found, idle = changes(now, new), without_effect(now, _as_told(of_file), outside)
    refuse_cut_off(file, it.of_file, it.at_start, of_file, found.restart)
    lines = [line(name, now, new) for name in found.live]
    lines += _modes(sidecar, now, new)
    if not _PATTERNS.isdisjoint(found.live):
        lines.append("exchanges that the sidecar has not read are not in this list")
    lines += [f"{line(name, now, new)}, needs a restart" for name in found.restart]
    lines += [f"{written_name(name)}: no effect, as {_ORIGINS[outside[name]]} wins" for name in idle]
    return Told(lines or ["nothing changes"], not found.restart and not idle)


_PATTERNS = {"route", "shadow", "pass_"}
"""The settings that decide the modes of exchanges, by their attributes."""

_ORIGINS = {"environment": "the environment of the sidecar", "flag": "a flag of the sidecar"}


class _Running(NamedTuple):
    """The settings of a running sidecar, by their attributes."""

    has_file: bool
    values: dict[str, Any]
    """The values in force."""
    outside: dict[str, Origin]
    """The origin of each setting that no file changes."""
    of_file: list[str]
    """The settings that its file has now."""
    at_start: list[str]
    """The settings that its file had at the start, as far as the sidecar tells."""


def _running(sidecar: str) -> _Running:
    """Return the settings of a running sidecar. Raises QuestionError."""
    answer = ask(sidecar, "/settings")
    try:
        told = {attribute_of(name): (each["value"], each["origin"]) for name, each in answer["settings"].items()}
        if told.keys() != set(map(attribute_of, field_names())):
            raise QuestionError(f"{sidecar}: a sidecar of another release, with other settings than this command")
        values = {name: from_shown(name, value) for name, (value, _) in told.items() if value is not None}
        origins = {name: origin for name, (_, origin) in told.items()}
        of_file = [name for name, origin in origins.items() if origin == "file"]
        # A setting that waits for a restart and has its default now came into the file after the start.
        later = {attribute_of(name) for name in answer["needs_restart"]}
        default = Settings()
        at_start = [n for n in of_file if n not in later or values.get(n) != getattr(default, n)]
        outside = {name: origin for name, origin in origins.items() if origin in _ORIGINS}
        return _Running(answer["file"] is not None, values, outside, of_file, at_start)
    except (ConfigError, KeyError, TypeError, AttributeError):
        raise QuestionError(f"{sidecar}: not a sidecar's settings ({str(answer)[:60]!r}); {WHICH}") from None


def _as_told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set, by attribute, as a sidecar tells them: without the passwords in URLs."""
    return {name: from_shown(name, shown(value)) for name, value in values.items() if value is not None}


def _modes(sidecar: str, now: Settings, new: Settings) -> list[str]:
    """Return a line for each change of modes, or of the share, among the exchanges that a sidecar knows.

    Raises QuestionError.
    """
    selection = Selection(new.route, new.shadow, new.pass_, new.groups)
    found: dict[tuple[str, float], list[str]] = {}
    for each in rings(sidecar)["exchanges"]:
        vhost, exchange, before = each["vhost"], each["exchange"], each["mode"]
        after = selection.mode(vhost, exchange)
        moved = abs(_routed(after, new) - _routed(before, now))
        if after != before:
            found.setdefault((f"{before} -> {after}", moved), []).append(f"{exchange!r} in {vhost!r}")
        elif moved and "route_share" in each:
            found.setdefault(("another route_share", moved), []).append(f"{exchange!r} in {vhost!r}")
    return [
        f"{change}: exchange {some(names, MOST_TOLD)}{_moves(moved) if moved else ''}"
        for (change, moved), names in sorted(found.items())
    ]


def _routed(mode: str, settings: Settings) -> float:
    """Return the percentage of slots that the ring of an exchange in a mode routes."""
    return settings.route_share if mode == Mode.ROUTE else 0.0


def _moves(percent: float) -> str:
    """Return the end of a line that says how many keys move."""
    part = f"{percent:.6g}% of " if percent < 100 else ""
    return f"; from then on {part}their keys go to other queues"
