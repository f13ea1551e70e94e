"""The JSON that goes in and out, as the OpenAPI document's schemas, and every problem as the document tells it."""

from typing import Any, NamedTuple

from proxy.outcome import Outcome
from proxy.topology.table import PassReason
from ring.hashing import SLOTS

Json = dict[str, Any]


class Problem(NamedTuple):
    """One kind of answer that is no success."""

    status: int
    kind: str
    outcomes: tuple[Outcome, ...]
    retryable: bool
    when: str


_INVALID = (Outcome.INVALID,)
_OF_A_BATCH = tuple(o for o in Outcome if o not in (Outcome.CONFIRMED, Outcome.PASSED, Outcome.SENT))

PROBLEMS = (
    Problem(400, "bad-request", _INVALID, False, "The request is malformed; `detail` begins with the field."),
    Problem(400, "no-routing-key", _INVALID, False, "The exchange hashes the routing key, and there is none."),
    Problem(401, "unauthorized", _INVALID, False, "The bearer token is missing or unknown."),
    Problem(403, "forbidden", _INVALID, False, "The token, the broker's user, or a web page may not publish there."),
    Problem(403, "internal-exchange", _INVALID, False, "The exchange is internal: RabbitMQ takes no publishes to it."),
    Problem(404, "unknown-exchange", _INVALID, False, "There is no such exchange, or no such virtual host."),
    Problem(404, "not-found", _INVALID, False, "There is no such path, say because a name in it is empty."),
    Problem(405, "method-not-allowed", _INVALID, False, "The path does not take this method; `Allow` lists those."),
    Problem(408, "timeout", _INVALID, True, "The body came too slowly."),
    Problem(413, "too-large", _INVALID, False, "The body, decompressed, or a message of it is over its limit."),
    Problem(415, "media-type", _INVALID, False, "The body is of a type or encoding that is not taken here."),
    Problem(417, "bad-request", _INVALID, False, "`Expect` is not `100-continue`."),
    Problem(421, "misdirected", _INVALID, False, "`Host` is no name of this listener (`host_names`)."),
    Problem(422, "batch-failed", _OF_A_BATCH, False, "Messages of the batch failed, and none of them may be retried."),
    Problem(429, "too-many", (Outcome.REJECTED,), True, "Too much is in flight already."),
    Problem(431, "bad-request", _INVALID, False, "The request's head is too large."),
    Problem(500, "internal", (Outcome.UNKNOWN,), True, "A defect of this sidecar; its log has it."),
    Problem(503, "unavailable", (Outcome.UNAVAILABLE,), True, "Never sent: no broker, or no ring known to be good."),
    Problem(503, "unroutable", (Outcome.UNROUTABLE,), True, "The broker returned it, and no other queue is there."),
    Problem(503, "nacked", (Outcome.NACKED,), True, "The broker refused it, say because the queue is full."),
    Problem(503, "draining", (Outcome.REJECTED,), True, "This sidecar is shutting down."),
    Problem(503, "batch-failed", _OF_A_BATCH, True, "Messages of the batch failed, and some may be retried."),
    Problem(504, "unknown", (Outcome.UNKNOWN,), True, "No confirm came in time: it may be in the queue or not."),
)
"""A batch-failed problem has the outcome that all its messages share, else `unknown`. So has a batch's problem that was
found in the middle of its body."""

MOST_EXPIRATION, MOST_TIMESTAMP = (1 << 32) - 1, (1 << 63) - 1

URN = "urn:ringproxy:problem:"


def ref(schema: str) -> Json:
    """A reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{schema}"}


def text(description: str = "", **more: Any) -> Json:
    """A string."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def short(description: str, **more: Any) -> Json:
    """An AMQP short string: 255 bytes of UTF-8 at most, of which JSON Schema counts characters."""
    return text(description, maxLength=255, **more)


def whole(most: int, description: str, least: int = 0) -> Json:
    """A whole number, or the same as decimal digits."""
    limits = {"minimum": least, "maximum": most, "pattern": "^[0-9]{1,20}$"}
    return {"type": ["integer", "string"], "description": description, **limits}


def record(required: Json, optional: Json | None = None, **more: Any) -> Json:
    """An object with these members, the first of which it must have."""
    return {"type": "object", "required": list(required), "properties": required | (optional or {}), **more}


_PLACE = {
    "destination": ref("Destination"),
    "slot": {"type": "integer", "minimum": 0, "maximum": SLOTS - 1, "description": "The key's slot of the ring."},
    "ring": text("The ring's fingerprint: equal ones route equally, on any machine."),
}
_OUTCOME = ref("Outcome")
_RETRYABLE = {"type": "boolean", "description": "Whether sending the same again may help."}
_REASON = {"type": "string", "enum": [r.value for r in PassReason], "description": "Why no ring routes it."}
_RESULTS = {"type": "array", "items": ref("Result"), "description": "One per message, in the order they came."}
_ASKED = {"vhost": text("Virtual host."), "exchange": text(), "key": text("The value that is hashed.")}

_ITEM = {
    "id": short("Any name of yours; the results repeat it. No other message of the batch may have it."),
    "key": short("The routing key."),
    "content_type": short("The message's content type; for JSON payloads `application/json` by default."),
    "headers": ref("Headers"),
    "properties": ref("Properties"),
}


def _item(description: str, encoding: str, payload: Json, *required: str) -> Json:
    members = {"payload": payload, "payload_encoding": {"const": encoding}}
    return {
        "type": "object",
        "description": description,
        "required": ["payload", *required],
        "properties": _ITEM | members,
        "additionalProperties": False,
    }


_NO_CONTROLS = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"


def _attribute(description: str = "", **more: Any) -> Json:
    return text(description, minLength=1, pattern=_NO_CONTROLS, **more)


def _optional(description: str = "", **more: Any) -> Json:
    return _attribute(description, **more) | {"type": ["string", "null"]}


_BASE64 = text(contentEncoding="base64", pattern="^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")

SCHEMAS: Json = {
    "Outcome": {
        "type": "string",
        "enum": [o.value for o in Outcome],
        "description": "What became of the message, as far as it is known.",
    },
    "Destination": record(
        {"type": {"enum": ["queue", "exchange"]}, "name": text()}, description="What a binding of the exchange names."
    ),
    "Receipt": {
        "description": "The broker confirmed the message.",
        "oneOf": [ref("Confirmed"), ref("Passed")],
    },
    "Confirmed": record(
        {"outcome": {"const": "confirmed"}, **_PLACE}, description="Confirmed in the queue that the ring chose."
    ),
    "Passed": record(
        {"outcome": {"const": "passed"}, "exchange": text(), "reason": _REASON},
        description="Confirmed by the broker, and routed by the exchange itself: no ring is in force for it.",
    ),
    "Route": {"description": "Where a key goes.", "oneOf": [ref("Routed"), ref("RoutePassed")]},
    "Routed": record(
        _ASKED
        | _PLACE
        | {
            "runner_up": {"oneOf": [ref("Destination"), {"type": "null"}], "description": "Next, if that one left."},
            "hashed": text("What is hashed: `routing_key`, `header:NAME` or `property:NAME`."),
        },
        description="The ring sends the key to `destination`.",
    ),
    "RoutePassed": record(
        _ASKED | {"outcome": {"const": "passed"}, "reason": _REASON},
        {"would_be": record(_PLACE, description="In shadow mode: where the ring would send it.")},
        description="The exchange itself routes the key.",
    ),
    "Batch": record(
        {"messages": {"type": "array", "items": ref("Item")}},
        additionalProperties=False,
        description="Messages, published in this order for each key.",
    ),
    "Item": {
        "description": "One message; `payload_encoding` says how its body is written, `string` by default.",
        "oneOf": [ref("TextItem"), ref("Base64Item"), ref("JsonItem")],
    },
    "TextItem": _item("The body is the payload in UTF-8.", "string", text()),
    "Base64Item": _item(
        "The body is the payload decoded.",
        "base64",
        _BASE64,
        "payload_encoding",
    ),
    "JsonItem": _item(
        "The body is the payload as compact JSON in UTF-8.",
        "json",
        {"type": ["object", "array", "string", "number", "boolean", "null"]},
        "payload_encoding",
    ),
    "Headers": {
        "type": "object",
        "description": "AMQP headers: names of 1 to 128 bytes, any JSON as values, whole numbers within 64 bits, "
        "at most 16 deep; not `CC` and `BCC`, which would send copies past the ring.",
        "propertyNames": {"minLength": 1, "maxLength": 128, "not": {"enum": ["CC", "BCC"]}},
    },
    "Properties": {
        "type": "object",
        "description": "AMQP properties of a message.",
        "additionalProperties": False,
        "properties": {
            "content_type": short("Where the item has no `content_type` itself."),
            "content_encoding": short("Such as `gzip`; the body stays as it is."),
            "delivery_mode": whole(2, "2: persistent (the default); 1: not.", 1),
            "priority": whole(255, "For priority queues."),
            "correlation_id": short("Ties an answer to its question."),
            "reply_to": short("Queue for answers."),
            "expiration": whole(MOST_EXPIRATION, "Milliseconds until the broker drops the message."),
            "message_id": short("The message's name."),
            "timestamp": whole(MOST_TIMESTAMP, "Seconds since 1970."),
            "type": short("The message's kind."),
            "app_id": short("Who sent it."),
            "headers": ref("Headers"),
        },
    },
    "BatchReceipt": record(
        {
            "outcome": {"const": "confirmed"},
            "messages": {"type": "integer", "minimum": 0},
            "confirmed": {"type": "integer", "minimum": 0},
            "passed": {"type": "integer", "minimum": 0},
        },
        {"results": _RESULTS},
        description="The broker confirmed every message; `results` are there if `Prefer: return=representation`.",
    ),
    "Result": record(
        {"outcome": _OUTCOME},
        {
            "id": text("The message's own `id`, if it has one."),
            **_PLACE,
            "exchange": text("Where the exchange itself routed it."),
            "reason": _REASON,
            "detail": text("Why it failed, for people."),
            "retryable": _RETRYABLE,
        },
        description="What became of one message of a batch.",
    ),
    "CloudEvent": record(
        {
            "specversion": {"const": "1.0"},
            "id": _attribute(),
            "source": _attribute("A URI reference."),
            "type": _attribute(),
        },
        {
            "subject": _optional(),
            "time": _optional("RFC 3339.", format="date-time"),
            "datacontenttype": _optional("Becomes the message's content type.", maxLength=255),
            "dataschema": _optional("A URI."),
            "partitionkey": _optional("The routing key.", maxLength=255),
            "data": {"description": "Any JSON; a string as it stands where `datacontenttype` is not JSON."},
            "data_base64": _BASE64 | {"type": ["string", "null"], "description": "Bytes, in place of `data`."},
        },
        propertyNames={"pattern": "^([a-z0-9]+|data_base64)$"},
        additionalProperties={
            "type": ["string", "boolean", "integer", "null"],
            "minimum": -(1 << 31),
            "maximum": (1 << 31) - 1,
            "pattern": _NO_CONTROLS,
            "description": "An extension attribute.",
        },
        **{"not": {"required": ["data", "data_base64"]}},
        description="A CloudEvent in the JSON format, version 1.0; extension attributes are members too. "
        "An attribute that is null is as if it were not there.",
    ),
    "ManagementPublish": record(
        {
            "properties": {"type": "object", "description": "AMQP properties, `headers` among them."},
            "routing_key": short("The routing key."),
            "payload": text(),
            "payload_encoding": {"enum": ["string", "base64"]},
        },
        description="As RabbitMQ's management API takes it.",
    ),
    "ManagementError": record(
        {
            "error": text(),
            "reason": {"type": ["string", "array"], "description": "Why; what was sent may be repeated in it."},
            "outcome": _OUTCOME,
            "retryable": _RETRYABLE,
        },
        description="An error in the management API's own form, and what became of the message.",
    ),
    "Problem": record(
        {
            "type": text("`urn:ringproxy:problem:` and the kind.", format="uri"),
            "title": text("The kind in words."),
            "status": {"type": "integer", "description": "The answer's status."},
            "detail": text("What is wrong, for people; names the field."),
            "outcome": _OUTCOME,
            "retryable": _RETRYABLE,
        },
        {"results": _RESULTS},
        description="RFC 9457. `outcome` never says that a message was not published where it may have been; "
        "`results` come with a batch.",
    ),
}
"""By name, for the document's components."""
