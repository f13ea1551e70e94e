"""The HTTP listener's OpenAPI 3.1 document: what `/openapi.json` serves, `/docs` shows and the tests hold it to."""

from collections.abc import Iterable
from typing import Any

from proxy import __version__
from proxy.http.endpoints.schemas import (
    MOST_EXPIRATION,
    MOST_TIMESTAMP,
    PROBLEMS,
    SCHEMAS,
    URN,
    Json,
    Problem,
    ref,
    short,
    text,
)
from proxy.outcome import Outcome

_EVERYWHERE = ("bad-request", "not-found", "method-not-allowed", "internal")
_OF_AN_EXCHANGE = (
    *_EVERYWHERE,
    "no-routing-key",
    "unauthorized",
    "forbidden",
    "misdirected",
    "unknown-exchange",
    "unavailable",
)
_OF_A_PUBLISH = (
    *_OF_AN_EXCHANGE,
    *("internal-exchange", "timeout", "too-large", "too-many", "unroutable", "nacked", "draining", "unknown"),
)

_RETRY_AFTER = {"Retry-After": {"required": True, "description": "Seconds.", "schema": text(pattern="^[0-9]+$")}}
_HEADERS_OF_STATUS = {
    401: {"WWW-Authenticate": {"required": True, "schema": text(pattern="^(Bearer|Basic )")}},
    405: {"Allow": {"required": True, "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def _answers(*answers: tuple[int, Json], problems: Iterable[str], of_a_batch: bool = False) -> Json:
    """Successes by status, and the problems of these kinds."""
    made = {str(status): answer for status, answer in answers}
    kinds = set(problems)
    for status in sorted({p.status for p in PROBLEMS if p.kind in kinds}):
        found = [p for p in PROBLEMS if p.status == status and p.kind in kinds]
        made[str(status)] = _problem(status, found, of_a_batch)
    return made


def _problem(status: int, problems: list[Problem], of_a_batch: bool) -> Json:
    outcomes = {outcome.value for p in problems for outcome in p.outcomes}
    if of_a_batch and status in (400, 408, 413, 429):
        # Found in the middle of the body: messages before that were sent.
        outcomes.add(Outcome.UNKNOWN.value)
    (retryable,) = {p.retryable for p in problems}
    narrowed = {
        "type": {"enum": [URN + p.kind for p in problems]},
        "status": {"const": status},
        "outcome": {"enum": sorted(outcomes)},
        "retryable": {"const": retryable},
    }
    answer: Json = {
        "description": "\n\n".join(f"`{p.kind}`: {p.when}" for p in problems),
        "content": {"application/problem+json": {"schema": {"allOf": [ref("Problem")], "properties": narrowed}}},
    }
    if headers := _HEADERS_OF_STATUS.get(status):
        answer["headers"] = headers
    return answer


def _json(description: str, *schemas: str, **more: Any) -> Json:
    """An answer of one of these schemas."""
    schema = ref(schemas[0]) if len(schemas) == 1 else {"oneOf": [ref(s) for s in schemas]}
    return {"description": description, "content": {"application/json": {"schema": schema, **more}}}


def _parameter(where: str, name: str, schema: Json, **more: Any) -> Json:
    """A parameter; one with an `example` is in the example of the operation too."""
    description = schema.pop("description", "")
    return {"name": name, "in": where, "description": description, "schema": schema, **more}


def _integer(most: int, description: str, least: int = 0) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


_PARAMETERS = {
    "exchange": _parameter(
        "path", "exchange", short("The exchange, percent-encoded.", minLength=1), required=True, example="orders"
    ),
    "vhost": _parameter("query", "vhost", short("Virtual host; that of `broker_url` where it is not given.")),
    "pathVhost": _parameter(
        "path", "vhost", short("Virtual host, percent-encoded.", minLength=1), required=True, example="/"
    ),
    "key": _parameter("query", "key", short("The routing key, in place of the header or attribute.")),
    "hashedKey": _parameter(
        "query", "key", short("The value that the exchange hashes."), required=True, example="customer-17"
    ),
    "prefer": _parameter("header", "Prefer", text("RFC 7240. `return=minimal`: a success is a 204 without a body.")),
    "preferResults": _parameter(
        "header", "Prefer", text("`return=minimal`: a 204 without a body; `return=representation`: with `results`.")
    ),
    "contentEncoding": _parameter(
        "header", "Content-Encoding", {"enum": ["gzip", "identity"], "description": "Of the request's body."}
    ),
}

_MESSAGE = [
    _parameter(
        "header",
        "Routing-Key",
        short("The routing key, in UTF-8; needed unless the exchange hashes a header or property."),
        example="customer-17",
    ),
    _parameter("header", "Content-Encoding", short("Kept as the message's property; the body stays as it is.")),
    _parameter("header", "Amqp-Message-Id", short("The message's name.")),
    _parameter("header", "Amqp-Correlation-Id", short("Ties an answer to its question.")),
    _parameter("header", "Amqp-Reply-To", short("Queue for answers.")),
    _parameter("header", "Amqp-Type", short("The message's kind.")),
    _parameter("header", "Amqp-App-Id", short("Who sent it.")),
    _parameter("header", "Amqp-Expiration", _integer(MOST_EXPIRATION, "Milliseconds until the broker drops it.")),
    _parameter("header", "Amqp-Priority", _integer(255, "For priority queues.")),
    _parameter("header", "Amqp-Timestamp", _integer(MOST_TIMESTAMP, "Seconds since 1970.")),
    _parameter("header", "Amqp-Delivery-Mode", _integer(2, "2: persistent (the default); 1: not.", 1)),
    _parameter("header", "traceparent", text("Becomes an AMQP header; so does `tracestate`.")),
    _parameter("header", "tracestate", text()),
]

_ITEMS = [
    {"id": "a", "key": "customer-17", "payload": "first"},
    {"id": "b", "key": "customer-18", "payload": {"total": 9.5}, "payload_encoding": "json"},
    {"id": "c", "key": "customer-17", "payload": "AAEC", "payload_encoding": "base64", "headers": {"source": "shop"}},
]
_EVENT = {
    "specversion": "1.0",
    "id": "1f6b",
    "source": "/shop",
    "type": "order.placed",
    "partitionkey": "customer-17",
    "data": {"total": 9.5},
}
_LINES = "".join(f'{{"id": "{n}", "key": "customer-17", "payload": "message {n}"}}\n' for n in (1, 2))
_NDJSON = {"schema": text("An item a line, as in `messages`.")}
_ANYTHING = {"schema": {"contentMediaType": "application/octet-stream"}}
_PLACE = {"destination": {"type": "queue", "name": "orders.2"}, "slot": 700801, "ring": "4d0be03c0be2a2ba"}
_RECEIPT = {"example": {"outcome": "confirmed", **_PLACE}}
_MINIMAL = (
    204,
    {
        "description": "The same, if `Prefer: return=minimal`.",
        "headers": {"Preference-Applied": {"required": True, "schema": {"const": "return=minimal"}}},
    },
)


def _use(*names: str) -> list[Json]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


_PUBLISH: Json = {
    "operationId": "publish",
    "tags": ["Publish"],
    "summary": "Publish one message",
    "description": "The body, as it is, is the payload. It is published persistent and mandatory, to the queue that "
    "the ring of the exchange's bindings chooses for the routing key; a 2xx is the broker's confirm.\n\n"
    "`Amqp-Header-<name>: <value>` becomes a message header of that name, as spelled; not `CC` and `BCC`. An exchange "
    "that hashes a header or a property takes it from there. `Content-Type` becomes the message's content type.\n\n"
    "A header that starts with `Amqp-` and is none of these is a 400, so that no misspelt one is lost.",
    "parameters": [*_use("exchange", "vhost", "key", "prefer"), *_MESSAGE],
    "requestBody": {
        "description": "The payload: any bytes, up to `max_body`.",
        "content": {"application/json": {"schema": {}, "example": {"total": 9.5}}, "*/*": _ANYTHING},
    },
    "responses": _answers(
        (200, _json("The broker confirmed the message.", "Receipt", **_RECEIPT)), _MINIMAL, problems=_OF_A_PUBLISH
    ),
}

_BATCH: Json = {
    "operationId": "publishBatch",
    "tags": ["Publish"],
    "summary": "Publish many messages",
    "description": "A 200 says that the broker confirmed every message. Otherwise the problem has one result per "
    "message, in the order they came. Messages of one key keep their order: after a key's first failure, those "
    "of it that were not sent yet are `rejected`. The body is read and published as it comes, so it is not held whole; "
    "`max_batch` messages and `max_batch_body` bytes, decompressed, may be in it.\n\n"
    "`Routing-Key` and headers that start with `Amqp-` are a 400: each message has its own.",
    "parameters": _use("exchange", "vhost", "preferResults", "contentEncoding"),
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": ref("Batch"), "example": {"messages": _ITEMS}},
            "application/x-ndjson": _NDJSON | {"example": _LINES},
            "application/ndjson": _NDJSON,
            "application/jsonl": _NDJSON,
        },
    },
    "responses": _answers(
        (
            200,
            _json(
                "The broker confirmed every message.",
                "BatchReceipt",
                example={"outcome": "confirmed", "messages": 3, "confirmed": 3, "passed": 0},
            ),
        ),
        _MINIMAL,
        problems=(*_OF_A_PUBLISH, "media-type", "batch-failed"),
        of_a_batch=True,
    ),
}

_EVENTS: Json = {
    "operationId": "publishEvents",
    "tags": ["Publish"],
    "summary": "Publish CloudEvents",
    "description": "CloudEvents 1.0 by HTTP, in structured, batched and binary content mode; in the last, the context "
    "attributes are headers `ce-<name>` and the body, of any type, is the data.\n\n"
    "The routing key is the extension attribute `partitionkey`, else `?key=`. Context attributes become message "
    "headers `cloudEvents_<name>`, by the AMQP binding; `datacontenttype` becomes the content type, `id` the message "
    "id too. A batch of events is answered as a batch of messages is.\n\n"
    "`Routing-Key` and headers that start with `Amqp-` are a 400. `traceparent` and `tracestate` become message "
    "headers of a single event, unless it is a structured one that has an attribute of that name.",
    "parameters": [
        *_use("exchange", "vhost", "key", "preferResults"),
        *(_parameter("header", f"ce-{name}", text("In binary mode.")) for name in ("specversion", "id", "source")),
        _parameter("header", "ce-type", text("In binary mode; and so on for every attribute.")),
    ],
    "requestBody": {
        "content": {
            "application/cloudevents+json": {"schema": ref("CloudEvent"), "example": _EVENT},
            "application/cloudevents-batch+json": {
                "schema": {"type": "array", "items": ref("CloudEvent")},
                "example": [_EVENT, _EVENT | {"id": "1f6c"}],
            },
            "*/*": _ANYTHING,
        },
    },
    "responses": _answers(
        (200, _json("The broker confirmed every event.", "Receipt", "BatchReceipt", **_RECEIPT)),
        _MINIMAL,
        problems=(*_OF_A_PUBLISH, "media-type", "batch-failed"),
        of_a_batch=True,
    ),
}

_MANAGEMENT_ERRORS = {
    400: "The request is malformed, there is no such exchange, it is internal, the user may not publish there, or the "
    "broker refused the message: then it may be tried again if `retryable` says so.",
    401: "The broker does not let the user in, or not into the virtual host.",
    403: "This sidecar takes no publishes of broker users (`management_publish`), or a page of another origin asks.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    421: "`Host` is no name of this listener (`host_names`).",
    429: "Too much is in flight already, or too many wrong credentials came from this address.",
    503: "Never sent: no broker, no ring known to be good, or this sidecar is shutting down.",
    504: "No confirm came in time: it may be in the queue or not.",
}


def _management_errors() -> Json:
    """In the management API's form, but for what is found before its path is known to be meant."""
    errors = _answers(problems=_EVERYWHERE)
    for status, when in _MANAGEMENT_ERRORS.items():
        answer = errors.setdefault(str(status), {"content": {}})
        answer["description"] = when
        answer["content"]["application/json"] = {"schema": ref("ManagementError")}
        if status in _HEADERS_OF_STATUS:
            answer["headers"] = _HEADERS_OF_STATUS[status]
    return dict(sorted(errors.items()))


_COMPATIBLE: Json = {
    "operationId": "publishAsManagement",
    "tags": ["Publish"],
    "summary": "Publish as by RabbitMQ's management API",
    "description": "For programs written for `POST /api/exchanges/{vhost}/{name}/publish` of the management API, which "
    "need change nothing but the port. The message goes where the ring says.\n\n"
    'The one operation where a 200 may be no confirm: `{"routed": false}` says that no queue took the message.',
    "security": [{"basic": []}],
    "parameters": _use("pathVhost", "exchange"),
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": ref("ManagementPublish"),
                "example": {
                    "properties": {},
                    "routing_key": "customer-17",
                    "payload": "hello",
                    "payload_encoding": "string",
                },
            }
        },
    },
    "responses": {
        "200": {
            "description": "Whether a queue took it.",
            "content": {
                "application/json": {
                    "schema": {"type": "object", "required": ["routed"], "properties": {"routed": {"type": "boolean"}}}
                }
            },
        },
        **_management_errors(),
    },
}

_ROUTE: Json = {
    "operationId": "route",
    "tags": ["Look up"],
    "summary": "Where a key goes",
    "description": "Publishes nothing. For an exchange that hashes a header or a property, `key` is that value.",
    "parameters": _use("exchange", "hashedKey", "vhost"),
    "responses": _answers((200, _json("Where it goes.", "Route")), problems=(*_OF_AN_EXCHANGE, "too-many", "draining")),
}


def _document(operation: str, summary: str, media_type: str, kind: str) -> Json:
    answer = {"description": summary + ".", "content": {media_type: {"schema": {"type": kind}}}}
    return {
        "operationId": operation,
        "tags": ["Look up"],
        "summary": summary,
        "security": [],
        "responses": _answers((200, answer), (304, {"description": "Not modified."}), problems=_EVERYWHERE),
    }


DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "ringproxy: publish to RabbitMQ by HTTP",
        "version": __version__,
        "description": "Publishes go straight to the queue that a consistent-hash ring of the exchange's bindings "
        "chooses, and are answered with a 2xx only once the broker has confirmed them.\n\n"
        "Every other answer is an RFC 9457 problem that says what became of the message (`outcome`) and whether "
        "sending it again may help (`retryable`). Under `/v1`, a query parameter that is not listed is a 400.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "servers": [{"url": "/"}],
    "tags": [
        {"name": "Publish", "description": "Send messages."},
        {"name": "Look up", "description": "Ask, and change nothing."},
    ],
    "security": [{}, {"bearer": []}, {"certificate": []}],
    "paths": {
        "/v1/exchanges/{exchange}/publish": {"post": _PUBLISH},
        "/v1/exchanges/{exchange}/publish/batch": {"post": _BATCH},
        "/v1/exchanges/{exchange}/events": {"post": _EVENTS},
        "/api/exchanges/{vhost}/{exchange}/publish": {"post": _COMPATIBLE},
        "/v1/exchanges/{exchange}/route": {"get": _ROUTE},
        "/openapi.json": {
            "get": _document("openapi", "This interface as an OpenAPI document", "application/json", "object")
        },
        "/docs": {"get": _document("docs", "This interface as a page to read", "text/html", "string")},
    },
    "components": {
        "parameters": _PARAMETERS,
        "schemas": SCHEMAS,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A token of `tokens_file`."},
            "certificate": {"type": "mutualTLS", "description": "A client certificate of `client_ca_file`."},
            "basic": {"type": "http", "scheme": "basic", "description": "A user of the broker."},
        },
    },
}
"""The document; JSON as it stands."""
