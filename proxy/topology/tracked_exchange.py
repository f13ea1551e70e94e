"""What is kept of one exchange between two readings: the weights and bindings in force, and how the last one ended."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from proxy.topology.bindings import Binding, TopologyError
from proxy.topology.management import ManagementError
from proxy.topology.removals import WeightsInForce
from proxy.topology.table import NEVER
from ring.destination import Destination


@dataclass
class TrackedExchange:
    """The state of one exchange that is read in turn, from one reading to the next. All times are monotonic seconds."""

    in_force: WeightsInForce[Destination] = field(default_factory=WeightsInForce)
    """The weights to route by after the last reading."""
    bound: WeightsInForce[Binding] = field(default_factory=WeightsInForce)
    """The bindings of an upstream exchange that are in force after the last reading, each with the weight 1."""
    logged_missing: Collection[Destination] = ()
    """The missing destinations that the log has named."""
    due: float = 0.0
    """When the exchange is to be read next."""
    tried: float = NEVER
    """When the last reading that has ended started, whether it succeeded or not."""
    failures: int = 0
    """The number of readings that have failed since the last good one."""
    fault: ManagementError | TopologyError | None = None
    """How the last reading failed; None if it did not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a reading, so that readings of one exchange never overlap."""
    confirmed_removals: set[Destination] = field(default_factory=set)
    """Destinations whose removal a returned message has confirmed since the last reading."""
    read_started: float = NEVER
    """When the last good reading started; NEVER before the first."""
