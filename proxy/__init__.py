"""The sidecar: reads an exchange's bindings, routes each publish over their ring, publishes with confirms."""

from importlib.metadata import version

__version__ = version("rabbitmq-ringproxy")
