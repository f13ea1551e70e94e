"""The sidecar: reads an exchange's bindings, routes each publish over their ring, publishes with confirms."""

from importlib.metadata import version

import ring  # noqa: F401 - says which of the hot modules there are to be

__version__ = version("rabbitmq-ringproxy")
