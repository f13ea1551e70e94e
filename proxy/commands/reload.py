"""Tell what a new settings file would change at a running sidecar; nothing changes there."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.patterns import Mode, Selection
from proxy.settings.reload import changes, line, without_effect
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
    running, outside = _running(sidecar)
    kept = {name: value for name, value in running.items() if name in outside}
    now, new = Settings(**running), Settings(**_as_told(dataclasses.asdict(Settings(**{**of_file, **kept}))))
    found, idle = changes(now, new), without_effect(now, _as_told(of_file), outside)
    lines = [line(name, now, new) for name in found.live]
    lines += _modes(sidecar, now, new)
    lines += [f"{line(name, now, new)}, needs a restart" for name in found.restart]
    lines += [f"{written_name(name)}: no effect, as {_ORIGINS[outside[name]]} wins" for name in idle]
    return Told(lines or ["nothing changes"], not found.restart and not idle)


_ORIGINS = {"environment": "the environment of the sidecar", "flag": "a flag of the sidecar"}


def _running(sidecar: str) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the settings in force at a sidecar, and the origin of those that no file changes, by attribute.

    Raises QuestionError.
    """
    answer = ask(sidecar, "/settings")
    values: dict[str, Any] = {}
    outside: dict[str, Origin] = {}
    try:
        for name, each in answer["settings"].items():
            attribute = attribute_of(name)
            if each["value"] is not None:
                values[attribute] = from_shown(attribute, each["value"])
            if each["origin"] in _ORIGINS:
                outside[attribute] = each["origin"]
        if answer["settings"].keys() != set(field_names()):
            raise QuestionError(f"{sidecar}: a sidecar of another release, with other settings than this command")
    except (ConfigError, KeyError, TypeError, AttributeError):
        raise QuestionError(f"{sidecar}: not a sidecar's settings ({str(answer)[:60]!r}); {WHICH}") from None
    return values, outside


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
