"""The most that one request over HTTP may bring: bytes of a message and of a batch, and messages of a batch."""

from proxy.settings.config import Settings


class Sizes:
    """The limits of one request, which a reload changes for the requests from then on."""

    def __init__(self, settings: Settings) -> None:
        """Take the limits from the settings."""
        self.take(settings)

    def take(self, settings: Settings) -> None:
        """Take the limits anew."""
        self.max_body = settings.max_body
        """The most bytes of one message."""
        self.max_batch = settings.max_batch
        """The most messages of one batch."""
        self.max_batch_body = settings.max_batch_body
        """The most bytes of one batch, decompressed."""
