"""The lag of shards: the messages that wait and are at work, how fast they come and go, and when none waits any more.

All figures are the management API's. One that it does not tell is None and never 0: a broker that tells nothing must
not look like one without messages to whatever scales a program by these figures.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

Figure = TypeVar("Figure", int, float)


class Lag(NamedTuple):
    """The lag of one shard, or of all shards of a group together."""

    ready: int | None = None
    unacked: int | None = None
    publish_rate: float | None = None
    """Messages a second that came into the queue, by the broker's last two statistics."""
    consume_rate: float | None = None
    """Messages a second that consumers acked, or got without acks, by the broker's last two statistics."""
    seconds_to_empty: float | None = None
    """Seconds until nothing is ready, at these rates; None if that is never, or not known."""

    @property
    def messages(self) -> int | None:
        """The messages that are ready and unacked, together."""
        return None if self.ready is None or self.unacked is None else self.ready + self.unacked

    def shown(self) -> dict[str, Any]:
        """Return the lag as reports show it, rates and seconds to a tenth."""
        figures = {**self._asdict(), "messages": self.messages}
        return {name: round(figure, 1) if isinstance(figure, float) else figure for name, figure in figures.items()}


def lag_of(ready: int | None, unacked: int | None, publish_rate: float | None, consume_rate: float | None) -> Lag:
    """Return the lag of one shard with these figures."""
    seconds = None
    if ready == 0:
        seconds = 0.0
    elif ready is not None and publish_rate is not None and consume_rate is not None and consume_rate > publish_rate:
        seconds = ready / (consume_rate - publish_rate)
    return Lag(ready, unacked, publish_rate, consume_rate, seconds)


def total(lags: Sequence[Lag]) -> Lag:
    """Return the lag of all these shards together; a figure that one of them lacks is None.

    The last shard that becomes empty counts: no member helps with the shard of another one.
    """
    seconds = _known([lag.seconds_to_empty for lag in lags])
    return Lag(
        _sum([lag.ready for lag in lags]),
        _sum([lag.unacked for lag in lags]),
        _sum([lag.publish_rate for lag in lags]),
        _sum([lag.consume_rate for lag in lags]),
        max(seconds, default=0.0) if seconds is not None else None,
    )


def _sum(figures: Sequence[Figure | None]) -> Figure | None:
    known = _known(figures)
    return None if known is None else sum(known)


def _known(figures: Sequence[Figure | None]) -> list[Figure] | None:
    """Return the figures; None if one is not known."""
    known = [figure for figure in figures if figure is not None]
    return known if len(known) == len(figures) else None
