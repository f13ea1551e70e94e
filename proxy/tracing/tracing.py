"""The tracing of a sidecar, made from its settings: the tracer of the hot paths, and the export of its spans."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.tracing.environment import Environment, is_disabled
from proxy.tracing.tracer import Tracer

if TYPE_CHECKING:
    from proxy.tracing.export import Export


class Tracing:
    """The tracer of this process and the export of its spans; neither where nothing is to be traced."""

    def __init__(self, settings: Settings) -> None:
        """Make the tracer that the settings ask for. Raises ConfigError, which names the setting or the variable."""
        self.tracer: Tracer | None = None
        self.export: Export | None = None
        if settings.trace_sample is not None and not is_disabled():
            self.export = _export(Environment.read())
            self.tracer = Tracer(settings.trace_sample, self.export.ended)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Export spans for as long as the context lasts; do nothing where nothing is traced."""
        if self.export is None:
            yield
            return
        async with self.export.running():
            yield


def check(settings: Settings) -> None:
    """Check that what the settings ask for can be had, and send nothing. Raises ConfigError as `Tracing` does."""
    if settings.trace_sample is not None and not is_disabled():
        _export(Environment.read()).close()


def _export(environment: Environment) -> "Export":
    """Return the export by the SDK. Raises ConfigError where the SDK is not installed, or refuses its variables.

    It is imported only where it is needed: the SDK takes 7 MiB of memory, and is an optional dependency.
    """
    try:
        from proxy.tracing.export import Export

        return Export(environment)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"trace_sample: {error.name} is not installed; run: pip install 'rabbitmq-ringproxy[otel]'"
        ) from None
    except Exception as error:  # no list of what the SDK raises is complete, down to StopIteration
        raise ConfigError(f"trace_sample: OpenTelemetry's SDK cannot be set up: {str(error) or repr(error)}") from error
