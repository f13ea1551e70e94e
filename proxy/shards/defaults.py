"""The arguments that a shard's queue is declared with, the file's and the defaults, by the broker's version. Pure."""

from typing import Any

from proxy.shards.shard import Arguments, Shard

UNLIMITED_SINCE = (4,)
"""The first version in which `x-delivery-limit` = -1 means no limit, and in which there is a limit by default.

On RabbitMQ 3.10.8 a quorum queue with -1 deletes a message at its first return (measured).
"""

DISCONNECTED_TIMEOUT = "x-consumer-disconnected-timeout"
"""The argument for how many milliseconds a quorum queue waits for a consumer whose node it does not reach.

Until then the next consumer of a queue with single active consumer gets nothing. The policy key is the same without
`x-`; of both, the lesser value counts (measured on 4.3.6).
"""

WAITS_SINCE = (4, 3)
"""The first version that waits for such a consumer, for 60 s by default.

RabbitMQ 4.0.5 and 3.10.8 take the argument and ignore it, and they refuse the policy (measured).
"""

DISCONNECTED_MILLISECONDS = 5000
"""The default of `DISCONNECTED_TIMEOUT` for a new shard."""


def defaults(kind: str, arguments: Arguments, version: tuple[int, ...]) -> Arguments:
    """Return the arguments that a queue of a type gets by default beside the given ones, which come before them.

    The defaults are single active consumer and, for a quorum queue without a dead-letter exchange on a broker that has
    a limit by default, no delivery limit. A quorum queue with single active consumer gets a short
    `DISCONNECTED_TIMEOUT`, if the broker knows it.
    """
    found: dict[str, Any] = {}
    if kind != "stream":
        found["x-single-active-consumer"] = True
    if kind != "quorum":
        return found
    if version >= UNLIMITED_SINCE and "x-dead-letter-exchange" not in arguments:
        found["x-delivery-limit"] = -1
    if version >= WAITS_SINCE and arguments.get("x-single-active-consumer") is not False:
        found[DISCONNECTED_TIMEOUT] = DISCONNECTED_MILLISECONDS
    return found


def declared_arguments(shard: Shard, version: tuple[int, ...]) -> Arguments:
    """Return the arguments with which a shard's queue is declared: the file's, and the defaults."""
    arguments = {
        "x-queue-type": shard.type,
        **defaults(shard.type, shard.arguments, version),
        **shard.arguments,
    }
    if arguments.get("x-single-active-consumer") is False:
        del arguments["x-single-active-consumer"]
    return arguments
