"""The consumers of queues, as the management API lists them: up to some seconds late. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from proxy.topology.marker import is_drainer, is_link

FIELDS: Final = ("queue.name", "consumer_tag", "arguments", "active", "prefetch_count")
"""The fields of a consumer that `parse` reads."""


class Consumer(NamedTuple):
    """One consumer of a queue."""

    queue: str
    tag: str
    is_link: bool
    """Whether it is a link of a member of a group."""
    is_active: bool
    """Whether the queue delivers to it; of those in the line of a single active consumer, one."""
    prefetch: int = 0
    """The most unacknowledged messages of it; 0 for no limit."""

    @property
    def is_program(self) -> bool:
        """Whether it is a program that consumes the queue by its own name: neither a member, nor a drainer."""
        return not self.is_link and not is_drainer(self.tag)


def parse(answer: object) -> Iterator[Consumer]:
    """Yield the consumers of an answer to `GET /api/consumers/{vhost}`; what is none is left out."""
    listed: Iterable[Any] = answer if isinstance(answer, list) else ()
    for each in listed:
        if not isinstance(each, dict) or not isinstance(queue := each.get("queue"), dict):
            continue
        tag, prefetch = str(each.get("consumer_tag")), each.get("prefetch_count")
        yield Consumer(
            str(queue.get("name")),
            tag,
            is_link(tag, each.get("arguments")),
            is_active=each.get("active") is True,
            prefetch=prefetch if type(prefetch) is int else 0,
        )
