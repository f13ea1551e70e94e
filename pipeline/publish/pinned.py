"""The ring that a write is pinned to, which the driver reads once, after it has seen all of its queues."""

import asyncio
import logging
import time
from dataclasses import replace

from pipeline import PipelineError
from pipeline.data.live import management, read_ring_of
from pipeline.data.rings import RingSpec, parse_ring
from pipeline.publish.depth import AwayError, Depths
from pipeline.publish.options import Options
from pipeline.publish.pacing import Patience
from pipeline.publish.routes import Routes
from proxy.settings.parse import ConfigError
from proxy.topology.bindings import TopologyError, grouped_by
from proxy.topology.management import Management, ManagementError, UnansweredError
from ring.destination import Destination

log = logging.getLogger(__name__)


def pinned(options: Options) -> RingSpec:
    """Return the ring to publish by: the given one, or the one that the bindings make now, all of whose queues
    exist.

    Raises PipelineError at once for what would fail later: no such exchange, no ring, a queue that is missing or
    would dead-letter elsewhere, wrong credentials; AwayError for a broker that does not answer.
    """
    try:
        spec = _given(options.ring) if options.ring else asyncio.run(_read(options))
        asyncio.run(_look(options, Routes.of(options.exchange, spec)))
    except UnansweredError as error:
        raise AwayError(f"management API: {error}") from None
    except (ManagementError, TopologyError) as error:
        raise PipelineError(f"management API: {error}") from None
    except ConfigError as error:
        raise PipelineError(f"option {error}") from None
    return spec


def pinned_in_time(options: Options) -> RingSpec:
    """Return the ring to publish by, as `pinned` does, but retry for `retry_timeout` while the broker is away.

    It is for a batch after an earlier successful look at the broker, which may then be away for a moment. Raises
    PipelineError at once for errors that a retry cannot mend, and when the broker is still away after that time.
    """
    patience = Patience(options.retry_timeout)
    while True:
        try:
            return pinned(options)
        except AwayError as error:
            if patience.left(0, time.monotonic()) <= 0:
                raise PipelineError(f"{error}; it was waited for, for {patience.limit:g} s (retry_timeout)") from None
            log.warning("waiting: %s", error)
            time.sleep(patience.pause())


def pinned_again(kept: RingSpec, now: RingSpec) -> RingSpec:
    """Return the ring for a batch that was begun with the ring `kept` before.

    The result is `kept`, so that all copies of a row are in one queue. It is `now` if a destination of `kept` is no
    longer bound, so that maybe nobody consumes it, or if the exchange's type or hashed value has changed. The lanes and
    the queues behind them are those of `now` in any case.
    """
    same = (kept.exchange_type, kept.hashed) == (now.exchange_type, now.hashed)
    if not same or not kept.weights.keys() <= now.weights.keys():
        return now
    queues = {place: queue for place, queue in now.queues.items() if Destination("queue", place) in kept.weights}
    return replace(kept, lanes=now.lanes, queues=queues)


def _given(text: str) -> RingSpec:
    """Return the ring of the option `ring`. Raises PipelineError if it is none, or if a lane may balance a group."""
    spec = parse_ring(text, "option 'ring'")
    for queue, lane in spec.lanes.items():
        if grouped := grouped_by(lane):
            # Sidecars would take the rows for beats of their own. No reading tells here whether the exchange is theirs.
            why = f"only sidecars publish to an exchange of that name, to balance the consumer group of {grouped!r}"
            raise PipelineError(f"option 'ring': lanes: {lane!r} of queue {queue!r}: {why}")
    return spec


async def _read(options: Options) -> RingSpec:
    settings, name = options.settings, options.exchange
    vhost = settings.default_vhost
    async with management(settings) as api:
        spec = await read_ring_of(api, vhost, name)
        if settings.on_dead_letter != "rewrite":
            await _refuse_dead_letters(api, vhost, Routes.of(name, spec))
    return spec


async def _refuse_dead_letters(api: Management, vhost: str, routes: Routes) -> None:
    """Raise PipelineError if a queue of the ring would dead-letter rows under its own name.

    Rows that come through a lane have their own routing keys. A queue of which the broker does not tell yet passes.
    """
    queues = [queue for queue, lane in zip(routes.queues, routes.lanes, strict=True) if not lane]
    told = await asyncio.gather(*(api.dead_letters_by_own_name(vhost, queue) for queue in queues))
    found = [(queue, cause) for queue, cause in zip(queues, told, strict=True) if cause]
    if found:
        raise PipelineError(
            f"queue {found[0][0]!r} would dead-letter rows under its own name, not under their routing keys, by"
            f" {found[0][1]}: give it a dead-letter routing key, or set on_dead_letter to rewrite"
        )


async def _look(options: Options, routes: Routes) -> None:
    async with Depths(options.settings) as depths:
        await depths.of(routes.behind)
