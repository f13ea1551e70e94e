"""RabbitMQ from another Debian release: a folder made by debootstrap, kept between runs."""

from testbed import SetupError
from testbed.installation import Installation


def installation(suite: str) -> Installation:
    """Return the RabbitMQ of a Debian suite, building its folder the first time."""
    raise SetupError(f"BROKER={suite}: not built yet")
