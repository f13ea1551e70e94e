"""The most that one request over HTTP may bring: bytes of a message and of a batch, and messages of a batch."""

from typing import NamedTuple, Self

from proxy.settings.config import Settings


class Sizes(NamedTuple):
    """The limits of one request. A reload puts others in their place, for the requests that begin from then on."""

    max_body: int
    """The most bytes of one message."""
    max_batch: int
    """The most messages of one batch."""
    max_batch_body: int
    """The most bytes of one batch, decompressed."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that settings give."""
        return cls(settings.max_body, settings.max_batch, settings.max_batch_body)
