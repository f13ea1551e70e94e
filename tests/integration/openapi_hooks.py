"""The hooks by which schemathesis learns about this interface; it loads this by its setting."""

import json
from typing import Any

import schemathesis

LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")


@schemathesis.serializer(*LINES)
def as_lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return a line for each item of what should be an array."""
    items = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


@schemathesis.hook
def filter_body(_: schemathesis.HookContext, body: Any) -> bool:
    """Leave out empty batches: they ask nothing of the exchange, so a wrong name beside one is not seen."""
    return body not in ([], {"messages": []})
