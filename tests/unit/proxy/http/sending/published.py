"""A message as its consumer would get it, read by another library."""

from typing import Any

from pamqp.header import ContentHeader

from proxy.http.formats.message import Message


def properties_of(message: Message) -> dict[str, Any]:
    """The properties by name, without those that are not set."""
    read = ContentHeader()
    read.unmarshal(message.header.payload(0))
    # The library always has the one and calls the other so.
    found = {name.replace("message_type", "type"): value for name, value in read.properties if name != "cluster_id"}
    return {name: value for name, value in found.items() if value is not None and value != {}}
