"""Decode the management API's JSON into the fields that are needed, whatever a stranger sends in its place. Pure: no
I/O.

A body of 64 MiB of `{},{},...` holds 20 million objects. As Python's they take 3 GB, and seconds in which nothing else
runs. Three bounds therefore hold before anything is made of a body:

- the number of its bytes, which whoever reads it counts;
- the number of its values: there are no more of them than commas and opening brackets;
- the fields that a page's structure below names: msgspec steps over all others.
"""

from typing import Any, Final, Literal, TypeVar

import msgspec

MAX_VALUES: Final = 500_000
"""The most JSON values in one answer. A page of 65,536 bindings has 262,145."""

Body = bytes | bytearray
"""The bytes of one answer."""

T = TypeVar("T")


class TopologyError(ValueError):
    """An answer of the management API has the wrong form; the message names the field and says what is wrong."""

    retry_after: Final = 0.0
    """The seconds to wait that the answer asks for: none."""


class Cluster(msgspec.Struct):
    """The answer to `GET /api/cluster-name`."""

    name: str


class Named(msgspec.Struct, gc=False):
    """An item of any list, of which only the name is needed."""

    name: str


class Vhost(msgspec.Struct):
    """An item of `GET /api/vhosts`."""

    cluster_state: dict[str, Any] = msgspec.field(default_factory=dict)
    """The state of each node; empty for an API without that field."""


class BindingArguments(msgspec.Struct):
    """The arguments of a ring's binding to a lane: its shard, the queues of the shard's groups, its generation."""

    shard: Any = msgspec.field(name="x-ring-shard", default=None)
    groups: Any = msgspec.field(name="x-ring-groups", default=None)
    generation: Any = msgspec.field(name="x-ring-generation", default=None)
    shards: Any = msgspec.field(name="x-ring-shards", default=None)


class BindingItem(msgspec.Struct, gc=False):
    """An item of `GET /api/exchanges/{vhost}/{name}/bindings/source`."""

    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: BindingArguments | list[Any] | None = None
    """The arguments. RabbitMQ's JSON has an empty list for some empty tables."""


class BindingItemWithArguments(msgspec.Struct, gc=False):
    """A binding with its arguments, of which ringproxy only asks whether there are any."""

    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: Any = None


class ExchangeArguments(msgspec.Struct):
    """The arguments of an exchange that change where ringproxy routes; RabbitMQ takes values of any type for each."""

    hash_header: Any = msgspec.field(name="hash-header", default=None)
    hash_property: Any = msgspec.field(name="hash-property", default=None)
    hash_on: Any = msgspec.field(name="x-hash-on", default=None)
    """LavinMQ's argument; RabbitMQ has none of that name."""
    alternate_exchange: Any = msgspec.field(name="alternate-exchange", default=msgspec.UNSET)


class ExchangePage(msgspec.Struct):
    """The answer to `GET /api/exchanges/{vhost}/{name}`."""

    type: str
    internal: bool = False
    auto_delete: bool = False
    arguments: ExchangeArguments | list[Any] | msgspec.UnsetType | None = msgspec.UNSET
    """The arguments. RabbitMQ's JSON has an empty list for some empty tables."""
    policy: Any = None
    message_stats: Any = None


class ExchangeItem(ExchangePage):
    """An item of `GET /api/exchanges/{vhost}` with everything that its own page has."""

    name: str = ""


class AppliedPolicy(msgspec.Struct, gc=False):
    """An item of `GET /api/exchanges/{vhost}`, of which only the policy is needed."""

    name: str
    policy: str | None = None


class PolicyDefinition(msgspec.Struct):
    """The part of a policy's definition that changes where ringproxy routes."""

    alternate_exchange: Any = msgspec.field(name="alternate-exchange", default=msgspec.UNSET)


class PolicyItem(msgspec.Struct):
    """An item of `GET /api/policies/{vhost}`."""

    name: str
    definition: PolicyDefinition


class QueueArguments(msgspec.Struct):
    """The dead-letter arguments of a queue."""

    exchange: Any = msgspec.field(name="x-dead-letter-exchange", default=msgspec.UNSET)
    key: Any = msgspec.field(name="x-dead-letter-routing-key", default=msgspec.UNSET)


class QueuePolicy(msgspec.Struct):
    """The dead-letter settings of the policies that apply to a queue."""

    exchange: Any = msgspec.field(name="dead-letter-exchange", default=msgspec.UNSET)
    key: Any = msgspec.field(name="dead-letter-routing-key", default=msgspec.UNSET)


class QueuePage(msgspec.Struct):
    """The answer to `GET /api/queues/{vhost}/{name}`."""

    arguments: QueueArguments = msgspec.field(default_factory=QueueArguments)
    policy: Any = None
    effective_policy_definition: QueuePolicy | list[Any] | msgspec.UnsetType | None = msgspec.UNSET
    """The policies' settings. RabbitMQ's JSON has an empty list for an empty policy."""


class Refusal(msgspec.Struct):
    """The body of an answer by which the broker refuses a change."""

    reason: str = ""


CLUSTER = msgspec.json.Decoder(Cluster)
NAMES = msgspec.json.Decoder(list[Named])
VHOSTS = msgspec.json.Decoder(list[Vhost])
BINDINGS = msgspec.json.Decoder(list[BindingItem])
BINDINGS_WITH_ARGUMENTS = msgspec.json.Decoder(list[BindingItemWithArguments])
EXCHANGE = msgspec.json.Decoder(ExchangePage)
EXCHANGES = msgspec.json.Decoder(list[ExchangeItem])
APPLIED_POLICIES = msgspec.json.Decoder(list[AppliedPolicy])
POLICIES = msgspec.json.Decoder(list[PolicyItem])
QUEUE = msgspec.json.Decoder(QueuePage)
REFUSAL = msgspec.json.Decoder(Refusal)


def decode_answer(decoder: "msgspec.json.Decoder[T]", body: Body, what: str) -> T:
    """Return what an answer holds. Raises TopologyError, which calls the answer `what`, if it has another form.

    Raises ValueError or RecursionError if it is no JSON, or has more than MAX_VALUES values.
    """
    _check_size(body, MAX_VALUES)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise TopologyError(f"{what}: {error}") from None


def decode_whole(body: Body, most: int) -> object:
    """Return the JSON value of a body with all that is in it.

    Raises ValueError or RecursionError if it is no JSON, or has more than `most` values.
    """
    _check_size(body, most)
    value: object = msgspec.json.decode(body)
    return value


def _check_size(body: Body, most: int) -> None:
    """Raise ValueError if a body may hold more than `most` JSON values.

    Commas and brackets inside of texts count, too. No answer has so many of them.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > most:
        raise ValueError(f"more than {most} values")
