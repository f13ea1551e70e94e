"""The limit of how often a message that the broker returned is published again, over AMQP and over HTTP."""

from typing import Final

MOST_REPUBLISHES: Final = 10
"""How often a message that came back is published again before it counts as unroutable."""
