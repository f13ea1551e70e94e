"""The sidecar: reads an exchange's bindings, routes each publish over their ring, publishes with confirms."""

from importlib.metadata import version

import ring  # noqa: F401 - imported first: chooses compiled modules or their source

__version__ = version("rabbitmq-ringproxy")
