"""What holds for all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

from ring.compiled import kind

# A slow machine is no failure.
settings.register_profile("ringproxy", deadline=None)
settings.load_profile("ringproxy")


def pytest_configure(config: pytest.Config) -> None:
    """Ends the run where not those modules would be tested that it is for: `make test` is for the compiled ones."""
    places: list[Path] = config.getini("pythonpath")
    wanted = "compiled" if any(place.name == "compiled" for place in places) else "python"
    if kind() != wanted:
        raise pytest.UsageError(f"pythonpath is {', '.join(map(str, places))}, and yet the modules run as {kind()}")
