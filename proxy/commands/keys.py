"""`ring-proxy group EXCHANGE keys`: asks a running sidecar which keys wait for one message, and for how long."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.commands.group import View, number, seconds


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for people of an answer. Raises KeyError, TypeError or ValueError for one that is none."""
    keys = answer["keys"]
    count = f"{number(keys, 'key')} wait" + ("s" if len(keys) == 1 else "")
    if len(keys) >= answer["at_most"]:
        count = f"the {len(keys)} keys that wait for the longest"
    series = "" if answer["in_series"] else " (not in series)"
    yield f"keys         {answer['exchange']} in virtual host {answer['vhost']}{series}, {count} at this sidecar"
    for key in keys:
        due = f" in {seconds(key['due_seconds'])}" if key["due_seconds"] is not None else ""
        behind = f"{key['waiting']} message{'' if key['waiting'] == 1 else 's'} behind it"
        crashes = key["crashes"]
        crashed = f"{crashes} crash{'' if crashes == 1 else 'es'}, " if crashes else ""
        stands = ", and its shard stands" if key["shard_stands"] else ""
        yield (
            f"key          {key['key'] or '(not known)'}, shard {key['shard']}, for {seconds(key['since_seconds'])}:"
            f" {key['state']}{due}, returned {_times(key['tries'])}, {crashed}{behind}{stands}"
        )
        message = f"message {key['message_id']}, " if key["message_id"] else ""
        yield f"             {message}{key['bytes']} bytes, fingerprint {key['fingerprint']}, with {key['client']}"
    hosts: dict[str, list[str]] = {}
    for each in answer["elsewhere"]:
        hosts.setdefault(each["host"] or "no sidecar that is known", []).append(each["shard"])
    for host, shards in hosts.items():
        yield f"elsewhere    {', '.join(shards)}: {host}"


KEYS_VIEW: Final = View("/keys", lines)
"""The group's keys that wait for one message."""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
