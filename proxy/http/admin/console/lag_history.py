"""The lag of each group over the last hour, a sample every 15 s, of the figures that its sidecars have read anyway.

A figure of a sample takes eight bytes, so that an hour of one group takes 10 KiB.
"""

import time
from array import array
from collections import deque
from collections.abc import Mapping
from math import isnan, nan
from typing import Any, Final

from proxy.groups.lag import Lag
from proxy.topology.table import Name

SAMPLES: Final = 240
"""The most samples of a group."""

MOST_GROUPS: Final = 50
"""The most groups whose lag is kept, those that came first."""


class LagHistory:
    """The samples of all groups; lives as long as the process."""

    def __init__(self) -> None:
        """There is no sample yet."""
        self._times: deque[float] = deque(maxlen=SAMPLES)
        """When the samples were taken, in seconds since 1970, the oldest first."""
        self._groups: dict[Name, tuple[array[float], ...]] = {}
        """By group, the last samples of each figure of its lag; nan where it was not known."""

    def add(self, lags: Mapping[Name, Lag]) -> None:
        """Add a sample of these groups; one that has no figure for as long as samples are kept is forgotten."""
        self._times.append(time.time())
        for name in lags:
            if name not in self._groups and len(self._groups) < MOST_GROUPS:
                self._groups[name] = tuple(array("d") for _ in Lag._fields)
        for name, samples in list(self._groups.items()):
            for figure, values in zip(lags.get(name, Lag()), samples, strict=True):
                values.append(nan if figure is None else figure)
                del values[:-SAMPLES]
            if name not in lags and all(isnan(value) for values in samples for value in values):
                del self._groups[name]

    def of(self, name: Name) -> dict[str, Any] | None:
        """Return the samples of a group, by figure, and when the first and the last were taken; None without any."""
        samples = self._groups.get(name)
        if samples is None:
            return None
        figures = {
            figure: [None if isnan(value) else round(value, 1) for value in values]
            for figure, values in zip(Lag._fields, samples, strict=True)
        }
        return {"since": self._times[-len(samples[0])], "until": self._times[-1], **figures}
